//! The names under which the controller finds maps, program and globals in the object.

/// The program that judges every segment.
pub const VERDICT: &str = "verdict";
/// The sockets, one slot each; the two of a connection have slots `2n` and `2n + 1`.
pub const SOCKS: &str = "SOCKS";
/// From socket cookie to slot.
pub const SLOTS: &str = "SLOTS";
/// The flow records, by slot of the source.
pub const FLOWS: &str = "FLOWS";
/// Slots of flows that need userspace.
pub const EVENTS: &str = "EVENTS";
/// Global: where `write_seq` is in the kernel's `struct tcp_sock`, bytes.
pub const WRITE_SEQ: &str = "WRITE_SEQ";
/// Global: where `copied_seq` is in the kernel's `struct tcp_sock`, bytes.
pub const COPIED_SEQ: &str = "COPIED_SEQ";
/// Global: where `sk_wmem_queued` is in the kernel's `struct sock`, bytes.
pub const WMEM_QUEUED: &str = "WMEM_QUEUED";
/// Global: where `sk_sndbuf` is in the kernel's `struct sock`, bytes.
pub const SNDBUF: &str = "SNDBUF";
