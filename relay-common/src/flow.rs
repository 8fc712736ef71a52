//! The flow record: what program and controller tell each other about the bytes from one socket to its peer.

/// One direction of a connection, named by the slot of the socket that its bytes come from.
///
/// The program writes `judged` only, under the source's socket lock; the controller writes `steered` only.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug, Default)]
pub struct Flow {
    /// What the program decided.
    pub judged: Judged,
    /// What the controller wants.
    pub steered: Steered,
}

/// The program's half of a flow record.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug, Default)]
pub struct Judged {
    /// Bytes redirected to the peer.
    pub redirected: u64,
    /// Bytes left to the controller on the source's own ingress queue.
    pub passed: u64,
    /// The TCP sequence number that the next segment is to start at, once [`BEGUN`].
    pub next_seq: u32,
    /// The target's `write_seq` when none of the flow's bytes were written, once [`BASED`].
    pub base: u32,
    /// Cost that may be redirected before the target is looked at again; see [`cost`].
    pub credit: u32,
    /// Cost of what was redirected and not yet seen to be written by the target.
    pub owed: u32,
    /// When the target has written this far (bytes given, modulo 2^32), `owed_at_mark` is owed no more.
    pub mark: u32,
    /// What was owed when `mark` was set.
    pub owed_at_mark: u32,
    /// How often the controller was asked for relief.
    pub asked: u32,
    /// Bytes cut off the heads of segments because they had been judged before.
    pub trimmed: u32,
    /// What should not have happened: a set of `FAULT_*`.
    pub faults: u32,
    /// A set of [`BEGUN`] and [`BASED`].
    pub flags: u32,
    /// Fills the cache line.
    pub spare: [u32; 2],
}

/// The controller's half of a flow record.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug, Default)]
pub struct Steered {
    /// Bytes of `passed` that the controller has written to the target.
    pub relayed: u64,
    /// Whether the program may redirect: [`CLOSED`], [`OPEN`] or [`HELD`].
    pub gate: u32,
    /// The `asked` up to which the controller has attended to the flow.
    pub answered: u32,
    /// Fills the cache line.
    pub spare: [u64; 6],
}

/// Gate: everything is passed and nobody is asked; the connection is being made, or is not the program's.
pub const CLOSED: u32 = 0;
/// Gate: the program redirects what it can and asks for relief of the rest.
pub const OPEN: u32 = 1;
/// Gate: everything is passed to the controller, which is at it already.
pub const HELD: u32 = 2;

/// Flag: `next_seq` is known.
pub const BEGUN: u32 = 1;
/// Flag: `base` is known.
pub const BASED: u32 = 2;

/// Fault: the peer was not in its slot.
pub const FAULT_NO_PEER: u32 = 1;
/// Fault: bytes judged before could not be cut off a segment; the stream is damaged and must be reset.
pub const FAULT_NOT_TRIMMED: u32 = 2;
/// Fault: the kernel refused a redirect after the peer had been seen; bytes are lost and the stream must be reset.
pub const FAULT_NOT_REDIRECTED: u32 = 4;
/// Fault: the ring had no place for a question.
pub const FAULT_RING_FULL: u32 = 8;
/// Fault: the segment's control block does not hold TCP sequence numbers.
pub const FAULT_NO_SEQUENCE: u32 = 16;
/// Fault: the source could not be asked how far it had been read; what it had read may have been delivered again.
pub const FAULT_NO_BEGINNING: u32 = 32;

/// Most cost that may be on its way between a source and its target's send buffer, bytes.
///
/// Well under a grown send buffer (4 MiB by default), as the backlog worker retries only after a jiffy.
pub const BACKLOG_BUDGET: u32 = 256 * 1024;

/// Most cost that may be redirected without a look at the target, bytes: small messages are not to pay for a look each.
pub const CREDIT: u32 = 32 * 1024;

/// What a packet of its own costs in the target's send queue beside its bytes: sk_buff, shared info and header room.
pub const PACKET: u32 = 1280;

/// What a segment of `length` bytes costs in the target's send buffer at most, bytes.
///
/// The sixteenth is for a large segment of many fragments, which becomes several packets.
#[must_use]
#[inline(always)]
pub const fn cost(length: u32) -> u32 {
    length + (length >> 4) + PACKET
}

/// The slot of the socket that bytes from `slot` go to.
#[must_use]
#[inline(always)]
pub const fn peer(slot: u32) -> u32 {
    slot ^ 1
}
