//! What a route may listen on: addresses, and sockets that systemd has opened.

use std::{fmt, str::FromStr};

use super::{Address, AddressError};

/// Where clients of a route connect.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Listen {
    /// An address that relay opens itself.
    At(Address),
    /// Sockets that the service manager has opened: those of this name, or all of them.
    #[doc(alias = "LISTEN_FDS")]
    Passed(Option<String>),
}

impl Listen {
    /// Whether the system is to choose the port, so that several may be written alike.
    #[must_use]
    pub fn is_ephemeral(&self) -> bool {
        matches!(self, Self::At(address) if address.is_ephemeral())
    }

    /// Whether it is a Unix socket. What systemd passes is known only once it is there.
    #[must_use]
    pub fn is_unix(&self) -> bool {
        matches!(self, Self::At(Address::Unix(_)))
    }

    /// Whether a client could come to both.
    #[must_use]
    pub fn overlaps(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Passed(one), Self::Passed(other)) => {
                one.is_none() || other.is_none() || one == other
            }
            _ => self == other && !self.is_ephemeral(),
        }
    }
}

impl From<Address> for Listen {
    fn from(address: Address) -> Self {
        Self::At(address)
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::At(address) => address.fmt(f),
            Self::Passed(None) => f.write_str("systemd"),
            Self::Passed(Some(name)) => write!(f, "systemd:{name}"),
        }
    }
}

impl FromStr for Listen {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        match text.strip_prefix("systemd") {
            Some("") => return Ok(Self::Passed(None)),
            Some(":") => return Err(AddressError::NoName),
            // A port would make it a host of that name.
            Some(rest) if rest.strip_prefix(':').is_some_and(is_name) => {
                return Ok(Self::Passed(Some(rest[1..].to_owned())));
            }
            _ => (),
        }
        match text.parse()? {
            Address::Original => Err(AddressError::NoListener),
            address => Ok(Self::At(address)),
        }
    }
}

/// sd_listen_fds_with_names(3) allows what can be printed and is no colon. Numbers alone are ports of a host.
fn is_name(text: &str) -> bool {
    !text.chars().all(|c| c.is_ascii_digit() || c == '-')
        && text.chars().all(|c| c.is_ascii_graphic() && c != ':')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listeners_are_read_and_printed_alike() {
        for text in [
            "127.0.0.1:80",
            "unix:/a",
            "systemd",
            "systemd:web.socket",
            "systemd:80",
            "systemd-host:80",
        ] {
            assert_eq!(text.parse::<Listen>().unwrap().to_string(), text);
        }
        let host = Listen::At(Address::Name("systemd".into(), 80));
        assert_eq!("systemd:80".parse(), Ok(host));
        for (text, fault) in [
            ("original", AddressError::NoListener),
            ("systemd:", AddressError::NoName),
            ("systemd:a b", AddressError::BadPort),
        ] {
            assert_eq!(text.parse::<Listen>(), Err(fault), "{text}");
        }
    }

    #[test]
    fn all_that_systemd_passes_overlaps_with_each() {
        let overlap = |one: &str, other: &str| {
            one.parse::<Listen>()
                .unwrap()
                .overlaps(&other.parse().unwrap())
        };
        assert!(overlap("systemd", "systemd:a"));
        assert!(overlap("systemd:a", "systemd:a"));
        assert!(!overlap("systemd:a", "systemd:b"));
        assert!(overlap("127.0.0.1:1", "127.0.0.1:1"));
        assert!(!overlap("127.0.0.1:0", "127.0.0.1:0"));
    }
}
