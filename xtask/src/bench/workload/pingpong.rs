//! Small messages, each answered before the next, on few and on many connections.

use std::time::{Duration, Instant};

use anyhow::Result;

use super::{Turn, Values, Workload};
use crate::{
    bench::results::{Better, Metric},
    load::{
        pingpong::Latency,
        talk::{self, Talk},
    },
};

/// Connections are made and engines chosen meanwhile.
pub(super) const WARMUP: Duration = Duration::from_millis(200);

pub(super) fn all() -> Vec<Workload> {
    let of = |size, connections| Workload {
        name: format!("pingpong-{size}x{connections}"),
        about: format!(
            "messages of {size} bytes, each answered, on {connections} {}",
            if connections == 1 {
                "connection"
            } else {
                "connections"
            }
        ),
        quick: connections == 16,
        metrics: metrics(),
        run: Box::new(move |turn| {
            let talk = Talk {
                connections,
                size,
                warmup: WARMUP,
                time: turn.time,
            };
            measure(turn, talk)
        }),
        ..Workload::default()
    };
    vec![of(64, 1), of(64, 16), of(64, 64), of(4096, 16)]
}

/// What [`values`] gives.
pub(super) fn metrics() -> Vec<Metric> {
    vec![
        Metric::new("rate", "round trips/s", Better::More),
        Metric::new("p50", "µs", Better::Less),
        Metric::new("p99", "µs", Better::Less),
        Metric::new("p99.9", "µs", Better::Less),
        Metric::new("CPU, machine", "µs each", Better::Less),
        Metric::new("CPU, own", "µs each", Better::Less),
    ]
}

pub(super) fn measure(turn: &Turn<'_>, talk: Talk) -> Result<Values> {
    let address = &turn.program.address;
    let begun = Instant::now();
    let (latency, cost) = turn.cost(|| turn.lab.as_client(|| talk::play(address, talk)))?;
    // The warm-up is in the cost and in the time, and so it has to be in the count.
    let share = talk.time.as_secs_f64() / begun.elapsed().as_secs_f64();
    let each = |cost: Duration| cost.as_secs_f64() * share * 1e6 / count(&latency);
    let micros = |quantile| micros(&latency, quantile);
    Ok(Values {
        samples: vec![
            count(&latency) / talk.time.as_secs_f64(),
            micros(0.5),
            micros(0.99),
            micros(0.999),
            each(cost.system),
            each(cost.own),
        ],
        latency: Some(latency),
    })
}

#[expect(clippy::cast_precision_loss, reason = "a count for people")]
pub(super) fn count(latency: &Latency) -> f64 {
    latency.len() as f64
}

/// The latency at `quantile` in microseconds.
#[expect(clippy::cast_precision_loss, reason = "a time for people")]
pub(in crate::bench) fn micros(latency: &Latency, quantile: f64) -> f64 {
    latency.value_at_quantile(quantile) as f64 / 1000.0
}
