//! An upstream of our own: it does what the first bytes of a connection ask for, a thread for each.

use std::{
    io::{self, Read, Write},
    net::{IpAddr, Shutdown},
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::Duration,
};

use anyhow::{Context, Result};
use socket2::Socket;

use super::{bulk, flow, idle::Idle, once, pingpong, socket::Address, talk};

/// What a client asks for: a kind, a number, and the seed of both directions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ask {
    /// Take this many bytes and the end, then send as many.
    Bulk { bytes: u64, seed: u64 },
    /// Answer this many messages.
    PingPong { rounds: u64, seed: u64 },
    /// Answer messages of so many bytes, each with as many, until there are no more.
    Talk { size: u64, seed: u64 },
    /// Take all there is until the end, and answer how many bytes it was.
    Sink { seed: u64 },
    /// Send for so long, and then the end.
    Pour { millis: u64, seed: u64 },
    /// Answer one short message.
    Once,
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
            Self::Talk { size, seed } => (b't', size, seed),
            Self::Sink { seed } => (b'k', 0, seed),
            Self::Pour { millis, seed } => (b'o', millis, seed),
            Self::Once => (b'1', 0, 0),
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
        match from.read(&mut kind) {
            Ok(0) => return Ok(None),
            Ok(_) => (),
            // Who asks for nothing, only to see whether somebody is there, may go in any way.
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Ok(None),
            Err(error) => return Err(error.into()),
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
            b't' => Some(Self::Talk { size: number, seed }),
            b'1' => Some(Self::Once),
            b'k' => Some(Self::Sink { seed }),
            b'o' => Some(Self::Pour {
                millis: number,
                seed,
            }),
            _ => Some(Self::Idle),
        })
    }
}

/// What went wrong, and whose connection it was.
type Faults = Mutex<Vec<(Option<IpAddr>, String)>>;

/// Listens until it is dropped.
pub(crate) struct Upstream {
    pub(crate) address: Address,
    faults: Arc<Faults>,
    listener: Arc<Socket>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Upstream {
    /// Listens at `address`, in the network namespace of the calling thread.
    pub(crate) fn start(address: Address) -> Result<Self> {
        let listener = Arc::new(address.listen()?);
        // Where the kernel has chosen the port.
        let bound = listener.local_addr()?.as_socket();
        let address = bound.map_or(address, Address::from);
        let faults = Arc::<Faults>::default();
        let idle = Idle::new()?;
        Ok(Self {
            thread: Some(thread::spawn({
                let (listener, address, faults) =
                    (listener.clone(), address.clone(), faults.clone());
                move || accept(&listener, &address, &idle, &faults)
            })),
            address,
            listener,
            faults,
        })
    }

    /// What went wrong so far, which empties the list.
    pub(crate) fn faults(&self) -> Vec<String> {
        self.faults_of(|_| true)
    }

    /// The same, of clients at addresses for which `ours` holds; those of others stay.
    pub(crate) fn faults_of(&self, ours: impl Fn(Option<IpAddr>) -> bool) -> Vec<String> {
        let mut faults = self.faults.lock().unwrap_or_else(PoisonError::into_inner);
        let taken = faults.extract_if(.., |(client, _)| ours(*client));
        taken.map(|(_, fault)| fault).collect()
    }
}

impl Drop for Upstream {
    fn drop(&mut self) {
        // Ends the thread's accept(2), and with it the connections that it holds.
        let shut = self.listener.shutdown(Shutdown::Both);
        if let (Ok(()), Some(thread)) = (shut, self.thread.take()) {
            let _ = thread.join();
        }
    }
}

fn accept(listener: &Socket, address: &Address, idle: &Idle, faults: &Arc<Faults>) {
    loop {
        match listener.accept() {
            Ok((client, from)) => {
                let from = from.as_socket().map(|from| from.ip());
                let sorted = address.prepare(&client).map_err(Into::into);
                if let Err(fault) = sorted.and_then(|()| sort(client, from, idle, faults)) {
                    note(faults, from, &fault);
                }
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            // EINVAL is the answer of a listener that was shut down.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => return,
            Err(error) => {
                note(faults, None, &error.into());
                thread::sleep(Duration::from_millis(10));
            }
        }
    }
}

fn note(faults: &Faults, client: Option<IpAddr>, fault: &anyhow::Error) {
    let mut faults = faults.lock().unwrap_or_else(PoisonError::into_inner);
    faults.push((client, format!("upstream: {fault:#}")));
}

/// Serves `client` on a thread, unless there is little to do.
fn sort(mut client: Socket, from: Option<IpAddr>, idle: &Idle, faults: &Arc<Faults>) -> Result<()> {
    let Some(ask) = Ask::read(&mut client)? else {
        return Ok(());
    };
    match ask {
        // 10,000 threads would be what is measured.
        Ask::Idle => return idle.hold(client),
        // The request is there already: a thread would cost more than the answer.
        Ask::Once => return once::answer(&mut client),
        _ => (),
    }
    let faults = faults.clone();
    thread::spawn(move || {
        if let Err(fault) = serve(&mut client, ask) {
            note(&faults, from, &fault);
        }
    });
    Ok(())
}

fn serve(client: &mut Socket, ask: Ask) -> Result<()> {
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
        Ask::Talk { size, seed } => talk::answer(client, usize::try_from(size)?, seed)?,
        Ask::Sink { seed } => flow::sink(client, seed)?,
        Ask::Pour { millis, seed } => flow::pour(client, Duration::from_millis(millis), seed)?,
        Ask::Idle | Ask::Once => return Ok(()),
    }
    client.shutdown(Shutdown::Write).context("shutdown")
}
