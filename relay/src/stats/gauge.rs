//! How many of something there are at the moment.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

/// A count that goes up and down. Clones are the same count.
#[derive(Clone, Debug, Default)]
pub struct Gauge(Arc<AtomicUsize>);

impl Gauge {
    /// Counts one more until the value is dropped.
    #[must_use]
    pub fn raise(&self) -> Raised {
        self.0.fetch_add(1, Ordering::Relaxed);
        Raised(self.clone())
    }

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

/// One that is counted.
#[derive(Debug)]
pub struct Raised(Gauge);

impl Drop for Raised {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_dropped_counts_no_more() {
        let gauge = Gauge::default();
        let (one, _other) = (gauge.raise(), gauge.raise());
        drop(one);
        assert_eq!(gauge.count(), 1);
    }
}
