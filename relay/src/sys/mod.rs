//! System calls that the crates at hand do not wrap; besides relay-common's pod.rs the only home of `unsafe` here.

pub(crate) mod passed;
pub(crate) mod reactor;
pub(crate) mod shared;
pub(crate) mod tcp;
pub(crate) mod tune;
