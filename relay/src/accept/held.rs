//! A listening socket and the file that names it, for whoever accepts on it and whoever may hand it on.

use std::{
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::Arc,
};

use super::unlink::Unlink;

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

    pub(super) fn socket(&self) -> Arc<OwnedFd> {
        self.0.fd.clone()
    }

    /// Device and inode of its file, if it is relay's to remove.
    #[must_use]
    pub fn file(&self) -> Option<(u64, u64)> {
        self.0.unlink.as_ref().map(Unlink::inode)
    }

    /// Leaves its file to the process that has the socket, too.
    pub fn leave(&self) {
        if let Some(unlink) = &self.0.unlink {
            unlink.leave(true);
        }
    }

    /// Takes charge of its file, which another process has left.
    pub fn claim(&self) {
        if let Some(unlink) = &self.0.unlink {
            unlink.leave(false);
        }
    }
}

impl AsFd for Held {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.fd.as_fd()
    }
}
