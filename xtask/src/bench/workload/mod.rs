//! What the contestants have to do, and what is measured while they do it.

mod bulk;
mod calls;
mod connect;
mod held;
mod http;
mod open;
pub(super) mod pingpong;
mod scarce;
mod vessel;

use std::time::Duration;

use anyhow::{Result, bail};

use super::{
    contestant::{Contestant, Program},
    ends::Ends,
    lab::{Lab, Server},
    results::Metric,
};
use crate::load::{pingpong::Latency, proc};

/// One of the tables.
pub(super) struct Workload {
    pub(super) name: String,
    pub(super) about: String,
    /// Part of `--quick`.
    pub(super) quick: bool,
    pub(super) metrics: Vec<Metric>,
    /// How often at most: some things are the same each time.
    pub(super) rounds: usize,
    /// What clients connect to, and what the contestants do.
    pub(super) ends: Ends,
    /// Who takes part, of those who were asked for.
    pub(super) contestants: fn(&[Contestant]) -> Vec<Contestant>,
    /// Who answers behind the contestants.
    pub(super) server: Server,
    pub(super) run: Box<Measure>,
}

/// Measures one contestant once.
pub(super) type Measure = dyn Fn(&mut Turn<'_>) -> Result<Values>;

impl Default for Workload {
    fn default() -> Self {
        Self {
            name: String::new(),
            about: String::new(),
            quick: false,
            metrics: Vec::new(),
            rounds: usize::MAX,
            ends: Ends::default(),
            contestants: <[Contestant]>::to_vec,
            server: Server::Ours,
            run: Box::new(|_| bail!("nothing to do")),
        }
    }
}

/// One contestant in one round.
pub(super) struct Turn<'a> {
    pub(super) lab: &'a Lab,
    pub(super) program: &'a mut Program,
    /// How long what is measured by time goes on.
    pub(super) time: Duration,
}

/// A sample for each metric.
pub(super) struct Values {
    pub(super) samples: Vec<f64>,
    pub(super) latency: Option<Latency>,
}

/// All of them, in the order in which they are run.
pub(super) fn all() -> Vec<Workload> {
    let mut all = Vec::new();
    all.extend(pingpong::all());
    all.extend(bulk::all());
    all.push(connect::connect());
    all.extend(held::all());
    all.extend(scarce::all());
    all.extend(http::all());
    all.extend(open::all());
    all.push(calls::calls());
    all.extend(vessel::all());
    all
}

/// CPU time, of the whole machine and of the contestant alone.
#[derive(Clone, Copy)]
struct Cost {
    system: Duration,
    own: Duration,
}

impl Turn<'_> {
    /// Does `work` and tells what it cost.
    fn cost<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<(T, Cost)> {
        let group = &self.program.group;
        let (system, own) = (proc::busy()?, group.used()?);
        let done = work()?;
        let cost = Cost {
            system: proc::busy()?.saturating_sub(system),
            own: group.used()?.saturating_sub(own),
        };
        Ok((done, cost))
    }
}
