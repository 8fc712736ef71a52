//! Bandwidth limits as they are given: bytes per second, for each connection and for all of a route.

use std::num::NonZeroU64;

/// Bytes per second, at least [`Rate::LEAST`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rate(NonZeroU64);

impl Rate {
    /// The lowest rate: at a lower one, a connection would end by the limits of its peers and not by its own.
    pub const LEAST: u64 = 1 << 10;

    /// This many bytes per second, unless that is less than the least.
    #[must_use]
    pub fn new(bytes: u64) -> Option<Self> {
        let enough = bytes >= Self::LEAST;
        NonZeroU64::new(bytes).filter(|_| enough).map(Self)
    }

    /// Bytes per second.
    #[must_use]
    pub fn bytes(self) -> NonZeroU64 {
        self.0
    }
}

/// The limits of a route. In each pair the first is from clients to upstreams, the second the other way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rates {
    /// Of each connection by itself.
    pub connection: [Option<Rate>; 2],
    /// Of all connections of the route together.
    pub route: [Option<Rate>; 2],
}

impl Rates {
    /// Whether there is any limit.
    #[must_use]
    pub fn any(&self) -> bool {
        *self != Self::default()
    }
}
