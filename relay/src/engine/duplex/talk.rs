//! When a connection has shown that it belongs into the sockmap: it lives, and it talks in small messages.

use std::num::NonZeroU32;

use crate::pair::Direction;

/// A message of more than this is bulk, which splice carries faster than the map does.
const BULK: u64 = 64 << 10;

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
    /// Bytes since the last turn.
    message: u64,
}

impl Talk {
    /// Ripe after so many turns, or never. A turn is the first byte in one direction after those in the other.
    pub(super) fn new(ripe: Option<NonZeroU32>) -> Self {
        Self {
            ripe,
            turns: 0,
            pieces: 0,
            last: None,
            message: 0,
        }
    }

    /// Bytes have gone on in `direction`.
    pub(super) fn moved(&mut self, direction: Direction, bytes: usize) {
        if self.ripe.is_none() || bytes == 0 {
            return;
        }
        if self.last.replace(direction) != Some(direction) {
            self.turns = self.turns.saturating_add(1);
            self.message = 0;
        }
        self.message += bytes as u64;
        if self.message > BULK {
            self.turns = 0;
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
                talk.moved(direction, 10_000);
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
        for direction in [BOTH, BOTH].concat() {
            talk.moved(direction, 5000);
        }
        assert!(talk.is_ripe());
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
