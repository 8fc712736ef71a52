//! Redis, asked by redis-benchmark and redis-cli.

use std::{
    fs::{self, File},
    io::{BufRead, BufReader},
    net::SocketAddr,
    process::{Command, Stdio},
    sync::mpsc::{Receiver, channel},
    thread,
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;

use super::{behind, finish, relay};
use crate::{
    matrix::Stage,
    patience,
    payload::Stream,
    peers::{self, Service, open_folder, program, run},
};

const PROGRAMS: &[&str] = &["redis-server", "redis-cli", "redis-benchmark"];

/// How long a subscriber hears nothing.
const SILENCE: Duration = Duration::from_secs(2);

fn serve(stage: &Stage, address: SocketAddr) -> Result<Service> {
    Service::start(
        &stage.net.upstream,
        "redis-server",
        |redis| {
            redis.args(["--bind", &address.ip().to_string()]);
            redis.args(["--port", &address.port().to_string()]);
            redis.args(["--save", "", "--appendonly", "no"]);
            redis.args(["--protected-mode", "no"]);
            Ok(())
        },
        address,
        Signal::TERM,
    )
}

fn client(name: &str, front: SocketAddr) -> Result<Command> {
    let mut command = program(name)?;
    command.args(["-h", &front.ip().to_string()]);
    command.args(["-p", &front.port().to_string()]);
    Ok(command)
}

/// redis-benchmark asks one question at a time and many at once, on 50 connections.
///
/// # Errors
///
/// Fails when an answer is an error.
pub fn redis_and_benchmark(stage: &Stage) -> Result<()> {
    if !peers::met("redis_and_benchmark", PROGRAMS)? {
        return Ok(());
    }
    let upstream = behind(stage, 6379);
    let _redis = serve(stage, upstream)?;
    let (relay, front) = relay(stage, upstream)?;
    for (requests, pipelined) in [("3000", "1"), ("20000", "32")] {
        let mut bench = client("redis-benchmark", front)?;
        bench.args(["-c", "50", "-n", requests, "-P", pipelined, "-d", "100"]);
        bench.args(["-t", "set,get,lrange_100", "-e", "--csv"]);
        let said = run(&stage.net.client, &mut bench)?;
        ensure!(!said.contains("rror"), "{said}");
        ensure!(
            said.contains("\"SET\"") && said.contains("LRANGE"),
            "{said}"
        );
    }
    finish(stage, relay, 300)
}

/// A value of 20 MB goes in and comes back.
///
/// # Errors
///
/// Fails when a byte is wrong.
pub fn redis_keeps_a_large_value(stage: &Stage) -> Result<()> {
    const LENGTH: usize = 20 << 20;
    if !peers::met("redis_keeps_a_large_value", PROGRAMS)? {
        return Ok(());
    }
    let upstream = behind(stage, 6379);
    let _redis = serve(stage, upstream)?;
    let (relay, front) = relay(stage, upstream)?;
    let folder = open_folder()?;
    let (given, got) = (folder.path().join("given"), folder.path().join("got"));
    fs::write(&given, Stream::new(1).take(LENGTH))?;
    let mut set = client("redis-cli", front)?;
    set.args(["-x", "set", "large"]).stdin(File::open(&given)?);
    let set = stage.net.client.enter(|| Ok(set.output()?))?;
    ensure!(set.stdout == b"OK\n", "{set:?}");
    let mut get = client("redis-cli", front)?;
    get.args(["get", "large"]).stdin(Stdio::null());
    get.stdout(File::create(&got)?);
    let get = stage.net.client.enter(|| Ok(get.status()?))?;
    ensure!(get.success(), "{get}");
    let mut got = fs::read(got)?;
    ensure!(got.pop() == Some(b'\n'), "redis-cli ends with a line");
    ensure!(got.len() == LENGTH, "{} of {LENGTH}", got.len());
    Stream::new(1).check(&got)?;
    finish(stage, relay, 2)
}

/// A subscriber that hears nothing for a while then hears what is published.
///
/// # Errors
///
/// Fails when it does not.
pub fn redis_subscriber_waits(stage: &Stage) -> Result<()> {
    if !peers::met("redis_subscriber_waits", PROGRAMS)? {
        return Ok(());
    }
    let upstream = behind(stage, 6379);
    let _redis = serve(stage, upstream)?;
    let (relay, front) = relay(stage, upstream)?;
    let mut subscribe = client("redis-cli", front)?;
    subscribe.args(["subscribe", "news"]);
    subscribe.stdin(Stdio::null()).stdout(Stdio::piped());
    let mut subscriber = stage.net.client.enter(|| Ok(subscribe.spawn()?))?;
    let heard = lines(subscriber.stdout.take().context("no stdout")?);
    let told = hear(&heard, "subscribe")
        .and_then(|()| {
            thread::sleep(SILENCE);
            let mut publish = client("redis-cli", front)?;
            publish.args(["publish", "news", "at last"]);
            run(&stage.net.client, &mut publish)
        })
        .and_then(|said| {
            ensure!(said.trim() == "1", "not one subscriber: {said}");
            hear(&heard, "at last")
        });
    subscriber.kill()?;
    subscriber.wait()?;
    told?;
    finish(stage, relay, 2)
}

fn lines(from: impl std::io::Read + Send + 'static) -> Receiver<String> {
    let (sender, lines) = channel();
    thread::spawn(move || {
        for line in BufReader::new(from).lines().map_while(Result::ok) {
            let _ = sender.send(line);
        }
    });
    lines
}

fn hear(lines: &Receiver<String>, word: &str) -> Result<()> {
    while lines
        .recv_timeout(patience::limit())
        .context(word.to_owned())?
        != word
    {}
    Ok(())
}
