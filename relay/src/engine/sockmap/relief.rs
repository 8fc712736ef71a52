//! Relief: carries to the target what the program passed, and holds the gate while a stream is bulk.

use std::{
    os::fd::BorrowedFd,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::Duration,
};

use relay_common::flow::{HELD, OPEN};
use rustix::{
    io::Errno,
    net::{RecvFlags, SendFlags, recv, send},
};
use tokio::{
    io::unix::AsyncFd,
    time::{sleep, timeout},
};

use super::{carried::Carried, half_close};
use crate::{
    close::Outcome,
    pair::{Direction, Side},
};

/// What is read at once, bytes: at first, as many stalled connections hold so much each, and when reads fill the buffer,
/// so that a bulk stream is limited by copying and not by calls.
const SMALLEST: usize = 64 * 1024;
const BUFFER: usize = 2 * 1024 * 1024;

/// A stream of which this much a millisecond comes to relief is bulk (200 Mb/s): its gate is held, as passing all of it
/// is faster than redirecting some of it and waiting each time for the target to take that.
const BULK: u64 = 25 * 1024;

/// The first wait for the kernel's workers, and the longest.
const SHORTLY: Duration = Duration::from_millis(1);
const AT_LONGEST: Duration = Duration::from_millis(50);

/// One direction of a connection that is attended to.
pub(super) struct Lane<'a> {
    carried: &'a Carried,
    direction: Direction,
    source: &'a AsyncFd<BorrowedFd<'a>>,
    target: &'a AsyncFd<BorrowedFd<'a>>,
    state: &'a State,
}

/// What the one who drives a lane sees of it.
#[derive(Debug, Default)]
pub(super) struct State {
    /// Nothing waits, and the lane sleeps: it may be dropped.
    calm: AtomicBool,
    held: AtomicBool,
    relieved: AtomicU64,
}

impl State {
    /// Whether the lane can be left alone: it holds no bytes and the program redirects.
    pub(super) fn is_calm(&self) -> bool {
        self.calm.load(Ordering::Acquire) && !self.held.load(Ordering::Relaxed)
    }
}

impl<'a> Lane<'a> {
    /// A lane between two sockets in the poll set; `sockets` are client and upstream.
    pub(super) fn new(
        carried: &'a Carried,
        direction: Direction,
        sockets: [&'a AsyncFd<BorrowedFd<'a>>; 2],
        state: &'a State,
    ) -> Self {
        let [source, target] =
            [direction.from(), direction.to()].map(|side: Side| sockets[side.index()]);
        Self {
            carried,
            direction,
            source,
            target,
            state,
        }
    }

    /// Relays what is passed and passes on the FIN; returns when that is done. While [`State::is_calm`], it may be
    /// dropped instead.
    pub(super) async fn run(self) -> Result<(), Outcome> {
        let mut settled = None;
        let mut buffer = Vec::new();
        let mut pause = SHORTLY;
        let mut closed = false;
        while !self.carried.has_ended(self.direction) {
            let flow = self.carried.flow(self.direction);
            if flow.waiting() > 0 {
                // The program redirects nothing while something waits, so what it did redirect stands still.
                if settled != Some(flow.redirected()) {
                    self.settle().await?;
                    settled = Some(flow.redirected());
                }
                match self.move_some(&mut buffer).await? {
                    true => pause = SHORTLY,
                    // Counted, and still on the way to the socket's queue.
                    false if closed => backoff(&mut pause).await,
                    false => match timeout(pause, self.readable()).await {
                        Ok(ready) => closed = ready?,
                        Err(_) => pause = (pause * 2).min(AT_LONGEST),
                    },
                }
                continue;
            }
            if closed {
                if half_close::pass_on(self.carried, self.direction)? {
                    break;
                }
                backoff(&mut pause).await;
                continue;
            }
            pause = SHORTLY;
            if !self.state.held.load(Ordering::Relaxed) {
                buffer = Vec::new();
            }
            self.state.calm.store(true, Ordering::Release);
            let ready = self.readable().await;
            self.state.calm.store(false, Ordering::Release);
            closed = ready?;
        }
        self.state.calm.store(true, Ordering::Release);
        Ok(())
    }

    /// Waits until something has happened at the source; true when its FIN has arrived. What came is looked for after
    /// this, so that nothing is missed.
    async fn readable(&self) -> Result<bool, Outcome> {
        let ready = self.source.readable().await;
        let mut ready =
            ready.map_err(|error| self.failed(self.direction.from(), "epoll_ctl", &error))?;
        let closed = ready.ready().is_read_closed();
        ready.clear_ready();
        Ok(closed)
    }

    /// Waits until the target has taken all that was redirected to it, which comes before what is to be relayed.
    async fn settle(&self) -> Result<(), Outcome> {
        let mut pause = SHORTLY;
        for tries in 0_u32.. {
            let settled = self.carried.settled(self.direction);
            if settled.map_err(|error| self.failed(self.direction.to(), "getsockopt", &error))? {
                break;
            }
            match tries {
                0..4 => tokio::task::yield_now().await,
                _ => backoff(&mut pause).await,
            }
        }
        Ok(())
    }

    /// Reads once and writes all of it; false when there was nothing to read.
    async fn move_some(&self, buffer: &mut Vec<u8>) -> Result<bool, Outcome> {
        if buffer.is_empty() {
            buffer.resize(SMALLEST, 0);
        }
        let read = loop {
            match recv(self.source.get_ref(), &mut buffer[..], RecvFlags::DONTWAIT) {
                Ok((_, 0)) | Err(Errno::AGAIN) => return Ok(false),
                Ok((_, read)) => break read,
                Err(Errno::INTR) => (),
                Err(errno) => {
                    return Err(self.failed(self.direction.from(), "recv", &errno.into()));
                }
            }
        };
        let mut left = &buffer[..read];
        while !left.is_empty() {
            let sent = self.send(left).await?;
            self.carried.flow(self.direction).add_relayed(sent as u64);
            left = &left[sent..];
        }
        if read == buffer.len() {
            buffer.resize((read * 4).min(BUFFER), 0);
        }
        // A stream that never runs dry must not keep its thread, nor itself from hearing of limits and resets.
        let before = self
            .state
            .relieved
            .fetch_add(read as u64, Ordering::Relaxed);
        if before / BUFFER as u64 != (before + read as u64) / BUFFER as u64 {
            tokio::task::yield_now().await;
        }
        Ok(true)
    }

    async fn send(&self, bytes: &[u8]) -> Result<usize, Outcome> {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        loop {
            match send(self.target.get_ref(), bytes, flags) {
                Ok(sent) => return Ok(sent),
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) => (),
                Err(errno) => return Err(self.failed(self.direction.to(), "send", &errno.into())),
            }
            let ready = self.target.writable().await;
            let mut ready =
                ready.map_err(|error| self.failed(self.direction.to(), "epoll_ctl", &error))?;
            match ready.try_io(|socket| Ok(send(socket.get_ref(), bytes, flags)?)) {
                Ok(Ok(sent)) => return Ok(sent),
                Ok(Err(error)) if error.kind() == std::io::ErrorKind::Interrupted => (),
                Ok(Err(error)) => return Err(self.failed(self.direction.to(), "send", &error)),
                Err(_would_block) => (),
            }
        }
    }

    fn failed(&self, side: Side, call: &'static str, error: &std::io::Error) -> Outcome {
        Outcome::failed(side, call, error)
    }
}

/// Holds the gate of a stream that is bulk and lets go of one that is not, by what was relieved in the `milliseconds`
/// since it was last asked. Gives how many bytes that was.
pub(super) fn judge_bulk(
    carried: &Carried,
    direction: Direction,
    state: &State,
    milliseconds: u64,
) -> u64 {
    let relieved = state.relieved.swap(0, Ordering::Relaxed);
    let bulk = relieved >= BULK * milliseconds.max(1);
    if state.held.swap(bulk, Ordering::Relaxed) != bulk {
        carried
            .flow(direction)
            .set_gate(if bulk { HELD } else { OPEN });
    }
    relieved
}

async fn backoff(pause: &mut Duration) {
    sleep(*pause).await;
    *pause = (*pause * 2).min(AT_LONGEST);
}
