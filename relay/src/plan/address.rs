//! Addresses: what may be written for a place to listen on or to connect to.

use std::{fmt, net::SocketAddr, path::PathBuf, str::FromStr};

/// A place to listen on or to connect to.
#[derive(Clone, Debug, PartialEq, Eq, Hash, serde_with::DeserializeFromStr)]
pub enum Address {
    /// An IP address and port.
    Ip(SocketAddr),
    /// A name to resolve, and a port.
    Name(String, u16),
    /// A Unix stream socket.
    Unix(PathBuf),
    /// Where each client wanted to go before it was redirected; nothing to listen on.
    Original,
}

impl Address {
    /// Whether the system is to choose the port.
    #[must_use]
    pub fn is_ephemeral(&self) -> bool {
        matches!(self, Self::Ip(address) if address.port() == 0) || matches!(self, Self::Name(_, 0))
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ip(address) => address.fmt(f),
            Self::Name(host, port) => write!(f, "{host}:{port}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Original => f.write_str("original"),
        }
    }
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        if let Some(path) = text.strip_prefix("unix:") {
            return unix(path);
        }
        if text == "original" {
            return Ok(Self::Original);
        }
        if let Ok(address) = text.parse() {
            return Ok(Self::Ip(address));
        }
        let (host, port) = text.rsplit_once(':').ok_or(AddressError::NoPort)?;
        // As others write it for every address.
        if host.is_empty() || host == "*" {
            return Err(AddressError::NoHost);
        }
        if host.contains(['[', ']']) {
            return Err(AddressError::BadV6);
        }
        if host.contains(':') {
            return Err(AddressError::BareV6);
        }
        if host.contains(|c: char| c.is_whitespace() || c.is_control() || c == '/') {
            return Err(AddressError::BadHost);
        }
        let port = super::port(port).ok_or(AddressError::BadPort)?;
        Ok(match host.parse() {
            // The number has more zeros in front than std allows for.
            Ok(ip) => Self::Ip(SocketAddr::new(ip, port)),
            Err(_) => Self::Name(host.to_owned(), port),
        })
    }
}

/// `sun_path` holds 108 bytes with the closing zero; unix(7).
const UNIX_PATH: usize = 107;

fn unix(path: &str) -> Result<Address, AddressError> {
    match path {
        "" => Err(AddressError::NoPath),
        _ if path.len() > UNIX_PATH => Err(AddressError::LongPath),
        _ if path.contains('\0') => Err(AddressError::BadPath),
        _ => Ok(Address::Unix(path.into())),
    }
}

/// Why a text is not an [`Address`].
#[derive(Clone, Copy, Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum AddressError {
    /// There is no colon.
    #[error("no port: write host:port, [v6]:port or unix:/path")]
    NoPort,
    /// There is nothing before the colon.
    #[error("no host: write 0.0.0.0:port or [::]:port for every address")]
    NoHost,
    /// What follows the last colon is no port.
    #[error("the port is not a number from 0 to 65535")]
    BadPort,
    /// The host has blanks, slashes or control characters.
    #[error("the host has characters that no host name has")]
    BadHost,
    /// Brackets around something that is no IPv6 address.
    #[error("what is in the brackets is not an IPv6 address")]
    BadV6,
    /// An IPv6 address without brackets.
    #[error("an IPv6 address needs brackets: [v6]:port")]
    BareV6,
    /// The first port of a range is not below the last.
    #[error("a range of ports is FROM-TO, with FROM from 1 and below TO")]
    BadRange,
    /// `original` is where clients go, not where they connect.
    #[error("listen cannot be original: give the address to which clients are redirected")]
    NoListener,
    /// `systemd:` alone.
    #[error("no name after systemd: write systemd alone for every socket that is passed")]
    NoName,
    /// `unix:` alone.
    #[error("no path after unix:")]
    NoPath,
    /// The path does not fit in a socket address.
    #[error("the path is longer than the 107 bytes that a Unix socket address holds")]
    LongPath,
    /// The path has a zero byte.
    #[error("the path has a zero byte")]
    BadPath,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_and_printed_alike() {
        for text in [
            "127.0.0.1:80",
            "[::1]:80",
            "db.example:5432",
            "unix:/run/a.sock",
            "original",
        ] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn a_number_with_zeros_in_front_is_no_name() {
        let plain = "127.0.0.1:80".parse::<Address>();
        assert_eq!("127.0.0.1:000080".parse(), plain);
    }

    #[test]
    fn bad_addresses_name_their_fault() {
        let faults = [
            ("80", AddressError::NoPort),
            (":80", AddressError::NoHost),
            ("*:80", AddressError::NoHost),
            ("a:65536", AddressError::BadPort),
            ("a:", AddressError::BadPort),
            ("a:+2", AddressError::BadPort),
            ("0.0.0.8:+2", AddressError::BadPort),
            ("a b:80", AddressError::BadHost),
            ("[::g]:80", AddressError::BadV6),
            ("::1:80", AddressError::BareV6),
            ("unix:", AddressError::NoPath),
            ("unix:a\0b", AddressError::BadPath),
        ];
        for (text, fault) in faults {
            assert_eq!(text.parse::<Address>(), Err(fault), "{text}");
        }
        let long = format!("unix:/{}", "x".repeat(UNIX_PATH));
        assert_eq!(long.parse::<Address>(), Err(AddressError::LongPath));
    }
}
