//! The card of a live connection: what its record, its engine and whoever looks at it share.

use std::{
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU8, Ordering},
    },
    time::{Duration, Instant},
};

use crate::{
    pair::{Direction, Peer},
    plan::EngineKind,
    stats::{
        meter::Meter,
        tally::{Entrance, Tally},
    },
};

/// What is known of a connection while it lives.
pub struct Card {
    /// A number that no other connection of this process has.
    pub id: u64,
    /// The totals of its route.
    pub tally: Arc<Tally>,
    /// Where the client came in.
    pub entrance: Arc<Entrance>,
    /// The bytes.
    pub meter: Meter,
    begun: Instant,
    peers: Mutex<Peers>,
    /// The index in [`EngineKind::ALL`]; beyond it before an engine has taken over.
    engine: AtomicU8,
}

/// Who is at both ends.
#[derive(Clone, Debug)]
pub struct Peers {
    /// Who connected.
    pub client: Peer,
    /// Who is dialled or was, unless nobody is yet.
    pub upstream: Option<Peer>,
}

const NONE: u8 = u8::MAX;

impl Card {
    pub(super) fn new(id: u64, tally: Arc<Tally>, entrance: Arc<Entrance>, client: Peer) -> Self {
        let upstream = None;
        Self {
            id,
            tally,
            entrance,
            meter: Meter::default(),
            begun: Instant::now(),
            peers: Mutex::new(Peers { client, upstream }),
            engine: AtomicU8::new(NONE),
        }
    }

    /// When the client was accepted.
    #[must_use]
    pub fn begun(&self) -> Instant {
        self.begun
    }

    /// How long ago the client was accepted.
    #[must_use]
    pub fn age(&self) -> Duration {
        self.begun.elapsed()
    }

    /// Who is at both ends.
    pub fn peers(&self) -> MutexGuard<'_, Peers> {
        self.peers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What carries it, if anything does yet.
    #[must_use]
    pub fn engine(&self) -> Option<EngineKind> {
        let index = self.engine.load(Ordering::Relaxed);
        EngineKind::ALL.get(usize::from(index)).copied()
    }

    /// What was moved so far is the former engine's.
    pub(super) fn carried_by(&self, engine: EngineKind) {
        self.settle();
        self.engine.store(engine as u8, Ordering::Relaxed);
    }

    /// Brings what was moved since the last time into the totals of the route.
    pub(super) fn settle(&self) {
        let Some(engine) = self.engine() else { return };
        for direction in Direction::BOTH {
            let bytes = self.meter.take_news(direction);
            self.tally.moved(engine, direction, bytes);
        }
    }
}

impl fmt::Debug for Card {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Card")
            .field("id", &self.id)
            .field("route", &self.tally.name())
            .finish_non_exhaustive()
    }
}
