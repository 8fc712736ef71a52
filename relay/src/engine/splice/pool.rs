//! Empty pipes, kept for the next connection that has bytes to move.

use std::{
    os::fd::AsFd,
    sync::{Mutex, MutexGuard, PoisonError},
};

use rustix::{
    io::Errno,
    net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair},
};

use super::pipe::Pipe;
use crate::{drain::Room, engine::duplex::Fault, plan::Size};

/// Idle pipes kept, of two descriptors each. More may be in use; the ones over it are closed.
pub(super) const KEPT: usize = 64;

/// A stack of empty pipes.
#[derive(Debug)]
pub(super) struct Pool {
    make: fn(Size) -> Result<Pipe, Errno>,
    size: Size,
    idle: Mutex<Vec<Pipe>>,
    /// Where there are descriptors for more.
    room: Room,
}

impl Pool {
    /// An empty pool that gets its pipes, of `size`, from `make`.
    pub(super) fn new(make: fn(Size) -> Result<Pipe, Errno>, size: Size, room: &Room) -> Self {
        let (idle, room) = (Mutex::default(), room.clone());
        Self {
            make,
            size,
            idle,
            room,
        }
    }

    /// An empty pipe.
    ///
    /// # Errors
    ///
    /// Fails when none is kept and none can be made, or may be.
    pub(super) fn take(&self) -> Result<Pipe, Errno> {
        if let Some(kept) = self.lock().pop() {
            return Ok(kept);
        }
        if !self.room.try_pipe() {
            return Err(Errno::MFILE);
        }
        (self.make)(self.size).inspect_err(|_| self.room.pipe_closed())
    }

    /// Gives a pipe back. One with bytes in it is closed: they are of a connection that failed, and nobody else's.
    pub(super) fn put(&self, pipe: Pipe) {
        let mut idle = self.lock();
        if pipe.held() == 0 && idle.len() < KEPT {
            idle.push(pipe);
            return;
        }
        drop((idle, pipe));
        self.room.pipe_closed();
    }

    /// Moves a few bytes through a pipe, from a socket to a socket.
    pub(super) fn trial(&self) -> Result<(), Fault> {
        let failed = |call| move |errno| Fault { call, errno };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (near, far) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)
            .map_err(failed("socketpair"))?;
        let mut pipe = self.take().map_err(failed("pipe2"))?;
        send(&near, TRIAL, SendFlags::NOSIGNAL).map_err(failed("send"))?;
        pipe.fill(far.as_fd(), TRIAL.len())
            .map_err(failed("splice"))?;
        pipe.drain(far.as_fd()).map_err(failed("splice"))?;
        let mut back = [0; TRIAL.len()];
        recv(&near, &mut back, RecvFlags::empty()).map_err(failed("recv"))?;
        if back != *TRIAL {
            return Err(failed("splice")(Errno::IO));
        }
        self.put(pipe);
        Ok(())
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Vec<Pipe>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

const TRIAL: &[u8; 5] = b"relay";
