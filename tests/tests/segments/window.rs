//! A client that closes its window, and one that opens it by crumbs.

use std::{
    fs,
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use relay_tests::{
    census,
    payload::Stream,
    peer::{Listener, Peer, both},
    rawtcp::{
        Bench,
        endpoint::{Endpoint, Terms},
    },
};

/// The most that each buffer of a socket grows to here.
const BUFFER: u64 = 1 << 20;

/// The upstream's buffers, as asked for; the kernel doubles that.
const PEER: usize = 128 << 10;

/// What relay may hold besides.
const BUDGET: u64 = 4 << 20;

/// How long the window stays closed.
const CLOSED: Duration = Duration::from_secs(2);

/// The client takes nothing while it sends byte by byte itself; then everything arrives.
pub(crate) fn zero_window(bench: &Bench) -> Result<()> {
    stalls(bench, |client, _| client.open(0))
}

/// The client opens its window by a few bytes at a time, and closes it again.
pub(crate) fn silly_windows(bench: &Bench) -> Result<()> {
    stalls(bench, |client, round| {
        const WINDOWS: [u32; 8] = [1, 0, 10, 100, 0, 87, 536, 2];
        client.open(WINDOWS[round % WINDOWS.len()])
    })
}

fn stalls(bench: &Bench, window: fn(&mut Endpoint<'_>, usize) -> Result<()>) -> Result<()> {
    let net = &bench.stage.net;
    let sizes = format!("4096 131072 {BUFFER}");
    net.relay.sysctl("net/ipv4/tcp_rmem", &sizes)?;
    net.relay.sysctl("net/ipv4/tcp_wmem", &sizes)?;
    let bind = || Listener::bind_with(&net.at_upstream(), 16, Some(PEER));
    let listener = net.upstream.enter(bind)?;
    let relay = bench.stage.relay(listener.address())?;
    let terms = Terms {
        window: 1000,
        scale: None,
        ..Terms::default()
    };
    let (mut client, upstream) = bench.join(&relay, &listener, terms)?;
    client.data(0, b"hello")?;
    ensure!(upstream.receive(5)? == b"hello", "not the greeting");
    let resident = census::resident(relay.process())?;
    let kernel = kernel_memory()?;

    let stop = AtomicBool::new(false);
    let mut pushed = Stream::new(2);
    let push = || {
        upstream.send_until(&mut pushed, &stop)?;
        upstream.finish()
    };
    let crumbs = Stream::new(1).take(100_000);
    let mut said = 0;
    let take = || {
        let begun = Instant::now();
        for round in 0.. {
            if begun.elapsed() > CLOSED || said == crumbs.len() {
                break;
            }
            window(&mut client, round)?;
            client.data(5 + said, &crumbs[said..=said])?;
            said += 1;
            client.hear(Duration::from_millis(1))?;
        }
        let held = client.came();
        let grown = census::resident(relay.process())?.saturating_sub(resident);
        let kernel = kernel_memory()?.saturating_sub(kernel);
        stop.store(true, Ordering::Relaxed);
        // A scale was not agreed on, so this is as wide as it goes.
        client.open(65535)?;
        client.wait("the rest", Endpoint::has_ended)?;
        let queued = client.came() - held;
        let limit = BUDGET + 4 * BUFFER + 4 * PEER as u64;
        ensure!(
            queued <= limit,
            "{queued} bytes were on their way, not {limit}"
        );
        ensure!(grown <= BUDGET, "the process has grown by {grown} bytes");
        // Of all namespaces and whatever else goes on.
        ensure!(kernel <= 256 << 20, "TCP holds {kernel} bytes more");
        client.last(5 + said, &[])
    };
    let crumbs_came = || expect_crumbs(&upstream);
    both(push, || both(take, crumbs_came))?;
    let mut expected = Stream::new(2);
    expected.check(client.take())?;
    ensure!(
        expected.at() == pushed.at(),
        "{} of {}",
        expected.at(),
        pushed.at()
    );
    bench.stage.finish(relay, 1)?[0]
        .ended("upstream", "end")?
        .moved(5 + said as u64, pushed.at())?;
    Ok(())
}

fn expect_crumbs(upstream: &Peer) -> Result<()> {
    let mut expected = Stream::new(1);
    let mut buffer = vec![0; 4096];
    loop {
        match upstream.read(&mut buffer)? {
            0 => return Ok(()),
            count => expected.check(&buffer[..count])?,
        }
    }
}

/// Bytes that TCP has in buffers, on the whole machine.
fn kernel_memory() -> Result<u64> {
    let text = fs::read_to_string("/proc/net/sockstat")?;
    let line = text.lines().find_map(|line| line.strip_prefix("TCP:"));
    let words: Vec<_> = line.context("no TCP")?.split_whitespace().collect();
    let pages = words.iter().skip_while(|word| **word != "mem").nth(1);
    let pages: u64 = pages.context("no mem")?.parse()?;
    Ok(pages * rustix::param::page_size() as u64)
}
