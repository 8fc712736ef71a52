//! Pipes of splice and buffers of copy, of every size: where relay's defaults come from.

use std::time::Duration;

use anyhow::Result;

use super::{Turn, Values, Workload, bulk, calls, held};
use crate::bench::{
    contestant::{
        Contestant,
        relay::{COPY_SIZES, SPLICE_SIZES},
    },
    results::{Better, Metric},
};

/// Streams whose reader has stopped.
const STALLED: usize = 16;
/// Until all has come to a stop.
const STALL: Duration = Duration::from_millis(800);

pub(super) fn all() -> Vec<Workload> {
    let of = |what: &str, who: &str, contestants| Workload {
        name: format!("{what}-size"),
        about: format!(
            "{what}s of {who}: one stream up and then down; and {STALLED} streams whose reader has stopped: relay's memory in all, \
             and how many bytes of each are on their way, in sockets and {what}s"
        ),
        metrics: metrics(),
        rounds: 3,
        contestants,
        run: Box::new(|turn| measure(turn)),
        ..Workload::default()
    };
    vec![
        of("pipe", "relay splice", |chosen| {
            variants(chosen, &SPLICE_SIZES)
        }),
        of("buffer", "relay copy", |chosen| {
            variants(chosen, &COPY_SIZES)
        }),
    ]
}

/// Those of `all` that are variants of one that was asked for.
fn variants(asked: &[Contestant], all: &[Contestant]) -> Vec<Contestant> {
    let is_asked = |one: &&Contestant| {
        let base = Contestant::of(one.name);
        base.is_some_and(|base| asked.iter().any(|asked| asked.name == base.name))
    };
    all.iter().filter(is_asked).copied().collect()
}

fn metrics() -> Vec<Metric> {
    let more = [
        ("calls", "per GB"),
        ("memory, own", "KiB"),
        ("on the way", "KiB each"),
    ];
    let more = more.map(|(name, unit)| Metric::new(name, unit, Better::Less));
    bulk::metrics().into_iter().chain(more).collect()
}

#[expect(clippy::cast_precision_loss, reason = "sizes for people")]
fn measure(turn: &Turn<'_>) -> Result<Values> {
    let mut values = bulk::measure(turn, 1)?;
    values
        .samples
        .push(calls::calls_of(turn, &|| calls::gigabytes(turn))?);
    let held = held::stalled(turn, STALLED, STALL + turn.time)?;
    let on_the_way = held.pushed / STALLED as u64;
    let kib = [held.own, on_the_way].map(|bytes| bytes as f64 / 1024.0);
    values.samples.extend(kib);
    Ok(values)
}
