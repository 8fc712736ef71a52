//! A connection under test: two peers, the engine between them, and the record of its end.

use std::{
    future::Future,
    net::{TcpListener, TcpStream},
    os::fd::OwnedFd,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpStream as Peer, UnixStream},
    sync::mpsc,
    task::JoinHandle,
};

use crate::{
    close::{self, Outcome},
    drain::{Drain, Room},
    engine::{Connection, Declined, copy::Copy, splice::Splice},
    pace::Pace,
    pair::{Pair, Socket},
    plan::{EngineKind, Limits, Sizes},
    stats::{
        books::Books,
        card::Card,
        record::{Finished, Record},
        sink::Sink,
    },
    sys::tune::tune,
};

/// The engine under test.
#[derive(Clone)]
pub(in crate::engine) enum Under {
    Splice(Arc<Splice>),
    Copy(Arc<Copy>),
}

impl Under {
    pub(in crate::engine) fn splice() -> Self {
        Self::Splice(Arc::new(
            Splice::start(Sizes::default(), &Room::default()).unwrap(),
        ))
    }

    pub(in crate::engine) fn copy() -> Self {
        Self::Copy(Arc::new(Copy::new(Sizes::default().buffer)))
    }

    async fn run(self, connection: Box<Connection>, drain: Drain) -> Result<(), Declined> {
        match self {
            Self::Splice(splice) => splice.run(connection, None, &drain).await.map(drop),
            Self::Copy(copy) => {
                copy.run(connection, None, &drain).await;
                Ok(())
            }
        }
    }
}

/// What a record said at its end.
#[derive(Debug)]
pub(in crate::engine) struct End {
    pub(in crate::engine) outcome: Outcome,
    pub(in crate::engine) engine: Option<EngineKind>,
    pub(in crate::engine) declined: Vec<&'static str>,
    pub(in crate::engine) bytes: [u64; 2],
}

struct Told(Mutex<mpsc::UnboundedSender<End>>);

impl Sink for Told {
    fn ended(&self, record: &Finished<'_>) {
        let declined = record.declined.iter();
        let _ = self.0.lock().unwrap().send(End {
            outcome: record.end,
            engine: record.engine,
            declined: declined.map(|one| one.reason.label()).collect(),
            bytes: [record.bytes_up, record.bytes_down],
        });
    }
}

/// A connection that is being carried, `P` being its peers.
pub(in crate::engine) struct Rig<P = Peer> {
    pub(in crate::engine) client: P,
    pub(in crate::engine) upstream: P,
    pub(in crate::engine) drain: Drain,
    pub(in crate::engine) card: Arc<Card>,
    pub(in crate::engine) run: JoinHandle<Result<(), Declined>>,
    pub(in crate::engine) ended: mpsc::UnboundedReceiver<End>,
}

impl Rig {
    /// Over TCP.
    pub(in crate::engine) fn tcp(under: &Under, limits: Limits) -> Self {
        let ((client, near), (upstream, far)) = (tcp(), tcp());
        Self::over(under, limits, (client, upstream), pair(near, far))
    }

    /// Over TCP, with bandwidth limits.
    pub(in crate::engine) fn paced(under: &Under, limits: Limits, pace: Option<Box<Pace>>) -> Self {
        let ((client, near), (upstream, far)) = (tcp(), tcp());
        let peers = (client, upstream);
        Self::with(under, limits, pace, peers, pair(near, far))
    }
}

impl Rig<UnixStream> {
    /// Over Unix sockets.
    pub(in crate::engine) fn unix(under: &Under) -> Self {
        let ((client, near), (upstream, far)) = (unix(), unix());
        let peers = (client, upstream);
        Self::over(under, Limits::default(), peers, pair(near, far))
    }
}

impl<P> Rig<P> {
    pub(in crate::engine) fn over(
        under: &Under,
        limits: Limits,
        peers: (P, P),
        pair: Pair,
    ) -> Self {
        Self::with(under, limits, None, peers, pair)
    }

    pub(in crate::engine) fn with(
        under: &Under,
        limits: Limits,
        pace: Option<Box<Pace>>,
        (client, upstream): (P, P),
        pair: Pair,
    ) -> Self {
        let (told, ended) = mpsc::unbounded_channel();
        let books = Arc::new(Books::new(Box::new(Told(Mutex::new(told)))));
        let drain = Drain::new();
        let tally = books.tally("test");
        let entrance = tally.entrance("test");
        let record = Record::open(tally, entrance, pair.client.peer.clone(), books);
        let card = record.card().clone();
        close::arm_both(&pair);
        let connection = Box::new(Connection {
            pair,
            limits,
            pace,
            record,
            live: drain.live(),
        });
        let run = tokio::spawn(under.clone().run(connection, drain.clone()));
        Self {
            client,
            upstream,
            drain,
            card,
            run,
            ended,
        }
    }

    /// What the record says, once it is written.
    pub(in crate::engine) async fn end(&mut self) -> End {
        within(self.ended.recv()).await.unwrap()
    }
}

/// A peer, and relay's end of its connection.
pub(in crate::engine) fn tcp() -> (Peer, OwnedFd) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (near, _) = listener.accept().unwrap();
    near.set_nonblocking(true).unwrap();
    tune(&near).unwrap();
    peer.set_nonblocking(true).unwrap();
    peer.set_nodelay(true).unwrap();
    (Peer::from_std(peer).unwrap(), near.into())
}

fn unix() -> (UnixStream, OwnedFd) {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (peer, near) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
    (UnixStream::from_std(peer.into()).unwrap(), near)
}

/// Two ends as a pair; who their peers are does not matter to the engines.
pub(in crate::engine) fn pair(client: OwnedFd, upstream: OwnedFd) -> Pair {
    let peer = || crate::pair::Peer::Ip(([127, 0, 0, 1], 1).into());
    Pair {
        client: Socket::new(client, peer()),
        upstream: Socket::new(upstream, peer()),
    }
}

/// Waits, but not for ever. The time is for a loaded machine; nothing here takes that long.
pub(in crate::engine) async fn within<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(60), what)
        .await
        .expect("did not happen within a minute")
}

/// Waits until `is` holds.
pub(in crate::engine) async fn until(is: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is() {
        assert!(begun.elapsed() < Duration::from_secs(60), "never came true");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Reads to the end of the stream.
pub(in crate::engine) async fn read_all(
    stream: &mut (impl AsyncReadExt + Unpin),
) -> std::io::Result<Vec<u8>> {
    let mut all = Vec::new();
    within(stream.read_to_end(&mut all)).await?;
    Ok(all)
}

/// Reads exactly so many bytes.
pub(in crate::engine) async fn read(
    stream: &mut (impl AsyncReadExt + Unpin),
    bytes: usize,
) -> Vec<u8> {
    let mut some = vec![0; bytes];
    within(stream.read_exact(&mut some)).await.unwrap();
    some
}

/// Writes all of it.
pub(in crate::engine) async fn write(stream: &mut (impl AsyncWriteExt + Unpin), bytes: &[u8]) {
    within(stream.write_all(bytes)).await.unwrap();
}

/// Writes until nobody takes more, and says how much that was.
pub(in crate::engine) async fn stuff(stream: &mut Peer) -> usize {
    let mut written = 0;
    let some = [7; 64 << 10];
    let pause = Duration::from_millis(300);
    while let Ok(bytes) = tokio::time::timeout(pause, stream.write(&some)).await {
        written += bytes.unwrap();
    }
    written
}

/// Closes with a reset.
pub(in crate::engine) fn reset(stream: Peer) {
    close::arm(&stream);
    drop(stream);
}

/// Bytes that tell loss, reorder and duplication apart.
pub(in crate::engine) fn pattern(seed: u64, length: usize) -> Vec<u8> {
    use rand::{Rng, SeedableRng};
    let mut bytes = vec![0; length];
    rand_pcg::Pcg64Mcg::seed_from_u64(seed).fill_bytes(&mut bytes);
    bytes
}
