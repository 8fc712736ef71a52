//! What is on either side of a contestant: sockets of TCP or of Unix.

use std::fmt::{self, Display, Formatter};

/// One side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) enum Kind {
    #[default]
    Tcp,
    Unix,
}

/// Both sides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Ends {
    pub(super) client: Kind,
    pub(super) upstream: Kind,
}

impl Ends {
    pub(super) const UNIX_TCP: Self = Self::new(Kind::Unix, Kind::Tcp);
    pub(super) const TCP_UNIX: Self = Self::new(Kind::Tcp, Kind::Unix);
    pub(super) const UNIX_UNIX: Self = Self::new(Kind::Unix, Kind::Unix);

    const fn new(client: Kind, upstream: Kind) -> Self {
        Self { client, upstream }
    }

    /// Whether there is no Unix socket.
    pub(super) fn are_tcp(self) -> bool {
        self == Self::default()
    }
}

impl Display for Kind {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tcp => "tcp",
            Self::Unix => "unix",
        })
    }
}

/// The client's side first.
impl Display for Ends {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.client, self.upstream)
    }
}
