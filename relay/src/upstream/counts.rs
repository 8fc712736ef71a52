//! What has happened to an address, or to all addresses of an upstream.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::stats::upstreams;

/// Counts that never go down.
#[derive(Debug, Default)]
pub(super) struct Counts {
    connects: AtomicU64,
    connect_failures: AtomicU64,
    checks: AtomicU64,
    check_failures: AtomicU64,
}

/// What is counted.
#[derive(Clone, Copy, Debug)]
pub(super) enum Event {
    Connect,
    ConnectFailure,
    Check,
    CheckFailure,
}

impl Counts {
    pub(super) fn count(&self, event: Event) {
        let counter = match event {
            Event::Connect => &self.connects,
            Event::ConnectFailure => &self.connect_failures,
            Event::Check => &self.checks,
            Event::CheckFailure => &self.check_failures,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// What they are now. Failures are read first, so that they are not more than what they are failures of.
    pub(super) fn seen(&self) -> upstreams::Counts {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let connect_failures = read(&self.connect_failures);
        let check_failures = read(&self.check_failures);
        upstreams::Counts {
            connects: read(&self.connects),
            connect_failures,
            checks: read(&self.checks),
            check_failures,
        }
    }
}
