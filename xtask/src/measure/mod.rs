//! `cargo xtask measure`: what relay claims, measured here: beside a rival, in interleaved rounds.

mod bulk;
mod idle;
mod lab;
mod pingpong;
mod stall;
mod wakeups;

use std::{net::SocketAddr, path::PathBuf, process::ExitCode, time::Duration};

use anyhow::{Context, Result};

use crate::{
    host,
    load::{
        forwarder::{self, Forwarder},
        upstream::Upstream,
    },
    run,
};

/// Measure relay on this machine; everything, or one part.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// What to measure; all of it when absent.
    part: Option<Part>,
    /// How often each is measured, in turn; medians are shown.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// How long the stalled reader stalls.
    #[arg(long, default_value_t = 10)]
    seconds: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Part {
    /// One stream over veth between network namespaces, beside tokio-splice2.
    Bulk,
    /// 64 bytes to and fro over veth, on 1 and on 16 connections, beside tokio-splice2.
    Pingpong,
    /// Memory of a connection on which nothing happens.
    Idle,
    /// Memory held while a reader stalls.
    Stall,
    /// How often an offloaded ping-pong wakes relay, and whether it goes on while relay is stopped.
    Wakeups,
}

type Measure = fn(&Kit) -> Result<()>;

/// What is measured with.
struct Kit {
    relay: PathBuf,
    rival: PathBuf,
    /// The engines that this host offers.
    engines: Vec<String>,
    rounds: usize,
    stall: Duration,
}

impl Kit {
    /// An upstream on loopback, and relay with `engine` in front of it.
    fn over_loopback(&self, engine: &str) -> Result<(Upstream, Forwarder)> {
        let upstream = Upstream::start(SocketAddr::from(([127, 0, 0, 1], 0)))?;
        let mut command = forwarder::command(&self.relay, engine, upstream.address);
        Ok((upstream, Forwarder::start(&mut command)?))
    }
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let relay = run::build()?;
    let rival = [
        "build",
        "--release",
        "--package",
        "xtask",
        "--example",
        "rival",
    ];
    host::succeed(host::cargo().args(rival))?;
    let mut engines = Vec::new();
    for row in run::engines(&relay)? {
        let name = row["engine"].as_str().context("an engine without a name")?;
        match row["offered"] == true {
            true => engines.push(name.to_owned()),
            false => println!("{name} is not offered here: {}", row["missing"]),
        }
    }
    let kit = Kit {
        relay,
        rival: host::target()?.join("release/examples/rival"),
        engines,
        rounds: args.rounds.max(1),
        stall: Duration::from_secs(args.seconds),
    };
    let parts: [(Part, Measure); 5] = [
        (Part::Bulk, bulk::measure),
        (Part::Pingpong, pingpong::measure),
        (Part::Idle, idle::measure),
        (Part::Stall, stall::measure),
        (Part::Wakeups, wakeups::measure),
    ];
    for (part, measure) in parts {
        if args.part.is_none_or(|wanted| wanted == part) {
            measure(&kit).with_context(|| format!("{part:?}").to_lowercase())?;
            println!();
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => f64::NAN,
        odd if odd % 2 == 1 => values[odd / 2],
        even => f64::midpoint(values[even / 2 - 1], values[even / 2]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[expect(clippy::float_cmp, reason = "both are exact")]
    fn the_median_is_in_the_middle() {
        assert_eq!(median(&mut [3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&mut [4.0, 1.0, 2.0, 3.0]), 2.5);
    }
}
