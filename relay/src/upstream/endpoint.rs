//! One address that an upstream has, and what is known of it.

use std::{
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError, atomic::AtomicI64},
    time::{Duration, Instant},
};

use super::counts::{Counts, Event};
use crate::{
    pair::Peer,
    plan::{Check, Upstream},
    stats::{
        gauge::{Gauge, Raised},
        upstreams::{self, State},
    },
};

/// An address that can be dialled. It lives as long as its upstream says that it is there.
#[derive(Debug)]
pub(super) struct Endpoint {
    /// Where it is.
    pub(super) place: Place,
    /// Its credit when each has its turn.
    pub(super) turn: AtomicI64,
    live: Gauge,
    counts: Counts,
    /// Those of its upstream, which has other addresses or will have.
    shared: Arc<Counts>,
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
#[derive(Clone, Debug)]
struct Health {
    /// Failed attempts since one succeeded.
    row: u32,
    /// Until when, and why.
    ejected: Option<(Instant, String)>,
    /// Why it is down, if checks say so.
    down: Option<String>,
    /// Checks in a row that say otherwise.
    otherwise: u32,
    /// When one of these has changed, the end of an ejection apart.
    since: Instant,
    /// The last failure, and when that was.
    last_error: Option<(Instant, String)>,
}

/// Whether an endpoint takes connections, and what is known of that.
#[derive(Clone, Debug)]
pub(super) struct Condition {
    pub(super) state: State,
    pub(super) since: Instant,
    /// Why it takes none.
    pub(super) cause: Option<String>,
    /// The last failure, which may be long over.
    pub(super) last_error: Option<(Instant, String)>,
}

impl Endpoint {
    /// What happens to it is counted in `shared`, too.
    pub(super) fn new(place: Place, shared: Arc<Counts>) -> Self {
        Self {
            place,
            turn: AtomicI64::new(0),
            live: Gauge::default(),
            counts: Counts::default(),
            shared,
            health: Mutex::new(Health::new()),
        }
    }

    fn count(&self, event: Event) {
        self.counts.count(event);
        self.shared.count(event);
    }

    fn health(&self) -> MutexGuard<'_, Health> {
        self.health.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Connections to it, those being dialled included.
    pub(super) fn live(&self) -> usize {
        self.live.count()
    }

    /// What has happened to it.
    pub(super) fn counts(&self) -> upstreams::Counts {
        self.counts.seen()
    }

    /// An attempt begins.
    pub(super) fn dial(&self) -> Raised {
        self.count(Event::Connect);
        self.live.raise()
    }

    /// An attempt succeeded.
    pub(super) fn succeeded(&self) {
        self.health().row = 0;
    }

    /// An attempt failed.
    pub(super) fn failed(&self, error: &io::Error) {
        self.count(Event::ConnectFailure);
        self.health().failed(error);
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
        health.since = now;
    }

    /// A check succeeded, or failed with `error`. Some in a row turn the state.
    pub(super) fn checked(&self, error: Option<&io::Error>, check: Check, route: &str) {
        let upstream = &self.place.at;
        self.count(Event::Check);
        let mut health = self.health();
        if let Some(error) = error {
            self.count(Event::CheckFailure);
            health.failed(error);
        }
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
                health.since = Instant::now();
            }
            None if count >= check.rise => {
                let cause = format!("{count} checks in a row succeeded");
                tracing::info!(route, %upstream, cause, "upstream is up");
                *health = Health {
                    last_error: health.last_error.take(),
                    ..Health::new()
                };
            }
            _ => (),
        }
    }

    /// Whether it takes connections, and what is known of that.
    pub(super) fn condition(&self) -> Condition {
        self.health().condition()
    }

    /// Whether it takes connections; tells in the log when it does so again.
    pub(super) fn is_usable(&self, route: &str) -> bool {
        let mut health = self.health();
        let over = |(until, _): &(Instant, String)| *until <= Instant::now();
        if let Some((until, _)) = health.ejected.take_if(|ejected| over(ejected)) {
            health.since = until;
            tracing::info!(route, upstream = %self.place.at, "upstream is tried again after its ejection");
        }
        health.down.is_none() && health.ejected.is_none()
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
    fn new() -> Self {
        Self {
            row: 0,
            ejected: None,
            down: None,
            otherwise: 0,
            since: Instant::now(),
            last_error: None,
        }
    }

    fn failed(&mut self, error: &io::Error) {
        self.last_error = Some((Instant::now(), error.to_string()));
    }

    fn condition(&self) -> Condition {
        let (state, since, cause) = match (&self.down, &self.ejected) {
            (Some(cause), _) => (State::Down, self.since, Some(cause.clone())),
            (None, Some((until, cause))) if *until > Instant::now() => {
                (State::Ejected, self.since, Some(cause.clone()))
            }
            // It is over, and nobody has come since.
            (None, Some((until, _))) => (State::Up, *until, None),
            (None, None) => (State::Up, self.since, None),
        };
        Condition {
            state,
            since,
            cause,
            last_error: self.last_error.clone(),
        }
    }
}
