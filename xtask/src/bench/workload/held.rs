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

/// Kernel memory is at rest when it changes by less than this, in bytes, from one look to the next.
const REST: u64 = 256 * 1024;

pub(super) fn all() -> Vec<Workload> {
    let idle = |count: u64| Workload {
        name: format!("idle-{count}"),
        about: format!(
            "{count} connections on which nothing happens; kernel memory is that of all four sockets of a connection, slabs and buffers"
        ),
        metrics: vec![
            Metric::new("memory", "bytes each", Better::Less),
            Metric::new("own", "bytes each", Better::Less),
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
        samples: vec![each(0) + each(1), each(0), each(1), each(2)],
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

/// Own memory, kernel memory and descriptors, once there are `more` of those than at the start and nothing changes: what
/// was freed by others goes away some time later, too.
fn settle(turn: &Turn<'_>, more: u64) -> Result<[u64; 3]> {
    let deadline = Instant::now() + PATIENCE;
    let mut last: Option<[u64; 3]> = None;
    while Instant::now() < deadline {
        proc::shrink_slabs();
        let own = turn.program.memory()?;
        let kernel = proc::sockets_memory()?;
        let descriptors = turn.program.descriptors()?;
        if let Some([had_own, had_kernel, had_descriptors]) = last
            && descriptors >= more
            && (own, descriptors) == (had_own, had_descriptors)
            && kernel.abs_diff(had_kernel) < REST
        {
            return Ok([own, kernel, descriptors]);
        }
        last = Some([own, kernel, descriptors]);
        thread::sleep(Duration::from_millis(500));
    }
    bail!("the connections do not come to rest: {last:?}");
}

#[expect(clippy::cast_precision_loss, reason = "sizes for people")]
fn measure_stall(turn: &Turn<'_>) -> Result<Values> {
    let before = turn.program.memory()?;
    let held = stalled(turn, 1, STALL)?;
    let all = [
        held.own.saturating_sub(before),
        held.tcp,
        held.kernel,
        held.pushed,
    ];
    Ok(Values {
        samples: all.map(|bytes| bytes as f64 / 1024.0).to_vec(),
        latency: None,
    })
}

/// The most there was while the readers of streams had stopped, in bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Held {
    /// The forwarder's memory, all of it.
    pub(super) own: u64,
    /// More than before, of TCP and in all.
    tcp: u64,
    kernel: u64,
    /// What their senders could get rid of.
    pub(super) pushed: u64,
}

/// Pushes into so many streams whose readers read nothing for `time`, and then everything.
pub(super) fn stalled(turn: &Turn<'_>, streams: usize, time: Duration) -> Result<Held> {
    let now = || -> Result<Held> {
        Ok(Held {
            own: turn.program.memory()?,
            tcp: proc::tcp_memory()?,
            kernel: proc::kernel_memory()?,
            pushed: 0,
        })
    };
    let before = now()?;
    let mut most = before;
    let address = &turn.program.address;
    let open = || {
        let mut sender = address.connect()?;
        let millis = u64::try_from(time.as_millis())?;
        Ask::Stall { millis }.write(&mut sender)?;
        sender.set_nonblocking(true)?;
        Ok((sender, 0))
    };
    // A little less than the readers wait, so that nothing is read while this looks.
    let deadline = Instant::now() + time.saturating_sub(Duration::from_millis(300));
    let senders = || (0..streams).map(|_| open()).collect::<Result<Vec<_>>>();
    let mut senders = turn.lab.as_client(senders)?;
    let chunk = vec![0; CHUNK];
    while Instant::now() < deadline {
        for (sender, pushed) in &mut senders {
            *pushed += push(sender, &chunk)?;
        }
        let now = now()?;
        most.own = most.own.max(now.own);
        most.tcp = most.tcp.max(now.tcp);
        most.kernel = most.kernel.max(now.kernel);
        thread::sleep(Duration::from_millis(20));
    }
    for (sender, pushed) in &mut senders {
        sender.set_nonblocking(false)?;
        sender.shutdown(Shutdown::Write)?;
        let mut arrived = [0; 8];
        sender
            .read_exact(&mut arrived)
            .context("how many bytes arrived")?;
        let arrived = u64::from_le_bytes(arrived);
        ensure!(
            arrived == *pushed,
            "{pushed} bytes pushed, {arrived} arrived"
        );
    }
    Ok(Held {
        own: most.own,
        tcp: most.tcp - before.tcp,
        kernel: most.kernel - before.kernel,
        pushed: senders.iter().map(|(_, pushed)| pushed).sum(),
    })
}

/// Writes until there is no more room.
fn push(sender: &mut Socket, chunk: &[u8]) -> Result<u64> {
    let mut pushed = 0;
    loop {
        match sender.write(chunk) {
            Ok(written) => pushed += written as u64,
            Err(error) if error.kind() == ErrorKind::Interrupted => (),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(pushed),
            Err(error) => return Err(error).context("push"),
        }
    }
}
