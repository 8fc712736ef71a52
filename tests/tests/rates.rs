//! Bandwidth limits: kept in each direction and by each engine that can, and shared by the connections of a route.

use std::{
    fs,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use relay_tests::{
    desk::Desk,
    needs::{self, Need},
    payload::Stream,
    peer::{Address, Listener, Peer, both},
    record::Engine,
    relay::Launch,
};
use rustix::process::Signal;

const RATE: u64 = 1 << 20;
const BYTES: u64 = 2 * RATE;
/// A tenth of a second's worth is there at the beginning, and the rest of a burst.
const LEAST: Duration = Duration::from_millis(1_890);

fn anywhere() -> Result<Address> {
    Address::parse("127.0.0.1:0")
}

fn listener() -> Result<Listener> {
    Listener::bind(&anywhere()?)
}

/// Sends [`BYTES`] from one to the other, and says how long it took since `begun`.
fn send(from: &Peer, to: &Peer, begun: Instant) -> Result<Duration> {
    both(
        || from.send_stream(&mut Stream::new(1), BYTES),
        || to.expect(&mut Stream::new(1), BYTES),
    )?;
    Ok(begun.elapsed())
}

fn keeps_its_rate(engine: &str, carried_by: Option<Engine>) -> Result<()> {
    let to = listener()?;
    for flag in ["--upload-rate", "--download-rate"] {
        let launch = Launch::forward(&anywhere()?, to.address());
        let relay = launch.with(["--engine", engine, flag, "1MiB/s"]).start()?;
        let begun = Instant::now();
        let client = Peer::connect(relay.address())?;
        let upstream = to.accept()?;
        let (from, into, moved) = match flag {
            "--upload-rate" => (&client, &upstream, (BYTES, 0)),
            _ => (&upstream, &client, (0, BYTES)),
        };
        let took = send(from, into, begun)?;
        ensure!(took >= LEAST, "{flag}: {took:?}");
        from.finish()?;
        into.expect_end()?;
        into.finish()?;
        from.expect_end()?;
        let record = relay.finish(1)?.remove(0);
        record.moved(moved.0, moved.1)?;
        if let Some(engine) = carried_by {
            record.carried_by(engine)?;
        }
    }
    Ok(())
}

#[test]
fn splice_keeps_a_rate() -> Result<()> {
    let name = "rates::splice_keeps_a_rate";
    if !needs::met(name, &[Need::Offered(Engine::Splice)])? {
        return Ok(());
    }
    keeps_its_rate("splice", Some(Engine::Splice))
}

#[test]
fn copy_keeps_a_rate() -> Result<()> {
    keeps_its_rate("copy", Some(Engine::Copy))
}

#[test]
fn the_ladder_keeps_a_rate() -> Result<()> {
    keeps_its_rate("auto", None)
}

#[test]
fn sockmap_declines_a_limit_and_says_why() -> Result<()> {
    let name = "rates::sockmap_declines_a_limit_and_says_why";
    let engines = [Engine::Sockmap, Engine::Splice];
    if !needs::met(name, &engines.map(Need::Offered))? {
        return Ok(());
    }
    let (desk, to) = (Desk::new()?, listener()?);
    let launch = desk.launch(&to)?;
    let relay = launch.with(["--route-upload-rate", "1GiB"]).start()?;
    let client = Peer::connect(relay.address())?;
    let upstream = to.accept()?;
    client.send(b"hello")?;
    ensure!(upstream.receive(5)? == b"hello");
    let metrics = desk.get("/metrics")?;
    let counted = metrics.lines().any(|line| {
        line.starts_with("relay_declines")
            && line.contains("engine=\"sockmap\"")
            && line.contains("reason=\"paced\"")
            && line.ends_with(" 1")
    });
    ensure!(counted, "{metrics}");
    drop((client, upstream));
    let record = relay.finish(1)?.remove(0);
    record.carried_by(Engine::Splice)?;
    let why = record.why_not(Engine::Sockmap)?;
    ensure!(why.contains("bandwidth limit"), "{why}");
    Ok(())
}

#[test]
fn forced_sockmap_with_a_limit_is_a_fault_of_the_file() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("relay.toml");
    let text = "engine = \"sockmap\"\n\n[[route]]\nname = \"web\"\nlisten = \"127.0.0.1:0\"\nto = \"127.0.0.1:9\"\n\
        download-rate = \"10MiB/s\"\n";
    fs::write(&path, text)?;
    let check = Launch::new(["check", "--config", &path.to_string_lossy()]);
    let told = ["relay.toml:3:1: ", "--engine sockmap", "bandwidth", "web"];
    check.run()?.failed(2, &told)
}

#[test]
fn connections_share_what_their_route_has() -> Result<()> {
    let to = listener()?;
    let launch = Launch::forward(&anywhere()?, to.address());
    let relay = launch.with(["--route-download-rate", "1MiB/s"]).start()?;
    let begun = Instant::now();
    let connect = || anyhow::Ok((Peer::connect(relay.address())?, to.accept()?));
    let ends = [connect()?, connect()?];
    let half = |(client, upstream): &(Peer, Peer)| {
        both(
            || upstream.send_stream(&mut Stream::new(1), RATE),
            || client.expect(&mut Stream::new(1), RATE),
        )
    };
    both(|| half(&ends[0]), || half(&ends[1]))?;
    let took = begun.elapsed();
    ensure!(took >= LEAST, "{took:?}");
    drop(ends);
    relay.finish(2)?;
    Ok(())
}

/// What lives on a route with a limit has the new one at once: at the old one it would take hours.
#[test]
fn a_reload_changes_what_a_route_has() -> Result<()> {
    let to = listener()?;
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("relay.toml");
    let file = |rate: &str| {
        let text = format!(
            "[[route]]\nlisten = \"127.0.0.1:0\"\nto = \"{}\"\nroute-upload-rate = \"{rate}\"\n",
            to.address()
        );
        fs::write(&path, text)
    };
    file("1KiB")?;
    let relay = Launch::config(&path).start()?;
    let client = Peer::connect(relay.address())?;
    let upstream = to.accept()?;
    let (bytes, first) = (16 * RATE, 4 << 10);
    both(
        || client.send_stream(&mut Stream::new(1), bytes),
        || {
            let mut stream = Stream::new(1);
            upstream.expect(&mut stream, first)?;
            file("1GiB")?;
            relay.signal(Signal::HUP)?;
            relay.says("\"reloaded\"", 1)?;
            upstream.expect(&mut stream, bytes - first)
        },
    )?;
    drop((client, upstream));
    relay.finish(1)?;
    Ok(())
}
