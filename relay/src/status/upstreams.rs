//! Upstreams as they are told to people: one line for each address.

use std::time::Duration;

use relay::{
    admin::report::Status,
    stats::upstreams::{Endpoint, State, Upstream},
};

/// What is told of one address, or of a name without any.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Line {
    pub(crate) route: String,
    pub(crate) upstream: String,
    pub(crate) address: String,
    pub(crate) weight: String,
    pub(crate) state: &'static str,
    /// For how long that has been so.
    pub(crate) since: String,
    pub(crate) active: u64,
    pub(crate) connects: u64,
    pub(crate) failures: u64,
    /// Checks that failed, of so many.
    pub(crate) checks: String,
    /// Why it takes no clients, or what was wrong the last time.
    pub(crate) why: String,
}

impl Line {
    pub(crate) fn is_up(&self) -> bool {
        self.state == State::Up.name()
    }
}

/// All upstreams of all routes, in their order.
pub(crate) fn lines(status: &Status) -> Vec<Line> {
    let mut lines = Vec::new();
    for route in &status.routes {
        for upstream in &route.upstreams {
            if upstream.endpoints.is_empty() {
                lines.push(unresolved(&route.name, upstream));
            }
            let endpoints = upstream.endpoints.iter();
            lines.extend(endpoints.map(|endpoint| line(&route.name, upstream, endpoint)));
        }
    }
    lines
}

fn unresolved(route: &str, upstream: &Upstream) -> Line {
    let fault = upstream.unresolved.as_deref();
    Line {
        route: route.into(),
        upstream: upstream.upstream.clone(),
        address: "-".into(),
        weight: weight(upstream, upstream.weight),
        state: "unresolved",
        since: "-".into(),
        active: 0,
        connects: upstream.counts.connects,
        failures: upstream.counts.connect_failures,
        checks: "-".into(),
        why: fault.unwrap_or("no answer yet").into(),
    }
}

fn line(route: &str, upstream: &Upstream, endpoint: &Endpoint) -> Line {
    let counts = endpoint.counts;
    Line {
        route: route.into(),
        upstream: upstream.upstream.clone(),
        address: endpoint.address.clone(),
        weight: weight(upstream, endpoint.weight),
        state: endpoint.state.name(),
        since: age(endpoint.state_seconds),
        active: endpoint.active,
        connects: counts.connects,
        failures: counts.connect_failures,
        checks: match counts.checks {
            0 => "-".into(),
            checks => format!("{} of {checks}", counts.check_failures),
        },
        why: why(upstream, endpoint),
    }
}

fn why(upstream: &Upstream, endpoint: &Endpoint) -> String {
    if let Some(cause) = &endpoint.cause {
        return cause.clone();
    }
    if let Some(fault) = &upstream.unresolved {
        return format!("still there, though its name does not resolve: {fault}");
    }
    match (&endpoint.last_error, endpoint.last_error_seconds) {
        (Some(error), Some(seconds)) => format!("{} ago: {error}", age(seconds)),
        _ => "-".into(),
    }
}

fn weight(upstream: &Upstream, weight: u32) -> String {
    match upstream.backup {
        true => format!("{weight} backup"),
        false => weight.to_string(),
    }
}

/// So long, in two units, which tell enough.
pub(crate) fn age(seconds: f64) -> String {
    let whole = Duration::try_from_secs_f64(seconds.max(0.0).trunc()).unwrap_or_default();
    let words = humantime::format_duration(whole).to_string();
    Vec::from_iter(words.split(' ').take(2)).join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_age_is_short() {
        assert_eq!(age(0.7), "0s");
        assert_eq!(age(3725.0), "1h 2m");
        assert_eq!(age(f64::NAN), "0s");
        assert_eq!(age(f64::INFINITY), "0s");
    }
}
