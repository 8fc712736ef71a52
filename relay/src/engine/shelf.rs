//! Buffers for copying, kept for the next connection that needs one.

use std::sync::{Mutex, PoisonError};

use crate::plan::Size;

/// Bytes in idle buffers that are kept. More may be in use; the ones over it are freed.
const KEPT: usize = 4 << 20;

/// A stack of idle buffers.
#[derive(Debug)]
pub(super) struct Shelf {
    size: usize,
    idle: Mutex<Vec<Box<[u8]>>>,
}

impl Shelf {
    /// An empty one, for buffers of `size`.
    pub(super) fn new(size: Size) -> Self {
        Self {
            size: size.bytes(),
            idle: Mutex::default(),
        }
    }

    /// A buffer, with whatever it held last.
    pub(super) fn take(&self) -> Box<[u8]> {
        let kept = self.lock().pop();
        kept.unwrap_or_else(|| vec![0; self.size].into_boxed_slice())
    }

    /// Gives a buffer back.
    pub(super) fn put(&self, buffer: Box<[u8]>) {
        let mut idle = self.lock();
        if idle.len() < (KEPT / self.size).max(1) {
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
        for (size, kept) in [(64 << 10, 64), (1 << 20, 4), (16 << 20, 1)] {
            let shelf = Shelf::new(Size::new(size).unwrap());
            let many: Vec<_> = (0..=kept).map(|_| shelf.take()).collect();
            many.into_iter().for_each(|buffer| shelf.put(buffer));
            assert_eq!(shelf.lock().len(), kept);
            assert_eq!(shelf.take().len(), size);
            assert_eq!(shelf.lock().len(), kept - 1);
        }
    }
}
