//! Active checks: every endpoint is connected to now and then, whether clients come or not.

use std::sync::Arc;

use futures_util::future::join_all;
use tokio::time::{MissedTickBehavior, interval};

use super::{endpoint::Endpoint, entry::Entry, is_own};
use crate::{connect::attempt, plan::Check};

/// Checks for ever. The connections carry nothing and are reset.
pub(super) async fn watch(entries: Vec<Arc<Entry>>, check: Check, route: Arc<str>) {
    let mut rounds = interval(check.interval);
    // A round that takes longer than the interval puts the next ones off.
    rounds.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        rounds.tick().await;
        let endpoints = entries.iter().flat_map(|entry| entry.endpoints().to_vec());
        join_all(endpoints.map(|endpoint| look(endpoint, check, &route))).await;
    }
}

async fn look(endpoint: Arc<Endpoint>, check: Check, route: &str) {
    match attempt(&endpoint.place.at, check.timeout).await {
        Ok(_socket) => endpoint.checked(None, check, route),
        Err(errno) if is_own(errno) => (),
        Err(errno) => endpoint.checked(Some(&errno.into()), check, route),
    }
}
