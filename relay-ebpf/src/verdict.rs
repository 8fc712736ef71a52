//! The decision for one segment: redirect it to the peer's send queue, leave it to the controller, or drop it.

use core::ptr;

use aya_ebpf::{
    EbpfContext,
    bindings::sk_action::{SK_DROP, SK_PASS},
    helpers::{bpf_get_socket_cookie, bpf_skb_adjust_room},
    programs::SkBuffContext,
};
use aya_log_ebpf::error;
use relay_common::flow::{
    BEGUN, CREDIT, FAULT_NO_BEGINNING, FAULT_NO_SEQUENCE, FAULT_NOT_REDIRECTED, FAULT_NOT_TRIMMED,
    FAULT_RING_FULL, Flow, OPEN, cost, peer,
};

use crate::{
    backlog,
    maps::{EVENTS, FLOWS, SLOTS, SOCKS},
};

/// Judges the segment of `context`. Verdicts of one socket are serialized by its lock.
#[inline(always)]
pub fn judge(context: &SkBuffContext) -> u32 {
    // A bare FIN. Redirected, it would end the target's backlog for good; TCP has noted it already.
    if context.len() == 0 {
        return SK_DROP;
    }
    // A socket that could not leave the map when its peer could not enter: it is read by another engine.
    let Some((flow, slot)) = record(context) else {
        return SK_PASS;
    };
    let length = fresh(context, flow, slot);
    if length == 0 {
        return SK_DROP;
    }
    if may_redirect(flow, slot, length) {
        return redirect(context, flow, slot, length);
    }
    pass(context, flow, slot, length)
}

#[inline(always)]
fn record(context: &SkBuffContext) -> Option<(*mut Flow, u32)> {
    // SAFETY: the context is the one the kernel gave; the slot is copied out of the map at once.
    let slot = unsafe {
        let cookie = bpf_get_socket_cookie(context.as_ptr());
        *SLOTS.get(cookie)?
    };
    Some((FLOWS.get_ptr_mut(slot)?, slot))
}

/// TCP queues a segment whose head it has already received as it came, and leaves the overlap to its reader, which is
/// this program: without the cut, bytes would be delivered twice. Gives the length that is new.
///
/// What comes first may likewise begin with bytes that were read before the socket entered the map: a segment read in
/// part, or one that repeats them.
#[inline(always)]
fn fresh(context: &SkBuffContext, flow: *mut Flow, slot: u32) -> u32 {
    let length = context.len();
    // SAFETY: `flow` is an element of FLOWS; only this program writes its judged half, under the source's lock.
    let judged = unsafe { &mut (*flow).judged };
    // The first words of the control block are TCP's seq and end_seq (include/net/tcp.h); a FIN counts as one.
    // SAFETY: the context is the kernel's and `cb` is readable in sk_skb programs.
    let (seq, end_seq) = unsafe { ((*context.skb.skb).cb[0], (*context.skb.skb).cb[1]) };
    if end_seq.wrapping_sub(seq).wrapping_sub(length) > 1 {
        judged.faults |= FAULT_NO_SEQUENCE;
        return length;
    }
    if judged.flags & BEGUN == 0 {
        judged.flags |= BEGUN;
        judged.next_seq = match backlog::unread(slot) {
            Some(unread) => unread,
            None => {
                judged.faults |= FAULT_NO_BEGINNING;
                seq
            }
        };
    }
    let overlap = judged.next_seq.wrapping_sub(seq);
    let next_seq = seq.wrapping_add(length);
    if overlap as i32 <= 0 {
        judged.next_seq = next_seq;
        return length;
    }
    if overlap >= length {
        judged.trimmed = judged.trimmed.wrapping_add(length);
        return 0;
    }
    judged.next_seq = next_seq;
    if !trim(context, overlap) {
        error!(
            context,
            "{} bytes that had been judged before could not be cut off", overlap
        );
        judged.faults |= FAULT_NOT_TRIMMED;
        return length;
    }
    judged.trimmed = judged.trimmed.wrapping_add(overlap);
    length - overlap
}

/// `bpf_skb_adjust_room` takes at most 0xfff bytes at a time; net/core/filter.c.
const CUT_AT_ONCE: u32 = 0xfff;
/// Enough for any segment: while a socket is in use, the segments that come for it become one, of as many pages as a
/// buffer has places for; net/ipv4/tcp_ipv4.c, `tcp_add_to_backlog`. With 17 places of 32 KiB each, 327,415 bytes were seen,
/// of which 261,932 were old.
const CUTS: u32 = 2048;

#[inline(always)]
fn trim(context: &SkBuffContext, bytes: u32) -> bool {
    let mut left = bytes;
    for _ in 0..CUTS {
        if left == 0 {
            return true;
        }
        let cut = if left < CUT_AT_ONCE {
            left
        } else {
            CUT_AT_ONCE
        };
        // SAFETY: the context is the kernel's; the helper checks that the bytes are there.
        if unsafe { bpf_skb_adjust_room(context.skb.skb, -(cut as i32), 0, 0) } != 0 {
            return false;
        }
        left -= cut;
    }
    left == 0
}

/// Redirecting keeps the order only while nothing passed before is still with the controller, and it is bounded by the
/// room that the target has: a redirect acknowledges the bytes and queues them without a limit.
///
/// Nothing is redirected to a socket whose own flow is in relief: what that passes would queue behind it, and while the
/// backlog worker is late it would be charged to nobody.
#[inline(always)]
fn may_redirect(flow: *mut Flow, slot: u32, length: u32) -> bool {
    // SAFETY: `flow` is an element of FLOWS; the steered half is read volatile as the controller changes it.
    unsafe {
        if ptr::read_volatile(&raw const (*flow).steered.gate) != OPEN
            || ptr::read_volatile(&raw const (*flow).steered.relayed) != (*flow).judged.passed
        {
            return false;
        }
        let Some(back) = FLOWS.get_ptr(peer(slot)) else {
            return false;
        };
        if ptr::read_volatile(&raw const (*back).steered.gate) != OPEN
            || ptr::read_volatile(&raw const (*back).steered.relayed)
                != ptr::read_volatile(&raw const (*back).judged.passed)
        {
            return false;
        }
        let cost = cost(length);
        if (*flow).judged.credit < cost {
            let room = backlog::room(flow, slot);
            (*flow).judged.credit = if room < CREDIT + cost {
                room
            } else {
                CREDIT + cost
            };
            if (*flow).judged.credit < cost {
                return false;
            }
        }
        (*flow).judged.credit -= cost;
        (*flow).judged.owed = (*flow).judged.owed.wrapping_add(cost);
        true
    }
}

#[inline(always)]
fn redirect(context: &SkBuffContext, flow: *mut Flow, slot: u32, length: u32) -> u32 {
    // SAFETY: `flow` is an element of FLOWS and the context the kernel's.
    unsafe {
        (*flow).judged.redirected += u64::from(length);
        let verdict = SOCKS.redirect_skb(context, peer(slot), 0) as u32;
        if verdict != SK_PASS {
            (*flow).judged.faults |= FAULT_NOT_REDIRECTED;
        }
        verdict
    }
}

/// Leaves the segment on the source's own queue, charged to its receive buffer, and asks the controller for relief
/// unless that is on its way.
#[inline(always)]
fn pass(context: &SkBuffContext, flow: *mut Flow, slot: u32, length: u32) -> u32 {
    // SAFETY: `flow` is an element of FLOWS; the steered half is read volatile as the controller changes it.
    unsafe {
        let judged = &mut (*flow).judged;
        // What the controller relays takes room as well, so what was promised before holds no more.
        judged.credit = 0;
        ptr::write_volatile(&raw mut judged.passed, judged.passed + u64::from(length));
        let gate = ptr::read_volatile(&raw const (*flow).steered.gate);
        let answered = ptr::read_volatile(&raw const (*flow).steered.answered);
        if gate == OPEN && judged.asked == answered {
            if EVENTS.output::<u32>(slot, 0).is_ok() {
                judged.asked = judged.asked.wrapping_add(1);
            } else {
                error!(context, "the ring had no place for slot {}", slot);
                judged.faults |= FAULT_RING_FULL;
            }
        }
    }
    SK_PASS
}
