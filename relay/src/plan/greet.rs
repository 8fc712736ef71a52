//! What is said on a connection of a route before its bytes are carried, and with whom.

use std::{
    fmt,
    net::{IpAddr, SocketAddr},
    ops::RangeInclusive,
    str::FromStr,
    time::Duration,
};

use ipnet::IpNet;

/// What comes before the bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Greet {
    /// Clients begin with a PROXY protocol header.
    pub accept: Option<AcceptProxy>,
    /// Clients say where they want to go.
    pub ask: Option<Ask>,
    /// The upstream is told the client's address in a PROXY protocol header.
    pub send: Option<ProxyVersion>,
}

/// Who may say on whose behalf it connects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AcceptProxy {
    /// The networks of the proxies in front. A client that comes over a Unix socket is on this host and trusted.
    pub from: Vec<IpNet>,
    /// How long the header may take.
    pub limit: Duration,
}

impl AcceptProxy {
    /// Whether a header from `ip` is believed.
    #[must_use]
    pub fn trusts(&self, ip: IpAddr) -> bool {
        self.from.iter().any(|net| net.contains(&ip))
    }
}

/// A version of the PROXY protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProxyVersion {
    /// A line of text.
    V1,
    /// Binary.
    V2,
}

/// Clients say where they want to go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ask {
    /// In which protocol.
    pub protocol: Protocol,
    /// How long they may take to say it.
    pub limit: Duration,
    /// What they have to know.
    pub credentials: Option<Credentials>,
    /// Where they may go.
    pub reach: Reach,
}

/// In which clients say where they want to go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// RFC 1928, `CONNECT` only; with credentials RFC 1929.
    Socks5,
    /// RFC 9110, section 9.3.6; with credentials RFC 7617.
    HttpConnect,
}

/// A user and a password.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    /// The user's name.
    pub user: String,
    /// Never printed.
    pub password: String,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials")
            .field("user", &self.user)
            .finish_non_exhaustive()
    }
}

/// Where clients that choose may go.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reach {
    /// Only there; when empty, everywhere but to addresses that mean this host or this link.
    pub allow: Vec<Place>,
    /// Never there.
    pub deny: Vec<Place>,
}

impl Reach {
    /// Whether a client may be connected to `at`.
    #[must_use]
    pub fn admits(&self, at: SocketAddr) -> bool {
        let ip = at.ip().to_canonical();
        let listed = |places: &[Place]| places.iter().any(|place| place.holds(ip, at.port()));
        if listed(&self.deny) {
            return false;
        }
        match self.allow.is_empty() {
            true => !is_near(ip),
            false => listed(&self.allow),
        }
    }
}

/// Whether `ip` means this host, whoever is on this link, or many at once. Unspecified, it connects to this host.
fn is_near(ip: IpAddr) -> bool {
    let link_local = match ip {
        IpAddr::V4(ip) => ip.is_link_local() || ip.is_broadcast(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    };
    link_local || ip.is_loopback() || ip.is_unspecified() || ip.is_multicast()
}

/// A network, and ports in it: `10.0.0.0/8`, `10.0.0.0/8:443`, `[2001:db8::/32]:8000-8999`.
#[derive(Clone, Debug, PartialEq, Eq, serde_with::DeserializeFromStr)]
pub struct Place {
    net: IpNet,
    ports: RangeInclusive<u16>,
}

impl Place {
    fn holds(&self, ip: IpAddr, port: u16) -> bool {
        self.net.contains(&ip) && self.ports.contains(&port)
    }
}

impl FromStr for Place {
    type Err = PlaceError;

    fn from_str(text: &str) -> Result<Self, PlaceError> {
        let net = |text: &str| {
            let net = text.parse().or_else(|_| text.parse().map(IpAddr::into));
            net.map_err(|_| PlaceError::BadNetwork)
        };
        if let Ok(net) = net(text) {
            let ports = 0..=u16::MAX;
            return Ok(Self { net, ports });
        }
        let (inside, ports) = match text.strip_prefix('[') {
            Some(rest) => rest.split_once("]:").ok_or(PlaceError::BadNetwork)?,
            None => text.rsplit_once(':').ok_or(PlaceError::BadNetwork)?,
        };
        let net = net(inside)?;
        // Without brackets it would not be plain what the last colon is.
        if matches!(net, IpNet::V6(_)) && !text.starts_with('[') {
            return Err(PlaceError::BadNetwork);
        }
        let port = |text: &str| text.parse::<u16>().map_err(|_| PlaceError::BadPorts);
        let (low, high) = ports.split_once('-').unwrap_or((ports, ports));
        let ports = port(low)?..=port(high)?;
        match ports.is_empty() {
            true => Err(PlaceError::BadPorts),
            false => Ok(Self { net, ports }),
        }
    }
}

/// Why a text is no [`Place`].
#[derive(Clone, Copy, Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum PlaceError {
    /// What stands for the network is none.
    #[error("no network: write 10.0.0.0/8, 10.0.0.1, 10.0.0.0/8:443 or [2001:db8::/32]:443")]
    BadNetwork,
    /// What follows the network is no port.
    #[error("the ports are not a number from 0 to 65535, or two of them as in 8000-8999")]
    BadPorts,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reach(allow: &[&str], deny: &[&str]) -> Reach {
        let places = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect();
        Reach {
            allow: places(allow),
            deny: places(deny),
        }
    }

    fn admits(reach: &Reach, at: &str) -> bool {
        reach.admits(at.parse().unwrap())
    }

    #[test]
    fn this_host_and_this_link_are_out_of_reach_unless_allowed() {
        let open = Reach::default();
        for near in [
            "127.0.0.1:80",
            "127.9.9.9:80",
            "[::1]:80",
            "0.0.0.0:80",
            "[::]:80",
            "[::ffff:127.0.0.1]:80",
            "[::ffff:0.0.0.0]:80",
            "169.254.169.254:80",
            "[fe80::1]:80",
            "224.0.0.1:80",
            "255.255.255.255:80",
        ] {
            assert!(!admits(&open, near), "{near}");
        }
        assert!(admits(&open, "192.0.2.1:80") && admits(&open, "[2001:db8::1]:80"));
        let local = reach(&["127.0.0.0/8:80"], &[]);
        assert!(admits(&local, "127.0.0.1:80") && admits(&local, "[::ffff:127.0.0.1]:80"));
        assert!(!admits(&local, "127.0.0.1:81") && !admits(&local, "192.0.2.1:80"));
    }

    #[test]
    fn what_is_denied_is_denied_also_when_allowed() {
        let reach = reach(&["10.0.0.0/8"], &["10.1.0.0/16", "10.0.0.0/8:20-30"]);
        assert!(admits(&reach, "10.2.0.1:443"));
        assert!(!admits(&reach, "10.1.0.1:443") && !admits(&reach, "10.2.0.1:25"));
    }

    #[test]
    fn places_are_read_strictly() {
        for good in ["10.0.0.1", "::1", "::/0", "[::/0]:443", "10.0.0.0/8:1-2"] {
            assert!(good.parse::<Place>().is_ok(), "{good}");
        }
        for (bad, fault) in [
            ("10.0.0.0/33", PlaceError::BadNetwork),
            ("example.com", PlaceError::BadNetwork),
            ("2001:db8::/32:443", PlaceError::BadNetwork),
            ("10.0.0.0/8:", PlaceError::BadPorts),
            ("10.0.0.0/8:2-1", PlaceError::BadPorts),
            ("10.0.0.0/8:65536", PlaceError::BadPorts),
        ] {
            assert_eq!(bad.parse::<Place>(), Err(fault), "{bad}");
        }
    }
}
