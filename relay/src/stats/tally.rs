//! The totals of a route, which never go down, and where it listens.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use crate::{
    close::{By, Outcome},
    pair::Direction,
    plan::EngineKind,
    stats::upstreams::{Upstream, Watched, together},
};

/// Counts what happens on a route. A route that is gone keeps its totals: one of the same name goes on with them.
#[derive(Debug)]
pub struct Tally {
    name: Arc<str>,
    accept_errors: AtomicU64,
    /// By engine, in the order of [`EngineKind::ALL`], and direction.
    bytes: [[AtomicU64; 2]; 3],
    ends: Mutex<Ends>,
    open: Mutex<Vec<(Listener, Arc<dyn Watched>)>>,
    entrances: Mutex<BTreeMap<String, Arc<Entrance>>>,
}

/// Counts who comes in at one listener of a route. Also this total outlives the listener.
#[derive(Debug)]
pub struct Entrance {
    listen: String,
    opened: AtomicU64,
}

impl Entrance {
    /// Where clients connect.
    #[must_use]
    pub fn listen(&self) -> &str {
        &self.listen
    }

    /// Connections accepted.
    #[must_use]
    pub fn opened(&self) -> u64 {
        self.opened.load(Ordering::Relaxed)
    }

    pub(super) fn open(&self) {
        self.opened.fetch_add(1, Ordering::Relaxed);
    }
}

/// How connections of a route have ended.
#[derive(Clone, Debug, Default)]
pub struct Ends {
    /// Connections by what carried them (nothing when they ended before), who ended them, and how.
    pub ended: BTreeMap<(Option<EngineKind>, By, &'static str), u64>,
    /// Connections whose upstream could not be had, by the call that failed.
    pub unconnected: BTreeMap<&'static str, u64>,
}

/// A listener that is open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listener {
    /// Where clients connect.
    pub listen: String,
    /// Where their connections go.
    pub to: String,
}

impl Tally {
    pub(super) fn new(name: &str) -> Self {
        Self {
            name: name.into(),
            accept_errors: AtomicU64::default(),
            bytes: Default::default(),
            ends: Mutex::default(),
            open: Mutex::default(),
            entrances: Mutex::default(),
        }
    }

    /// The route's name.
    #[must_use]
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// The listener at `listen`.
    #[must_use]
    pub fn entrance(&self, listen: &str) -> Arc<Entrance> {
        let mut known = lock(&self.entrances);
        let new = || {
            Arc::new(Entrance {
                listen: listen.to_owned(),
                opened: AtomicU64::default(),
            })
        };
        known.entry(listen.to_owned()).or_insert_with(new).clone()
    }

    /// All listeners that there are or were.
    #[must_use]
    pub fn entrances(&self) -> Vec<Arc<Entrance>> {
        lock(&self.entrances).values().cloned().collect()
    }

    /// Counts a failure to accept clients that came.
    pub fn accept_failed(&self) {
        self.accept_errors.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn moved(&self, engine: EngineKind, direction: Direction, bytes: u64) {
        if bytes > 0 {
            self.bytes[engine as usize][direction.index()].fetch_add(bytes, Ordering::Relaxed);
        }
    }

    pub(super) fn end(&self, engine: Option<EngineKind>, outcome: Outcome) {
        let mut ends = lock(&self.ends);
        let kind = (engine, outcome.by, outcome.how.label());
        *ends.ended.entry(kind).or_default() += 1;
        if let (None, By::Upstream, Some(call)) = (engine, outcome.by, outcome.how.call()) {
            *ends.unconnected.entry(call).or_default() += 1;
        }
    }

    /// Connections accepted.
    #[must_use]
    pub fn opened(&self) -> u64 {
        self.entrances().iter().map(|one| one.opened()).sum()
    }

    /// How often clients that came could not be accepted.
    #[must_use]
    pub fn accept_errors(&self) -> u64 {
        self.accept_errors.load(Ordering::Relaxed)
    }

    /// Bytes that `engine` has moved, as far as they were [brought in](super::books::Books::refresh).
    #[must_use]
    pub fn bytes(&self, engine: EngineKind, direction: Direction) -> u64 {
        self.bytes[engine as usize][direction.index()].load(Ordering::Relaxed)
    }

    /// How connections have ended.
    #[must_use]
    pub fn ends(&self) -> Ends {
        lock(&self.ends).clone()
    }

    /// The listeners that are open.
    #[must_use]
    pub fn listeners(&self) -> Vec<Listener> {
        let open = lock(&self.open);
        open.iter().map(|(listener, _)| listener.clone()).collect()
    }

    /// What is known of the upstreams that the open listeners lead to.
    #[must_use]
    pub fn upstreams(&self) -> Vec<Upstream> {
        let open = lock(&self.open);
        let watched = Vec::from_iter(open.iter().map(|(_, upstreams)| upstreams.clone()));
        drop(open);
        together(&watched)
    }

    /// Notes a listener and its upstreams until the value is dropped.
    #[must_use]
    pub fn listening(
        self: &Arc<Self>,
        listener: Listener,
        upstreams: Arc<dyn Watched>,
    ) -> Listening {
        lock(&self.open).push((listener.clone(), upstreams.clone()));
        let tally = self.clone();
        Listening {
            tally,
            listener,
            upstreams,
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A listener counts as open for as long as it holds this.
#[derive(Debug)]
pub struct Listening {
    tally: Arc<Tally>,
    listener: Listener,
    upstreams: Arc<dyn Watched>,
}

impl Drop for Listening {
    fn drop(&mut self) {
        let mut open = lock(&self.tally.open);
        let this = |(listener, upstreams): &(Listener, Arc<dyn Watched>)| {
            *listener == self.listener && Arc::ptr_eq(upstreams, &self.upstreams)
        };
        if let Some(at) = open.iter().position(this) {
            open.remove(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{close::How, pair::Side};

    #[test]
    fn an_upstream_that_cannot_be_had_is_counted_by_call() {
        let tally = Tally::new("web");
        let refused = rustix::io::Errno::CONNREFUSED.into();
        tally.end(None, Outcome::failed(Side::Upstream, "connect", &refused));
        tally.end(None, Outcome::relay(How::Drain));
        tally.end(Some(EngineKind::Copy), Outcome::end(Side::Client));
        let Ends { ended, unconnected } = tally.ends();
        assert_eq!(unconnected, [("connect", 1)].into());
        assert_eq!(ended.len(), 3);
        assert_eq!(ended[&(Some(EngineKind::Copy), By::Client, "end")], 1);
    }

    #[derive(Debug)]
    struct Nowhere;

    impl Watched for Nowhere {
        fn seen(&self) -> Vec<Upstream> {
            Vec::new()
        }
    }

    #[test]
    fn a_listener_is_there_while_it_is_held() {
        let tally = Arc::new(Tally::new("web"));
        let listener = Listener {
            listen: "127.0.0.1:1".into(),
            to: "127.0.0.1:2".into(),
        };
        let held = tally.listening(listener.clone(), Arc::new(Nowhere));
        assert_eq!(tally.listeners(), [listener]);
        drop(held);
        assert!(tally.listeners().is_empty());
    }
}
