//! The file is read again, a hundred times, while clients come and a stream goes through.

use std::{
    fs,
    io::{ErrorKind, Read, Write},
    net::{SocketAddr, TcpStream},
    path::PathBuf,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    thread,
};

use anyhow::{Context, Result, anyhow, ensure};
use rustix::process::Signal;

use crate::{
    census::listening,
    matrix::Stage,
    patience,
    payload::Stream,
    peer::{Address, Peer},
    peers::{self, Nginx},
    relay::{Launch, Relay},
};

const RELOADS: usize = 100;

/// Clients that come at the same time.
const CLIENTS: usize = 8;

/// What relay reads, and where its routes listen.
struct File {
    _folder: tempfile::TempDir,
    path: PathBuf,
    web: SocketAddr,
    long: SocketAddr,
    extra: SocketAddr,
    long_to: Address,
}

impl File {
    fn new(stage: &Stage, long_to: &Address) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let at = |port| SocketAddr::new(stage.net.relay_ip, port);
        Ok(Self {
            path: folder.path().join("relay.toml"),
            _folder: folder,
            web: at(8080),
            long: at(7000),
            extra: at(7001),
            long_to: long_to.clone(),
        })
    }

    /// The `number`th text: clients of `web` go to `to`, `extra` is there every other time, and `long` in the first half.
    fn write(&self, number: usize, to: SocketAddr) -> Result<()> {
        let route = |name, listen: &SocketAddr, to: &dyn std::fmt::Display| {
            format!("[[route]]\nname = \"{name}\"\nlisten = \"{listen}\"\nto = \"{to}\"\n")
        };
        let mut text = format!(
            "[defaults]\nconnect-timeout = \"{}s\"\n",
            90 + number % 3 // A change of all routes.
        );
        if number % 2 == 1 {
            text += &route("extra", &self.extra, &to);
        }
        text += &route("web", &self.web, &to);
        if number < RELOADS / 2 {
            text += &route("long", &self.long, &self.long_to);
        }
        self.replace(&text)
    }

    /// As editors do: no reader finds half of it.
    fn replace(&self, text: &str) -> Result<()> {
        let fresh = self.path.with_extension("new");
        fs::write(&fresh, text)?;
        Ok(fs::rename(fresh, &self.path)?)
    }
}

/// Each client connects, asks nginx for a file, and is answered, whatever is reloaded meanwhile; one stream goes through
/// all of it, although its listener is removed half-way.
///
/// # Errors
///
/// Fails when a client is not answered, a byte of the stream is wrong, or a reload does not do what the file says.
pub fn a_hundred_reloads_under_load(stage: &Stage) -> Result<()> {
    if !peers::met("a_hundred_reloads_under_load", &["nginx"])? {
        return Ok(());
    }
    let upstreams = [8080, 8081].map(|port| SocketAddr::new(stage.net.upstream_ip, port));
    let _nginx = upstreams
        .iter()
        .map(|&at| Nginx::start(&stage.net.upstream, at))
        .collect::<Result<Vec<_>>>()?;
    let long_to = stage.listen()?;
    let file = File::new(stage, long_to.address())?;
    file.write(0, upstreams[0])?;
    let launch = Launch::config(&file.path).with(["--engine", stage.engine.name()]);
    let relay = launch.at(&stage.net.relay).start()?;
    let inode = listening(relay.process(), file.web.port())?;
    let long = stage
        .net
        .client
        .enter(|| Peer::connect(&Address::Ip(file.long)))?;
    let long_end = long_to.accept()?;

    let (stop, answered) = (AtomicBool::new(false), AtomicUsize::new(0));
    let sent = thread::scope(|scope| {
        let clients = Vec::from_iter((0..CLIENTS).map(|_| {
            scope.spawn(|| {
                let place = &stage.net.client;
                place.enter(|| visit_until(file.web, &stop, &answered))
            })
        }));
        let stream = scope.spawn(|| {
            let mut stream = Stream::new(1);
            long.send_until(&mut stream, &stop)?;
            long.finish()?;
            Ok::<_, anyhow::Error>(stream.at())
        });
        let received = scope.spawn(|| receive(&long_end));
        let told = reload(&relay, &file, &upstreams, &answered, &stop);
        let told = told.and_then(|()| removed(stage, &file));
        stop.store(true, Ordering::Relaxed);
        let panicked = |_| anyhow!("a peer panicked");
        for client in clients {
            client.join().map_err(panicked)??;
        }
        let sent = stream.join().map_err(panicked)??;
        let came = received.join().map_err(panicked)??;
        ensure!(came == sent, "{came} of {sent} bytes of the stream came");
        told?;
        Ok(sent)
    })?;

    let after = listening(relay.process(), file.web.port())?;
    ensure!(after == inode, "another socket listens: {inode}, {after}");
    long_end.finish()?;
    long.expect_end()?;
    let answered = answered.load(Ordering::Relaxed);
    let records = stage.finish(relay, answered + 1)?;
    let long = records.iter().find(|record| record.route == "long");
    long.context("no record")?
        .moved(sent, 0)?
        .ended("client", "end")?;
    for upstream in upstreams {
        let upstream = Some(upstream.to_string());
        let came = records.iter().filter(|one| one.upstream == upstream);
        ensure!(came.count() > 0, "nobody reached {upstream:?}");
    }
    Ok(())
}

/// The listener of the stream is gone; the one of the clients is not.
fn removed(stage: &Stage, file: &File) -> Result<()> {
    patience::until_true("the listener to be closed", || {
        let knock = || Ok(TcpStream::connect(file.long));
        let knocked = stage.net.client.enter(knock)?;
        Ok(knocked.is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused))
    })
}

fn reload(
    relay: &Relay,
    file: &File,
    upstreams: &[SocketAddr; 2],
    answered: &AtomicUsize,
    stop: &AtomicBool,
) -> Result<()> {
    for number in 1..=RELOADS {
        // Both routes see clients.
        let before = answered.load(Ordering::Relaxed);
        patience::until_true("clients", || {
            ensure!(!stop.load(Ordering::Relaxed), "a client has failed");
            Ok(answered.load(Ordering::Relaxed) >= before + CLIENTS)
        })?;
        if number % 10 == 0 {
            file.replace("[defaults]\n\nconnect-timeout = \"1\"\n")?;
            relay.signal(Signal::HUP)?;
            relay.says("not reloaded", number / 10)?;
            ensure!(relay.has_said("relay.toml:3:19: "), "no line and column");
        }
        file.write(number, upstreams[number % 2])?;
        relay.signal(Signal::HUP)?;
        relay.says("\"reloaded\"", number)?;
    }
    Ok(())
}

/// Asks again and again; tells the others to stop when an answer is not right.
fn visit_until(web: SocketAddr, stop: &AtomicBool, answered: &AtomicUsize) -> Result<()> {
    while !stop.load(Ordering::Relaxed) {
        if let Err(fault) = visit(web) {
            stop.store(true, Ordering::Relaxed);
            return Err(fault);
        }
        answered.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

fn visit(web: SocketAddr) -> Result<()> {
    let mut client = TcpStream::connect(web).context("connect")?;
    client.set_read_timeout(Some(patience::limit()))?;
    client.write_all(b"GET /small HTTP/1.0\r\n\r\n")?;
    let mut answer = String::new();
    client.read_to_string(&mut answer).context("answer")?;
    ensure!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    ensure!(answer.ends_with("a small answer\n"), "{answer}");
    Ok(())
}

/// Takes the stream to its end, and gives its length.
fn receive(peer: &Peer) -> Result<u64> {
    let mut stream = Stream::new(1);
    let mut buffer = vec![0; 64 << 10];
    loop {
        match peer.read(&mut buffer)? {
            0 => return Ok(stream.at()),
            count => stream.check(&buffer[..count])?,
        }
    }
}
