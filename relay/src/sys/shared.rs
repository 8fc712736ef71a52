//! Memory shared with the kernel: a BPF array mapped into the process.
#![expect(
    unsafe_code,
    reason = "mmap, and atomics at addresses that the kernel also writes"
)]

use std::{
    io,
    os::fd::AsFd,
    ptr::{self, NonNull},
    sync::atomic::{AtomicU32, AtomicU64},
};

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// A shared, writable mapping of a whole map. Minimum kernel version: 5.5 (`BPF_F_MMAPABLE`).
#[derive(Debug)]
pub(crate) struct Shared {
    start: NonNull<u8>,
    length: usize,
}

// SAFETY: the mapping belongs to the process, not to a thread, and is reached through atomics only.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Shared {
    /// Maps `length` bytes of `map`.
    ///
    /// # Errors
    ///
    /// `EPERM` or `EINVAL` when the map cannot be mapped or is smaller, `ENOMEM` without address space.
    pub(crate) fn map(map: impl AsFd, length: usize) -> io::Result<Self> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses an address that is free; nothing else in the process knows it.
        let start = unsafe { mmap(ptr::null_mut(), length, access, MapFlags::SHARED, map, 0) }?;
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { start, length })
    }

    /// The `u64` at `offset` bytes.
    pub(crate) fn u64_at(&self, offset: usize) -> &AtomicU64 {
        assert!(
            offset.is_multiple_of(8) && offset + 8 <= self.length,
            "no u64 at {offset}"
        );
        // SAFETY: aligned (the mapping begins on a page) and inside the mapping, which lives as long as `self`; program
        // and process access it whole.
        unsafe { AtomicU64::from_ptr(self.start.add(offset).as_ptr().cast()) }
    }

    /// The `u32` at `offset` bytes.
    pub(crate) fn u32_at(&self, offset: usize) -> &AtomicU32 {
        assert!(
            offset.is_multiple_of(4) && offset + 4 <= self.length,
            "no u32 at {offset}"
        );
        // SAFETY: as in `u64_at`.
        unsafe { AtomicU32::from_ptr(self.start.add(offset).as_ptr().cast()) }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: start and length are those of the mapping; every reference into it borrows `self` and is gone.
        let unmapped = unsafe { munmap(self.start.as_ptr().cast(), self.length) };
        debug_assert!(unmapped.is_ok(), "{unmapped:?}");
    }
}
