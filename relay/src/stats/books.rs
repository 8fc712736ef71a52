//! What all connections share: where records go, the totals, the cards of those that live, and what relay is at.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{
        Arc, OnceLock, PoisonError, RwLock, Weak,
        atomic::{AtomicU8, Ordering},
    },
    time::Instant,
};

use serde::{Deserialize, Serialize};

use crate::{
    plan::EngineKind,
    stats::{declines::Declines, registry::Registry, sink::Sink, tally::Tally},
};

/// The accounts of a process.
pub struct Books {
    /// Where finished records go.
    pub sink: Box<dyn Sink>,
    /// The downgrades, by reason.
    pub declines: Declines,
    /// The live connections.
    pub registry: Registry,
    begun: Instant,
    phase: AtomicU8,
    tallies: RwLock<BTreeMap<Arc<str>, Arc<Tally>>>,
    engines: OnceLock<Weak<dyn Source>>,
}

/// What relay is at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// Listeners or engines are not up yet.
    Starting,
    /// Clients are accepted.
    Serving,
    /// No new clients; the live connections may come to their end.
    Draining,
}

impl Phase {
    const ALL: [Self; 3] = [Self::Starting, Self::Serving, Self::Draining];
}

/// What is asked only when somebody looks, so that it costs nothing otherwise.
pub trait Source: Send + Sync {
    /// Brings the meters of all live connections up to date; those of what they hold, too, if `held`, which takes a few
    /// system calls for each.
    fn refresh(&self, held: bool);

    /// Every engine, and what keeps it from being offered.
    fn offers(&self) -> Vec<(EngineKind, Result<(), Arc<str>>)>;
}

impl Books {
    /// Empty books.
    #[must_use]
    pub fn new(sink: Box<dyn Sink>) -> Self {
        Self {
            sink,
            declines: Declines::default(),
            registry: Registry::default(),
            begun: Instant::now(),
            phase: AtomicU8::new(Phase::Starting as u8),
            tallies: RwLock::default(),
            engines: OnceLock::new(),
        }
    }

    /// When they were begun, which is when the process was.
    #[must_use]
    pub fn begun(&self) -> Instant {
        self.begun
    }

    /// What relay is at.
    #[must_use]
    pub fn phase(&self) -> Phase {
        Phase::ALL[usize::from(self.phase.load(Ordering::Relaxed))]
    }

    /// Notes what relay is at.
    pub fn enter(&self, phase: Phase) {
        self.phase.store(phase as u8, Ordering::Relaxed);
    }

    /// Has the meters read from `engines` for as long as those live.
    pub fn ask(&self, engines: Weak<dyn Source>) {
        // They are started once.
        let _ = self.engines.set(engines);
    }

    /// Every engine, and what keeps it from being offered; none before they were started.
    #[must_use]
    pub fn offers(&self) -> Vec<(EngineKind, Result<(), Arc<str>>)> {
        let engines = self.engines.get().and_then(Weak::upgrade);
        engines.map_or_else(Vec::new, |engines| engines.offers())
    }

    /// Brings meters and totals up to date.
    pub fn refresh(&self, held: bool) {
        if let Some(engines) = self.engines.get().and_then(Weak::upgrade) {
            engines.refresh(held);
        }
        self.registry.each(|card| card.settle());
    }

    /// The totals of the route of this name.
    #[must_use]
    pub fn tally(&self, route: &str) -> Arc<Tally> {
        let known = self.tallies.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(tally) = known.get(route) {
            return tally.clone();
        }
        drop(known);
        let mut known = self.tallies.write().unwrap_or_else(PoisonError::into_inner);
        let new = || Arc::new(Tally::new(route));
        known.entry(route.into()).or_insert_with(new).clone()
    }

    /// The totals of all routes that there are or were.
    #[must_use]
    pub fn tallies(&self) -> Vec<Arc<Tally>> {
        let known = self.tallies.read().unwrap_or_else(PoisonError::into_inner);
        known.values().cloned().collect()
    }
}

impl fmt::Debug for Books {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Books").finish_non_exhaustive()
    }
}
