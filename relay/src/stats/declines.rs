//! Downgrades: counted by engine and reason, logged the first time each.

use std::{collections::BTreeMap, sync::Mutex};

use crate::{decline::Why, plan::EngineKind};

/// How many connections each engine gave back, by reason.
#[derive(Debug, Default)]
pub struct Declines {
    counts: Mutex<BTreeMap<(EngineKind, &'static str), u64>>,
}

impl Declines {
    /// Counts one, and logs it when it is the first of its engine and reason.
    pub fn count(&self, engine: EngineKind, why: &Why) {
        let mut counts = self
            .counts
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        let count = counts.entry((engine, why.label())).or_default();
        *count += 1;
        if *count == 1 && !matches!(why, Why::NotOffered(_)) {
            tracing::info!(%engine, reason = %why, "a connection goes one engine down; further ones are only counted");
        }
    }

    /// The counts so far: engine, reason, connections.
    #[must_use]
    pub fn counts(&self) -> Vec<(EngineKind, &'static str, u64)> {
        let counts = self
            .counts
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        counts
            .iter()
            .map(|((engine, reason), count)| (*engine, *reason, *count))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_counted_apart() {
        let declines = Declines::default();
        declines.count(EngineKind::Sockmap, &Why::Full);
        declines.count(EngineKind::Sockmap, &Why::Full);
        declines.count(EngineKind::Splice, &Why::Mapped);
        let sockmap = (EngineKind::Sockmap, "map_full", 2);
        assert_eq!(
            declines.counts(),
            [sockmap, (EngineKind::Splice, "mapped", 1)]
        );
    }
}
