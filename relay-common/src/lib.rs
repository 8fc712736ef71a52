//! What the verdict program and the controller agree on: names, the flow record, and its layout.
#![no_std]

pub mod flow;
pub mod names;
#[cfg(feature = "user")]
mod pod;

use core::mem::{offset_of, size_of};

use flow::{Flow, Judged, Steered};

// Both sides map the same bytes: a change of layout must not build.
const _: () = {
    assert!(
        size_of::<Judged>() == 64,
        "the program's half fills one cache line"
    );
    assert!(
        size_of::<Steered>() == 64,
        "the controller's half fills one cache line"
    );
    assert!(size_of::<Flow>() == 128, "a record is two cache lines");
    assert!(
        offset_of!(Flow, steered) == 64,
        "the halves share no cache line"
    );
};
