//! The bytes a connection has moved, readable while it lives and right on every way it can end.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::pair::Direction;

/// Counters that live outside the future that moves the bytes.
#[derive(Debug, Default)]
pub struct Meter {
    moved: [AtomicU64; 2],
    /// How much of `moved` is in the totals already.
    counted: [AtomicU64; 2],
    held: [AtomicU64; 2],
}

impl Meter {
    /// Adds bytes that the kernel has taken for the far side.
    pub fn add(&self, direction: Direction, bytes: u64) {
        self.moved[direction.index()].fetch_add(bytes, Ordering::Relaxed);
    }

    /// Raises the count to `bytes`, where it is kept elsewhere (the flow records of the sockmap). Two may read there at
    /// once, and the later news stands.
    pub fn raise(&self, direction: Direction, bytes: u64) {
        self.moved[direction.index()].fetch_max(bytes, Ordering::Relaxed);
    }

    /// Notes how many bytes were taken from one socket and not yet by the other.
    pub fn hold(&self, direction: Direction, bytes: u64) {
        self.held[direction.index()].store(bytes, Ordering::Relaxed);
    }

    /// Bytes delivered to the far side's socket so far.
    #[must_use]
    pub fn moved(&self, direction: Direction) -> u64 {
        self.moved[direction.index()].load(Ordering::Relaxed)
    }

    /// Bytes taken from one socket and not yet by the other, when last looked at.
    #[must_use]
    pub fn held(&self, direction: Direction) -> u64 {
        self.held[direction.index()].load(Ordering::Relaxed)
    }

    /// What was moved since the last call: each byte is told once, whoever else calls meanwhile.
    pub(super) fn take_news(&self, direction: Direction) -> u64 {
        let moved = self.moved(direction);
        let before = self.counted[direction.index()].fetch_max(moved, Ordering::Relaxed);
        moved.saturating_sub(before)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_byte_is_news_once() {
        let meter = Meter::default();
        meter.add(Direction::Up, 5);
        assert_eq!(meter.take_news(Direction::Up), 5);
        assert_eq!(meter.take_news(Direction::Up), 0);
        meter.raise(Direction::Up, 7);
        meter.raise(Direction::Up, 6);
        assert_eq!(meter.moved(Direction::Up), 7);
        assert_eq!(meter.take_news(Direction::Up), 2);
        assert_eq!(meter.take_news(Direction::Down), 0);
    }
}
