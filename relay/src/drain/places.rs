//! How many connections there may be: a place is taken before a client is accepted, and given back at its end.

use std::{
    num::NonZeroU32,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use tokio::sync::Notify;

/// A number of places, or as many as are asked for. Clones are the same places.
#[derive(Clone, Debug, Default)]
pub struct Places(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    taken: AtomicUsize,
    /// 0 is no limit.
    limit: AtomicUsize,
    freed: Notify,
}

/// One of the places, until it is dropped.
#[derive(Debug)]
pub struct Place(Arc<Inner>);

impl Places {
    /// So many places; none is no limit.
    #[must_use]
    pub fn new(limit: Option<NonZeroU32>) -> Self {
        let places = Self::default();
        places.set_limit(limit);
        places
    }

    /// Whether both are the same places.
    #[must_use]
    pub fn are(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Changes how many there are. Those that are taken stay taken.
    pub fn set_limit(&self, limit: Option<NonZeroU32>) {
        let limit = limit.map_or(0, NonZeroU32::get);
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        if self.0.limit.swap(limit, Ordering::Relaxed) != limit {
            self.0.freed.notify_waiters();
        }
    }

    /// How many there are; 0 for as many as are asked for.
    #[must_use]
    pub fn limit(&self) -> usize {
        self.0.limit.load(Ordering::Relaxed)
    }

    /// A place, if one is free.
    #[must_use]
    pub fn try_take(&self) -> Option<Place> {
        let limit = self.limit();
        let one_more = |taken| (limit == 0 || taken < limit).then_some(taken + 1);
        let (set, fetch) = (Ordering::AcqRel, Ordering::Acquire);
        let taken = self.0.taken.fetch_update(set, fetch, one_more);
        taken.is_ok().then(|| Place(self.0.clone()))
    }

    /// A place, as soon as one is free.
    pub async fn take(&self) -> Place {
        loop {
            let mut freed = std::pin::pin!(self.0.freed.notified());
            // From here on also what is given back before the wait is heard of.
            freed.as_mut().enable();
            if let Some(place) = self.try_take() {
                return place;
            }
            freed.await;
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.taken.fetch_sub(1, Ordering::AcqRel);
        self.0.freed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    async fn waits(places: &Places) -> bool {
        timeout(Duration::from_secs(1), places.take())
            .await
            .is_err()
    }

    #[tokio::test(start_paused = true)]
    async fn a_place_is_free_again_when_it_is_dropped() {
        let places = Places::new(NonZeroU32::new(2));
        let (one, _other) = (places.take().await, places.take().await);
        assert!(places.try_take().is_none());
        let waiting = tokio::spawn({
            let places = places.clone();
            async move { places.take().await }
        });
        tokio::task::yield_now().await;
        drop(one);
        let _third = waiting.await.unwrap();
        assert!(waits(&places).await);
    }

    #[tokio::test(start_paused = true)]
    async fn a_limit_can_be_raised_lowered_and_lifted() {
        let places = Places::new(NonZeroU32::new(1));
        let one = places.take().await;
        let waiting = tokio::spawn({
            let places = places.clone();
            async move { places.take().await }
        });
        tokio::task::yield_now().await;
        places.set_limit(NonZeroU32::new(2));
        let two = waiting.await.unwrap();
        places.set_limit(NonZeroU32::new(1));
        drop(one);
        assert!(waits(&places).await, "two were taken, one is allowed");
        drop(two);
        let _ = places.take().await;
        places.set_limit(None);
        let many: Vec<_> = (0..1000).map(|_| places.try_take().unwrap()).collect();
        assert_eq!(many.len(), 1000);
    }
}
