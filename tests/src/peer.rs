//! Clients and upstreams: blocking sockets, each call with a deadline, each byte checked.

mod listen;
mod talk;

use std::{
    io::{self, ErrorKind, Read, Write},
    net::{Shutdown, SocketAddr},
    path::PathBuf,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use crate::{patience, payload::Stream};

pub use listen::{Listener, Server, both, echo, many, refusing};
pub use talk::{converse, exchange, go_on};

/// The most that a peer writes or reads at once.
const CHUNK: usize = 64 << 10;

/// Far more clients than any test lets wait.
const BACKLOG: i32 = 4096;

/// Where a socket listens, in relay's own notation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// An IP address and port.
    Ip(SocketAddr),
    /// A Unix stream socket.
    Unix(PathBuf),
}

impl Address {
    /// Reads what relay prints.
    ///
    /// # Errors
    ///
    /// Fails on anything else.
    pub fn parse(text: &str) -> Result<Self> {
        match text.strip_prefix("unix:") {
            Some(path) => Ok(Self::Unix(path.into())),
            None => Ok(Self::Ip(text.parse().with_context(|| {
                format!("{text} is not an address with a port")
            })?)),
        }
    }

    fn domain(&self) -> Domain {
        match self {
            Self::Ip(address) => Domain::for_address(*address),
            Self::Unix(_) => Domain::UNIX,
        }
    }

    fn to_sockaddr(&self) -> Result<SockAddr> {
        Ok(match self {
            Self::Ip(address) => (*address).into(),
            Self::Unix(path) => SockAddr::unix(path)?,
        })
    }
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Ip(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// One end of a connection.
#[derive(Debug)]
pub struct Peer {
    socket: Socket,
    name: String,
}

impl Peer {
    /// Connects to `address`.
    ///
    /// # Errors
    ///
    /// Fails when nobody accepts within [`patience::limit`].
    pub fn connect(address: &Address) -> Result<Self> {
        Self::connect_from(Self::socket(address, None)?, address)
    }

    /// Connects with multipath TCP.
    ///
    /// # Errors
    ///
    /// Fails when nobody accepts within [`patience::limit`], or without MPTCP.
    pub fn connect_mptcp(address: &Address) -> Result<Self> {
        Self::connect_from(Self::socket(address, Some(Protocol::MPTCP))?, address)
    }

    /// Connects with send and receive buffers of this size.
    ///
    /// # Errors
    ///
    /// Fails when nobody accepts within [`patience::limit`].
    pub fn connect_buffered(address: &Address, buffer: usize) -> Result<Self> {
        let socket = Self::socket(address, None)?;
        socket.set_send_buffer_size(buffer)?;
        socket.set_recv_buffer_size(buffer)?;
        Self::connect_from(socket, address)
    }

    /// Connects from the address and port that `before` had, which must be reset by then, or from port 0.
    ///
    /// # Errors
    ///
    /// Fails when the port is taken, and when nobody accepts within [`patience::limit`].
    pub fn connect_again(before: &str, address: &Address) -> Result<Self> {
        let socket = Self::socket(address, None)?;
        let before: SocketAddr = before.parse()?;
        socket.bind(&before.into())?;
        Self::connect_from(socket, address)
    }

    fn socket(address: &Address, protocol: Option<Protocol>) -> Result<Socket> {
        let socket = Socket::new(address.domain(), Type::STREAM, protocol)?;
        socket.set_write_timeout(Some(patience::limit()))?;
        Ok(socket)
    }

    fn connect_from(socket: Socket, address: &Address) -> Result<Self> {
        // Linux goes on with the same attempt when it is asked again.
        let address_of = address.to_sockaddr()?;
        uninterrupted(|| socket.connect(&address_of))
            .with_context(|| format!("connect to {address}"))?;
        Self::new(socket, "client")
    }

    fn new(socket: Socket, name: &str) -> Result<Self> {
        socket.set_read_timeout(Some(patience::limit()))?;
        socket.set_write_timeout(Some(patience::limit()))?;
        if socket.domain()? != Domain::UNIX {
            socket.set_tcp_nodelay(true)?;
        }
        Ok(Self {
            socket,
            name: name.to_owned(),
        })
    }

    /// The socket's own address: what relay calls the client.
    ///
    /// # Errors
    ///
    /// Fails on a Unix socket.
    pub fn local(&self) -> Result<String> {
        let address = self.socket.local_addr()?.as_socket();
        Ok(address.context("not an IP socket")?.to_string())
    }

    /// The socket, for options.
    #[must_use]
    pub fn as_socket(&self) -> &Socket {
        &self.socket
    }

    /// Sends `bytes`.
    ///
    /// # Errors
    ///
    /// Fails when the other side is gone or does not take them.
    pub fn send(&self, bytes: &[u8]) -> Result<()> {
        self.write_all(bytes)
            .with_context(|| format!("{} sends {} bytes", self.name, bytes.len()))
    }

    fn write_all(&self, bytes: &[u8]) -> io::Result<()> {
        (&self.socket).write_all(bytes)
    }

    /// Sends the next `length` bytes of `stream`.
    ///
    /// # Errors
    ///
    /// Fails when the other side is gone or does not take them.
    pub fn send_stream(&self, stream: &mut Stream, length: u64) -> Result<()> {
        let mut left = length;
        let mut buffer = vec![0; CHUNK];
        while left > 0 {
            let piece = &mut buffer[..CHUNK.min(usize::try_from(left)?)];
            stream.fill(piece);
            left -= piece.len() as u64;
            self.write_all(piece)
                .with_context(|| format!("{} sends {length} bytes, {left} left", self.name))?;
        }
        Ok(())
    }

    /// Sends bytes of `stream` until told to stop, or until the socket fails.
    ///
    /// # Errors
    ///
    /// Fails with what the socket said.
    pub fn send_until(&self, stream: &mut Stream, stop: &AtomicBool) -> io::Result<()> {
        let mut buffer = vec![0; CHUNK];
        while !stop.load(Ordering::Relaxed) {
            stream.fill(&mut buffer);
            self.write_all(&buffer)?;
        }
        Ok(())
    }

    /// Sends until nothing goes for a second, and gives how many bytes went.
    ///
    /// # Errors
    ///
    /// Fails with what the socket said.
    pub fn stuff(&self, stream: &mut Stream) -> Result<u64> {
        self.socket
            .set_write_timeout(Some(Duration::from_secs(1)))?;
        let mut went = 0;
        let mut buffer = vec![0; CHUNK];
        let stuck = 'stuffing: loop {
            stream.fill(&mut buffer);
            let mut left = &buffer[..];
            while !left.is_empty() {
                match uninterrupted(|| (&self.socket).write(left)) {
                    Ok(count) => {
                        went += count as u64;
                        left = &left[count..];
                    }
                    Err(error) => break 'stuffing error,
                }
            }
        };
        self.socket.set_write_timeout(Some(patience::limit()))?;
        match stuck.kind() {
            ErrorKind::WouldBlock => Ok(went),
            _ => Err(stuck.into()),
        }
    }

    /// Reads once, at most `buffer`; 0 is the end.
    ///
    /// # Errors
    ///
    /// Fails with what the socket said, and when nothing comes within [`patience::limit`].
    pub fn read(&self, buffer: &mut [u8]) -> Result<usize> {
        match uninterrupted(|| (&self.socket).read(buffer)) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                bail!("{}: nothing came for {:?}", self.name, patience::limit())
            }
            other => other.with_context(|| format!("{} reads", self.name)),
        }
    }

    /// Reads exactly `length` bytes.
    ///
    /// # Errors
    ///
    /// Fails when the stream ends before.
    pub fn receive(&self, length: usize) -> Result<Vec<u8>> {
        let mut bytes = vec![0; length];
        let mut came = 0;
        while came < length {
            match self.read(&mut bytes[came..])? {
                0 => bail!("{}: the end after {came} of {length} bytes", self.name),
                count => came += count,
            }
        }
        Ok(bytes)
    }

    /// Reads the next `length` bytes of `stream` and checks each.
    ///
    /// # Errors
    ///
    /// Fails at the first wrong byte, and when the stream ends before.
    pub fn expect(&self, stream: &mut Stream, length: u64) -> Result<()> {
        let mut left = length;
        let mut buffer = vec![0; CHUNK];
        while left > 0 {
            let most = CHUNK.min(usize::try_from(left)?);
            let count = self
                .read(&mut buffer[..most])
                .with_context(|| format!("{left} of {length} bytes are missing"))?;
            ensure!(
                count > 0,
                "{}: the end came, {left} of {length} bytes are missing",
                self.name
            );
            stream
                .check(&buffer[..count])
                .with_context(|| self.name.clone())?;
            left -= count as u64;
        }
        Ok(())
    }

    /// Reads the end.
    ///
    /// # Errors
    ///
    /// Fails when more bytes come, or a reset.
    pub fn expect_end(&self) -> Result<()> {
        let count = self.read(&mut [0; 1]).context("instead of the end")?;
        ensure!(count == 0, "{}: a byte came instead of the end", self.name);
        Ok(())
    }

    /// Reads on until the reset.
    ///
    /// # Errors
    ///
    /// Fails when a clean end comes, or nothing.
    pub fn expect_reset(&self) -> Result<()> {
        let mut buffer = vec![0; CHUNK];
        loop {
            match uninterrupted(|| (&self.socket).read(&mut buffer)) {
                Ok(0) => bail!("{}: a clean end came instead of a reset", self.name),
                Ok(_) => (),
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return Ok(()),
                Err(error) => return Err(error).context("instead of a reset"),
            }
        }
    }

    /// Sends until the reset.
    ///
    /// # Errors
    ///
    /// Fails when the socket says anything else.
    pub fn push_into_reset(&self, stream: &mut Stream) -> Result<()> {
        match self.send_until(stream, &AtomicBool::new(false)) {
            Err(error) if error.kind() == ErrorKind::ConnectionReset => Ok(()),
            Err(error) => Err(error).context(format!("{}: instead of a reset", self.name)),
            Ok(()) => bail!("{}: stopped sending", self.name),
        }
    }

    /// Ends the own direction; the other goes on.
    ///
    /// # Errors
    ///
    /// Fails when the connection is gone.
    pub fn finish(&self) -> Result<()> {
        self.socket
            .shutdown(Shutdown::Write)
            .with_context(|| format!("{} ends its direction", self.name))
    }

    /// Closes with a reset.
    ///
    /// # Errors
    ///
    /// Fails when the socket refuses the option.
    pub fn reset(self) -> Result<()> {
        Ok(self.socket.set_linger(Some(Duration::ZERO))?)
    }
}

/// A call with a deadline is interrupted when the whole process is stopped and goes on, as on a machine that is paused.
fn uninterrupted<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(error) if error.kind() == ErrorKind::Interrupted => (),
            other => return other,
        }
    }
}
