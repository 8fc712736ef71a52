//! One pipe, and the count of the bytes in it.

use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::{
    io::{Errno, retry_on_intr},
    param::page_size,
    pipe::{PipeFlags, SpliceFlags, fcntl_getpipe_size, fcntl_setpipe_size, pipe_with, splice},
};

use crate::plan::Size;

/// A pipe that bytes are spliced through.
#[derive(Debug)]
pub(super) struct Pipe {
    reader: OwnedFd,
    writer: OwnedFd,
    /// What `F_GETPIPE_SZ` says: slots times the page size. Segments fill slots in part, and merged ones (GRO) fill them
    /// with more than a page, so this bounds what is asked for and says nothing of what fits.
    size: usize,
    held: usize,
}

impl Pipe {
    /// A pipe of `wanted`, or as large as the kernel lets this user have.
    ///
    /// # Errors
    ///
    /// Fails without a file descriptor or memory for it.
    pub(super) fn new(wanted: Size) -> Result<Self, Errno> {
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        let size = resize(&writer, wanted.bytes())?;
        Ok(Self {
            reader,
            writer,
            size,
            held: 0,
        })
    }

    /// A pipe of one slot.
    #[cfg(test)]
    pub(super) fn smallest(wanted: Size) -> Result<Self, Errno> {
        let mut pipe = Self::new(wanted)?;
        pipe.size = fcntl_setpipe_size(&pipe.writer, 1)?;
        Ok(pipe)
    }

    /// How many pieces it holds at least, of a byte or more each.
    pub(super) fn slots(&self) -> usize {
        self.size / page_size()
    }

    /// Bytes in the pipe.
    pub(super) fn held(&self) -> usize {
        self.held
    }

    /// Takes bytes from `source`, at most so many; 0 is its FIN. To be called only with nothing held, since with bytes in the pipe
    /// `EAGAIN` could mean a pipe without a free slot as well as a socket without bytes.
    pub(super) fn fill(&mut self, source: BorrowedFd<'_>, most: usize) -> Result<usize, Errno> {
        let length = self.size.min(most);
        let bytes = retry_on_intr(|| splice(source, None, &self.writer, None, length, flags()))?;
        self.held += bytes;
        Ok(bytes)
    }

    /// Gives bytes to `target`; `EAGAIN` means that it is full.
    pub(super) fn drain(&mut self, target: BorrowedFd<'_>) -> Result<usize, Errno> {
        let length = self.held.min(self.size);
        let bytes = retry_on_intr(|| splice(&self.reader, None, target, None, length, flags()))?;
        if bytes == 0 {
            // Nobody else has the pipe, so it cannot be empty: do not try for ever.
            return Err(Errno::IO);
        }
        self.held = self.held.saturating_sub(bytes);
        Ok(bytes)
    }
}

/// Without `SPLICE_F_MORE`: it would keep the tail of a message back until more comes.
fn flags() -> SpliceFlags {
    SpliceFlags::NONBLOCK | SpliceFlags::MOVE
}

/// Has the pipe hold `wanted` bytes: fewer than it has at first, or more, or half as many more and so on.
///
/// `EPERM` is `fs.pipe-max-size` or `fs.pipe-user-pages-soft`, `EBUSY` and `ENOMEM` are possible too.
pub(super) fn resize(pipe: &OwnedFd, wanted: usize) -> Result<usize, Errno> {
    let has = fcntl_getpipe_size(pipe)?;
    if wanted < has {
        return fcntl_setpipe_size(pipe, wanted).or(Ok(has));
    }
    let mut size = wanted;
    while size > has {
        if let Ok(size) = fcntl_setpipe_size(pipe, size) {
            return Ok(size);
        }
        size /= 2;
    }
    Ok(has)
}
