//! What a connection costs on which nothing happens.

use std::{
    fs,
    net::SocketAddr,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Resource, Rlimit, getrlimit, setrlimit};

use super::Kit;
use crate::load::{bulk, proc, upstream::Ask};

const MOST: u64 = 10_000;

/// For all that is no connection.
const SPARE: u64 = 300;

#[expect(clippy::cast_precision_loss, reason = "sizes for people")]
pub(super) fn measure(kit: &Kit) -> Result<()> {
    let descriptors = raise_limit()?;
    // Two of each connection's four sockets are in this process, two in relay.
    let count = MOST.min(descriptors.saturating_sub(SPARE) / 2);
    println!("idle: {count} connections over loopback, {descriptors} descriptors to a process");
    println!(
        "{:8} {:>12} {:>12} {:>16} {:>6}",
        "engine", "RSS before", "RSS after", "bytes each", "pipes"
    );
    for engine in &kit.engines {
        let (_upstream, forwarder) = kit.over_loopback(engine)?;
        let process = forwarder.process();
        // The first of its kind, so that what is made once is not counted.
        let first = open(forwarder.address, 1)?;
        settle(process, 2)?;
        let before = proc::resident(process)?;
        let connections = open(forwarder.address, count - 1)?;
        let pipes = settle(process, 2 * count)?;
        let after = proc::resident(process)?;
        let each = (after as f64 - before as f64) / (count - 1) as f64;
        println!(
            "{engine:8} {:>9} KiB {:>9} KiB {each:16.0} {pipes:6}",
            before >> 10,
            after >> 10
        );
        drop((first, connections));
    }
    Ok(())
}

fn raise_limit() -> Result<u64> {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: maximum,
        maximum,
    };
    setrlimit(Resource::Nofile, raised).context("the limit of descriptors")?;
    Ok(maximum.unwrap_or(u64::MAX))
}

fn open(address: SocketAddr, count: u64) -> Result<Vec<std::net::TcpStream>> {
    let mut connections = Vec::new();
    for number in 0..count {
        let mut connection =
            bulk::connect(address).with_context(|| format!("connection {number}"))?;
        Ask::Idle.write(&mut connection)?;
        connections.push(connection);
    }
    Ok(connections)
}

/// Waits until `process` has `sockets` of connections and is quiet; then says how many pipe ends it has.
fn settle(process: Pid, sockets: u64) -> Result<usize> {
    let deadline = Instant::now() + Duration::from_secs(30);
    let mut last = None;
    while Instant::now() < deadline {
        let (open, pipes) = descriptors(process)?;
        let now = (
            open,
            proc::resident(process)?,
            proc::voluntary_switches(process)?,
        );
        // Half a second without a wake-up.
        if open >= sockets && last == Some(now) {
            return Ok(pipes);
        }
        last = Some(now);
        thread::sleep(Duration::from_millis(500));
    }
    bail!("the connections do not come to rest: {last:?}");
}

fn descriptors(process: Pid) -> Result<(u64, usize)> {
    let path = format!("/proc/{}/fd", process.as_raw_nonzero());
    let (mut sockets, mut pipes) = (0, 0);
    for entry in fs::read_dir(&path).context(path)? {
        // One that was closed meanwhile has no name.
        let Ok(name) = fs::read_link(entry?.path()) else {
            continue;
        };
        let name = name.to_string_lossy();
        sockets += u64::from(name.starts_with("socket:"));
        pipes += usize::from(name.starts_with("pipe:"));
    }
    Ok((sockets, pipes))
}
