//! What is known of the upstreams of a route, as it is shown.

use std::{fmt, sync::Arc};

use serde::{Deserialize, Serialize};

/// Upstreams that can be looked at.
pub trait Watched: fmt::Debug + Send + Sync {
    /// What is known of each now, in the order of the plan.
    fn seen(&self) -> Vec<Upstream>;
}

/// An upstream as the plan has it.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Upstream {
    /// Its address or name.
    pub upstream: String,
    /// Its share.
    pub weight: u32,
    /// Dialled only when no other is usable.
    pub backup: bool,
    /// Why its name did not resolve the last time.
    pub unresolved: Option<String>,
    /// Of all addresses that it has or had.
    #[serde(flatten)]
    pub counts: Counts,
    /// The addresses that it has; none while its name has never been resolved.
    pub endpoints: Vec<Endpoint>,
}

/// One address of an upstream.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Endpoint {
    /// The address.
    pub address: String,
    /// Its share, which SRV records may say.
    pub weight: u32,
    /// Whether it takes connections.
    pub state: State,
    /// For how long that has been so.
    pub state_seconds: f64,
    /// Why it does not take any.
    pub cause: Option<String>,
    /// The last failure, of an attempt or a check; it may be long over.
    pub last_error: Option<String>,
    /// How long ago that was.
    pub last_error_seconds: Option<f64>,
    /// Connections to it, those being dialled included.
    pub active: u64,
    /// Of this address alone.
    #[serde(flatten)]
    pub counts: Counts,
}

/// What never goes down.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub struct Counts {
    /// Attempts to connect for a client.
    pub connects: u64,
    /// Those that failed.
    pub connect_failures: u64,
    /// Checks that were answered or not.
    pub checks: u64,
    /// Those that failed.
    pub check_failures: u64,
}

/// Whether an address takes connections, the worst last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// It does.
    Up,
    /// Left out for a while, since attempts failed.
    Ejected,
    /// Left out until checks succeed again.
    Down,
}

impl State {
    /// All there are.
    pub const ALL: [Self; 3] = [Self::Up, Self::Ejected, Self::Down];

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Up => "up",
            Self::Ejected => "ejected",
            Self::Down => "down",
        }
    }
}

/// What all of `watched` know together: listeners of one route may each have upstreams of their own, or the same ones.
pub(super) fn together(watched: &[Arc<dyn Watched>]) -> Vec<Upstream> {
    let mut all: Vec<Upstream> = Vec::new();
    for (at, one) in watched.iter().enumerate() {
        if watched[..at].iter().any(|other| Arc::ptr_eq(one, other)) {
            continue;
        }
        for new in one.seen() {
            let same = |known: &&mut Upstream| known.upstream == new.upstream;
            match all.iter_mut().find(same) {
                Some(known) => known.join(new),
                None => all.push(new),
            }
        }
    }
    all
}

impl Upstream {
    fn join(&mut self, other: Self) {
        self.backup &= other.backup;
        self.weight = self.weight.max(other.weight);
        self.unresolved = self.unresolved.take().or(other.unresolved);
        self.counts.add(other.counts);
        for new in other.endpoints {
            let same = |known: &&mut Endpoint| known.address == new.address;
            match self.endpoints.iter_mut().find(same) {
                Some(known) => known.join(new),
                None => self.endpoints.push(new),
            }
        }
    }
}

impl Endpoint {
    /// The worse state is the one to be told.
    fn join(&mut self, other: Self) {
        let (mut worse, better) = match other.state > self.state {
            true => (other, self.clone()),
            false => (self.clone(), other),
        };
        worse.active += better.active;
        worse.counts.add(better.counts);
        *self = worse;
    }
}

impl Counts {
    fn add(&mut self, other: Self) {
        self.connects += other.connects;
        self.connect_failures += other.connect_failures;
        self.checks += other.checks;
        self.check_failures += other.check_failures;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Fixed(State);

    impl Watched for Fixed {
        fn seen(&self) -> Vec<Upstream> {
            let counts = Counts {
                connects: 2,
                ..Counts::default()
            };
            vec![Upstream {
                upstream: "db:1".into(),
                weight: 1,
                backup: false,
                unresolved: None,
                counts,
                endpoints: vec![Endpoint {
                    address: "10.0.0.1:1".into(),
                    weight: 1,
                    state: self.0,
                    state_seconds: 1.0,
                    cause: None,
                    last_error: None,
                    last_error_seconds: None,
                    active: 1,
                    counts,
                }],
            }]
        }
    }

    #[test]
    fn what_two_know_is_told_once() {
        let one: Arc<dyn Watched> = Arc::new(Fixed(State::Up));
        let other: Arc<dyn Watched> = Arc::new(Fixed(State::Down));
        let told = together(&[one.clone(), other, one]);
        assert_eq!(told.len(), 1);
        assert_eq!(told[0].counts.connects, 4);
        let endpoint = &told[0].endpoints[0];
        assert_eq!((endpoint.state, endpoint.active), (State::Down, 2));
    }
}
