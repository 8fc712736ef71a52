//! Reads greetings from a socket, byte for byte and not one more: what is behind them is for the engine.

use std::os::fd::{AsFd, OwnedFd};

use rustix::{
    io::Errno,
    net::{RecvFlags, recv},
};
use tokio::io::unix::AsyncFd;

use super::Refusal;
use crate::{
    close::{How, Outcome},
    pair::{Peer, Side, Socket},
};

/// A client that is listened to.
pub(super) struct Ear {
    socket: AsyncFd<OwnedFd>,
    peer: Peer,
    read: u64,
}

impl Ear {
    pub(super) fn new(client: Socket) -> Result<Self, Outcome> {
        let Socket { fd, peer, read, .. } = client;
        let socket = fd
            .watched()
            .map_err(|(_fd, error)| Outcome::relay(How::of("epoll_ctl", &error)))?;
        Ok(Self { socket, peer, read })
    }

    pub(super) fn release(self) -> Socket {
        let mut client = Socket::held(self.socket, self.peer);
        client.read = self.read;
        client
    }

    /// Waits for what `parse` recognizes at the beginning of the stream, at most `most` bytes, and takes as much as that
    /// says it is. `parse` gives nothing while it needs more.
    pub(super) async fn hear<T>(
        &mut self,
        most: usize,
        parse: impl Fn(&[u8]) -> Result<Option<(T, usize)>, Refusal>,
    ) -> Result<T, Refusal> {
        let mut buffer = vec![0; most];
        loop {
            let ready = self.socket.readable().await;
            let mut ready = ready.map_err(|error| failed("epoll_ctl", &error))?;
            // Known before the look: then that shows all there will be.
            let closed = ready.ready().is_read_closed();
            let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
            let there = match recv(self.socket.get_ref(), &mut buffer[..], flags) {
                Ok((_, 0)) => return Err(Refusal::Ended),
                Ok((_, there)) => there,
                Err(Errno::AGAIN) => {
                    ready.clear_ready();
                    continue;
                }
                Err(Errno::INTR) => continue,
                Err(errno) => return Err(failed("recv", &errno.into())),
            };
            match parse(&buffer[..there])? {
                Some((said, length)) => {
                    self.take(&mut buffer[..length])?;
                    return Ok(said);
                }
                None if there == most => return Err(Refusal::Malformed),
                None if closed => return Err(Refusal::Ended),
                None => ready.clear_ready(),
            }
        }
    }

    /// Says a few bytes, which fit in the send buffer of a client to which next to nothing was said.
    pub(super) fn say(&self, bytes: &[u8]) -> Result<(), Refusal> {
        super::say(self, Side::Client, bytes).map_err(Refusal::Over)
    }

    /// Reads up to the client's end, or so many bytes.
    pub(super) async fn ignore(&self, most: u64) {
        let mut left = most;
        let mut buffer = [0; 4096];
        while left > 0 {
            let Ok(mut ready) = self.socket.readable().await else {
                return;
            };
            match recv(self.socket.get_ref(), &mut buffer[..], RecvFlags::DONTWAIT) {
                Ok((_, 0)) => return,
                Ok((_, read)) => left = left.saturating_sub(read as u64),
                Err(Errno::AGAIN) => ready.clear_ready(),
                Err(Errno::INTR) => (),
                Err(_) => return,
            }
        }
    }

    fn take(&mut self, mut bytes: &mut [u8]) -> Result<(), Refusal> {
        while !bytes.is_empty() {
            match recv(self.socket.get_ref(), &mut *bytes, RecvFlags::DONTWAIT) {
                Ok((_, 0)) => return Err(Refusal::Ended),
                Ok((_, taken)) => {
                    self.read += taken as u64;
                    bytes = &mut bytes[taken..];
                }
                Err(Errno::INTR) => (),
                // They were there a moment ago, and nobody else reads.
                Err(errno) => return Err(failed("recv", &errno.into())),
            }
        }
        Ok(())
    }
}

impl AsFd for Ear {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.socket.get_ref().as_fd()
    }
}

fn failed(call: &'static str, error: &std::io::Error) -> Refusal {
    Refusal::Over(Outcome::failed(Side::Client, call, error))
}
