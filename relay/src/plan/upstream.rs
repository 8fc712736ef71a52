//! Upstreams of a route: who they are, how one is chosen, and when one is left out.

use std::{fmt, str::FromStr, time::Duration};

use super::{Address, AddressError};
use crate::pair::Peer;

/// Where connections of a route go: never empty when read, and empty where clients say it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct To(pub Vec<Upstream>);

impl To {
    /// Whether clients go to where they wanted to go.
    #[must_use]
    pub fn is_original(&self) -> bool {
        let original = |one: &Upstream| one.at == Target::Address(Address::Original);
        self.0.iter().any(original)
    }
}

impl<T: Into<Upstream>> From<T> for To {
    fn from(only: T) -> Self {
        Self(vec![only.into()])
    }
}

impl fmt::Display for To {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("where clients ask");
        }
        for (at, upstream) in self.0.iter().enumerate() {
            let gap = if at == 0 { "" } else { ", " };
            write!(f, "{gap}{upstream}")?;
        }
        Ok(())
    }
}

/// One place that connections of a route may go to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Upstream {
    /// Where it is.
    pub at: Target,
    /// Its share beside the others; at least 1.
    pub weight: u16,
    /// Dialled only when no other is usable.
    pub backup: bool,
}

impl From<Target> for Upstream {
    fn from(at: Target) -> Self {
        Self {
            at,
            weight: 1,
            backup: false,
        }
    }
}

impl From<Address> for Upstream {
    fn from(at: Address) -> Self {
        Target::Address(at).into()
    }
}

impl fmt::Display for Upstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.at.fmt(f)
    }
}

/// Where an upstream is.
#[derive(Clone, Debug, PartialEq, Eq, Hash, serde_with::DeserializeFromStr)]
pub enum Target {
    /// An address, or a name with a port.
    Address(Address),
    /// A name whose SRV records say hosts, ports, priorities and weights.
    Srv(String),
}

impl Target {
    /// Where it is, unless that has to be asked for.
    pub(crate) fn fixed(&self) -> Option<Peer> {
        match self {
            Self::Address(Address::Ip(at)) => Some(Peer::Ip(*at)),
            Self::Address(Address::Unix(path)) => Some(Peer::Unix(path.as_path().into())),
            Self::Address(Address::Name(..) | Address::Original) | Self::Srv(_) => None,
        }
    }

    /// Whether it has a port on which nobody can listen.
    #[must_use]
    pub fn is_nowhere(&self) -> bool {
        matches!(self, Self::Address(address) if address.is_ephemeral())
    }

    /// Whether it is a Unix socket.
    #[must_use]
    pub fn is_unix(&self) -> bool {
        matches!(self, Self::Address(Address::Unix(_)))
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => address.fmt(f),
            Self::Srv(name) => write!(f, "srv:{name}"),
        }
    }
}

impl FromStr for Target {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let Some(name) = text.strip_prefix("srv:") else {
            return text.parse().map(Self::Address);
        };
        match name {
            "" => Err(AddressError::NoHost),
            _ if !name.chars().all(of_a_name) => Err(AddressError::BadHost),
            _ => Ok(Self::Srv(name.to_owned())),
        }
    }
}

fn of_a_name(c: char) -> bool {
    c.is_alphanumeric() || "-_.".contains(c)
}

/// How one upstream is chosen among the usable ones. All honour weights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Balance {
    /// Each in turn.
    #[default]
    RoundRobin,
    /// The one with the fewest live connections.
    LeastConnections,
    /// Of two taken at random, the one with fewer live connections.
    RandomTwo,
    /// Always the same one for a client's address; when it fails, only its own clients move.
    SourceHash,
}

/// How the upstreams of a route are chosen, dialled and watched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pool {
    /// How one is chosen.
    pub balance: Balance,
    /// How long one attempt may take; by default its share of what is left of the whole dial's time.
    pub attempt: Option<Duration>,
    /// When one that fails is left out for a while.
    pub eject: Option<Eject>,
    /// When each is checked, clients or not.
    pub check: Option<Check>,
}

/// How upstreams are checked: by a connection that is made and reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Check {
    /// So often; longer than 0.
    pub interval: Duration,
    /// How long a check may take.
    pub timeout: Duration,
    /// So many good ones in a row bring it up; at least 1.
    pub rise: u32,
    /// So many bad ones in a row take it down; at least 1.
    pub fall: u32,
}

/// When an upstream that fails is left out, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Eject {
    /// After so many failed attempts in a row; at least 1.
    pub after: u32,
    /// For so long.
    pub period: Duration,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_read_and_printed_alike() {
        for text in ["127.0.0.1:80", "db:5432", "unix:/a", "srv:_pg._tcp.db.test"] {
            assert_eq!(text.parse::<Target>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn bad_targets_name_their_fault() {
        for (text, fault) in [
            ("80", AddressError::NoPort),
            ("srv:", AddressError::NoHost),
            ("srv:a b", AddressError::BadHost),
            ("srv:_pg._tcp.db:5432", AddressError::BadHost),
        ] {
            assert_eq!(text.parse::<Target>(), Err(fault), "{text}");
        }
    }
}
