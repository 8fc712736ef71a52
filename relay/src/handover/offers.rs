//! The side that runs: offers its listening sockets to a relay that starts, and learns which of them are the other's.

use std::{io, os::fd::AsFd, os::unix::net::UnixListener, time::Duration};

use tokio::time::{sleep, timeout};

use super::{
    Role, may,
    wire::{Line, New, Offered, Old, PROTOCOL, SOCKETS},
};
use crate::{
    accept::{Held, Listener},
    plan::Address,
};

/// How long a relay that starts may take until it is ready: names to resolve, engines to test.
const READY: Duration = Duration::from_secs(60);

/// How long to rest when nobody can be accepted, for want of descriptors above all.
const PAUSE: Duration = Duration::from_millis(200);

/// Where a relay that starts asks.
#[derive(Debug)]
pub struct Offers {
    listener: tokio::net::UnixListener,
    held: Held,
    listen: String,
}

/// A listening socket to be handed over.
#[derive(Clone, Debug)]
pub struct Socket {
    /// What it is for.
    pub role: Role,
    /// As the plan has it.
    pub listen: String,
    /// The socket, and its file.
    pub held: Held,
    /// It is systemd's.
    pub passed: bool,
}

impl Socket {
    /// The socket of `listener`, which was opened for `listen`.
    #[must_use]
    pub fn new(role: Role, listen: &Address, listener: &Listener) -> Self {
        Self {
            role,
            listen: listen.to_string(),
            held: listener.held().clone(),
            passed: false,
        }
    }
}

/// A relay that starts, and may ask.
#[derive(Debug)]
pub struct Heir {
    line: Line,
    /// Its process, where that can be told.
    pub process: Option<u32>,
}

impl Offers {
    /// Registers with the current runtime.
    ///
    /// # Errors
    ///
    /// Fails with what epoll_ctl(2) said.
    pub fn open(listener: Listener) -> io::Result<Self> {
        let listen = listener.address().to_string();
        let (fd, held) = listener.into_parts()?;
        Ok(Self {
            listener: tokio::net::UnixListener::from_std(UnixListener::from(fd))?,
            held,
            listen,
        })
    }

    /// The socket where it asks, to be handed over like the others.
    #[must_use]
    pub fn socket(&self) -> Socket {
        Socket {
            role: Role::Handover,
            listen: self.listen.clone(),
            held: self.held.clone(),
            passed: false,
        }
    }

    /// The next relay that starts. Dropping the future loses none.
    pub async fn next(&self) -> Heir {
        loop {
            let stream = match self.listener.accept().await {
                Ok((stream, _)) => stream,
                Err(error) => {
                    tracing::debug!(%error, "handover: cannot accept");
                    sleep(PAUSE).await;
                    continue;
                }
            };
            match stream.peer_cred() {
                Ok(peer) if may(peer.uid()) => {
                    let process = peer.pid().and_then(|pid| u32::try_from(pid).ok());
                    let line = Line::new(stream);
                    return Heir { line, process };
                }
                other => {
                    let uid = other.map(|peer| peer.uid());
                    tracing::warn!(?uid, "handover: who asks is neither root nor this user");
                }
            }
        }
    }
}

impl Heir {
    /// Offers `sockets`, and waits until the other is ready; gives the places of those that it has taken. They are its own
    /// once it hears [`Heir::release`].
    ///
    /// # Errors
    ///
    /// Says why it will not take over: it failed, or took too long.
    pub async fn convince(&mut self, sockets: &[Socket]) -> Result<Vec<usize>, String> {
        let lost = |error: io::Error| format!("the connection to it failed: {error}");
        // At least one message, also without sockets.
        let mut chunks = sockets.chunks(SOCKETS).peekable();
        loop {
            let chunk = chunks.next().unwrap_or_default();
            let offered = chunk.iter().map(|socket| Offered {
                role: socket.role,
                listen: socket.listen.clone(),
                file: socket.held.file(),
                passed: socket.passed,
            });
            let more = chunks.peek().is_some();
            let offer = Old::Offer {
                protocol: PROTOCOL,
                sockets: offered.collect(),
                more,
            };
            let beside = Vec::from_iter(chunk.iter().map(|socket| socket.held.as_fd()));
            self.line.say(&offer, &beside).await.map_err(lost)?;
            if !more {
                break;
            }
        }
        match timeout(READY, self.line.hear::<New>()).await {
            Ok(Ok(Some(New::Ready { taken }))) => Ok(taken),
            Ok(Ok(None)) => Err("it ended before it was ready; its log says why".into()),
            Ok(Err(error)) => Err(lost(error)),
            Err(_) => {
                let why = format!("it was not ready within {READY:?}");
                self.withdraw(&why).await;
                Err(why)
            }
        }
    }

    /// Tells it that it has to do without.
    pub async fn withdraw(&mut self, why: &str) {
        let why = format!("the relay that runs keeps its sockets: {why}");
        // It may be gone.
        let _ = self.line.say(&Old::Withdrawn { why }, &[]).await;
    }

    /// Tells it that what it has taken is its own.
    pub async fn release(self) {
        // If it is gone, it had been ready all the same.
        let _ = self.line.say(&Old::Yours, &[]).await;
    }
}
