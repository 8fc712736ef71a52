//! Buffers for copying, kept for the next connection that needs one.

use std::sync::{Mutex, PoisonError};

/// The size of a buffer.
pub(super) const SIZE: usize = 256 << 10;

/// Idle buffers kept: 4 MiB in all. More may be in use; the ones over it are freed.
const KEPT: usize = 16;

/// A stack of idle buffers.
#[derive(Debug, Default)]
pub(super) struct Shelf {
    idle: Mutex<Vec<Box<[u8]>>>,
}

impl Shelf {
    /// A buffer of [`SIZE`] bytes, with whatever it held last.
    pub(super) fn take(&self) -> Box<[u8]> {
        let kept = self.lock().pop();
        kept.unwrap_or_else(|| vec![0; SIZE].into_boxed_slice())
    }

    /// Gives a buffer back.
    pub(super) fn put(&self, buffer: Box<[u8]>) {
        let mut idle = self.lock();
        if idle.len() < KEPT {
            idle.push(buffer);
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Box<[u8]>>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_buffers_are_used_again_and_bounded() {
        let shelf = Shelf::default();
        let many: Vec<_> = (0..=KEPT).map(|_| shelf.take()).collect();
        many.into_iter().for_each(|buffer| shelf.put(buffer));
        assert_eq!(shelf.lock().len(), KEPT);
        assert_eq!(shelf.take().len(), SIZE);
        assert_eq!(shelf.lock().len(), KEPT - 1);
    }
}
