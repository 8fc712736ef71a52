//! What connections to upstreams have at relay's own end: where they come from, and by which way they go.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::pair::Peer;

/// The near end of connections to upstreams; by default the kernel chooses it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outgoing {
    /// The address towards IPv4 upstreams.
    pub v4: Option<Ipv4Addr>,
    /// The address towards IPv6 upstreams.
    pub v6: Option<Ipv6Addr>,
    /// The network interface that they go through.
    pub interface: Option<String>,
    /// What netfilter and routing see of them.
    pub mark: Option<u32>,
    /// They come from the address of the client that they are for.
    pub transparent: bool,
}

impl Outgoing {
    /// The address of its own that relay has towards one of the family of `at`. The first answer is whether there may be
    /// a connection: once an address is given, those of a family without one are not dialled.
    #[must_use]
    pub fn source(&self, at: SocketAddr) -> (bool, Option<IpAddr>) {
        let source = match at {
            SocketAddr::V4(_) => self.v4.map(IpAddr::V4),
            SocketAddr::V6(_) => self.v6.map(IpAddr::V6),
        };
        let any = self.v4.is_none() && self.v6.is_none();
        (any || source.is_some(), source)
    }

    /// Whether an upstream at `at` could be connected to at all.
    pub(super) fn fits(&self, at: &Peer) -> bool {
        match at {
            Peer::Ip(at) => self.transparent || self.source(*at).0,
            Peer::Unix(_) => !self.transparent,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn once_a_source_is_given_the_other_family_is_left_alone() {
        let (v4, v6) = (
            "192.0.2.1:1".parse().unwrap(),
            "[2001:db8::1]:1".parse().unwrap(),
        );
        let free = Outgoing::default();
        assert_eq!(free.source(v4), (true, None));
        assert_eq!(free.source(v6), (true, None));
        let bound = Outgoing {
            v4: Some(Ipv4Addr::LOCALHOST),
            ..free
        };
        assert_eq!(bound.source(v4), (true, Some(Ipv4Addr::LOCALHOST.into())));
        assert_eq!(bound.source(v6), (false, None));
        assert!(bound.fits(&Peer::Ip(v4)));
        assert!(!bound.fits(&Peer::Ip(v6)));
        assert!(bound.fits(&Peer::Unix(std::path::Path::new("/a").into())));
    }
}
