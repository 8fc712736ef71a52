//! Bandwidth limits at work: buckets that earn bytes as time goes by, and directions that wait for their turn at them.
//!
//! A turn is a number of bytes that a direction may take from its source. It is reserved when the source has something
//! to give, at the end of all that was reserved before: turns come round in order, which is what makes a route's limit
//! fair among its connections, and each waits for one timer and is woken once. What of a turn is not used goes back.

#[cfg(test)]
mod tests;

use std::{
    future::Future,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::time::{Instant, Sleep, sleep_until};

use crate::{
    pair::Direction,
    plan::{Rate, Rates},
};

/// What a bucket holds at most: so long a time's worth, and at least [`DEPTH`].
const BURST: Duration = Duration::from_millis(100);
/// The least depth of a bucket, so that a slow connection sends segments and not crumbs.
const DEPTH: u64 = 4 << 10;
/// A turn is at most this part of the depth, hence 25 ms: the bucket goes on filling while timers are late.
const PART: u64 = 4;
/// Turns get smaller the more wait, so that the last one's wait does not grow with them; but not smaller than this.
const CRUMB: u64 = 1 << 10;
/// The size of splice's pipes: no more is taken at once.
const GULP: u64 = 1 << 20;
/// The time that the deepest bucket takes to fill: then no time in it is negative.
const ORIGIN: u64 = DEPTH / Rate::LEAST * SECOND;
const SECOND: u64 = 1_000_000_000;

/// Earns bytes at a rate, for one direction of a connection or of all connections of a route.
#[derive(Debug)]
pub struct Bucket {
    begun: Instant,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// Bytes per second; none earns without a limit.
    rate: Option<Rate>,
    /// When all that was reserved is earned: nanoseconds since the beginning, [`ORIGIN`] being that.
    earned: u64,
    /// Turns that are not over.
    turns: u64,
}

impl Bucket {
    fn new(rate: Rate) -> Arc<Self> {
        let state = State {
            rate: Some(rate),
            earned: 0,
            turns: 0,
        };
        Arc::new(Self {
            begun: Instant::now(),
            state: Mutex::new(state),
        })
    }

    /// Reserves a turn of at most `most` bytes: how many they are, and when they are earned unless they are already.
    fn reserve(&self, most: u64) -> (u64, Option<Instant>) {
        let mut state = self.lock();
        state.turns += 1;
        let Some(rate) = state.rate else {
            return (most, None);
        };
        let passed = u64::try_from(self.begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let now = passed.saturating_add(ORIGIN);
        let depth = depth(rate);
        let bytes = (depth / PART / state.turns).max(CRUMB).min(most);
        let full = now.saturating_sub(time(depth, rate));
        state.earned = state.earned.max(full).saturating_add(time(bytes, rate));
        let left = state.earned.saturating_sub(now);
        let due = self.begun + Duration::from_nanos(passed) + Duration::from_nanos(left);
        (bytes, (left > 0).then_some(due))
    }

    /// Ends a turn, of which so many bytes were not used.
    fn give_back(&self, bytes: u64) {
        let mut state = self.lock();
        state.turns = state.turns.saturating_sub(1);
        if let (Some(rate), 1..) = (state.rate, bytes) {
            // Times are rounded up: so that no more comes back than was reserved, one nanosecond stays.
            let back = time(bytes, rate).saturating_sub(1);
            state.earned = state.earned.saturating_sub(back);
        }
    }

    fn set(&self, rate: Option<Rate>) {
        self.lock().rate = rate;
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn depth(rate: Rate) -> u64 {
    let burst = u64::try_from(BURST.as_nanos()).unwrap_or(u64::MAX);
    (rate.bytes().get() / (SECOND / burst)).max(DEPTH)
}

/// How long it takes to earn so many bytes, in nanoseconds.
fn time(bytes: u64, rate: Rate) -> u64 {
    let time = (u128::from(bytes) * u128::from(SECOND)).div_ceil(rate.bytes().get().into());
    u64::try_from(time).unwrap_or(u64::MAX)
}

/// The buckets that all connections of a route share, up and down.
#[derive(Debug, Default)]
pub struct Quotas([Option<Arc<Bucket>>; 2]);

impl Quotas {
    /// The quotas of `rates`, and nothing earned yet but what a full bucket holds.
    #[must_use]
    pub fn new(rates: &Rates) -> Self {
        Self(rates.route.map(|rate| rate.map(Bucket::new)))
    }

    /// The same with other rates: connections that share a quota already go on to share it with those that come.
    #[must_use]
    pub fn renewed(&self, rates: &Rates) -> Self {
        let renew = |direction: Direction| {
            let (old, rate) = (&self.0[direction.index()], rates.route[direction.index()]);
            if let Some(bucket) = old {
                bucket.set(rate);
            }
            rate.map(|rate| old.clone().unwrap_or_else(|| Bucket::new(rate)))
        };
        Self(Direction::BOTH.map(renew))
    }
}

/// The limits of one connection.
#[derive(Debug)]
pub struct Pace([Vec<Arc<Bucket>>; 2]);

impl Pace {
    /// For a connection of a route with these `rates` and `quotas`; nothing where there is no limit.
    #[must_use]
    pub fn new(rates: &Rates, quotas: &Quotas) -> Option<Box<Self>> {
        let buckets = |direction: Direction| {
            let own = rates.connection[direction.index()].map(Bucket::new);
            let shared = quotas.0[direction.index()].clone();
            // A turn at the shared bucket is reserved when the own one lets it be used.
            own.into_iter().chain(shared).collect()
        };
        rates
            .any()
            .then(|| Box::new(Self(Direction::BOTH.map(buckets))))
    }

    /// What one direction has to wait for; nothing where it has no limit.
    pub(crate) fn pacer(&self, direction: Direction) -> Option<Box<Pacer>> {
        let buckets = &self.0[direction.index()];
        let toll = |bucket: &Arc<Bucket>| Toll {
            bucket: bucket.clone(),
            reserved: 0,
        };
        (!buckets.is_empty()).then(|| {
            Box::new(Pacer {
                tolls: buckets.iter().map(toll).collect(),
                passed: 0,
                turn: GULP,
                alarm: None,
            })
        })
    }
}

/// Paces one direction of a connection.
#[derive(Debug)]
pub(crate) struct Pacer {
    tolls: Vec<Toll>,
    /// At how many of them a turn is reserved.
    passed: usize,
    /// The smallest of those turns.
    turn: u64,
    /// When the last one reserved is earned.
    alarm: Option<Pin<Box<Sleep>>>,
}

#[derive(Debug)]
struct Toll {
    bucket: Arc<Bucket>,
    reserved: u64,
}

impl Pacer {
    /// Waits for a turn, and says how many bytes may be taken in it. [`Pacer::took`] ends it.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<usize> {
        loop {
            if let Some(alarm) = &mut self.alarm {
                ready!(alarm.as_mut().poll(cx));
                self.alarm = None;
            }
            let Some(toll) = self.tolls.get_mut(self.passed) else {
                return Poll::Ready(usize::try_from(self.turn).unwrap_or(usize::MAX));
            };
            let (bytes, due) = toll.bucket.reserve(self.turn);
            toll.reserved = bytes;
            self.turn = bytes;
            self.passed += 1;
            self.alarm = due.map(|due| Box::pin(sleep_until(due)));
        }
    }

    /// So many bytes were taken in this turn.
    pub(crate) fn took(&mut self, bytes: usize) {
        for toll in &mut self.tolls[..self.passed] {
            let unused = toll.reserved.saturating_sub(bytes as u64);
            toll.bucket.give_back(unused);
        }
        self.passed = 0;
        self.turn = GULP;
        self.alarm = None;
    }

    /// Whether the direction would go on if it were not for its limit.
    pub(crate) fn is_waiting(&self) -> bool {
        self.alarm.is_some()
    }
}

impl Drop for Pacer {
    fn drop(&mut self) {
        self.took(0);
    }
}
