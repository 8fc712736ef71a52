//! What is held for connections: idle ones, and one whose reader has stopped.

use std::{
    io::{ErrorKind, Read, Write},
    net::Shutdown,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use socket2::Socket;

use super::{Turn, Values, Workload};
use crate::{
    bench::results::{Better, Metric},
    load::{PATIENCE, proc, stream::CHUNK, upstream::Ask},
};

/// Descriptors of this process for all that is no connection.
const SPARE: u64 = 400;

const STALL: Duration = Duration::from_secs(10);

pub(super) fn all() -> Vec<Workload> {
    let idle = |count: u64| Workload {
        name: format!("idle-{count}"),
        about: format!(
            "{count} connections on which nothing happens; kernel memory is that of all four sockets of a connection"
        ),
        metrics: vec![
            Metric::new("memory, own", "bytes each", Better::Less),
            Metric::new("kernel", "bytes each", Better::Less),
            Metric::new("descriptors", "each", Better::Less),
        ],
        rounds: 1,
        run: Box::new(move |turn| measure_idle(turn, count)),
        ..Workload::default()
    };
    let stall = Workload {
        name: "stall".into(),
        about: format!(
            "the reader stops for {} s while the sender pushes; the most that was held",
            STALL.as_secs()
        ),
        metrics: vec![
            Metric::new("memory, own", "KiB", Better::Less),
            Metric::new("TCP memory", "KiB", Better::Less),
            Metric::new("kernel", "KiB", Better::Less),
            Metric::new("pushed", "KiB", Better::Less),
        ],
        rounds: 1,
        run: Box::new(|turn| measure_stall(turn)),
        ..Workload::default()
    };
    vec![idle(1000), idle(10_000), stall]
}

#[expect(clippy::cast_precision_loss, reason = "sizes for people")]
fn measure_idle(turn: &Turn<'_>, count: u64) -> Result<Values> {
    // Two of each connection's sockets are in this process.
    let most = raise_limit()?.saturating_sub(SPARE) / 2;
    let count = count.min(most);
    // The first of its kind, so that what is made once is not counted.
    let first = open(turn, 1)?;
    let before = settle(turn, 0)?;
    let connections = open(turn, count)?;
    let wanted = match turn.program.contestant.is_routed() {
        true => 0,
        false => 2 * count,
    };
    let after = settle(turn, wanted)?;
    drop((first, connections));
    let each = |at: usize| (after[at] as f64 - before[at] as f64) / count as f64;
    Ok(Values {
        samples: vec![each(0), each(1), each(2)],
        latency: None,
    })
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

fn open(turn: &Turn<'_>, count: u64) -> Result<Vec<Socket>> {
    let address = &turn.program.address;
    turn.lab.as_client(|| {
        let one = |number| {
            let connection = address.connect();
            let mut connection = connection.with_context(|| format!("connection {number}"))?;
            Ask::Idle.write(&mut connection)?;
            Ok(connection)
        };
        (0..count).map(one).collect()
    })
}

/// Own memory, kernel memory and descriptors, once there are `more` of those than at the start and nothing changes.
fn settle(turn: &Turn<'_>, more: u64) -> Result<[u64; 3]> {
    let deadline = Instant::now() + PATIENCE;
    let mut last = None;
    while Instant::now() < deadline {
        let own = turn.program.memory()?;
        let descriptors = turn.program.descriptors()?;
        if descriptors >= more && last == Some((own, descriptors)) {
            return Ok([own, proc::kernel_memory()?, descriptors]);
        }
        last = Some((own, descriptors));
        thread::sleep(Duration::from_millis(500));
    }
    bail!("the connections do not come to rest: {last:?}");
}

#[expect(clippy::cast_precision_loss, reason = "sizes for people")]
fn measure_stall(turn: &Turn<'_>) -> Result<Values> {
    let held = || -> Result<[u64; 3]> {
        let own = turn.program.memory()?;
        Ok([own, proc::tcp_memory()?, proc::kernel_memory()?])
    };
    let before = held()?;
    let mut most = before;
    let address = &turn.program.address;
    let mut sender = turn.lab.as_client(|| address.connect())?;
    let millis = u64::try_from(STALL.as_millis())?;
    Ask::Stall { millis }.write(&mut sender)?;
    sender.set_write_timeout(Some(Duration::from_millis(100)))?;
    let chunk = vec![0; CHUNK];
    let (mut pushed, mut looked) = (0, Instant::now());
    // A little less than the reader waits, so that nothing is read while this looks.
    let deadline = Instant::now() + STALL.saturating_sub(Duration::from_millis(300));
    while Instant::now() < deadline {
        match sender.write(&chunk) {
            Ok(written) => pushed += written as u64,
            Err(error)
                if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(error) => return Err(error).context("push"),
        }
        if looked.elapsed() > Duration::from_millis(50) {
            looked = Instant::now();
            for (most, now) in most.iter_mut().zip(held()?) {
                *most = now.max(*most);
            }
        }
    }
    sender.set_write_timeout(Some(PATIENCE))?;
    sender.shutdown(Shutdown::Write)?;
    let mut arrived = [0; 8];
    sender
        .read_exact(&mut arrived)
        .context("how many bytes arrived")?;
    let arrived = u64::from_le_bytes(arrived);
    ensure!(
        arrived == pushed,
        "{pushed} bytes pushed, {arrived} arrived"
    );
    let more = [0, 1, 2].map(|at| (most[at] - before[at]) as f64 / 1024.0);
    Ok(Values {
        samples: [&more[..], &[pushed as f64 / 1024.0]].concat(),
        latency: None,
    })
}
