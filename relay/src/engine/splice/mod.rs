//! The engine that moves bytes by splice(2), through a pipe, without copying them into this process.

mod pipe;
mod pool;
#[cfg(test)]
mod tests;

use std::{num::NonZeroU32, os::fd::BorrowedFd, sync::Arc};

use rustix::io::Errno;

use self::{pipe::Pipe, pool::Pool};
use crate::{
    decline::Why,
    drain::{Drain, Room},
    engine::{
        Connection, Declined,
        copy::Buffered,
        duplex::{self, Fault, Left, Mover, Source, Taken},
        shelf::Shelf,
    },
    plan::{EngineKind, Size, Sizes},
    sys::tcp,
};

/// The engine that splices.
#[derive(Debug)]
pub struct Splice {
    pool: Pool,
    /// For a direction that cannot have a pipe in the middle of its connection.
    shelf: Shelf,
}

impl Splice {
    /// Its pipes are of `room` and of the size in `sizes`. Makes a pipe and moves bytes through it, so that a kernel or a
    /// seccomp profile that refuses is found now.
    ///
    /// # Errors
    ///
    /// Says which call failed, and the way out.
    pub fn start(sizes: Sizes, room: &Room) -> Result<Self, Arc<str>> {
        let pool = Pool::new(Pipe::new, sizes.pipe, room);
        pool.trial().map_err(|fault| way_out(&fault))?;
        Ok(Self::with(pool, sizes.buffer))
    }

    fn with(pool: Pool, buffer: Size) -> Self {
        let shelf = Shelf::new(buffer);
        Self { pool, shelf }
    }

    /// Carries `connection` to its end, or gives it back after so many turns (`ripe`). Pipes are held only while bytes are in
    /// them: an idle connection has none.
    ///
    /// # Errors
    ///
    /// Gives the connection back, with no byte moved, when a socket is in the sockmap, when there is no pipe at the first
    /// need, and when the kernel refuses to splice from one of the sockets. A pipe that is not to be had later is no
    /// error: bytes are copied from there on.
    pub async fn run(
        &self,
        connection: Box<Connection>,
        ripe: Option<NonZeroU32>,
        drain: &Drain,
    ) -> Result<Option<Box<Connection>>, Declined> {
        if connection.pair.client.mapped || connection.pair.upstream.mapped {
            let why = Why::Mapped;
            return Err(Declined { connection, why });
        }
        let mover = || self.mover();
        match duplex::run(connection, EngineKind::Splice, ripe, &mover, drain).await {
            Ok(()) => Ok(None),
            Err((connection, Left::Ripe)) => Ok(Some(connection)),
            Err((connection, Left::Refused(why))) => Err(Declined { connection, why }),
        }
    }

    #[cfg(test)]
    pub(super) fn idle_pipes(&self) -> usize {
        self.pool.lock().len()
    }

    fn mover(&self) -> Spliced<'_> {
        Spliced {
            pool: &self.pool,
            pipe: None,
            copies: false,
            copy: Buffered::new(&self.shelf),
        }
    }
}

/// Moves by way of a pipe from the pool, or of a buffer where there is no other way.
#[derive(Debug)]
struct Spliced<'a> {
    pool: &'a Pool,
    pipe: Option<Pipe>,
    /// No pipe was to be had; from then on every byte is copied.
    copies: bool,
    copy: Buffered<'a>,
}

impl Spliced<'_> {
    fn copied(&mut self, source: Source<'_>, most: usize) -> Taken<Why> {
        match self.copy.take(source, most) {
            Taken::Bytes(bytes) => Taken::Bytes(bytes),
            Taken::Last(bytes) => Taken::Last(bytes),
            Taken::Dry => Taken::Dry,
            Taken::End => Taken::End,
            Taken::Refused(never) => match never {},
            Taken::Failed(fault) => Taken::Failed(fault),
        }
    }
}

impl Mover for Spliced<'_> {
    type Refusal = Why;

    fn take(&mut self, source: Source<'_>, most: usize) -> Taken<Why> {
        if self.copies {
            return self.copied(source, most);
        }
        if self.pipe.is_none() {
            match self.pool.take() {
                Ok(pipe) => self.pipe = Some(pipe),
                Err(errno) => return Taken::Refused(Why::Pipe(errno)),
            }
        }
        let Some(pipe) = &mut self.pipe else {
            return Taken::Dry;
        };
        match pipe.fill(source.fd, most) {
            // splice(2) stops before an urgent byte for good, whatever comes after it: with the FIN received, that looks
            // like the end. recv(2) takes the byte along.
            Ok(0) if tcp::is_at_mark(source.fd) => self.copied(source, most),
            // An urgent byte that has come since `plain` was seen wakes the lane again.
            Err(Errno::AGAIN) if !source.plain && tcp::is_at_mark(source.fd) => {
                self.copied(source, most)
            }
            Ok(0) => Taken::End,
            Ok(bytes) if source.plain && bytes < pipe.slots().min(most) => Taken::Last(bytes),
            Ok(bytes) => Taken::Bytes(bytes),
            Err(Errno::AGAIN) => Taken::Dry,
            Err(errno) if is_refusal(errno) => Taken::Refused(Why::Refused(errno)),
            Err(errno) => Taken::Failed(Fault {
                call: "splice",
                errno,
            }),
        }
    }

    fn give(&mut self, target: BorrowedFd<'_>) -> Result<usize, Fault> {
        let call = "splice";
        match &mut self.pipe {
            Some(pipe) if pipe.held() > 0 => {
                pipe.drain(target).map_err(|errno| Fault { call, errno })
            }
            _ => self.copy.give(target),
        }
    }

    fn held(&self) -> usize {
        self.pipe.as_ref().map_or(0, Pipe::held) + self.copy.held()
    }

    fn rest(&mut self) {
        if let Some(pipe) = self.pipe.take() {
            self.pool.put(pipe);
        }
        self.copy.rest();
    }

    fn settle(&mut self, refusal: &Why) -> (EngineKind, Why) {
        self.copies = true;
        (EngineKind::Copy, refusal.clone())
    }
}

impl Drop for Spliced<'_> {
    fn drop(&mut self) {
        self.rest();
    }
}

/// Whether splice(2) itself is refused: by a profile, by the kernel, or for this kind of socket.
fn is_refusal(errno: Errno) -> bool {
    matches!(
        errno,
        Errno::PERM | Errno::ACCESS | Errno::NOSYS | Errno::INVAL | Errno::OPNOTSUPP
    )
}

fn way_out(fault: &Fault) -> Arc<str> {
    let Fault { call, errno } = fault;
    let hint = match *errno {
        errno if is_refusal(errno) => {
            "a seccomp profile or this kernel refuses it; allow pipe2(2), fcntl(2) and splice(2), or use --engine copy"
        }
        Errno::MFILE => "raise the limit on open files (ulimit -n, LimitNOFILE=)",
        Errno::NFILE => "raise fs.file-max",
        _ => "use --engine copy",
    };
    format!("{call}: {errno}: {hint}").into()
}
