//! An upstream of our own: it does what the first bytes of a connection ask for, a thread for each.

use std::{
    io::{self, Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::Duration,
};

use anyhow::{Context, Result};

use super::{PATIENCE, bulk, pingpong};

/// What a client asks for: a kind, a number, and the seed of both directions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ask {
    /// Take this many bytes and the end, then send as many.
    Bulk { bytes: u64, seed: u64 },
    /// Answer this many messages.
    PingPong { rounds: u64, seed: u64 },
    /// Read and say nothing.
    Idle,
    /// Read nothing for so long, then take all there is, and answer how many bytes it was.
    Stall { millis: u64 },
}

impl Ask {
    /// Bytes of a request.
    pub(crate) const LENGTH: usize = 17;

    pub(crate) fn write(self, to: &mut impl Write) -> Result<()> {
        let (kind, number, seed) = match self {
            Self::Bulk { bytes, seed } => (b'b', bytes, seed),
            Self::PingPong { rounds, seed } => (b'p', rounds, seed),
            Self::Idle => (b'i', 0, 0),
            Self::Stall { millis } => (b's', millis, 0),
        };
        let mut ask = [0; Self::LENGTH];
        ask[0] = kind;
        ask[1..9].copy_from_slice(&number.to_le_bytes());
        ask[9..].copy_from_slice(&seed.to_le_bytes());
        to.write_all(&ask).context("the request")
    }

    fn read(from: &mut impl Read) -> Result<Option<Self>> {
        let mut kind = [0; 1];
        if from.read(&mut kind)? == 0 {
            return Ok(None);
        }
        let (mut number, mut seed) = ([0; 8], [0; 8]);
        from.read_exact(&mut number)?;
        from.read_exact(&mut seed)?;
        let (number, seed) = (u64::from_le_bytes(number), u64::from_le_bytes(seed));
        Ok(match kind[0] {
            b'b' => Some(Self::Bulk {
                bytes: number,
                seed,
            }),
            b'p' => Some(Self::PingPong {
                rounds: number,
                seed,
            }),
            b's' => Some(Self::Stall { millis: number }),
            _ => Some(Self::Idle),
        })
    }
}

/// Listens until it is dropped.
pub(crate) struct Upstream {
    pub(crate) address: SocketAddr,
    faults: Arc<Mutex<Vec<String>>>,
    listener: TcpListener,
    thread: Option<thread::JoinHandle<()>>,
}

impl Upstream {
    /// Listens on `address`, in the network namespace of the calling thread.
    pub(crate) fn start(address: SocketAddr) -> Result<Self> {
        let listener =
            TcpListener::bind(address).with_context(|| format!("listen on {address}"))?;
        // The backlog of the standard library is 128: a flood of connects would wait for retransmissions.
        rustix::net::listen(&listener, 4096)?;
        let faults = Arc::<Mutex<Vec<String>>>::default();
        let clients = listener.try_clone()?;
        Ok(Self {
            address: listener.local_addr()?,
            listener,
            thread: Some(thread::spawn({
                let faults = faults.clone();
                move || accept(&clients, &faults)
            })),
            faults,
        })
    }

    /// What went wrong so far, which empties the list.
    pub(crate) fn faults(&self) -> Vec<String> {
        let mut faults = self.faults.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *faults)
    }
}

impl Drop for Upstream {
    fn drop(&mut self) {
        // Ends the thread's accept(2), and with it the connections that it holds.
        let shut = rustix::net::shutdown(&self.listener, rustix::net::Shutdown::Both);
        if let (Ok(()), Some(thread)) = (shut, self.thread.take()) {
            let _ = thread.join();
        }
    }
}

fn accept(listener: &TcpListener, faults: &Arc<Mutex<Vec<String>>>) {
    // Idle connections are only held: 10,000 threads would be what is measured.
    let mut idle = Vec::new();
    for client in listener.incoming() {
        match client {
            Ok(client) => match sort(client, faults) {
                Ok(held) => idle.extend(held),
                Err(fault) => note(faults, &fault),
            },
            // EINVAL is the answer of a listener that was shut down.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => return,
            Err(error) => {
                note(faults, &error.into());
                thread::sleep(Duration::from_millis(10));
            }
        }
    }
}

fn note(faults: &Mutex<Vec<String>>, fault: &anyhow::Error) {
    let mut faults = faults.lock().unwrap_or_else(PoisonError::into_inner);
    faults.push(format!("upstream: {fault:#}"));
}

/// Serves `client` on a thread, or gives it back to be held.
fn sort(mut client: TcpStream, faults: &Arc<Mutex<Vec<String>>>) -> Result<Option<TcpStream>> {
    client.set_nodelay(true)?;
    client.set_read_timeout(Some(PATIENCE))?;
    client.set_write_timeout(Some(PATIENCE))?;
    let Some(ask) = Ask::read(&mut client)? else {
        return Ok(None);
    };
    if ask == Ask::Idle {
        return Ok(Some(client));
    }
    let faults = faults.clone();
    thread::spawn(move || {
        if let Err(fault) = serve(&mut client, ask) {
            note(&faults, &fault);
        }
    });
    Ok(None)
}

fn serve(client: &mut TcpStream, ask: Ask) -> Result<()> {
    match ask {
        Ask::Bulk { bytes, seed } => {
            bulk::take(client, bytes, seed, |_| ())?;
            bulk::send(client, bytes, !seed, |_| ())?;
        }
        Ask::PingPong { rounds, seed } => pingpong::answer(client, rounds, seed)?,
        Ask::Stall { millis } => {
            thread::sleep(Duration::from_millis(millis));
            let taken = io::copy(client, &mut io::sink()).context("after the stall")?;
            client.write_all(&taken.to_le_bytes())?;
        }
        Ask::Idle => return Ok(()),
    }
    client.shutdown(Shutdown::Write).context("shutdown")
}
