//! One attempt to connect within a deadline, and waiting for it for as long as the client does.

mod near;
mod opening;

use std::{
    future::{Future, pending},
    net::SocketAddr,
    os::fd::{AsFd, OwnedFd},
    path::Path,
    pin::pin,
    time::Duration,
};

use rustix::{
    io::Errno,
    net::{self, AddressFamily, SocketAddrUnix, sockopt},
};
use tokio::{
    io::{Interest, Ready, unix::AsyncFd},
    time::{sleep, timeout},
};

use crate::{
    close::{self, How, Outcome},
    drain::Drain,
    pair::{Peer, Side, Socket},
    sys::{
        reactor::{self, Descriptor},
        tune::{errno, stream, tune},
    },
};

pub use self::{
    near::{Near, Unfit, try_out},
    opening::Opening,
};

/// How long to wait before asking a Unix listener with a full backlog again; doubled up to the second.
const RETRY: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(50));

/// How long to wait for a descriptor, and how often.
const SCARCE: (Duration, u32) = (Duration::from_millis(50), 40);

/// Why an attempt has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failed {
    /// The call that failed; any but `connect` and `send` is about relay's own end.
    pub call: &'static str,
    /// What it said; `ETIMEDOUT` when time was up.
    pub errno: Errno,
}

impl Failed {
    /// How a connection ends by it.
    #[must_use]
    pub fn outcome(self) -> Outcome {
        Outcome::failed(Side::Upstream, self.call, &self.errno.into())
    }

    /// Whether this host lacks something, which is not the upstream's fault.
    #[must_use]
    pub fn is_own(self) -> bool {
        let lacking = [
            Errno::MFILE,
            Errno::NFILE,
            Errno::NOBUFS,
            Errno::NOMEM,
            Errno::ADDRNOTAVAIL,
        ];
        !["connect", "send"].contains(&self.call) || lacking.contains(&self.errno)
    }
}

impl From<Errno> for Failed {
    fn from(errno: Errno) -> Self {
        let call = "connect";
        Self { call, errno }
    }
}

/// An upstream: nonblocking, armed to reset; or how the connection ends without it.
type Upstream<T> = Result<T, Outcome>;

/// Waits for `dialling` for as long as `client` does, and gives the client back.
///
/// It ends early when the client resets or hangs up, and when live connections are to be cut. A client that has only
/// ended its own direction still waits for an answer, and so does the dial.
pub async fn while_waited_for<T>(
    client: Socket,
    drain: &Drain,
    dialling: impl Future<Output = Upstream<T>>,
) -> (Socket, Upstream<T>) {
    let mut dialling = pin!(dialling);
    // Most upstreams are near and answer before the client is worth watching.
    let at_once = tokio::select! {
        biased;
        upstream = &mut dialling => Some(upstream),
        () = std::future::ready(()) => None,
    };
    match at_once {
        Some(upstream) => (client, upstream),
        None => watching(client, drain, dialling).await,
    }
}

/// One attempt to connect to `at` from `near`, within `limit`, and to say `opening` there.
///
/// # Errors
///
/// Gives what connect(2) said, or what kept it from being asked; `ETIMEDOUT` when `limit` is over.
pub async fn attempt(
    at: &Peer,
    near: &Near,
    opening: &Opening,
    limit: Duration,
) -> Result<Socket, Failed> {
    let connecting = async {
        match at {
            Peer::Ip(at) => tcp(*at, near, opening).await,
            Peer::Unix(path) => {
                let fd = unix(path).await?;
                opening.say(&fd, 0)?;
                Ok(Socket::new(fd, at.clone()))
            }
        }
    };
    timeout(limit, connecting)
        .await
        .unwrap_or(Err(Errno::TIMEDOUT.into()))
}

async fn watching<T>(
    client: Socket,
    drain: &Drain,
    dialling: impl Future<Output = Upstream<T>>,
) -> (Socket, Upstream<T>) {
    let cut = async {
        drain.cut().await;
        Err(Outcome::relay(How::Drain))
    };
    let is_tcp = client.is_tcp();
    let with = |fd: Descriptor| Socket { fd, ..client };
    match client.fd.watched() {
        Ok(watched) => {
            let upstream = tokio::select! {
                upstream = dialling => upstream,
                gone = gone(&watched, is_tcp) => Err(gone),
                drained = cut => drained,
            };
            let fd = match is_tcp {
                true => watched.into(),
                // Whether it can be written to was forgotten.
                false => watched.into_inner().into(),
            };
            (with(fd), upstream)
        }
        // Nobody to watch it: then the dial takes as long as it takes.
        Err((fd, _error)) => {
            let upstream = tokio::select! {
                upstream = dialling => upstream,
                drained = cut => drained,
            };
            (with(fd), upstream)
        }
    }
}

/// Ends when the client's socket is dead in both directions. Over TCP that is an error; a Unix socket only says that it can be
/// written to and that it is closed, both at once.
async fn gone(client: &AsyncFd<OwnedFd>, is_tcp: bool) -> Outcome {
    let death = match is_tcp {
        true => Interest::ERROR,
        false => Interest::WRITABLE | Interest::ERROR,
    };
    loop {
        let Ok(mut guard) = client.ready(death).await else {
            return pending().await;
        };
        if guard.ready().is_error() || guard.ready().is_write_closed() {
            let error = sockopt::socket_error(client.get_ref());
            let error = error.and_then(|pending| pending.map(|()| Errno::CONNRESET));
            let error = error.unwrap_or_else(|errno| errno);
            return Outcome::failed(Side::Client, "poll", &error.into());
        }
        guard.clear_ready_matching(Ready::WRITABLE);
    }
}

async fn tcp(at: SocketAddr, near: &Near, opening: &Opening) -> Result<Socket, Failed> {
    let [first, second] = near.sources(at);
    match tcp_from(at, near, first, opening).await {
        Err(Failed {
            errno: Errno::ADDRINUSE | Errno::ADDRNOTAVAIL,
            ..
        }) if second.is_some() => tcp_from(at, near, second, opening).await,
        other => other,
    }
}

async fn tcp_from(
    at: SocketAddr,
    near: &Near,
    source: Option<SocketAddr>,
    opening: &Opening,
) -> Result<Socket, Failed> {
    let family = match at {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let fd = socket(family).await?;
    close::arm(&fd);
    tune(&fd)?;
    near.set(&fd, source)?;
    let said = opening.connect(&fd, at)?;
    let fd = established(fd, at).await?;
    not_itself(&fd, at)?;
    opening.say(&fd, said)?;
    Ok(Socket::held(fd, Peer::Ip(at)))
}

/// A socket, as soon as there is one: descriptors come back all the time where there are many connections.
async fn socket(family: AddressFamily) -> Result<OwnedFd, Errno> {
    for _ in 0..SCARCE.1 {
        match stream(family) {
            Err(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => (),
            other => return other,
        }
        sleep(SCARCE.0).await;
    }
    stream(family)
}

/// A port of the range for outgoing connections can be given to the socket that dials it, which then talks to itself.
fn not_itself(fd: impl AsFd, at: SocketAddr) -> Result<(), Errno> {
    let near = SocketAddr::try_from(net::getsockname(fd)?)?;
    // No address stands for this host's.
    let same = at.ip().is_unspecified() || near.ip() == at.ip();
    match same && near.port() == at.port() {
        true => Err(Errno::CONNREFUSED),
        false => Ok(()),
    }
}

async fn unix(path: &Path) -> Result<OwnedFd, Errno> {
    let at = SocketAddrUnix::new(path)?;
    let fd = socket(AddressFamily::UNIX).await?;
    let mut pause = RETRY.0;
    loop {
        match net::connect(&fd, &at) {
            // The backlog is full, and no event will say when it is not.
            Err(Errno::AGAIN) => sleep(pause).await,
            Err(Errno::INTR) => (),
            other => return other.map(|()| fd),
        }
        pause = (pause * 2).min(RETRY.1);
    }
}

/// Connects a nonblocking socket. connect(2) is asked again for the result: it says 0 once established, EALREADY while
/// under way and else why it failed.
async fn established(fd: OwnedFd, at: SocketAddr) -> Result<Descriptor, Errno> {
    match net::connect(&fd, &at) {
        Err(Errno::INPROGRESS | Errno::INTR) => (),
        other => return other.map(|()| fd.into()),
    }
    // Over loopback the handshake is done by now.
    if at.ip().is_loopback() {
        match net::connect(&fd, &at) {
            Err(Errno::ALREADY) => (),
            other => return other.map(|()| fd.into()),
        }
    }
    let watched = reactor::register(fd).map_err(|(_fd, error)| errno(&error))?;
    loop {
        let mut guard = watched.writable().await.map_err(|error| errno(&error))?;
        match net::connect(watched.get_ref(), &at) {
            Err(Errno::ALREADY | Errno::INTR) => guard.clear_ready(),
            Err(errno) => return Err(errno),
            Ok(()) => break,
        }
    }
    Ok(watched.into())
}

#[cfg(test)]
mod tests;
