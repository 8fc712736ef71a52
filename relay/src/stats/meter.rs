//! The bytes a connection has moved, readable while it lives and right on every way it can end.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::pair::Direction;

/// Two counters that live outside the future that moves the bytes.
#[derive(Debug, Default)]
pub struct Meter {
    moved: [AtomicU64; 2],
}

impl Meter {
    /// Adds bytes that the kernel has taken for the far side.
    pub fn add(&self, direction: Direction, bytes: u64) {
        self.moved[direction.index()].fetch_add(bytes, Ordering::Relaxed);
    }

    /// Sets the count, where it is kept elsewhere (the flow records of the sockmap).
    pub fn set(&self, direction: Direction, bytes: u64) {
        self.moved[direction.index()].store(bytes, Ordering::Relaxed);
    }

    /// Bytes delivered to the far side's socket so far.
    #[must_use]
    pub fn moved(&self, direction: Direction) -> u64 {
        self.moved[direction.index()].load(Ordering::Relaxed)
    }
}
