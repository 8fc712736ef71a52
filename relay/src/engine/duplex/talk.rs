//! When a connection has shown that it belongs into the sockmap: it lives, and it talks in small messages.

use std::num::NonZeroU32;

use crate::pair::Direction;

/// More than this for each turn is bulk, which splice carries faster than the map does. It is the average that counts: bulk both
/// ways at once changes its direction all the time.
const PER_TURN: u64 = 8 << 10;

/// What came at once and is no longer than this is a small piece.
const SMALL: usize = 4 << 10;

/// So many small pieces count as much as one turn: a stream that is never answered.
const PIECES_PER_TURN: u32 = 8;

/// Listens to a connection.
#[derive(Debug)]
pub(super) struct Talk {
    /// After how many turns it is; none when nobody asks.
    ripe: Option<NonZeroU32>,
    turns: u32,
    pieces: u32,
    last: Option<Direction>,
    /// Bytes since the turns are counted.
    said: u64,
}

impl Talk {
    /// Ripe after so many turns, or never. A turn is the first byte in one direction after those in the other.
    pub(super) fn new(ripe: Option<NonZeroU32>) -> Self {
        Self {
            ripe,
            turns: 0,
            pieces: 0,
            last: None,
            said: 0,
        }
    }

    /// Bytes have gone on in `direction`.
    pub(super) fn moved(&mut self, direction: Direction, bytes: usize) {
        let Some(ripe) = self.ripe.filter(|_| bytes > 0) else {
            return;
        };
        if self.last.replace(direction) != Some(direction) {
            self.turns = self.turns.saturating_add(1);
        }
        self.said += bytes as u64;
        if self.said > PER_TURN * u64::from(ripe.get()) {
            (self.turns, self.said) = (0, 0);
        }
        self.pieces = match bytes {
            ..=SMALL => self.pieces.saturating_add(1),
            _ => 0,
        };
    }

    pub(super) fn is_ripe(&self) -> bool {
        self.ripe.is_some_and(|turns| {
            let turns = turns.get();
            self.turns >= turns || self.pieces >= turns.saturating_mul(PIECES_PER_TURN)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOTH: [Direction; 2] = Direction::BOTH;

    #[test]
    fn small_messages_make_it_ripe() {
        let mut talk = Talk::new(NonZeroU32::new(4));
        for round in 0..2 {
            for direction in BOTH {
                assert!(!talk.is_ripe(), "{round}");
                talk.moved(direction, 100);
                talk.moved(direction, 8_000);
            }
        }
        assert!(talk.is_ripe());
    }

    #[test]
    fn bulk_starts_it_anew() {
        let mut talk = Talk::new(NonZeroU32::new(3));
        for _ in 0..10 {
            talk.moved(Direction::Up, 100);
            for _ in 0..7 {
                talk.moved(Direction::Down, 10_000);
            }
            assert!(!talk.is_ripe());
        }
        let ripens = |direction| {
            talk.moved(direction, 3000);
            talk.is_ripe()
        };
        assert!([BOTH; 4].concat().into_iter().any(ripens));
    }

    #[test]
    fn bulk_both_ways_at_once_is_no_talk() {
        let mut talk = Talk::new(NonZeroU32::new(8));
        for direction in [BOTH; 100].concat() {
            talk.moved(direction, 10_000);
            assert!(!talk.is_ripe());
        }
    }

    #[test]
    fn a_trickle_that_nobody_answers_is_ripe_in_the_end() {
        let mut talk = Talk::new(NonZeroU32::new(2));
        for _ in 0..15 {
            talk.moved(Direction::Down, SMALL);
            assert!(!talk.is_ripe());
        }
        talk.moved(Direction::Down, SMALL + 1);
        for _ in 0..15 {
            talk.moved(Direction::Down, 1);
            assert!(!talk.is_ripe());
        }
        talk.moved(Direction::Down, 1);
        assert!(talk.is_ripe());
    }

    #[test]
    fn nobody_asks_and_nothing_is_ripe() {
        let mut talk = Talk::new(None);
        for direction in [BOTH; 100].concat() {
            talk.moved(direction, 1);
        }
        assert!(!talk.is_ripe());
    }
}
