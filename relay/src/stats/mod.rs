//! What is known about connections: one record each, written exactly once, and the totals of downgrades.

pub mod declines;
pub mod meter;
pub mod record;
pub mod sink;
