//! Which slots of the sockmap are free, and which socket named itself to the program for one.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// Hands out slots in pairs.
#[derive(Debug)]
pub(super) struct Slots {
    free: Mutex<Free>,
}

#[derive(Debug)]
struct Free {
    returned: VecDeque<u32>,
    untouched: u32,
    pairs: u32,
}

impl Slots {
    /// Room for `pairs` connections.
    pub(super) fn new(pairs: u32) -> Arc<Self> {
        let free = Free {
            returned: VecDeque::new(),
            untouched: 0,
            pairs,
        };
        Arc::new(Self {
            free: Mutex::new(free),
        })
    }

    /// Two slots that nobody has, unless all are taken.
    ///
    /// The one returned longest ago comes first: a socket that could not be taken out of the map in its life may still
    /// be in a slot that was given back.
    pub(super) fn lease(self: &Arc<Self>) -> Option<Lease> {
        let mut free = self.lock();
        let pair = match free.returned.pop_front() {
            Some(pair) => pair,
            None if free.untouched < free.pairs => {
                free.untouched += 1;
                free.untouched - 1
            }
            None => return None,
        };
        Some(Lease {
            pair,
            slots: self.clone(),
        })
    }

    /// How many pairs were ever used.
    #[cfg(test)]
    pub(super) fn touched(&self) -> u32 {
        self.lock().untouched
    }

    fn lock(&self) -> MutexGuard<'_, Free> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The two slots of a connection; given back when dropped.
#[derive(Debug)]
pub(super) struct Lease {
    pair: u32,
    slots: Arc<Slots>,
}

impl Lease {
    /// The number of the connection: its slots are `2n` and `2n + 1`.
    pub(super) fn pair(&self) -> u32 {
        self.pair
    }

    /// The slot of the client (0) or the upstream (1).
    pub(super) fn slot(&self, index: usize) -> u32 {
        self.pair * 2 + u32::from(index == 1)
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.slots.lock().returned.push_back(self.pair);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_leased_until_none_is_left_and_come_back() {
        let slots = Slots::new(2);
        let first = slots.lease().unwrap();
        let second = slots.lease().unwrap();
        assert_eq!(
            [first.slot(0), first.slot(1), second.slot(0), second.slot(1)],
            [0, 1, 2, 3]
        );
        assert!(slots.lease().is_none());
        drop(first);
        assert_eq!(slots.lease().unwrap().pair(), 0);
    }

    #[test]
    fn the_slot_returned_longest_ago_is_taken_first() {
        let slots = Slots::new(3);
        let leases: Vec<_> = (0..3).map_while(|_| slots.lease()).collect();
        for lease in leases {
            drop(lease);
        }
        let pairs: Vec<_> = (0..4)
            .filter_map(|_| slots.lease())
            .map(|lease| lease.pair())
            .collect();
        assert_eq!(pairs, [0, 1, 2, 0]);
    }
}
