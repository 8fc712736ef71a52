//! The file of a Unix listener, removed with it unless somebody else has put another in its place.

use std::{fs, io, os::unix::fs::MetadataExt, path::PathBuf};

/// Removes the file when dropped.
#[derive(Debug)]
pub struct Unlink {
    path: PathBuf,
    inode: (u64, u64),
}

impl Unlink {
    /// Takes charge of the file that was just bound.
    pub(super) fn new(path: PathBuf) -> io::Result<Self> {
        let inode = inode(&path)?;
        Ok(Self { path, inode })
    }
}

impl Drop for Unlink {
    fn drop(&mut self) {
        if inode(&self.path).is_ok_and(|inode| inode == self.inode) {
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
