//! How fast bytes go: what has changed between two looks.

use std::{collections::HashMap, time::Instant};

use relay::{
    admin::report::{Connection, Status},
    plan::EngineKind,
};

use super::Seen;

/// What was seen last.
#[derive(Debug, Default)]
pub(super) struct Rates {
    at: Option<Instant>,
    connections: HashMap<u64, u64>,
    engines: HashMap<EngineKind, u64>,
    routes: HashMap<String, u64>,
}

/// What is to be shown.
#[derive(Debug, Default)]
pub(super) struct Lines {
    /// Connections and their bytes per second, the fastest first.
    pub(super) connections: Vec<(Connection, u64)>,
    /// Bytes per second of each engine.
    pub(super) engines: HashMap<EngineKind, u64>,
    /// Bytes per second of each route.
    pub(super) routes: HashMap<String, u64>,
}

impl Rates {
    /// Compares with what was seen before and keeps it.
    pub(super) fn take(&mut self, seen: &Seen) -> Lines {
        let seconds = self.at.replace(seen.at).map_or(0.0, |before| {
            seen.at.saturating_duration_since(before).as_secs_f64()
        });
        let per_second = |bytes: u64| match seconds > 0.0 {
            true => (bytes as f64 / seconds) as u64,
            false => 0,
        };
        let mut connections = Vec::with_capacity(seen.connections.len());
        let mut moved = HashMap::with_capacity(seen.connections.len());
        for one in &seen.connections {
            let bytes = one.bytes_up + one.bytes_down;
            // One that was not there has moved all of it since.
            let before = self.connections.get(&one.id).copied().unwrap_or(0);
            moved.insert(one.id, bytes);
            connections.push((one.clone(), per_second(bytes.saturating_sub(before))));
        }
        connections.sort_by_key(|(one, rate)| (std::cmp::Reverse(*rate), one.id));
        self.connections = moved;
        Lines {
            connections,
            engines: news(&mut self.engines, engines(&seen.status), per_second),
            routes: news(&mut self.routes, routes(&seen.status), per_second),
        }
    }
}

fn engines(status: &Status) -> HashMap<EngineKind, u64> {
    let mut sums = HashMap::new();
    for share in status.routes.iter().flat_map(|route| &route.engines) {
        *sums.entry(share.engine).or_default() += share.bytes_up + share.bytes_down;
    }
    sums
}

fn routes(status: &Status) -> HashMap<String, u64> {
    let routes = status.routes.iter();
    routes
        .map(|route| (route.name.clone(), route.bytes_up + route.bytes_down))
        .collect()
}

fn news<K: Clone + Eq + std::hash::Hash>(
    before: &mut HashMap<K, u64>,
    now: HashMap<K, u64>,
    per_second: impl Fn(u64) -> u64,
) -> HashMap<K, u64> {
    let rates = now.iter().map(|(key, bytes)| {
        let before = before.get(key).copied().unwrap_or(0);
        (key.clone(), per_second(bytes.saturating_sub(before)))
    });
    let rates = rates.collect();
    *before = now;
    rates
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn seen(at: Instant, bytes: [u64; 2]) -> Seen {
        let connection = |id: usize| {
            serde_json::json!({
                "id": id, "route": "web", "listener": "b", "client": "a", "upstream": null, "engine": "copy", "bytes_up": bytes[id],
                "bytes_down": 0, "backlog_up": 0, "backlog_down": 0, "age_seconds": 1.0,
            })
        };
        let connections = serde_json::json!([connection(0), connection(1)]);
        let share = serde_json::json!({
            "engine": "copy", "active": 2, "bytes_up": bytes[0] + bytes[1], "bytes_down": 0,
        });
        let status = serde_json::json!({
            "version": "1", "pid": 1, "phase": "serving", "uptime_seconds": 1.0, "engines": [], "declines": [],
            "routes": [{
                "name": "web", "listeners": [], "active": 2, "opened": 2, "ended": {}, "connect_failures": 0,
                "accept_errors": 0, "bytes_up": bytes[0] + bytes[1], "bytes_down": 0, "engines": [share],
            }],
        });
        Seen {
            at,
            status: serde_json::from_value(status).unwrap(),
            connections: serde_json::from_value(connections).unwrap(),
        }
    }

    #[test]
    fn the_fastest_comes_first() {
        let (begun, mut rates) = (Instant::now(), Rates::default());
        let lines = rates.take(&seen(begun, [1000, 10]));
        assert!(lines.connections.iter().all(|(_, rate)| *rate == 0));
        let lines = rates.take(&seen(begun + Duration::from_secs(2), [1200, 810]));
        let told = Vec::from_iter(lines.connections.iter().map(|(one, rate)| (one.id, *rate)));
        assert_eq!(told, [(1, 400), (0, 100)]);
        assert_eq!(lines.engines[&EngineKind::Copy], 500);
        assert_eq!(lines.routes["web"], 500);
    }
}
