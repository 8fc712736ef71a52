//! Where the load goes: sockets of TCP and of Unix, behind one type.

use std::{
    fmt::{self, Display, Formatter},
    io,
    net::SocketAddr,
    path::PathBuf,
};

use anyhow::{Context, Result};
use socket2::{Domain, SockAddr, Socket, Type};

use super::PATIENCE;

/// The backlog of the standard library is 128: a flood of connects would wait for retransmissions.
const BACKLOG: i32 = 4096;

/// Where somebody listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Address {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

impl Address {
    /// Listens there, in the network namespace of the calling thread.
    pub(super) fn listen(&self) -> Result<Socket> {
        let listen = || {
            let (socket, address) = self.socket()?;
            if let Self::Tcp(_) = self {
                socket.set_reuse_address(true)?;
            }
            socket.bind(&address)?;
            socket.listen(BACKLOG)?;
            io::Result::Ok(socket)
        };
        listen().with_context(|| format!("listen on {self}"))
    }

    /// A connection that does not wait for ever.
    pub(crate) fn connect(&self) -> Result<Socket> {
        self.dial().with_context(|| format!("connect to {self}"))
    }

    fn dial(&self) -> io::Result<Socket> {
        let (socket, address) = self.socket()?;
        self.prepare(&socket)?;
        match self {
            Self::Tcp(_) => socket.connect_timeout(&address, PATIENCE)?,
            // Its limit is that of writing: one that does not wait would be refused when the backlog is full.
            Self::Unix(_) => socket.connect(&address)?,
        }
        Ok(socket)
    }

    /// No delay, and no read or write for ever.
    pub(super) fn prepare(&self, socket: &Socket) -> io::Result<()> {
        if let Self::Tcp(_) = self {
            socket.set_tcp_nodelay(true)?;
        }
        socket.set_read_timeout(Some(PATIENCE))?;
        socket.set_write_timeout(Some(PATIENCE))
    }

    fn socket(&self) -> io::Result<(Socket, SockAddr)> {
        let (domain, address) = match self {
            Self::Tcp(address) => (Domain::for_address(*address), SockAddr::from(*address)),
            Self::Unix(path) => (Domain::UNIX, SockAddr::unix(path)?),
        };
        Ok((Socket::new(domain, Type::STREAM, None)?, address))
    }
}

impl From<SocketAddr> for Address {
    fn from(address: SocketAddr) -> Self {
        Self::Tcp(address)
    }
}

/// As relay's flags have it, and most others.
impl Display for Address {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}
