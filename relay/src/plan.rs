//! What to forward and how, checked and free of side effects: plan, routes, limits and the engine policy.

use std::{fmt, net::SocketAddr, path::PathBuf, str::FromStr, time::Duration};

use serde::Serialize;

/// Everything a process forwards, and the rules for all of it.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The routes, in the order they were given; never empty when made by [`Plan::new`].
    pub routes: Vec<Route>,
    /// Which engines may carry connections.
    pub policy: Policy,
    /// How long live connections may go on after a stop was asked for, before they are reset.
    pub drain: Duration,
}

impl Plan {
    /// Checks that the parts fit together.
    ///
    /// # Errors
    ///
    /// Fails without routes, with two routes on one listener, and where a forced engine can never serve a route.
    pub fn new(routes: Vec<Route>, policy: Policy, drain: Duration) -> Result<Self, PlanError> {
        if routes.is_empty() {
            return Err(PlanError::NoRoutes);
        }
        for (index, route) in routes.iter().enumerate() {
            let taken =
                |other: &Route| other.listen == route.listen && !route.listen.is_ephemeral();
            if routes[..index].iter().any(taken) {
                return Err(PlanError::ListenTwice(route.listen.clone()));
            }
            if policy.choice == Choice::Only(EngineKind::Sockmap) {
                for address in [&route.listen, &route.to] {
                    if let Address::Unix(_) = address {
                        return Err(PlanError::SockmapNeedsTcp(address.clone()));
                    }
                }
            }
        }
        Ok(Self {
            routes,
            policy,
            drain,
        })
    }
}

/// Why a plan cannot be carried out.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum PlanError {
    /// There is nothing to forward.
    #[error("no route: give --listen ADDR and --to ADDR")]
    NoRoutes,
    /// Two routes claim one listener.
    #[error("--listen {0} is given twice")]
    ListenTwice(Address),
    /// The sockmap engine carries TCP only.
    #[error(
        "--engine sockmap cannot serve {0}: sockmap forwards TCP only; use --engine auto or splice"
    )]
    SockmapNeedsTcp(Address),
}

/// One listener and where its connections go.
#[derive(Clone, Debug)]
pub struct Route {
    /// What records call this route.
    pub name: String,
    /// Where clients connect.
    pub listen: Address,
    /// Where their connections are forwarded to.
    pub to: Address,
    /// How long to wait for the upstream to accept.
    pub connect: Duration,
    /// When a connection without traffic is ended.
    pub limits: Limits,
}

/// How long a connection may go without a byte in either direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// With both directions open; none means for ever.
    pub idle: Option<Duration>,
    /// Once one side has ended its direction; none means for ever.
    pub half_close: Option<Duration>,
}

/// Which engines may be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// One engine, or the best that serves.
    pub choice: Choice,
    /// Offer sockmap on a kernel version known to be harmful, if its self-test passes.
    pub trust_kernel: bool,
}

/// An engine forced, or the ladder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// The best engine that serves the connection: sockmap, then splice, then copy.
    Auto,
    /// This engine or none.
    Only(EngineKind),
}

impl Choice {
    /// Whether this choice lets `engine` carry connections.
    #[must_use]
    pub fn allows(self, engine: EngineKind) -> bool {
        match self {
            Self::Auto => true,
            Self::Only(only) => only == engine,
        }
    }
}

/// What moves the bytes of a connection, best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum EngineKind {
    /// A verdict program redirects segments between sockets in the kernel.
    Sockmap,
    /// splice(2) through a pipe.
    Splice,
    /// read(2) and write(2) through a buffer.
    Copy,
}

impl EngineKind {
    /// All engines, best first.
    pub const ALL: [Self; 3] = [Self::Sockmap, Self::Splice, Self::Copy];

    /// The name used in flags, records and metrics.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Sockmap => "sockmap",
            Self::Splice => "splice",
            Self::Copy => "copy",
        }
    }
}

impl fmt::Display for EngineKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A place to listen on or to connect to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Address {
    /// An IP address and port.
    Ip(SocketAddr),
    /// A name to resolve, and a port.
    Name(String, u16),
    /// A Unix stream socket.
    Unix(PathBuf),
}

impl Address {
    fn is_ephemeral(&self) -> bool {
        matches!(self, Self::Ip(address) if address.port() == 0) || matches!(self, Self::Name(_, 0))
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ip(address) => address.fmt(f),
            Self::Name(host, port) => write!(f, "{host}:{port}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        if let Some(path) = text.strip_prefix("unix:") {
            return unix(path);
        }
        if let Ok(address) = text.parse() {
            return Ok(Self::Ip(address));
        }
        let (host, port) = text.rsplit_once(':').ok_or(AddressError::NoPort)?;
        if host.is_empty() {
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
        let port = port.parse().map_err(|_| AddressError::BadPort)?;
        Ok(Self::Name(host.to_owned(), port))
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

    fn route(listen: &str, to: &str) -> Route {
        let (listen, to) = (listen.parse().unwrap(), to.parse().unwrap());
        let name = String::from("r");
        Route {
            name,
            listen,
            to,
            connect: Duration::from_secs(5),
            limits: Limits::default(),
        }
    }

    fn policy(choice: Choice) -> Policy {
        Policy {
            choice,
            trust_kernel: false,
        }
    }

    #[test]
    fn addresses_are_read_and_printed_alike() {
        for text in [
            "127.0.0.1:80",
            "[::1]:80",
            "db.example:5432",
            "unix:/run/a.sock",
        ] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn bad_addresses_name_their_fault() {
        let faults = [
            ("80", AddressError::NoPort),
            (":80", AddressError::NoHost),
            ("a:65536", AddressError::BadPort),
            ("a:", AddressError::BadPort),
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

    #[test]
    fn a_plan_has_routes_each_with_a_listener_of_its_own() {
        let plan = |routes| Plan::new(routes, policy(Choice::Auto), Duration::ZERO).map(|_| ());
        assert_eq!(plan(vec![]), Err(PlanError::NoRoutes));
        let twice = vec![route("127.0.0.1:1", "a:1"), route("127.0.0.1:1", "b:1")];
        assert!(matches!(plan(twice), Err(PlanError::ListenTwice(_))));
        let ephemeral = vec![route("127.0.0.1:0", "a:1"), route("127.0.0.1:0", "b:1")];
        assert_eq!(plan(ephemeral), Ok(()));
    }

    #[test]
    fn forced_sockmap_refuses_unix_addresses() {
        let only = policy(Choice::Only(EngineKind::Sockmap));
        let plan = Plan::new(vec![route("unix:/a", "b:1")], only, Duration::ZERO);
        assert!(matches!(plan, Err(PlanError::SockmapNeedsTcp(_))));
    }
}
