//! A listening socket and the file that names it, for whoever accepts on it and whoever may hand it on.

use std::{
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::Arc,
};

use super::Unlink;

/// A listening socket. Clones are the same one; it is closed, and its file removed, with the last of them.
#[derive(Clone, Debug)]
pub struct Held(Arc<Parts>);

#[derive(Debug)]
struct Parts {
    // Before the socket: a path that still names it must not outlive it.
    unlink: Option<Unlink>,
    fd: Arc<OwnedFd>,
}

impl Held {
    pub(super) fn new(fd: OwnedFd, unlink: Option<Unlink>) -> Self {
        let fd = Arc::new(fd);
        Self(Arc::new(Parts { unlink, fd }))
    }

    /// Whether both are the same socket.
    #[must_use]
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    pub(super) fn socket(&self) -> Arc<OwnedFd> {
        self.0.fd.clone()
    }

    /// What removes its file, if there is one.
    #[must_use]
    pub fn unlink(&self) -> Option<&Unlink> {
        self.0.unlink.as_ref()
    }
}

impl AsFd for Held {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.fd.as_fd()
    }
}
