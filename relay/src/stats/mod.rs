//! What is known about connections: a card while one lives, a record when it has ended, and totals that never go down.

pub mod books;
pub mod card;
pub mod declines;
pub mod gauge;
pub mod meter;
pub mod record;
pub mod registry;
pub mod sink;
pub mod tally;
pub mod upstreams;
