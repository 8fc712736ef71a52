//! Registers file descriptors with tokio's reactor.
#![expect(
    unsafe_code,
    reason = "AsyncFd::register asks for a promise about the descriptor"
)]

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::Arc,
};

use tokio::io::{Interest, unix::AsyncFd};

const ALL: Interest = Interest::READABLE
    .add(Interest::WRITABLE)
    .add(Interest::PRIORITY);

/// A socket's descriptor, which is put into the poll set when it is first waited for, and stays there from stage to stage.
#[derive(Debug)]
pub(crate) enum Descriptor {
    /// In no poll set.
    Free(OwnedFd),
    /// In the poll set of a runtime.
    Watched(AsyncFd<OwnedFd>),
}

impl Descriptor {
    /// In the poll set of the current runtime, as by [`register`].
    ///
    /// # Errors
    ///
    /// As [`register`].
    pub(crate) fn watched(self) -> Result<AsyncFd<OwnedFd>, (Self, io::Error)> {
        match self {
            Self::Free(fd) => register(fd).map_err(|(fd, error)| (Self::Free(fd), error)),
            Self::Watched(fd) => Ok(fd),
        }
    }

    /// In no poll set.
    pub(crate) fn free(self) -> OwnedFd {
        match self {
            Self::Free(fd) => fd,
            Self::Watched(fd) => fd.into_inner(),
        }
    }
}

impl AsFd for Descriptor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Free(fd) => fd.as_fd(),
            Self::Watched(fd) => fd.get_ref().as_fd(),
        }
    }
}

impl From<OwnedFd> for Descriptor {
    fn from(fd: OwnedFd) -> Self {
        Self::Free(fd)
    }
}

impl From<AsyncFd<OwnedFd>> for Descriptor {
    fn from(fd: AsyncFd<OwnedFd>) -> Self {
        Self::Watched(fd)
    }
}

/// Puts `fd` into the poll set of the current runtime, for reading, writing and urgent bytes.
///
/// # Errors
///
/// Gives `fd` back with what epoll_ctl(2) said: `ENOSPC` at `fs.epoll.max_user_watches`, `EPERM` for what has no poll.
pub(crate) fn register(fd: OwnedFd) -> Result<AsyncFd<OwnedFd>, (OwnedFd, io::Error)> {
    // SAFETY: `AsyncFd` owns the `OwnedFd` from here on and hands out only shared references to it, so the descriptor
    // stays open and stays the same until `AsyncFd` has taken it out of epoll and gives it back or drops it.
    unsafe { AsyncFd::register_with_interest(fd, ALL) }.map_err(|error| error.into_parts())
}

/// Puts `fd`, which others may hold as well, into the poll set of the current runtime.
///
/// # Errors
///
/// As [`register`].
pub(crate) fn share(fd: Arc<OwnedFd>) -> io::Result<AsyncFd<Arc<OwnedFd>>> {
    // SAFETY: nobody can close what an `Arc` owns, nor put another in its place, as long as the `AsyncFd` has its share.
    unsafe { AsyncFd::register(fd) }.map_err(|error| error.into_parts().1)
}

/// Puts `fd` into the poll set of the current runtime for as long as the borrow lasts.
///
/// # Errors
///
/// As [`register`].
pub(crate) fn watch(fd: BorrowedFd<'_>) -> io::Result<AsyncFd<BorrowedFd<'_>>> {
    // SAFETY: the lifetime of `fd` keeps the descriptor open and the same for as long as the `AsyncFd` can be used.
    unsafe { AsyncFd::register(fd) }.map_err(|error| error.into_parts().1)
}
