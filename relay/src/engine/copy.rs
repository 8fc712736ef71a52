//! The reference engine: recv(2) into a pooled buffer, send(2) from it. It serves every stream socket.

use std::{convert::Infallible, num::NonZeroU32, os::fd::BorrowedFd};

use rustix::{
    io::{Errno, retry_on_intr},
    net::{RecvFlags, SendFlags, recv, send},
};

use crate::{
    decline::Why,
    drain::Drain,
    engine::{
        Connection,
        duplex::{self, Fault, Left, Mover, Source, Taken},
        shelf::Shelf,
    },
    plan::{EngineKind, Size},
};

/// The engine that copies.
#[derive(Debug)]
pub struct Copy {
    shelf: Shelf,
}

impl Copy {
    /// Its buffers are of `size`.
    #[must_use]
    pub fn new(size: Size) -> Self {
        let shelf = Shelf::new(size);
        Self { shelf }
    }

    /// Carries `connection` to its end, or gives it back after so many turns (`ripe`). Its memory is two buffers while bytes
    /// are on their way, none while it is idle.
    pub async fn run(
        &self,
        connection: Box<Connection>,
        ripe: Option<NonZeroU32>,
        drain: &Drain,
    ) -> Option<Box<Connection>> {
        let mover = || Buffered::new(&self.shelf);
        match duplex::run(connection, EngineKind::Copy, ripe, &mover, drain).await {
            Ok(()) => None,
            Err((connection, Left::Ripe)) => Some(connection),
            Err((_, Left::Refused(never))) => match never {},
        }
    }
}

/// Moves by way of a buffer from the shelf.
#[derive(Debug)]
pub(super) struct Buffered<'a> {
    shelf: &'a Shelf,
    buffer: Option<Box<[u8]>>,
    /// The bytes of `buffer` that are held.
    start: usize,
    end: usize,
}

impl<'a> Buffered<'a> {
    pub(super) fn new(shelf: &'a Shelf) -> Self {
        Self {
            shelf,
            buffer: None,
            start: 0,
            end: 0,
        }
    }
}

impl Mover for Buffered<'_> {
    type Refusal = Infallible;

    fn take(&mut self, source: Source<'_>, most: usize) -> Taken<Infallible> {
        let buffer = self.buffer.get_or_insert_with(|| self.shelf.take());
        let flags = RecvFlags::DONTWAIT;
        let room = buffer.len().min(most);
        match retry_on_intr(|| recv(source.fd, &mut buffer[..room], flags)) {
            Ok((0, _)) => Taken::End,
            Ok((bytes, _)) => {
                (self.start, self.end) = (0, bytes);
                match bytes < room && source.plain {
                    true => Taken::Last(bytes),
                    false => Taken::Bytes(bytes),
                }
            }
            Err(Errno::AGAIN) => Taken::Dry,
            Err(errno) => Taken::Failed(Fault {
                call: "recv",
                errno,
            }),
        }
    }

    fn give(&mut self, target: BorrowedFd<'_>) -> Result<usize, Fault> {
        let held = match &self.buffer {
            Some(buffer) => &buffer[self.start..self.end],
            None => &[],
        };
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        let call = "send";
        let bytes =
            retry_on_intr(|| send(target, held, flags)).map_err(|errno| Fault { call, errno })?;
        self.start += bytes;
        Ok(bytes)
    }

    fn held(&self) -> usize {
        self.end - self.start
    }

    fn rest(&mut self) {
        if let Some(buffer) = self.buffer.take() {
            self.shelf.put(buffer);
        }
    }

    fn settle(&mut self, refusal: &Infallible) -> (EngineKind, Why) {
        match *refusal {}
    }
}

impl Drop for Buffered<'_> {
    fn drop(&mut self) {
        self.rest();
    }
}
