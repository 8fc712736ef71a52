//! The run-time self-test: what sockmap forwarders get wrong, tried on loopback before a connection is trusted to it.

use std::{
    io::{self, ErrorKind, Read, Write},
    net::{Shutdown, TcpListener, TcpStream},
    os::fd::OwnedFd,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use relay_common::flow::{BACKLOG_BUDGET, FAULT_NO_PEER};
use socket2::SockRef;

use super::Sockmap;
use crate::{
    close,
    drain::Drain,
    engine::Connection,
    pair::{Pair, Peer, Socket},
    plan::Limits,
    stats::{books::Books, record::Record, sink::Silent},
};

/// What the self-test saw.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SelfTest {
    /// How long all of it took.
    pub took: Duration,
    /// How much a sender could push past a reader that had stopped, bytes.
    pub stalled: usize,
}

/// No step takes longer than this unless bytes are lost; a loaded machine is slow, not wrong.
const PATIENCE: Duration = Duration::from_secs(10);
/// What is sent before the sockets enter the map, bytes: a message that fits in every buffer.
const EARLY: usize = 4096;
/// What is sent before a FIN, bytes.
const STREAM: usize = 1024 * 1024;
/// The buffers of the four sockets, bytes each way; the kernel doubles it. Small, so that they are soon full.
const BUFFERS: usize = 256 * 1024;
/// What a sender may push past a stalled reader at most, bytes: all buffers, the backlog's budget, and as much again.
const STALLED: usize = 2 * (4 * 2 * 2 * BUFFERS + BACKLOG_BUDGET as usize);
/// A sender that could send nothing for so long has been stopped.
const STOPPED: Duration = Duration::from_millis(60);

/// Runs the test on `sockmap`, which serves nobody else yet.
pub(super) async fn run(sockmap: &Sockmap) -> Result<SelfTest, String> {
    let begun = Instant::now();
    step(sockmap, "early bytes", early_bytes).await?;
    let redirected: u64 = (0..2)
        .map(|slot| sockmap.base.ledger.entry(slot).redirected())
        .sum();
    if redirected == 0 {
        return Err(String::from(
            "the kernel ran the program but nothing was redirected",
        ));
    }
    step(sockmap, "a FIN after the bytes", fin_order).await?;
    let stalled = step(sockmap, "a stalled reader", stalled_reader).await?;
    let faults = (0..6).fold(0, |faults, slot| {
        faults | sockmap.base.ledger.entry(slot).faults()
    });
    match faults & !FAULT_NO_PEER {
        0 => Ok(SelfTest {
            took: begun.elapsed(),
            stalled,
        }),
        faults => Err(format!("the program noted faults ({faults:#x})")),
    }
}

async fn step<T: Send + 'static>(
    sockmap: &Sockmap,
    name: &'static str,
    test: impl FnOnce(&mut Bench) -> io::Result<T> + Send + 'static,
) -> Result<T, String> {
    let failed = |error: &dyn std::fmt::Display| format!("{name}: {error}");
    let (mut bench, connection) = Bench::new().map_err(|error| failed(&error))?;
    // What is said now is in the receive queues when the sockets enter the map.
    bench
        .client
        .write_all(&pattern(0, EARLY))
        .map_err(|error| failed(&error))?;
    sockmap
        .take(connection)
        .map_err(|declined| failed(&declined.why))?;
    let done = tokio::task::spawn_blocking(move || test(&mut bench)).await;
    done.map_err(|error| failed(&error))?
        .map_err(|error| failed(&error))
}

fn early_bytes(bench: &mut Bench) -> io::Result<()> {
    expect(&mut bench.server, 0, EARLY)?;
    bench.server.write_all(&pattern(0, EARLY))?;
    expect(&mut bench.client, 0, EARLY)
}

fn fin_order(bench: &mut Bench) -> io::Result<()> {
    let (client, server) = (bench.client.try_clone()?, bench.server.try_clone()?);
    let up = thread::spawn(move || send_all(client, EARLY));
    expect(&mut bench.server, 0, EARLY + STREAM)?;
    expect_end(&mut bench.server)?;
    let down = thread::spawn(move || send_all(server, 0));
    expect(&mut bench.client, 0, STREAM)?;
    expect_end(&mut bench.client)?;
    for sender in [up, down] {
        sender
            .join()
            .map_err(|_| io::Error::other("a sender panicked"))??;
    }
    Ok(())
}

fn stalled_reader(bench: &mut Bench) -> io::Result<usize> {
    bench.client.set_nonblocking(true)?;
    let chunk = pattern(0, 64 * 1024);
    let (mut sent, mut last) = (EARLY, Instant::now());
    while last.elapsed() < STOPPED {
        match bench.client.write(&chunk[sent % chunk.len()..]) {
            Ok(written) => (sent, last) = (sent + written, Instant::now()),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                thread::sleep(Duration::from_millis(2));
            }
            Err(error) => return Err(error),
        }
        if sent > STALLED {
            return Err(io::Error::other(format!(
                "{sent} bytes were taken that nobody read"
            )));
        }
    }
    bench.client.shutdown(Shutdown::Write)?;
    let mut read = 0;
    while read < sent {
        let next = (sent - read).min(chunk.len());
        expect(&mut bench.server, read % chunk.len(), next)?;
        read += next;
    }
    expect_end(&mut bench.server)?;
    Ok(sent)
}

fn send_all(mut to: TcpStream, from: usize) -> io::Result<()> {
    to.write_all(&pattern(from, STREAM))?;
    to.shutdown(Shutdown::Write)
}

pub(super) fn expect(from: &mut TcpStream, position: usize, length: usize) -> io::Result<()> {
    let mut read = vec![0; length];
    from.read_exact(&mut read)?;
    match read == pattern(position, length) {
        true => Ok(()),
        false => Err(io::Error::other(
            "bytes arrived that were not sent, or not in that order",
        )),
    }
}

pub(super) fn expect_end(from: &mut TcpStream) -> io::Result<()> {
    // Not `read`: with a timeout set it is interrupted when the machine is paused, and not started again.
    match from.read_exact(&mut [0]) {
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(()),
        Err(error) => Err(error),
        Ok(()) => Err(io::Error::other("bytes arrived after the end")),
    }
}

/// Bytes of which each position in 64 KiB has its own neighbourhood.
pub(super) fn pattern(position: usize, length: usize) -> Vec<u8> {
    let byte = |at: usize| {
        let at = at as u16;
        (at.wrapping_mul(40_503) >> 8) as u8 ^ at as u8
    };
    (position..position + length).map(byte).collect()
}

/// A connection whose peers are here too.
pub(super) struct Bench {
    pub(super) client: TcpStream,
    pub(super) server: TcpStream,
}

impl Bench {
    fn new() -> io::Result<(Self, Box<Connection>)> {
        let books = Books::new(Box::new(Silent));
        let (bench, connection) = Self::with(Limits::default(), Arc::new(books), &Drain::new())?;
        let Pair { client, upstream } = &connection.pair;
        let sockets = [&bench.client, &bench.server].map(SockRef::from);
        for socket in sockets
            .into_iter()
            .chain([client, upstream].map(SockRef::from))
        {
            socket.set_send_buffer_size(BUFFERS)?;
            socket.set_recv_buffer_size(BUFFERS)?;
        }
        Ok((bench, connection))
    }

    /// A connection with these limits, recorded in `books` and drained with `drain`.
    pub(super) fn with(
        limits: Limits,
        books: Arc<Books>,
        drain: &Drain,
    ) -> io::Result<(Self, Box<Connection>)> {
        let ((client, accepted), (dialled, server)) = (loopback()?, loopback()?);
        let peer = Peer::Ip(client.local_addr()?);
        let pair = Pair {
            client: inner(accepted)?,
            upstream: inner(dialled)?,
        };
        close::arm_both(&pair);
        for outer in [&client, &server] {
            outer.set_read_timeout(Some(PATIENCE))?;
            outer.set_write_timeout(Some(PATIENCE))?;
        }
        let tally = books.tally("self-test");
        let entrance = tally.entrance("self-test");
        let record = Record::open(tally, entrance, peer, books);
        let live = drain.live();
        let connection = Connection {
            pair,
            limits,
            pace: None,
            record,
            live,
        };
        Ok((Self { client, server }, Box::new(connection)))
    }
}

fn inner(stream: TcpStream) -> io::Result<Socket> {
    stream.set_nonblocking(true)?;
    stream.set_nodelay(true)?;
    let peer = Peer::Ip(stream.peer_addr()?);
    Ok(Socket::new(OwnedFd::from(stream), peer))
}

/// Two ends of a loopback connection: the one that dialled, then the one that was accepted.
fn loopback() -> io::Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let dialled = TcpStream::connect(listener.local_addr()?)?;
    loop {
        let (accepted, from) = listener.accept()?;
        // Somebody else on this host may have been faster.
        if from == dialled.local_addr()? {
            return Ok((dialled, accepted));
        }
    }
}
