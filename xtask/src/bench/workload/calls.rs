//! System calls and context switches of the forwarder, by bytes and by requests.

use std::cell::Cell;

use anyhow::{Result, bail};

use super::{Turn, Values, Workload, pingpong};
use crate::{
    bench::{
        contestant::proof,
        results::{Better, Metric},
    },
    load::{
        flow,
        stream::{CHUNK, UNCHECKED},
        talk::{self, Talk},
    },
};

pub(super) fn calls() -> Workload {
    Workload {
        name: "calls".into(),
        about: "what the forwarder does for one stream up, and for a ping-pong on 16 connections; calls are counted by strace, \
                sleeps (voluntary context switches) without it"
            .into(),
        metrics: vec![
            Metric::new("calls", "per GB", Better::Less),
            Metric::new("calls", "per 1000 requests", Better::Less),
            Metric::new("sleeps", "per GB", Better::Less),
            Metric::new("sleeps", "per 1000 requests", Better::Less),
        ],
        rounds: 1,
        run: Box::new(measure),
        ..Workload::default()
    }
}

fn measure(turn: &mut Turn<'_>) -> Result<Values> {
    if turn.program.contestant.is_routed() {
        return Ok(Values {
            samples: vec![0.0; 4],
            latency: None,
        });
    }
    let mut samples = Vec::new();
    for count in [calls_of, switches_of] {
        samples.push(count(turn, &|| gigabytes(turn))?);
        samples.push(count(turn, &|| thousands(turn))?);
    }
    Ok(Values {
        samples,
        latency: None,
    })
}

/// Work, in the unit of its figure.
type Work<'a> = &'a dyn Fn() -> Result<f64>;

#[expect(clippy::cast_precision_loss, reason = "counts for people")]
pub(super) fn calls_of(turn: &Turn<'_>, work: Work<'_>) -> Result<f64> {
    let done = Cell::new(0.0);
    let calls = proof::calls(turn.program, || {
        done.set(work()?);
        Ok(())
    })?;
    if calls.is_empty() {
        bail!("strace has counted nothing");
    }
    let all: u64 = calls.iter().map(|(_, calls)| calls).sum();
    Ok(all as f64 / done.get())
}

#[expect(clippy::cast_precision_loss, reason = "counts for people")]
fn switches_of(turn: &Turn<'_>, work: Work<'_>) -> Result<f64> {
    let before = turn.program.switches()?;
    let done = work()?;
    let switches = turn.program.switches()?.saturating_sub(before);
    Ok(switches as f64 / done)
}

#[expect(clippy::cast_precision_loss, reason = "counts for people")]
pub(super) fn gigabytes(turn: &Turn<'_>) -> Result<f64> {
    let (address, time) = (&turn.program.address, turn.time);
    let up = || flow::up(address, time, UNCHECKED, CHUNK);
    Ok(turn.lab.as_client(up)?.bytes as f64 / 1e9)
}

fn thousands(turn: &Turn<'_>) -> Result<f64> {
    let address = &turn.program.address;
    let talk = Talk {
        connections: 16,
        size: 64,
        warmup: std::time::Duration::ZERO,
        time: turn.time,
    };
    let latency = turn.lab.as_client(|| talk::play(address, talk))?;
    Ok(pingpong::count(&latency) / 1000.0)
}
