//! The metrics of upstreams. What never goes down is told of each upstream, and what is so at the moment of each of its
//! addresses: those come and go with a name's answers, and a counter must not.

use std::{fmt, sync::Arc};

use super::page::Page;
use crate::stats::{
    tally::Tally,
    upstreams::{Counts, Endpoint, State, Upstream},
};

type Label = (&'static str, String);

/// Writes them.
pub(super) fn encode(page: &mut Page<'_>, tallies: &[Arc<Tally>]) -> fmt::Result {
    let of_route = |tally: &Arc<Tally>| {
        let route = tally.name().to_string();
        let upstreams = tally.upstreams().into_iter();
        upstreams.map(move |upstream| (route.clone(), upstream))
    };
    let upstreams = Vec::from_iter(tallies.iter().flat_map(of_route));
    endpoints(page, &upstreams)?;
    let resolved = upstreams
        .iter()
        .map(|told| (labels(told), u32::from(told.1.unresolved.is_none())));
    let help =
        "Whether the upstream's name was resolved when it was last asked for; an address always is";
    page.gauges("relay_upstream_resolved", help, None, resolved)?;
    for (name, help, count) in COUNTERS {
        let counts = upstreams
            .iter()
            .map(|told| (labels(told), count(&told.1.counts)));
        page.counters(name, help, None, counts)?;
    }
    Ok(())
}

type Counter = (&'static str, &'static str, fn(&Counts) -> u64);

const COUNTERS: [Counter; 4] = [
    (
        "relay_upstream_connects",
        "Attempts to connect to the upstream for a client",
        |counts| counts.connects,
    ),
    (
        "relay_upstream_connect_failures",
        "Those that failed; the client may have been served by another upstream",
        |counts| counts.connect_failures,
    ),
    (
        "relay_upstream_checks",
        "Checks whether the upstream is there",
        |counts| counts.checks,
    ),
    (
        "relay_upstream_check_failures",
        "Those that failed",
        |counts| counts.check_failures,
    ),
];

fn endpoints(page: &mut Page<'_>, upstreams: &[(String, Upstream)]) -> fmt::Result {
    let all = || {
        let of = |told: &'_ (String, Upstream)| {
            let [route, upstream] = labels(told);
            let endpoints = told.1.endpoints.clone().into_iter();
            endpoints.map(move |endpoint| {
                let address = ("address", endpoint.address.clone());
                ([route.clone(), upstream.clone(), address], endpoint)
            })
        };
        upstreams.iter().flat_map(of)
    };
    let states = all().flat_map(|(labels, endpoint)| {
        State::ALL.map(|state| {
            let [route, upstream, address] = labels.clone();
            let state_label = ("state", state.name().to_owned());
            let is_so = u32::from(endpoint.state == state);
            ([route, upstream, address, state_label], is_so)
        })
    });
    let help =
        "1 for the state that an address of the upstream is in; only one that is up takes clients";
    page.gauges("relay_upstream_state", help, None, states)?;
    let active = all().map(|(labels, Endpoint { active, .. })| (labels, active));
    let help = "Live connections to an address of the upstream, those being connected included";
    page.gauges("relay_upstream_connections_active", help, None, active)
}

fn labels((route, upstream): &(String, Upstream)) -> [Label; 2] {
    [
        ("route", route.clone()),
        ("upstream", upstream.upstream.clone()),
    ]
}
