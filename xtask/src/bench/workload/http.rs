//! Real HTTP: nginx behind, wrk in front.

use std::process::Command;

use anyhow::{Context, Result, bail};

use super::{Turn, Values, Workload};
use crate::{
    bench::{
        lab::Server,
        results::{Better, Metric},
    },
    host,
};

pub(super) fn all() -> Vec<Workload> {
    vec![
        Workload {
            name: "http-small".into(),
            about: "wrk with 32 connections that stay open, an object of 612 bytes from nginx"
                .into(),
            metrics: metrics("rate", "requests/s"),
            server: Server::Nginx,
            run: Box::new(|turn| measure(turn, "small", 32)),
            ..Workload::default()
        },
        Workload {
            name: "http-100m".into(),
            about: "wrk with 2 connections that stay open, an object of 100 MB from nginx".into(),
            metrics: metrics("rate", "MB/s"),
            server: Server::Nginx,
            run: Box::new(|turn| measure(turn, "large", 2)),
            ..Workload::default()
        },
    ]
}

fn metrics(rate: &str, unit: &str) -> Vec<Metric> {
    vec![
        Metric::new(rate, unit, Better::More),
        Metric::new("p50", "µs", Better::Less),
        Metric::new("p99", "µs", Better::Less),
        Metric::new("CPU, machine", "s per s", Better::Less),
        Metric::new("CPU, own", "s per s", Better::Less),
    ]
}

fn measure(turn: &Turn<'_>, object: &str, connections: u32) -> Result<Values> {
    // wrk knows whole seconds only.
    let seconds = turn.time.as_secs().max(1);
    let url = format!("http://{}/{object}", turn.program.address);
    let wrk = || {
        let mut command = Command::new("wrk");
        command.args(["--latency", "--timeout", "30s", "-t2"]);
        command
            .arg(format!("-c{connections}"))
            .arg(format!("-d{seconds}s"))
            .arg(&url);
        host::output(&mut command).context("wrk, of Debian's wrk (--install)")
    };
    let (said, cost) = turn.cost(|| turn.lab.as_client(wrk))?;
    let told = Told::read(&said)?;
    let rate = match object {
        "small" => told.requests,
        _ => told.bytes / 1e6,
    };
    #[expect(clippy::cast_precision_loss, reason = "a few seconds")]
    let each = |cost: std::time::Duration| cost.as_secs_f64() / seconds as f64;
    Ok(Values {
        samples: vec![rate, told.p50, told.p99, each(cost.system), each(cost.own)],
        latency: None,
    })
}

/// What wrk says, by second and in microseconds.
#[derive(Debug, PartialEq)]
struct Told {
    requests: f64,
    bytes: f64,
    p50: f64,
    p99: f64,
}

impl Told {
    fn read(said: &str) -> Result<Self> {
        if let Some(errors) = said.lines().find(|line| {
            let line = line.trim();
            line.starts_with("Socket errors") || line.starts_with("Non-2xx")
        }) {
            bail!("wrk: {}", errors.trim());
        }
        let after = |name: &str| {
            let line = said.lines().find_map(|line| line.trim().strip_prefix(name));
            line.map(str::trim)
                .with_context(|| format!("wrk says nothing of {name}: {said}"))
        };
        Ok(Self {
            requests: after("Requests/sec:")?.parse()?,
            bytes: scaled(
                after("Transfer/sec:")?,
                &[
                    ("KB", 1024.0),
                    ("MB", 1048576.0),
                    ("GB", 1073741824.0),
                    ("B", 1.0),
                ],
            )?,
            p50: scaled(after("50%")?, TIMES)?,
            p99: scaled(after("99%")?, TIMES)?,
        })
    }
}

const TIMES: &[(&str, f64)] = &[("us", 1.0), ("ms", 1e3), ("s", 1e6), ("m", 6e7)];

fn scaled(text: &str, units: &[(&str, f64)]) -> Result<f64> {
    let split = text.find(|c: char| c.is_ascii_alphabetic());
    let (number, unit) = text.split_at(split.unwrap_or(text.len()));
    let scale = units.iter().find(|(name, _)| *name == unit);
    let (_, scale) = scale.with_context(|| format!("no unit of wrk: {text}"))?;
    Ok(number.trim().parse::<f64>()? * scale)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrk_is_understood() {
        let said = "Running 1s test @ http://127.0.0.1/\n  Thread Stats   Avg      Stdev     Max   +/- Stdev\n    \
            Latency   521.75us  1.20ms  30.41ms   96.48%\n  Latency Distribution\n     50%  303.00us\n     75%  451.00us\n     \
            90%    0.93ms\n     99%    5.25ms\n  44211 requests in 1.10s, 35.80MB read\nRequests/sec:  40193.35\n\
            Transfer/sec:     32.55MB\n";
        let told = Told::read(said).unwrap();
        assert!((told.requests - 40193.35).abs() < 1e-6);
        assert!((told.bytes - 32.55 * 1048576.0).abs() < 1.0);
        assert!((told.p50 - 303.0).abs() < 1e-6 && (told.p99 - 5250.0).abs() < 1e-6);
        let failed = format!("{said}  Socket errors: connect 0, read 3, write 0, timeout 0\n");
        assert!(
            Told::read(&failed)
                .unwrap_err()
                .to_string()
                .contains("read 3")
        );
    }
}
