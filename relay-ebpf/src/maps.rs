//! The maps and globals that the program shares with the controller; names and meaning are relay-common's.

use aya_ebpf::{
    bindings::{BPF_F_MMAPABLE, BPF_F_NO_PREALLOC},
    macros::map,
    maps::{Array, HashMap, RingBuf, SockMap},
};
use relay_common::flow::Flow;

// The controller sets how many there are when it loads the object; these are for loading without it.
const SLOTS_AT_LEAST: u32 = 2;
const RING_BYTES: u32 = 4096;

#[map]
pub static SOCKS: SockMap = SockMap::with_max_entries(SLOTS_AT_LEAST, 0);

#[map]
pub static SLOTS: HashMap<u64, u32> = HashMap::with_max_entries(SLOTS_AT_LEAST, BPF_F_NO_PREALLOC);

#[map]
pub static FLOWS: Array<Flow> = Array::with_max_entries(SLOTS_AT_LEAST, BPF_F_MMAPABLE);

#[map]
pub static EVENTS: RingBuf = RingBuf::with_byte_size(RING_BYTES, 0);

/// Offset of `write_seq` in the kernel's `struct tcp_sock`; set by the controller from the kernel's BTF.
#[unsafe(no_mangle)]
pub static WRITE_SEQ: u32 = 0;

/// Offset of `copied_seq` in the kernel's `struct tcp_sock`.
#[unsafe(no_mangle)]
pub static COPIED_SEQ: u32 = 0;

/// Offset of `sk_wmem_queued` in the kernel's `struct sock`.
#[unsafe(no_mangle)]
pub static WMEM_QUEUED: u32 = 0;

/// Offset of `sk_sndbuf` in the kernel's `struct sock`.
#[unsafe(no_mangle)]
pub static SNDBUF: u32 = 0;
