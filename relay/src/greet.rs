//! What is said on a connection before an engine carries it: PROXY protocol headers, accepted and sent, and clients that
//! say where they want to go.

mod ask;
mod ear;
mod http;
mod proxy;
mod socks5;

use std::{
    net::{IpAddr, SocketAddr},
    os::fd::AsFd,
    time::Duration,
};

use rustix::{
    io::Errno,
    net::{SendFlags, getsockname, send},
};
use tokio::time::timeout;

pub use self::ask::{Asked, answer, asked, out_of_reach};
use self::ear::Ear;
use crate::{
    close::{By, How, Outcome},
    drain::Drain,
    pair::{Peer, Side, Socket},
    plan::{AcceptProxy, Address, ProxyVersion},
};

/// Who a connection is from and whom it was meant for, where a header says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The client.
    pub source: SocketAddr,
    /// What the client connected to.
    pub destination: SocketAddr,
}

/// Why a greeting was not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refusal {
    /// Whoever says it is not one who may.
    Untrusted,
    /// It is not what the protocol says.
    Malformed,
    /// It does not say the right user and password.
    Unauthorized,
    /// It asks for something else than a connection.
    Command,
    /// Nobody may be connected to there.
    Destination,
    /// It took too long.
    Late,
    /// The client ended before it was complete.
    Ended,
    /// The connection is over for another reason.
    Over(Outcome),
}

impl Refusal {
    fn outcome(self) -> Outcome {
        let reason = match self {
            Self::Untrusted => "untrusted",
            Self::Malformed => "malformed",
            Self::Unauthorized => "unauthorized",
            Self::Command => "command",
            Self::Destination => "destination",
            Self::Late => "late",
            Self::Ended => "ended",
            Self::Over(outcome) => return outcome,
        };
        Outcome {
            by: By::Client,
            how: How::Greeting { reason },
        }
    }
}

/// Reads the PROXY protocol header of `client`, and nothing behind it. Without an address in it, there is no origin.
///
/// # Errors
///
/// Says how the connection has ended, or has to end: the client is gone then, reset if it is armed.
pub async fn origin(
    client: Socket,
    accept: &AcceptProxy,
    drain: &Drain,
) -> Result<(Socket, Option<Origin>), Outcome> {
    if let Peer::Ip(from) = client.peer
        && !accept.trusts(from.ip())
    {
        return Err(Refusal::Untrusted.outcome());
    }
    let mut ear = Ear::new(client)?;
    let header = ear.hear(proxy::MOST, proxy::parse);
    let origin = within(accept.limit, drain, header).await;
    Ok((ear.release(), origin.map_err(Refusal::outcome)?))
}

/// What tells an upstream on whose behalf it is connected to, before anything else is said.
#[must_use]
pub fn header(version: ProxyVersion, origin: Option<Origin>) -> Vec<u8> {
    proxy::header(version, origin)
}

/// Who a connection is from and whom it was meant for, by its socket; nothing for a Unix socket.
#[must_use]
pub fn seen(client: &Socket) -> Option<Origin> {
    let Peer::Ip(source) = client.peer else {
        return None;
    };
    let near = getsockname(client).ok()?;
    let near = SocketAddr::try_from(near).ok()?;
    // A socket for both families shows IPv4 as ::ffff:a.b.c.d; the peer's address was made canonical before.
    let destination = SocketAddr::new(IpAddr::to_canonical(&near.ip()), near.port());
    Some(Origin {
        source,
        destination,
    })
}

/// What stands for a host in a request: an address or a name that can be one.
fn named(host: &str, port: u16) -> Result<Address, Refusal> {
    if let Ok(ip) = host.parse() {
        return Ok(Address::Ip(SocketAddr::new(ip, port)));
    }
    let of_a_name = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    match (1..=253).contains(&host.len()) && host.chars().all(of_a_name) {
        true => Ok(Address::Name(host.to_owned(), port)),
        false => Err(Refusal::Malformed),
    }
}

async fn within<T, E: From<Refusal>>(
    limit: Duration,
    drain: &Drain,
    heard: impl Future<Output = Result<T, E>>,
) -> Result<T, E> {
    tokio::select! {
        heard = timeout(limit, heard) => heard.unwrap_or(Err(Refusal::Late.into())),
        () = drain.cut() => Err(Refusal::Over(Outcome::relay(How::Drain)).into()),
    }
}

/// Writes a few bytes to a socket to which next to nothing was written before, so that they fit in its send buffer.
fn say(socket: impl AsFd, side: Side, bytes: &[u8]) -> Result<(), Outcome> {
    let failed = |errno: Errno| Outcome::failed(side, "send", &errno.into());
    loop {
        match send(&socket, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
            Ok(said) if said == bytes.len() => return Ok(()),
            Ok(_) => return Err(failed(Errno::NOBUFS)),
            Err(Errno::INTR) => (),
            Err(errno) => return Err(failed(errno)),
        }
    }
}
