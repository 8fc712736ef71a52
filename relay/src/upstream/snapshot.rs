//! What is told of upstreams to whoever asks.

use super::{Upstreams, endpoint::Endpoint, entry::Entry};
use crate::stats::upstreams::{self, Upstream, Watched};

impl Watched for Upstreams {
    fn seen(&self) -> Vec<Upstream> {
        // What is no place of its own has nothing to tell.
        let entries = self.entries.iter().filter(|entry| !entry.is_original());
        entries.map(|entry| upstream(entry)).collect()
    }
}

fn upstream(entry: &Entry) -> Upstream {
    let endpoints = entry.endpoints();
    Upstream {
        upstream: entry.upstream.to_string(),
        weight: entry.upstream.weight.into(),
        backup: entry.upstream.backup,
        unresolved: entry.fault().map(|fault| fault.to_string()),
        counts: entry.counts.seen(),
        endpoints: endpoints.iter().map(|one| endpoint(one)).collect(),
    }
}

fn endpoint(endpoint: &Endpoint) -> upstreams::Endpoint {
    let condition = endpoint.condition();
    let (last_error_seconds, last_error) = condition
        .last_error
        .map(|(at, error)| (at.elapsed().as_secs_f64(), error))
        .unzip();
    upstreams::Endpoint {
        address: endpoint.place.at.to_string(),
        weight: endpoint.place.weight,
        state: condition.state,
        state_seconds: condition.since.elapsed().as_secs_f64(),
        cause: condition.cause,
        last_error,
        last_error_seconds,
        active: endpoint.live() as u64,
        counts: endpoint.counts(),
    }
}
