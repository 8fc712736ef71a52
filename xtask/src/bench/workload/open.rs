//! Requests that come at a fixed rate whatever became of those before: latency against offered load.

use super::{Turn, Values, Workload, pingpong};
use crate::{
    bench::results::{Better, Metric},
    load::open::{self, Load},
};

/// Requests a second, all connections together.
const RATES: &[u64] = &[5_000, 10_000, 20_000, 40_000, 60_000];

const CONNECTIONS: u64 = 32;

pub(super) fn all() -> Vec<Workload> {
    let of = |rate: &u64| {
        let rate = *rate;
        Workload {
            name: format!("open-{}k", rate / 1000),
            about: format!(
                "{rate} requests of 64 bytes a second offered on {CONNECTIONS} connections; latency counts from when a \
                 request was due"
            ),
            metrics: vec![
                Metric::new("p50", "µs", Better::Less),
                Metric::new("p99", "µs", Better::Less),
                Metric::new("p99.9", "µs", Better::Less),
                Metric::new("answered", "requests/s", Better::More),
                Metric::new("CPU, machine", "µs each", Better::Less),
                Metric::new("CPU, own", "µs each", Better::Less),
            ],
            run: Box::new(move |turn| measure(turn, rate)),
            ..Workload::default()
        }
    };
    RATES.iter().map(of).collect()
}

fn measure(turn: &Turn<'_>, rate: u64) -> anyhow::Result<Values> {
    let address = &turn.program.address;
    let load = Load {
        rate,
        connections: CONNECTIONS,
        time: turn.time,
    };
    let (played, cost) = turn.cost(|| turn.lab.as_client(|| open::play(address, load)))?;
    let (latency, took) = played;
    let each = |cost: std::time::Duration| cost.as_secs_f64() * 1e6 / pingpong::count(&latency);
    let micros = |quantile| pingpong::micros(&latency, quantile);
    Ok(Values {
        samples: vec![
            micros(0.5),
            micros(0.99),
            micros(0.999),
            pingpong::count(&latency) / took.as_secs_f64(),
            each(cost.system),
            each(cost.own),
        ],
        latency: Some(latency),
    })
}
