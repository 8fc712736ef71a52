//! Streams that go as fast as they can: one, eight, and one in writes of every size, over sockets of TCP and of Unix.

use std::thread;

use anyhow::{Result, anyhow};

use super::{Cost, Turn, Values, Workload};
use crate::{
    bench::{
        ends::Ends,
        results::{Better, Metric},
    },
    load::{
        flow::{self, Moved},
        stream::{CHUNK, UNCHECKED},
    },
};

/// There are many of these, and the hour is short.
const MIXED_ROUNDS: usize = 3;

pub(super) fn all() -> Vec<Workload> {
    let streams = |streams: u64| Workload {
        name: format!("bulk-{streams}"),
        about: format!(
            "streams of bytes as fast as they go, {streams} at once, up and then down; bytes are counted, not compared"
        ),
        quick: streams == 1,
        metrics: metrics(),
        run: Box::new(move |turn| measure(turn, streams)),
        ..Workload::default()
    };
    let mut all = vec![streams(1), streams(8)];
    let mixes = [Ends::UNIX_TCP, Ends::TCP_UNIX, Ends::UNIX_UNIX];
    for ends in [Ends::default()].into_iter().chain(mixes) {
        all.extend([1, 4, 16, 64, 256, 1024].map(|kib| sweep(ends, kib)));
    }
    all
}

/// What [`measure`] gives.
pub(super) fn metrics() -> Vec<Metric> {
    vec![
        Metric::new("up", "Gb/s", Better::More),
        Metric::new("down", "Gb/s", Better::More),
        Metric::new("CPU, machine", "s per GB", Better::Less),
        Metric::new("CPU, own", "s per GB", Better::Less),
    ]
}

pub(super) fn measure(turn: &Turn<'_>, streams: u64) -> Result<Values> {
    let address = &turn.program.address;
    let time = turn.time;
    let (moved, cost) = turn.cost(|| {
        turn.lab.as_client(|| {
            let up = many(streams, || flow::up(address, time, UNCHECKED, CHUNK))?;
            let down = many(streams, || flow::down(address, time, UNCHECKED))?;
            Ok([up, down])
        })
    })?;
    let [up, down] = moved.map(Moved::gigabits);
    let [machine, own] = per_gigabyte(cost, moved[0].bytes + moved[1].bytes);
    Ok(Values {
        samples: vec![up, down, machine, own],
        latency: None,
    })
}

fn sweep(ends: Ends, kib: usize) -> Workload {
    let Ends { client, upstream } = ends;
    let (name, rounds) = match ends.are_tcp() {
        true => ("size".into(), usize::MAX),
        false => (ends.to_string(), MIXED_ROUNDS),
    };
    Workload {
        name: format!("{name}-{kib}k"),
        about: format!(
            "one stream up, in writes of {kib} KiB, from a {client} socket to a {upstream} socket"
        ),
        rounds,
        ends,
        metrics: vec![
            Metric::new("up", "Gb/s", Better::More),
            Metric::new("CPU, machine", "s per GB", Better::Less),
            Metric::new("CPU, own", "s per GB", Better::Less),
        ],
        run: Box::new(move |turn| {
            let (address, time) = (&turn.program.address, turn.time);
            let up = || flow::up(address, time, UNCHECKED, kib * 1024);
            let (moved, cost) = turn.cost(|| turn.lab.as_client(up))?;
            let [machine, own] = per_gigabyte(cost, moved.bytes);
            Ok(Values {
                samples: vec![moved.gigabits(), machine, own],
                latency: None,
            })
        }),
        ..Workload::default()
    }
}

/// As many at once; their bytes together, and the longest of their times.
fn many(count: u64, one: impl Fn() -> Result<Moved> + Sync) -> Result<Moved> {
    thread::scope(|scope| {
        let threads = Vec::from_iter((0..count).map(|_| scope.spawn(&one)));
        let mut all = Moved::default();
        for thread in threads {
            let moved = thread.join().map_err(|_| anyhow!("a client panicked"))??;
            all.bytes += moved.bytes;
            all.took = all.took.max(moved.took);
        }
        Ok(all)
    })
}

#[expect(clippy::cast_precision_loss, reason = "a rate for people")]
fn per_gigabyte(cost: Cost, bytes: u64) -> [f64; 2] {
    let gigabytes = bytes as f64 / 1e9;
    [cost.system, cost.own].map(|cost| cost.as_secs_f64() / gigabytes)
}
