//! The file of a Unix listener, removed with it unless somebody else has put another in its place.

use std::{
    fs, io,
    os::unix::fs::MetadataExt,
    path::PathBuf,
    sync::atomic::{AtomicBool, Ordering},
};

/// Removes the file when dropped.
#[derive(Debug)]
pub(super) struct Unlink {
    path: PathBuf,
    inode: (u64, u64),
    /// It is another process's to remove.
    left: AtomicBool,
}

impl Unlink {
    /// Takes charge of the file that was just bound.
    pub(super) fn new(path: PathBuf) -> io::Result<Self> {
        let inode = inode(&path)?;
        let left = AtomicBool::new(false);
        Ok(Self { path, inode, left })
    }

    /// Of a file that another process has bound, with this device and inode: the other's until it is claimed.
    pub(super) fn of(path: PathBuf, inode: (u64, u64)) -> Self {
        let left = AtomicBool::new(true);
        Self { path, inode, left }
    }

    /// Its device and inode.
    pub(super) fn inode(&self) -> (u64, u64) {
        self.inode
    }

    /// Leaves the file to another process, or takes charge of it.
    pub(super) fn leave(&self, left: bool) {
        self.left.store(left, Ordering::Relaxed);
    }
}

impl Drop for Unlink {
    fn drop(&mut self) {
        let left = self.left.load(Ordering::Relaxed);
        if !left && inode(&self.path).is_ok_and(|inode| inode == self.inode) {
            // A directory that became read-only keeps it; the next start finds it stale.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// What tells a file from another that took its name.
pub(super) fn inode(path: &std::path::Path) -> io::Result<(u64, u64)> {
    let found = fs::symlink_metadata(path)?;
    Ok((found.dev(), found.ino()))
}
