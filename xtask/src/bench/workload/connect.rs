//! Short connections: connect, one request, its answer, close.

use anyhow::Result;

use super::{
    Turn, Values, Workload,
    pingpong::{count, micros},
};
use crate::{
    bench::results::{Better, Metric},
    load::once,
};

/// Clients that do so at once.
const CLIENTS: u64 = 8;

pub(super) fn connect() -> Workload {
    Workload {
        name: "connect".into(),
        about: format!("{CLIENTS} clients, each again and again: connect, 64 bytes, answer, close"),
        quick: true,
        metrics: vec![
            Metric::new("rate", "connections/s", Better::More),
            Metric::new("p50", "µs", Better::Less),
            Metric::new("p99", "µs", Better::Less),
            Metric::new("CPU, machine", "µs each", Better::Less),
            Metric::new("CPU, own", "µs each", Better::Less),
        ],
        run: Box::new(|turn| measure(turn)),
        ..Workload::default()
    }
}

fn measure(turn: &Turn<'_>) -> Result<Values> {
    let (address, time) = (&turn.program.address, turn.time);
    let play = || once::play(address, CLIENTS, time);
    let (latency, cost) = turn.cost(|| turn.lab.as_client(play))?;
    let each = |cost: std::time::Duration| cost.as_secs_f64() * 1e6 / count(&latency);
    Ok(Values {
        samples: vec![
            count(&latency) / time.as_secs_f64(),
            micros(&latency, 0.5),
            micros(&latency, 0.99),
            each(cost.system),
            each(cost.own),
        ],
        latency: Some(latency),
    })
}
