//! What is told of upstreams to whoever asks.

use serde::Serialize;

use super::{
    endpoint::{Endpoint, State},
    entry::Entry,
};
use crate::pair::Peer;

/// One address of an upstream, or an upstream whose name has none.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Snapshot {
    /// The upstream as the plan has it.
    pub upstream: String,
    /// The address; none while the name is unresolved.
    pub address: Option<Peer>,
    /// Its share.
    pub weight: u32,
    /// Dialled only when no other is usable.
    pub backup: bool,
    /// Whether it takes connections; none without an address.
    pub state: Option<State>,
    /// Why it does not, or why its name did not resolve the last time.
    pub cause: Option<String>,
    /// Connections to it, those being dialled included.
    pub live: usize,
    /// Attempts to connect.
    pub dials: u64,
    /// Those that failed.
    pub failures: u64,
}

impl Snapshot {
    /// One for each address of `entry`, or one that says that there is none.
    pub(super) fn of(entry: &Entry) -> Vec<Self> {
        let fault = entry.fault().map(|fault| fault.to_string());
        let endpoints = entry.endpoints();
        let unresolved = || Self {
            upstream: entry.upstream.to_string(),
            address: None,
            weight: entry.upstream.weight.into(),
            backup: entry.upstream.backup,
            state: None,
            cause: fault.clone(),
            live: 0,
            dials: 0,
            failures: 0,
        };
        let at = |endpoint: &Endpoint| {
            let (dials, failures) = endpoint.attempts();
            let (state, cause) = endpoint.state();
            Self {
                address: Some(endpoint.place.at.clone()),
                weight: endpoint.place.weight,
                state: Some(state),
                cause: cause.or_else(|| fault.clone()),
                live: endpoint.live(),
                dials,
                failures,
                ..unresolved()
            }
        };
        match endpoints.is_empty() {
            true => vec![unresolved()],
            false => endpoints.iter().map(|endpoint| at(endpoint)).collect(),
        }
    }
}
