//! Clients and upstreams: blocking sockets, each call with a deadline, each byte checked.

use std::{
    io::{self, ErrorKind, Read, Write},
    net::{Shutdown, SocketAddr},
    path::PathBuf,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use anyhow::{Context, Result, anyhow, bail, ensure};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use crate::{patience, payload::Stream};

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

/// Accepts the connections that relay makes.
#[derive(Debug)]
pub struct Listener {
    socket: Socket,
    address: Address,
}

impl Listener {
    /// Listens; port 0 is any.
    ///
    /// # Errors
    ///
    /// Fails when the address cannot be had.
    pub fn bind(address: &Address) -> Result<Self> {
        Self::bind_with(address, BACKLOG, None)
    }

    /// Listens with a backlog of this size, and receive buffers of that size.
    ///
    /// # Errors
    ///
    /// Fails when the address cannot be had.
    pub fn bind_with(address: &Address, backlog: i32, buffer: Option<usize>) -> Result<Self> {
        let socket = Socket::new(address.domain(), Type::STREAM, None)?;
        if let Some(size) = buffer {
            socket.set_recv_buffer_size(size)?;
            socket.set_send_buffer_size(size)?;
        }
        socket
            .bind(&address.to_sockaddr()?)
            .with_context(|| format!("bind {address}"))?;
        socket.listen(backlog)?;
        socket.set_read_timeout(Some(patience::limit()))?;
        let address = match socket.local_addr()?.as_socket() {
            Some(bound) => Address::Ip(bound),
            None => address.clone(),
        };
        Ok(Self { socket, address })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Accepts one.
    ///
    /// # Errors
    ///
    /// Fails when nobody comes within [`patience::limit`].
    pub fn accept(&self) -> Result<Peer> {
        let accepted = uninterrupted(|| self.socket.accept());
        let (socket, _) = accepted.context("the upstream accepts")?;
        Peer::new(socket, "upstream")
    }

    /// Serves every connection with `handler`, each on a thread of its own.
    ///
    /// # Errors
    ///
    /// Fails when no thread is to be had.
    pub fn serve(
        self,
        handler: impl Fn(Peer) -> Result<()> + Send + Sync + 'static,
    ) -> Result<Server> {
        let listener = Arc::new(self);
        let faults = Arc::new(Faults::default());
        let handler = Arc::new(handler);
        let accepting = thread::Builder::new().spawn({
            let (listener, faults) = (listener.clone(), faults.clone());
            move || {
                let mut serving = Vec::new();
                loop {
                    let socket = match uninterrupted(|| listener.socket.accept()) {
                        Ok((socket, _)) => socket,
                        // Nobody came for long; that is for the clients to judge.
                        Err(error) if error.kind() == ErrorKind::WouldBlock => continue,
                        // shutdown(2) by `close`.
                        Err(error) if error.kind() == ErrorKind::InvalidInput => break,
                        Err(error) => {
                            faults.note(Err(error).context("the upstream accepts"));
                            break;
                        }
                    };
                    let (handler, faults) = (handler.clone(), faults.clone());
                    serving.push(thread::spawn(move || {
                        faults.note(Peer::new(socket, "upstream").and_then(|peer| handler(peer)));
                    }));
                }
                for thread in serving {
                    if thread.join().is_err() {
                        faults.note(Err(anyhow!("an upstream thread panicked")));
                    }
                }
            }
        })?;
        Ok(Server {
            listener,
            faults,
            accepting: Some(accepting),
        })
    }
}

#[derive(Debug, Default)]
struct Faults(Mutex<Vec<anyhow::Error>>);

impl Faults {
    fn note(&self, result: Result<()>) {
        if let Err(fault) = result {
            let mut faults = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            faults.push(fault);
        }
    }
}

/// An upstream that serves until it is stopped.
#[derive(Debug)]
pub struct Server {
    listener: Arc<Listener>,
    faults: Arc<Faults>,
    accepting: Option<JoinHandle<()>>,
}

impl Server {
    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> &Address {
        self.listener.address()
    }

    /// Stops accepting and waits for the connections to end.
    ///
    /// # Errors
    ///
    /// Fails with the first thing that went wrong in a connection.
    pub fn stop(mut self) -> Result<()> {
        self.close();
        let mut faults = self.faults.0.lock().unwrap_or_else(PoisonError::into_inner);
        match faults.drain(..).next() {
            Some(fault) => Err(fault),
            None => Ok(()),
        }
    }

    fn close(&mut self) {
        // Wakes the thread in accept(2).
        let _ = self.listener.socket.shutdown(Shutdown::Both);
        if let Some(thread) = self.accepting.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // A test that failed does not wait for its connections.
        let _ = self.listener.socket.shutdown(Shutdown::Both);
        if self.accepting.is_some() {
            let faults = self.faults.0.lock().unwrap_or_else(PoisonError::into_inner);
            for fault in faults.iter() {
                eprintln!("an upstream said: {fault:#}");
            }
        }
    }
}

/// Sends back whatever comes, until the end.
///
/// # Errors
///
/// Fails when the connection does not come to a clean end.
pub fn echo(peer: Peer) -> Result<()> {
    let mut buffer = vec![0; CHUNK];
    loop {
        match peer.read(&mut buffer)? {
            0 => return peer.finish(),
            count => peer.send(&buffer[..count])?,
        }
    }
}

/// Runs both at once.
///
/// # Errors
///
/// Fails with what went wrong first in either.
pub fn both(
    one: impl FnOnce() -> Result<()> + Send,
    other: impl FnOnce() -> Result<()> + Send,
) -> Result<()> {
    thread::scope(|scope| {
        let one = scope.spawn(one);
        let other = other();
        let one = one.join().map_err(|_| anyhow!("a peer panicked"))?;
        match (one, other) {
            (Err(one), Err(other)) => Err(one.context(format!("and the other side: {other:#}"))),
            (one, other) => one.and(other),
        }
    })
}

/// Runs `work` for each number below `count`, on `threads` threads.
///
/// # Errors
///
/// Fails with the first thing that went wrong; the other threads then stop at their next number.
pub fn many(count: u64, threads: u64, work: impl Fn(u64) -> Result<()> + Sync) -> Result<()> {
    let failed = AtomicBool::new(false);
    let lane = |lane: u64| -> Result<()> {
        for number in (lane..count).step_by(usize::try_from(threads)?) {
            if failed.load(Ordering::Relaxed) {
                break;
            }
            let result = work(number).with_context(|| format!("number {number}"));
            if result.is_err() {
                failed.store(true, Ordering::Relaxed);
                return result;
            }
        }
        Ok(())
    };
    thread::scope(|scope| {
        let lanes: Vec<_> = (0..threads)
            .map(|number| {
                scope.spawn({
                    let lane = &lane;
                    move || lane(number)
                })
            })
            .collect();
        let mut result = Ok(());
        for thread in lanes {
            let ended = thread.join().map_err(|_| anyhow!("a peer panicked"))?;
            result = result.and(ended);
        }
        result
    })
}
