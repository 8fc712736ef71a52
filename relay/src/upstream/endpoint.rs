//! One address that an upstream has, and what is known of it.

use std::{
    io,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicI64, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use crate::{
    pair::Peer,
    plan::{Check, Upstream},
    stats::gauge::{Gauge, Raised},
};

/// An address that can be dialled. It lives as long as its upstream says that it is there.
#[derive(Debug)]
pub(super) struct Endpoint {
    /// Where it is.
    pub(super) place: Place,
    /// Its credit when each has its turn.
    pub(super) turn: AtomicI64,
    live: Gauge,
    dials: AtomicU64,
    failures: AtomicU64,
    health: Mutex<Health>,
}

/// Where an endpoint is, and its rank among the others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// The address.
    pub(super) at: Peer,
    /// The host that has this address, and perhaps others.
    pub(super) host: String,
    /// Its share.
    pub(super) weight: u32,
    /// Those of a lower rank are dialled first: backups have a high one, and SRV records name ranks.
    pub(super) rank: u32,
}

impl Place {
    /// The only one of an upstream that is no name.
    pub(super) fn of(at: Peer, upstream: &Upstream) -> Self {
        Self {
            host: at.to_string(),
            at,
            weight: upstream.weight.into(),
            rank: 0,
        }
    }
}

/// Whether it is left out, and why.
#[derive(Clone, Debug, Default)]
struct Health {
    /// Failed attempts since one succeeded.
    row: u32,
    /// Until when, and why.
    ejected: Option<(Instant, String)>,
    /// Why it is down, if checks say so.
    down: Option<String>,
    /// Checks in a row that say otherwise.
    otherwise: u32,
}

/// Whether an endpoint takes connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// It does.
    Up,
    /// Left out for a while, since attempts failed.
    Ejected,
    /// Left out until checks succeed again.
    Down,
}

impl Endpoint {
    pub(super) fn new(place: Place) -> Self {
        Self {
            place,
            turn: AtomicI64::new(0),
            live: Gauge::default(),
            dials: AtomicU64::new(0),
            failures: AtomicU64::new(0),
            health: Mutex::default(),
        }
    }

    fn health(&self) -> MutexGuard<'_, Health> {
        self.health.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Connections to it, those being dialled included.
    pub(super) fn live(&self) -> usize {
        self.live.count()
    }

    /// Attempts so far, and those that failed.
    pub(super) fn attempts(&self) -> (u64, u64) {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        (count(&self.dials), count(&self.failures))
    }

    /// An attempt begins.
    pub(super) fn dial(&self) -> Raised {
        self.dials.fetch_add(1, Ordering::Relaxed);
        self.live.raise()
    }

    /// An attempt succeeded.
    pub(super) fn succeeded(&self) {
        self.health().row = 0;
    }

    /// An attempt failed.
    pub(super) fn failed(&self) {
        self.failures.fetch_add(1, Ordering::Relaxed);
    }

    /// The upstream is to blame for that; gives how often it was so in a row.
    pub(super) fn blamed(&self) -> u32 {
        let mut health = self.health();
        health.row = health.row.saturating_add(1);
        health.row
    }

    /// Leaves it out for `period`. After that, one more failure is enough.
    pub(super) fn eject(&self, period: Duration, error: &io::Error, route: &str) {
        let now = Instant::now();
        let mut health = self.health();
        let cause = format!(
            "{} attempts in a row failed, the last with: {error}",
            health.row
        );
        tracing::warn!(route, upstream = %self.place.at, cause, ?period, "upstream ejected");
        // A period that no clock can hold is longer than any that is allowed.
        let until = now.checked_add(period).unwrap_or(now);
        health.ejected = Some((until, cause));
    }

    /// A check succeeded, or failed with `error`. Some in a row turn the state.
    pub(super) fn checked(&self, error: Option<&io::Error>, check: Check, route: &str) {
        let upstream = &self.place.at;
        let mut health = self.health();
        if error.is_some() == health.down.is_some() {
            health.otherwise = 0;
            return;
        }
        health.otherwise += 1;
        let count = health.otherwise;
        match error {
            Some(error) if count >= check.fall => {
                let cause = format!("{count} checks in a row failed, the last with: {error}");
                tracing::warn!(route, %upstream, cause, "upstream is down");
                health.down = Some(cause);
                health.otherwise = 0;
            }
            None if count >= check.rise => {
                let cause = format!("{count} checks in a row succeeded");
                tracing::info!(route, %upstream, cause, "upstream is up");
                *health = Health::default();
            }
            _ => (),
        }
    }

    /// Whether it takes connections, and why not.
    pub(super) fn state(&self) -> (State, Option<String>) {
        self.health().state()
    }

    /// Whether it takes connections; tells in the log when it does so again.
    pub(super) fn is_usable(&self, route: &str) -> bool {
        let mut health = self.health();
        let over = |(until, _): &(Instant, String)| *until <= Instant::now();
        if health.ejected.as_ref().is_some_and(over) {
            health.ejected = None;
            tracing::info!(route, upstream = %self.place.at, "upstream is tried again after its ejection");
        }
        health.state().0 == State::Up
    }

    /// Whether it and `other` are addresses of one host in different families.
    pub(super) fn pairs_with(&self, other: &Self) -> bool {
        let same = self.place.host == other.place.host && self.place.rank == other.place.rank;
        same && self.is_v6() != other.is_v6()
    }

    pub(super) fn is_v6(&self) -> bool {
        matches!(&self.place.at, Peer::Ip(at) if at.is_ipv6())
    }
}

impl Health {
    fn state(&self) -> (State, Option<String>) {
        match (&self.down, &self.ejected) {
            (Some(cause), _) => (State::Down, Some(cause.clone())),
            (None, Some((until, cause))) if *until > Instant::now() => {
                (State::Ejected, Some(cause.clone()))
            }
            _ => (State::Up, None),
        }
    }
}
