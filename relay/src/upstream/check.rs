//! Active checks: every endpoint is connected to now and then, whether clients come or not.

use std::sync::Arc;

use futures_util::future::join_all;
use tokio::time::{MissedTickBehavior, interval};

use super::{endpoint::Endpoint, entry::Entry};
use crate::{
    connect::{Near, Opening, attempt},
    plan::Check,
};

/// Checks for ever. The connections carry nothing and are reset.
pub(super) async fn watch(entries: Vec<Arc<Entry>>, check: Check, near: Near, route: Arc<str>) {
    let mut rounds = interval(check.interval);
    // A round that takes longer than the interval puts the next ones off.
    rounds.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        rounds.tick().await;
        let endpoints = entries.iter().flat_map(|entry| entry.endpoints().to_vec());
        // Nobody is ever connected to the others.
        let reached = endpoints.filter(|endpoint| near.reaches(&endpoint.place.at));
        join_all(reached.map(|endpoint| look(endpoint, check, &near, &route))).await;
    }
}

async fn look(endpoint: Arc<Endpoint>, check: Check, near: &Near, route: &str) {
    match attempt(&endpoint.place.at, near, &Opening::default(), check.timeout).await {
        Ok(_socket) => endpoint.checked(None, check, route),
        Err(failed) if failed.is_own() => (),
        Err(failed) => endpoint.checked(Some(&failed.errno.into()), check, route),
    }
}
