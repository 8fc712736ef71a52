//! Upstreams that listen, serve until they are stopped, and say what went wrong.

use std::{
    io::ErrorKind,
    net::{Shutdown, SocketAddr},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
};

use anyhow::{Context, Result, anyhow};
use socket2::{Domain, Socket, Type};

use super::{Address, BACKLOG, CHUNK, Peer, uninterrupted};
use crate::patience;

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

/// A place that refuses until it is told to listen; nobody else gets its port meanwhile.
///
/// # Errors
///
/// Fails without a socket.
pub fn refusing() -> Result<(Socket, String)> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    socket.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into())?;
    let at = socket.local_addr()?.as_socket().context("no address")?;
    Ok((socket, at.to_string()))
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
