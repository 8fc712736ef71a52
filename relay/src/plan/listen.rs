//! How a route takes clients: how many at once, how many may wait, and from where.

use std::{net::IpAddr, num::NonZeroU32};

use ipnet::IpNet;

/// What holds for the clients of a route before anything is known about them but their address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Door {
    /// Clients that the kernel may accept ahead of relay; it clamps the value to `net.core.somaxconn`.
    pub backlog: u32,
    /// Connections at once; at the limit clients wait in the backlog.
    pub max_connections: Option<NonZeroU32>,
    /// If there are any, clients must come from one of these.
    pub allow: Vec<IpNet>,
    /// Clients must come from none of these.
    pub deny: Vec<IpNet>,
    /// Takes connections to any address that the kernel diverts here (TPROXY).
    pub transparent: bool,
    /// A socket for every IPv6 address takes no IPv4 clients.
    pub v6only: bool,
    /// The permissions of a Unix socket's file.
    pub mode: Option<u32>,
    /// Who has a Unix socket's file.
    pub owner: Option<Owner>,
    /// A listening socket of its own for each core, among which the kernel shares clients out.
    #[doc(alias = "SO_REUSEPORT")]
    pub reuse_port: bool,
}

/// Who has a file: a user, and perhaps a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    /// The number of the user.
    pub user: u32,
    /// The number of the group; without it, it stays the one of relay.
    pub group: Option<u32>,
}

/// What `net.core.somaxconn` is since Linux 5.4.
const BACKLOG: u32 = 4096;

impl Default for Door {
    fn default() -> Self {
        Self {
            backlog: BACKLOG,
            max_connections: None,
            allow: Vec::new(),
            deny: Vec::new(),
            transparent: false,
            v6only: false,
            mode: None,
            owner: None,
            reuse_port: false,
        }
    }
}

impl Door {
    /// Whether a client with this address may come in. A network that is denied stays so inside one that is allowed.
    #[must_use]
    pub fn admits(&self, client: IpAddr) -> bool {
        let among = |networks: &[IpNet]| networks.iter().any(|network| network.contains(&client));
        !among(&self.deny) && (self.allow.is_empty() || among(&self.allow))
    }

    /// Whether clients are told apart by their address.
    #[must_use]
    pub fn is_picky(&self) -> bool {
        !self.allow.is_empty() || !self.deny.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nets(list: &str) -> Vec<IpNet> {
        list.split_whitespace()
            .map(|net| net.parse().unwrap())
            .collect()
    }

    fn admits(allow: &str, deny: &str, client: &str) -> bool {
        let door = Door {
            allow: nets(allow),
            deny: nets(deny),
            ..Door::default()
        };
        door.admits(client.parse().unwrap())
    }

    #[test]
    fn without_lists_everybody_may_come_in() {
        assert!(admits("", "", "10.0.0.1"));
        assert!(admits("", "", "2001:db8::1"));
    }

    #[test]
    fn who_is_not_allowed_is_not_admitted() {
        assert!(admits("10.0.0.0/8", "", "10.9.9.9"));
        assert!(!admits("10.0.0.0/8", "", "11.0.0.1"));
        assert!(!admits("10.0.0.0/8", "", "2001:db8::1"));
        assert!(admits("10.0.0.0/8 2001:db8::/32", "", "2001:db8::1"));
    }

    #[test]
    fn deny_wins_over_allow() {
        assert!(!admits("10.0.0.0/8", "10.1.0.0/16", "10.1.2.3"));
        assert!(!admits("10.1.2.3/32", "10.1.0.0/16", "10.1.2.3"));
        assert!(admits("10.0.0.0/8", "10.1.0.0/16", "10.2.0.1"));
        assert!(admits("", "10.1.0.0/16", "11.0.0.1"));
    }
}
