//! `relay status`: what a running relay does, in tables or JSON.

pub(crate) mod upstreams;

use std::time::Duration;

use anyhow::Result;
use bytesize::ByteSize;
use hyper::Method;
use relay::admin::report::{Offer, Route, Status};

use crate::desk::Desk;

/// Asks and gives the text to print.
pub(crate) async fn run(desk: &Desk, json: bool) -> Result<String> {
    match json {
        true => desk.tell(Method::GET, "/status", "").await,
        false => Ok(tables(&desk.read("/status").await?)),
    }
}

fn tables(status: &Status) -> String {
    let mut text = heading(status) + "\n\n";
    let engines = status.engines.iter().map(|offer| {
        let [active, up, down] = carried(&status.routes, offer);
        let offered = match offer.offered {
            true => "yes",
            false => "no",
        };
        let missing = offer.missing.as_deref().unwrap_or("-");
        let [up, down] = [up, down].map(bytes);
        [
            offer.engine.name().into(),
            offered.into(),
            active.to_string(),
            up,
            down,
            missing.into(),
        ]
    });
    let head = [
        "engine",
        "offered",
        "active",
        "up",
        "down",
        "what is missing",
    ];
    table(&mut text, head, engines);
    let declines = status.declines.iter().map(|decline| {
        let count = decline.connections.to_string();
        [decline.engine.name().into(), decline.reason.clone(), count]
    });
    if !status.declines.is_empty() {
        text.push('\n');
        table(&mut text, ["declined by", "for", "connections"], declines);
    }
    text.push('\n');
    let routes = status.routes.iter().map(|route| {
        [
            route.name.clone(),
            listens(route),
            to(route),
            route.active.to_string(),
            route.opened.to_string(),
            bytes(route.bytes_up),
            bytes(route.bytes_down),
            route.connect_failures.to_string(),
            route.accept_errors.to_string(),
        ]
    });
    let head = [
        "route",
        "listens on",
        "to",
        "active",
        "opened",
        "up",
        "down",
        "not connected",
        "not accepted",
    ];
    table(&mut text, head, routes);
    upstreams_of(&mut text, status);
    text
}

fn upstreams_of(text: &mut String, status: &Status) {
    let lines = upstreams::lines(status);
    if lines.is_empty() {
        return;
    }
    text.push('\n');
    let rows = lines.into_iter().map(|line| {
        [
            line.route,
            line.upstream,
            line.address,
            line.weight,
            line.state.into(),
            line.since,
            line.active.to_string(),
            line.connects.to_string(),
            line.failures.to_string(),
            line.checks,
            line.why,
        ]
    });
    let head = [
        "route",
        "upstream",
        "address",
        "weight",
        "state",
        "for",
        "active",
        "connects",
        "failed",
        "checks failed",
        "why",
    ];
    table(text, head, rows);
}

/// What runs, for how long, and what it is at.
pub(crate) fn heading(status: &Status) -> String {
    let up = Duration::from_secs_f64(status.uptime_seconds.max(0.0).trunc());
    let active: u64 = status.routes.iter().map(|route| route.active).sum();
    format!(
        "relay {}, process {}, {}, up {}, {active} connections",
        status.version,
        status.pid,
        phase(status),
        humantime::format_duration(up)
    )
}

fn phase(status: &Status) -> &'static str {
    use relay::stats::books::Phase;
    match status.phase {
        Phase::Starting => "starting",
        Phase::Serving => "serving",
        Phase::Draining => "draining",
    }
}

/// What an engine has carried on all routes: live connections, bytes up and down.
pub(crate) fn carried(routes: &[Route], offer: &Offer) -> [u64; 3] {
    let shares = routes.iter().flat_map(|route| &route.engines);
    let own = shares.filter(|share| share.engine == offer.engine);
    own.fold([0; 3], |[active, up, down], share| {
        [
            active + share.active,
            up + share.bytes_up,
            down + share.bytes_down,
        ]
    })
}

/// Where a route listens.
pub(crate) fn listens(route: &Route) -> String {
    let mut listens = Vec::from_iter(route.listeners.iter().map(|one| one.listen.as_str()));
    listens.dedup();
    match listens.is_empty() {
        true => "nowhere any more".into(),
        false => listens.join(" "),
    }
}

/// Where its connections go.
pub(crate) fn to(route: &Route) -> String {
    let mut to = Vec::from_iter(route.listeners.iter().map(|one| one.to.as_str()));
    to.dedup();
    match to.is_empty() {
        true => "-".into(),
        false => to.join(" "),
    }
}

/// So many bytes, for people.
pub(crate) fn bytes(count: u64) -> String {
    ByteSize(count).display().iec().to_string()
}

/// Adds a table whose columns are as wide as their widest text.
fn table<const N: usize>(
    text: &mut String,
    head: [&str; N],
    rows: impl Iterator<Item = [String; N]>,
) {
    let rows = Vec::from_iter(std::iter::once(head.map(String::from)).chain(rows));
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    let widths: [usize; N] = std::array::from_fn(|column| width(column).unwrap_or(0));
    for row in &rows {
        let cells = row.iter().zip(widths);
        let line = Vec::from_iter(cells.map(|(cell, width)| format!("{cell:width$}")));
        text.push_str(line.join("  ").trim_end());
        text.push('\n');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_name_engines_routes_and_what_is_missing() {
        let upstreams = serde_json::json!([
            {
                "upstream": "db:5432", "weight": 3, "backup": true, "unresolved": null,
                "connects": 9, "connect_failures": 4, "checks": 0, "check_failures": 0,
                "endpoints": [{
                    "address": "10.0.0.5:5432", "weight": 3, "state": "ejected", "state_seconds": 61.0,
                    "cause": "refused", "last_error": "refused", "last_error_seconds": 61.0, "active": 2,
                    "connects": 5, "connect_failures": 1, "checks": 0, "check_failures": 0,
                }],
            },
            {
                "upstream": "srv:gone", "weight": 1, "backup": false, "unresolved": "no such name",
                "connects": 0, "connect_failures": 0, "checks": 0, "check_failures": 0, "endpoints": [],
            },
        ]);
        let status = serde_json::json!({
            "version": "1.2.3", "pid": 7, "phase": "serving", "uptime_seconds": 3661.5,
            "engines": [{ "engine": "sockmap", "offered": false, "missing": "needs CAP_BPF" }],
            "declines": [{ "engine": "sockmap", "reason": "not_offered", "connections": 4 }],
            "routes": [{
                "name": "web", "listeners": [{ "listen": "[::]:80", "to": "db:5432" }],
                "active": 2, "opened": 9, "ended": { "end": 7 }, "connect_failures": 1, "accept_errors": 0,
                "bytes_up": 5, "bytes_down": 1 << 20,
                "engines": [{ "engine": "sockmap", "active": 2, "bytes_up": 5, "bytes_down": 1 << 20 }],
                "upstreams": upstreams,
            }],
        });
        let text = tables(&serde_json::from_value(status).unwrap());
        for part in [
            "relay 1.2.3, process 7, serving, up 1h 1m 1s, 2 connections",
            "sockmap  no       2       5 B  1.0 MiB  needs CAP_BPF",
            "sockmap      not_offered  4",
            "web    [::]:80     db:5432  2       9       5 B  1.0 MiB  1              0",
            "web    db:5432   10.0.0.5:5432  3 backup  ejected     1m 1s  2       5         1       -              refused",
            "web    srv:gone  -              1         unresolved  -      0       0         0       -              no such name",
        ] {
            assert!(text.contains(part), "no {part} in\n{text}");
        }
    }
}
