//! What the kernel tells of a socket in the map: how far a target has come, how much more it can take, and where the
//! reading of a source stands.

use core::ptr;

use aya_ebpf::{
    bindings::bpf_sock,
    helpers::{bpf_map_lookup_elem, bpf_probe_read_kernel, bpf_sk_release, bpf_skc_to_tcp_sock},
};
use relay_common::flow::{BACKLOG_BUDGET, BASED, FAULT_NO_PEER, Flow, peer};

use crate::maps::{COPIED_SEQ, SNDBUF, SOCKS, WMEM_QUEUED, WRITE_SEQ};

/// Cost that the target of the flow from `slot` can still take at once; 0 without a target.
///
/// What it promises is room in the target's send buffer: the backlog then never stands still, and segments that the
/// target's own flow passes do not pile up behind it, uncharged.
#[inline(always)]
pub fn room(flow: *mut Flow, slot: u32) -> u32 {
    let Some(target) = Target::look(peer(slot)) else {
        // SAFETY: `flow` is an element of FLOWS; only this program writes its judged half, under the source's lock.
        unsafe { (*flow).judged.faults |= FAULT_NO_PEER };
        return 0;
    };
    let owed = owed(flow, target.write_seq);
    let budget = BACKLOG_BUDGET.saturating_sub(owed);
    let free = target
        .sndbuf
        .saturating_sub(target.wmem_queued)
        .saturating_sub(owed);
    if free < budget { free } else { budget }
}

/// The sequence number of the first byte that nobody has read from the socket in `slot`; only before its first verdict,
/// as later ones move ahead of what the kernel notes.
#[inline(always)]
pub fn unread(slot: u32) -> Option<u32> {
    // SAFETY: `ask` gives a live socket, and COPIED_SEQ is a global of this object.
    ask(slot, |tcp| unsafe { field(tcp, &raw const COPIED_SEQ) })
}

/// The cost of what the target has not written yet, not too small by a byte and too large by one generation at most.
#[inline(always)]
fn owed(flow: *mut Flow, write_seq: u32) -> u32 {
    // SAFETY: `flow` is an element of FLOWS; `judged` is this program's, and `relayed` is an aligned u64 that the
    // controller writes whole.
    unsafe {
        let relayed = ptr::read_volatile(&raw const (*flow).steered.relayed);
        let judged = &mut (*flow).judged;
        let given = judged.redirected.wrapping_add(relayed) as u32;
        if judged.flags & BASED == 0 {
            // The first look: nothing was redirected yet and what was passed is relayed, so all given is written.
            judged.flags |= BASED;
            judged.base = write_seq.wrapping_sub(given);
        }
        let taken = write_seq.wrapping_sub(judged.base);
        if taken == given {
            judged.owed = 0;
            judged.owed_at_mark = 0;
            judged.mark = given;
        } else if taken.wrapping_sub(judged.mark) as i32 >= 0 {
            judged.owed = judged.owed.saturating_sub(judged.owed_at_mark);
            judged.owed_at_mark = judged.owed;
            judged.mark = given;
        }
        judged.owed
    }
}

/// What the program reads of a target.
struct Target {
    write_seq: u32,
    wmem_queued: u32,
    sndbuf: u32,
}

impl Target {
    /// Reads the socket in `slot`.
    #[inline(always)]
    fn look(slot: u32) -> Option<Self> {
        // SAFETY: `ask` gives a live socket, and the offsets are globals of this object.
        ask(slot, |tcp| unsafe {
            Self {
                write_seq: field(tcp, &raw const WRITE_SEQ),
                wmem_queued: field(tcp, &raw const WMEM_QUEUED),
                sndbuf: field(tcp, &raw const SNDBUF),
            }
        })
    }
}

/// What `read` makes of the `struct tcp_sock` of the socket in `slot`. Minimum kernel version: 5.9, for the look-up in a
/// sockmap and `bpf_skc_to_tcp_sock`.
#[inline(always)]
fn ask<T>(slot: u32, read: impl FnOnce(*const u8) -> T) -> Option<T> {
    // SAFETY: SOCKS is a map of this object and `slot` its key; the socket is released on every path below.
    let socket = unsafe {
        bpf_map_lookup_elem(
            (&raw const SOCKS).cast_mut().cast(),
            (&raw const slot).cast(),
        )
    };
    if socket.is_null() {
        return None;
    }
    // SAFETY: `socket` is a live, referenced socket until it is released; `read` goes through bpf_probe_read_kernel,
    // which fails rather than faults.
    unsafe {
        let tcp = bpf_skc_to_tcp_sock(socket).cast::<u8>();
        let answer = if tcp.is_null() { None } else { Some(read(tcp)) };
        bpf_sk_release(socket.cast::<bpf_sock>().cast());
        answer
    }
}

/// The `u32` at the offset that the controller has put into `offset`; 0 when it cannot be read.
///
/// # Safety
///
/// `offset` must point to one of this object's globals.
#[inline(always)]
unsafe fn field(tcp: *const u8, offset: *const u32) -> u32 {
    // SAFETY: globals are always there; volatile, since the loader changes them after compilation. The read of kernel
    // memory is checked by the helper.
    unsafe {
        let at = tcp.add(ptr::read_volatile(offset) as usize).cast::<u32>();
        bpf_probe_read_kernel(at).unwrap_or(0)
    }
}
