//! Says that the shared types are plain data, for aya's maps.
#![expect(unsafe_code, reason = "aya::Pod is a promise about layout")]

use crate::flow::Flow;

// SAFETY: `Flow` is `repr(C)`, made of integers only, has no padding (checked in lib.rs by its sizes) and any bytes are
// a valid value.
unsafe impl aya::Pod for Flow {}
