//! Numbers: what a scraper reads, and that they move while bytes do.

use std::{
    process::Command,
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use anyhow::{Context, Result, ensure};
use relay_tests::{
    desk::{Desk, only},
    needs::{self, Need},
    patience,
    payload::Stream,
    peer::{Address, Listener, Peer, echo, many},
    record::Engine,
};

use crate::page::Page;

fn anywhere() -> Result<Listener> {
    Listener::bind(&Address::parse("127.0.0.1:0")?)
}

#[test]
fn curl_gets_metrics_that_a_scraper_reads() -> Result<()> {
    if !needs::met(
        "curl_gets_metrics_that_a_scraper_reads",
        &[Need::Program("curl")],
    )? {
        return Ok(());
    }
    let (desk, to) = (Desk::new()?, anywhere()?);
    let server = to.serve(echo)?;
    let front = Address::parse("127.0.0.1:0")?;
    let admin = desk.address.to_string();
    let launch = relay_tests::relay::Launch::forward(&front, server.address());
    let relay = launch
        .with(["--engine", "copy", "--admin", &admin])
        .start()?;
    let client = Peer::connect(relay.address())?;
    client.send(b"12345")?;
    ensure!(client.receive(5)? == b"12345");
    client.finish()?;
    client.expect_end()?;
    relay.records(1)?;
    let socket = admin.strip_prefix("unix:").context("no path")?;
    let output = Command::new("curl")
        .args(["--silent", "--show-error", "--include", "--max-time", "60"])
        .args(["--unix-socket", socket, "http://relay/metrics"])
        .output()?;
    ensure!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout)?;
    let (head, body) = text.split_once("\r\n\r\n").context("no header")?;
    ensure!(
        head.contains("200 OK") && head.contains("application/openmetrics-text"),
        "{head}"
    );
    let page = Page::read(body)?;
    let route = ("route", "127.0.0.1:0");
    for (name, labels, expected) in [
        ("relay_connections_opened_total", &[route][..], 1),
        (
            "relay_connections_ended_total",
            &[route, ("engine", "copy"), ("by", "client"), ("how", "end")],
            1,
        ),
        (
            "relay_bytes_total",
            &[route, ("engine", "copy"), ("direction", "up")],
            5,
        ),
        (
            "relay_bytes_total",
            &[route, ("engine", "copy"), ("direction", "down")],
            5,
        ),
        ("relay_bytes_total", &[("engine", "splice")], 0),
        ("relay_connections_active", &[route], 0),
        ("relay_engine_offered", &[("engine", "copy")], 1),
        ("relay_engine_offered", &[("engine", "splice")], 0),
        ("relay_ready", &[], 1),
        (
            "relay_build_info",
            &[("version", env!("CARGO_PKG_VERSION"))],
            1,
        ),
    ] {
        let sum = page.sum(name, labels)?;
        ensure!(sum == expected, "{name}: {sum}, not {expected}:\n{body}");
    }
    ensure!(page.sum("process_open_fds", &[])? > 3, "{body}");
    relay.finish(1)?;
    server.stop()
}

#[test]
fn an_upstream_that_is_gone_is_counted() -> Result<()> {
    let (desk, gone) = (Desk::new()?, anywhere()?);
    let launch = desk.launch(&gone)?.with(["--engine", "copy"]);
    drop(gone);
    let relay = launch.start()?;
    Peer::connect(relay.address())?.expect_reset()?;
    relay.records(1)?;
    let page = Page::read(&desk.get("/metrics")?)?;
    ensure!(page.sum("relay_connect_failures_total", &[("call", "connect")])? == 1);
    relay.finish(1).map(drop)
}

fn under(name: &str, engine: Engine, play: fn(Engine) -> Result<()>) -> Result<()> {
    match needs::met(name, &[Need::Offered(engine)])? {
        true => play(engine),
        false => Ok(()),
    }
}

/// R13: what the kernel moves is counted while it moves.
fn bytes_move(engine: Engine) -> Result<()> {
    let (desk, to) = (Desk::new()?, anywhere()?);
    let relay = desk
        .launch(&to)?
        .with(["--engine", engine.name()])
        .start()?;
    let client = Peer::connect(relay.address())?;
    let upstream = to.accept()?;
    let (mut sent, mut came) = (Stream::new(1), Stream::new(1));
    for round in 1..=5 {
        client.send_stream(&mut sent, 100_000)?;
        upstream.expect(&mut came, 100_000)?;
        upstream.send(b"thanks")?;
        client.receive(6)?;
        let up = [("engine", engine.name()), ("direction", "up")];
        let down = [("engine", engine.name()), ("direction", "down")];
        patience::until_true("the bytes to be counted", || {
            let page = Page::read(&desk.get("/metrics")?)?;
            let bytes = |labels| page.sum("relay_bytes_total", labels);
            ensure!(page.sum("relay_connections_active", &up[..1])? == 1);
            Ok((bytes(&up)?, bytes(&down)?) == (round * 100_000, round * 6))
        })?;
    }
    let connections = desk.json("/connections")?;
    let one = only(&connections)?;
    ensure!(
        one["engine"] == engine.name() && one["bytes_up"] == 500_000,
        "{one}"
    );
    ensure!(
        one["client"] == client.local()? && one["route"] == "127.0.0.1:0",
        "{one}"
    );
    ensure!(one["upstream"] == to.address().to_string(), "{one}");
    // Nobody reads at the upstream: what relay has taken and cannot pass on is its backlog.
    let stuffed = client.stuff(&mut sent)?;
    patience::until_true("a backlog", || {
        let connections = desk.json("/connections")?;
        let one = only(&connections)?;
        let number = |key: &str| one[key].as_u64().context("no number");
        ensure!(number("bytes_up")? <= 500_000 + stuffed, "{one}");
        Ok(number("bytes_up")? > 500_000 && number("backlog_up")? > 0)
    })?;
    drop((client, upstream));
    relay.finish(1).map(drop)
}

#[test]
fn bytes_move_with_sockmap() -> Result<()> {
    under("bytes_move_with_sockmap", Engine::Sockmap, bytes_move)
}

#[test]
fn bytes_move_with_splice() -> Result<()> {
    under("bytes_move_with_splice", Engine::Splice, bytes_move)
}

#[test]
fn bytes_move_with_copy() -> Result<()> {
    bytes_move(Engine::Copy)
}

const VISITS: u64 = 1_000;

/// Counters never go down, and in the end nothing is missing or told twice.
#[test]
fn scrapes_while_connections_come_and_go_are_exact() -> Result<()> {
    let (desk, to) = (Desk::new()?, anywhere()?);
    let relay = desk.launch(&to)?.start()?;
    let server = to.serve(echo)?;
    let over = AtomicBool::new(false);
    let watch = || -> Result<u64> {
        let (mut before, mut scrapes) = ([0; 3], 0);
        while !over.load(Ordering::Relaxed) {
            let page = Page::read(&desk.get("/metrics")?)?;
            let now = [
                page.sum("relay_connections_opened_total", &[])?,
                page.sum("relay_bytes_total", &[("direction", "up")])?,
                page.sum("relay_bytes_total", &[("direction", "down")])?,
            ];
            let risen = now.iter().zip(&before).all(|(now, before)| now >= before);
            ensure!(risen, "{now:?} after {before:?}");
            ensure!(page.sum("relay_connections_active", &[])? <= VISITS);
            desk.json("/connections")?;
            (before, scrapes) = (now, scrapes + 1);
        }
        Ok(scrapes)
    };
    let visit = |number: u64| -> Result<()> {
        let client = Peer::connect(relay.address())?;
        let (mut sent, mut came) = (Stream::new(number), Stream::new(number));
        client.send_stream(&mut sent, 3_000)?;
        client.expect(&mut came, 3_000)?;
        client.finish()?;
        client.expect_end()
    };
    let scrapes = thread::scope(|scope| {
        let watching = scope.spawn(watch);
        let visited = many(VISITS, 8, visit);
        over.store(true, Ordering::Relaxed);
        let watched = watching
            .join()
            .map_err(|_| anyhow::anyhow!("the watcher panicked"))?;
        visited.and(watched)
    })?;
    ensure!(scrapes > 0);
    relay.records(usize::try_from(VISITS)?)?;
    let page = Page::read(&desk.get("/metrics")?)?;
    for (name, labels, expected) in [
        ("relay_connections_opened_total", &[][..], VISITS),
        ("relay_connections_ended_total", &[], VISITS),
        ("relay_bytes_total", &[("direction", "up")], VISITS * 3_000),
        (
            "relay_bytes_total",
            &[("direction", "down")],
            VISITS * 3_000,
        ),
        ("relay_connections_active", &[], 0),
    ] {
        let sum = page.sum(name, labels)?;
        ensure!(sum == expected, "{name} {labels:?}: {sum}, not {expected}");
    }
    relay.finish(usize::try_from(VISITS)?)?;
    server.stop()
}
