//! What relay says of itself in JSON, as it is written here and read by its commands.

use std::{collections::BTreeMap, sync::Arc};

use serde::{Deserialize, Serialize};

use crate::{
    pair::Direction,
    plan::EngineKind,
    stats::{
        books::{Books, Phase},
        card::Card,
        tally::Tally,
        upstreams::Upstream,
    },
};

/// The state of a process.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Status {
    /// relay's version.
    pub version: String,
    /// The process.
    pub pid: u32,
    /// What it is at.
    pub phase: Phase,
    /// How long it has run.
    pub uptime_seconds: f64,
    /// The engines, best first.
    pub engines: Vec<Offer>,
    /// Connections that went one engine down.
    pub declines: Vec<Decline>,
    /// The routes.
    pub routes: Vec<Route>,
}

/// Whether an engine is to be had.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Offer {
    /// Which.
    pub engine: EngineKind,
    /// Whether it carries connections here.
    pub offered: bool,
    /// What keeps it from that, and what would help.
    pub missing: Option<String>,
}

/// How often an engine gave a connection back.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Decline {
    /// Which.
    pub engine: EngineKind,
    /// The short name of the reason.
    pub reason: String,
    /// How many connections.
    pub connections: u64,
}

/// One route.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Route {
    /// Its name.
    pub name: String,
    /// Its listeners; none when it is gone and its connections go on.
    pub listeners: Vec<Listener>,
    /// Live connections.
    pub active: u64,
    /// Connections accepted.
    pub opened: u64,
    /// Connections ended, by how.
    pub ended: BTreeMap<String, u64>,
    /// Connections whose upstream could not be had.
    pub connect_failures: u64,
    /// How often clients that came could not be accepted.
    pub accept_errors: u64,
    /// Bytes from clients to upstreams.
    pub bytes_up: u64,
    /// Bytes from upstreams to clients.
    pub bytes_down: u64,
    /// What each engine has carried.
    pub engines: Vec<Share>,
    /// Where its connections go; none where clients say it, and when it is gone.
    #[serde(default)]
    pub upstreams: Vec<Upstream>,
}

/// A listener of a route.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Listener {
    /// Where clients connect.
    pub listen: String,
    /// Where their connections go.
    pub to: String,
}

/// What an engine has carried of a route.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Share {
    /// Which.
    pub engine: EngineKind,
    /// Live connections.
    pub active: u64,
    /// Bytes from clients to upstreams.
    pub bytes_up: u64,
    /// Bytes from upstreams to clients.
    pub bytes_down: u64,
}

/// One live connection.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Connection {
    /// A number that no other connection of the process has.
    pub id: u64,
    /// The route's name.
    pub route: String,
    /// The listener that the client came to.
    pub listener: String,
    /// Who connected.
    pub client: String,
    /// Who was dialled.
    pub upstream: Option<String>,
    /// What carries it, once something does.
    pub engine: Option<EngineKind>,
    /// Bytes that the upstream's socket has taken.
    pub bytes_up: u64,
    /// Bytes that the client's socket has taken.
    pub bytes_down: u64,
    /// Bytes between the client's socket and the upstream's.
    pub backlog_up: u64,
    /// Bytes between the upstream's socket and the client's.
    pub backlog_down: u64,
    /// How long ago the client was accepted.
    pub age_seconds: f64,
}

/// Live connections by route and engine; without an engine they have not got that far.
pub(super) type Active = BTreeMap<(Arc<str>, Option<EngineKind>), u64>;

/// Counts the live connections.
pub(super) fn active(books: &Books) -> Active {
    let mut active = Active::new();
    books.registry.each(|card| {
        let kind = (card.tally.name().clone(), card.engine());
        *active.entry(kind).or_default() += 1;
    });
    active
}

pub(super) fn status(books: &Books) -> Status {
    let offer = |(engine, offered): (_, Result<(), Arc<str>>)| Offer {
        engine,
        offered: offered.is_ok(),
        missing: offered.err().map(|why| why.to_string()),
    };
    let decline = |(engine, reason, connections): (_, &str, _)| Decline {
        engine,
        reason: reason.to_owned(),
        connections,
    };
    Status {
        version: env!("CARGO_PKG_VERSION").into(),
        pid: std::process::id(),
        phase: books.phase(),
        uptime_seconds: books.begun().elapsed().as_secs_f64(),
        engines: books.offers().into_iter().map(offer).collect(),
        declines: books.declines.counts().into_iter().map(decline).collect(),
        routes: routes(books),
    }
}

pub(super) fn routes(books: &Books) -> Vec<Route> {
    books.refresh(false);
    let active = active(books);
    let tallies = books.tallies();
    tallies.iter().map(|tally| route(tally, &active)).collect()
}

fn route(tally: &Tally, active: &Active) -> Route {
    let live = |engine| {
        let kind = (tally.name().clone(), engine);
        active.get(&kind).copied().unwrap_or(0)
    };
    let engines = Vec::from_iter(EngineKind::ALL.map(|engine| Share {
        engine,
        active: live(Some(engine)),
        bytes_up: tally.bytes(engine, Direction::Up),
        bytes_down: tally.bytes(engine, Direction::Down),
    }));
    let ends = tally.ends();
    let mut ended = BTreeMap::new();
    for ((_, _, how), count) in ends.ended {
        *ended.entry(how.to_owned()).or_default() += count;
    }
    let listeners = tally.listeners().into_iter().map(|one| Listener {
        listen: one.listen,
        to: one.to,
    });
    Route {
        name: tally.name().to_string(),
        listeners: listeners.collect(),
        active: live(None) + engines.iter().map(|share| share.active).sum::<u64>(),
        opened: tally.opened(),
        ended,
        connect_failures: ends.unconnected.values().sum(),
        accept_errors: tally.accept_errors(),
        bytes_up: engines.iter().map(|share| share.bytes_up).sum(),
        bytes_down: engines.iter().map(|share| share.bytes_down).sum(),
        engines,
        upstreams: tally.upstreams(),
    }
}

pub(super) fn connections(books: &Books) -> Vec<Connection> {
    books.refresh(true);
    let cards = books.registry.cards();
    cards.iter().map(|card| connection(card)).collect()
}

fn connection(card: &Card) -> Connection {
    let peers = card.peers().clone();
    Connection {
        id: card.id,
        route: card.tally.name().to_string(),
        listener: card.entrance.listen().to_owned(),
        client: peers.client.to_string(),
        upstream: peers.upstream.map(|upstream| upstream.to_string()),
        engine: card.engine(),
        bytes_up: card.meter.moved(Direction::Up),
        bytes_down: card.meter.moved(Direction::Down),
        backlog_up: card.meter.held(Direction::Up),
        backlog_down: card.meter.held(Direction::Down),
        age_seconds: card.age().as_secs_f64(),
    }
}
