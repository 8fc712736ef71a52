//! The cards of all live connections.

use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError,
    atomic::{AtomicU64, Ordering},
};

use slab::Slab;

use crate::{
    pair::Peer,
    stats::{
        card::Card,
        tally::{Entrance, Tally},
    },
};

/// So many that connections which begin and end on all processors at once seldom meet.
const SHARDS: u64 = 16;

/// Where the cards are kept: one insert and one removal per connection.
#[derive(Debug, Default)]
pub struct Registry {
    next: AtomicU64,
    shards: [Shard; SHARDS as usize],
}

type Shard = Mutex<Slab<Arc<Card>>>;

impl Registry {
    /// A card for a connection that begins; it goes with [`Registry::remove`] and the key.
    pub(super) fn add(
        &self,
        tally: Arc<Tally>,
        entrance: Arc<Entrance>,
        client: Peer,
    ) -> (Arc<Card>, usize) {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let card = Arc::new(Card::new(id, tally, entrance, client));
        let key = self.shard(id).insert(card.clone());
        (card, key)
    }

    pub(super) fn remove(&self, id: u64, key: usize) {
        self.shard(id).try_remove(key);
    }

    /// The cards of all live connections, the oldest first.
    #[must_use]
    pub fn cards(&self) -> Vec<Arc<Card>> {
        let mut cards = Vec::new();
        for shard in &self.shards {
            cards.extend(lock(shard).iter().map(|(_, card)| card.clone()));
        }
        cards.sort_unstable_by_key(|card| card.id);
        cards
    }

    /// Calls `look` with every card.
    pub fn each(&self, mut look: impl FnMut(&Card)) {
        for shard in &self.shards {
            lock(shard).iter().for_each(|(_, card)| look(card));
        }
    }

    fn shard(&self, id: u64) -> MutexGuard<'_, Slab<Arc<Card>>> {
        lock(&self.shards[(id % SHARDS) as usize])
    }
}

fn lock(shard: &Shard) -> MutexGuard<'_, Slab<Arc<Card>>> {
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}
