//! The two sockets of a connection, and the words for its sides and directions.

use std::{
    fmt,
    net::SocketAddr,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::Path,
    sync::Arc,
};

use serde::{Serialize, Serializer};

use crate::sys::reactor::Descriptor;

/// An accepted client and its upstream, both nonblocking.
#[derive(Debug)]
pub struct Pair {
    /// The accepted socket.
    pub client: Socket,
    /// The dialled socket.
    pub upstream: Socket,
}

impl Pair {
    /// The socket at `side`.
    #[must_use]
    pub fn socket(&self, side: Side) -> &Socket {
        match side {
            Side::Client => &self.client,
            Side::Upstream => &self.upstream,
        }
    }
}

/// One end of a connection.
#[derive(Debug)]
pub struct Socket {
    pub(crate) fd: Descriptor,
    /// Who is at the other end; also says whether this is TCP.
    pub peer: Peer,
    /// It is in the sockmap although another engine carries it: readable with recv(2), never with splice(2).
    pub mapped: bool,
    /// Bytes that were read from it before an engine took it: a greeting, which is relay's own.
    pub read: u64,
}

impl Socket {
    /// A nonblocking stream socket that is in no map, and from which nothing was read.
    #[must_use]
    pub fn new(fd: OwnedFd, peer: Peer) -> Self {
        Self::held(fd, peer)
    }

    /// The same, perhaps in the poll set of the current runtime.
    pub(crate) fn held(fd: impl Into<Descriptor>, peer: Peer) -> Self {
        Self {
            fd: fd.into(),
            peer,
            mapped: false,
            read: 0,
        }
    }

    /// The same socket, in no poll set.
    pub(crate) fn unwatched(self) -> Self {
        let fd = self.fd.free().into();
        Self { fd, ..self }
    }

    /// Whether this is a TCP socket (the other kind is a Unix stream).
    #[must_use]
    pub fn is_tcp(&self) -> bool {
        matches!(self.peer, Peer::Ip(_))
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Who is at the other end of a socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Peer {
    /// A TCP peer.
    Ip(SocketAddr),
    /// A Unix socket, by the path of the one that listens.
    Unix(Arc<Path>),
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ip(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl Serialize for Peer {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Who is at an end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Side {
    /// The one that connected to relay.
    Client,
    /// The one that relay connected to.
    Upstream,
}

impl Side {
    /// Both sides.
    pub const BOTH: [Self; 2] = [Self::Client, Self::Upstream];

    /// The side at the other end.
    #[must_use]
    pub fn other(self) -> Self {
        match self {
            Self::Client => Self::Upstream,
            Self::Upstream => Self::Client,
        }
    }

    /// 0 for the client, 1 for the upstream.
    #[must_use]
    pub fn index(self) -> usize {
        self as usize
    }
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Client => "client",
            Self::Upstream => "upstream",
        })
    }
}

/// Which way bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// From the client to the upstream.
    Up,
    /// From the upstream to the client.
    Down,
}

impl Direction {
    /// Both directions.
    pub const BOTH: [Self; 2] = [Self::Up, Self::Down];

    /// Where the bytes come from.
    #[must_use]
    pub fn from(self) -> Side {
        match self {
            Self::Up => Side::Client,
            Self::Down => Side::Upstream,
        }
    }

    /// Where the bytes go to.
    #[must_use]
    pub fn to(self) -> Side {
        self.from().other()
    }

    /// 0 for up, 1 for down.
    #[must_use]
    pub fn index(self) -> usize {
        self as usize
    }
}
