//! What to forward and how, checked and free of side effects: plan, routes, limits and the engine policy.

mod address;
mod greet;
mod listen;
mod outgoing;
mod route;
mod tcp;
mod upstream;

use std::{
    collections::HashMap, fmt, net::SocketAddr, num::NonZeroU32, path::PathBuf, time::Duration,
};

use serde::{Deserialize, Serialize};

pub use self::{
    address::{Address, AddressError},
    greet::{
        AcceptProxy, Ask, Credentials, Greet, Place, PlaceError, Protocol, ProxyVersion, Reach,
    },
    listen::Door,
    outgoing::Outgoing,
    route::{Limits, Route},
    tcp::{Keepalive, Tcp},
    upstream::{Balance, Check, Eject, Pool, Target, To, Upstream},
};

/// Everything a process forwards, and the rules for all of it.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The routes, in the order they were given; never empty when made by [`Plan::new`].
    pub routes: Vec<Route>,
    /// Which engines may carry connections.
    pub policy: Policy,
    /// How long live connections may go on after a stop was asked for, before they are reset.
    pub drain: Duration,
    /// Connections at once, of all routes together.
    pub max_connections: Option<NonZeroU32>,
    /// Name servers to ask instead of the system's.
    pub dns: Vec<SocketAddr>,
}

impl Plan {
    /// Checks that the parts fit together.
    ///
    /// # Errors
    ///
    /// Fails without routes, with two routes on one listener or of one name, and where a forced engine can never serve a
    /// route.
    pub fn new(routes: Vec<Route>, policy: Policy, drain: Duration) -> Result<Self, PlanError> {
        if routes.is_empty() {
            return Err(PlanError::NoRoutes);
        }
        for (at, route) in routes.iter().enumerate() {
            let fault = |fault| PlanError::Route { at, fault };
            let before = &routes[..at];
            let taken =
                |other: &Route| other.listen == route.listen && !route.listen.is_ephemeral();
            if before.iter().any(taken) {
                return Err(fault(RouteError::ListenTwice(route.listen.clone())));
            }
            if before.iter().any(|other| other.name == route.name) {
                return Err(fault(RouteError::NameTwice(route.name.clone())));
            }
            if route.listen == Address::Original {
                return Err(fault(RouteError::NoListener));
            }
            if route.to.is_original() && route.to.0.len() > 1 {
                return Err(fault(RouteError::OriginalBesideOthers));
            }
            if let (Address::Unix(_), true) = (&route.listen, route.to.is_original()) {
                return Err(fault(RouteError::NoOriginal(route.listen.clone())));
            }
            if route.door.is_picky()
                && let Address::Unix(_) = route.listen
            {
                return Err(fault(RouteError::NoNetworks(route.listen.clone())));
            }
            let fixed = route.to.0.iter().map(|upstream| &upstream.at);
            let unfit = |at: &&Target| at.fixed().is_some_and(|at| !route.outgoing.fits(&at));
            if let Some(at) = fixed.clone().find(unfit) {
                return Err(fault(match at.is_unix() {
                    true => RouteError::NoClientAddress(at.clone()),
                    false => RouteError::NoSource(at.clone()),
                }));
            }
            if let (Address::Unix(_), true, None) = (
                &route.listen,
                route.outgoing.transparent,
                &route.greet.accept,
            ) {
                let listen = Target::Address(route.listen.clone());
                return Err(fault(RouteError::NoClientAddress(listen)));
            }
            if policy.choice == Choice::Only(EngineKind::Sockmap) {
                let tos = route.to.0.iter().filter(|upstream| upstream.at.is_unix());
                let listen = Target::Address(route.listen.clone());
                let unix = tos
                    .map(|to| &to.at)
                    .chain(listen.is_unix().then_some(&listen))
                    .next();
                if let Some(Target::Address(unix)) = unix {
                    return Err(fault(RouteError::SockmapNeedsTcp(unix.clone())));
                }
            }
        }
        Ok(Self {
            routes,
            policy,
            drain,
            max_connections: None,
            dns: Vec::new(),
        })
    }
}

impl Plan {
    /// The Unix sockets that the routes listen on.
    #[must_use]
    pub fn sockets(&self) -> Vec<PathBuf> {
        let path = |route: &Route| match &route.listen {
            Address::Unix(path) => Some(path.clone()),
            Address::Ip(_) | Address::Name(..) | Address::Original => None,
        };
        self.routes.iter().filter_map(path).collect()
    }
}

/// Gives the routes without a name that of their listener; a number tells those apart that have none of their own.
#[derive(Debug, Default)]
pub struct Names(HashMap<String, u32>);

impl Names {
    /// A name for a route on `listen`.
    pub fn of(&mut self, listen: &Address) -> String {
        let name = listen.to_string();
        let count = self.0.entry(name.clone()).or_default();
        *count += 1;
        match *count {
            1 => name,
            count => format!("{name}#{count}"),
        }
    }
}

/// Why a plan cannot be carried out.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum PlanError {
    /// There is nothing to forward.
    #[error("no route: give --listen ADDR and --to ADDR, or a [[route]] in the file")]
    NoRoutes,
    /// A route is at fault.
    #[error("{fault}")]
    Route {
        /// Which, counted from 0.
        at: usize,
        /// Why.
        fault: RouteError,
    },
}

impl PlanError {
    /// The route at fault, counted from 0.
    #[must_use]
    pub fn route(&self) -> Option<usize> {
        match self {
            Self::NoRoutes => None,
            Self::Route { at, .. } => Some(*at),
        }
    }
}

/// Why a route cannot be served.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum RouteError {
    /// Two routes claim one listener.
    #[error("--listen {0} is given twice: a listener belongs to one route")]
    ListenTwice(Address),
    /// Two routes have one name.
    #[error("two routes are called {0}: give each a name of its own")]
    NameTwice(String),
    /// `original` is where clients go, not where they connect.
    #[error("listen cannot be original: give the address to which clients are redirected")]
    NoListener,
    /// `original` leaves nothing to choose.
    #[error("to cannot be original beside other upstreams: give it a route of its own")]
    OriginalBesideOthers,
    /// Only TCP is redirected.
    #[error("to cannot be original for {0}: only TCP connections are redirected")]
    NoOriginal(Address),
    /// Clients of a Unix socket have no network address.
    #[error(
        "allow and deny cannot hold for {0}: clients of a Unix socket have no address; use the mode of its directory"
    )]
    NoNetworks(Address),
    /// Addresses to connect from are given, and none of this family.
    #[error("source has no address of the family of {0}: give one more, for that family")]
    NoSource(Target),
    /// Only TCP connections have addresses that a client's own can stand for.
    #[error(
        "transparent-source cannot hold for {0}: a Unix socket has no client address; accept-proxy can tell one to a listener"
    )]
    NoClientAddress(Target),
    /// The sockmap engine carries TCP only.
    #[error("--engine sockmap cannot serve {0}: sockmap forwards TCP only; use auto or splice")]
    SockmapNeedsTcp(Address),
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize, Serialize)]
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

#[cfg(test)]
mod tests {
    use super::*;

    fn route(listen: &str, to: &str) -> Route {
        let listen = listen.parse().unwrap();
        let to = To::from(to.parse::<Target>().unwrap());
        let name = format!("{listen} to {to}");
        Route {
            name,
            listen,
            to,
            door: Door::default(),
            greet: Greet::default(),
            connect: Duration::from_secs(5),
            pool: Pool::default(),
            limits: Limits::default(),
            tcp: Tcp::default(),
            outgoing: Outgoing::default(),
        }
    }

    fn policy(choice: Choice) -> Policy {
        Policy {
            choice,
            trust_kernel: false,
        }
    }

    #[test]
    fn a_plan_has_routes_each_with_a_listener_of_its_own() {
        let plan = |routes| Plan::new(routes, policy(Choice::Auto), Duration::ZERO).map(|_| ());
        assert_eq!(plan(vec![]), Err(PlanError::NoRoutes));
        let twice = vec![route("127.0.0.1:1", "a:1"), route("127.0.0.1:1", "b:1")];
        assert!(matches!(
            plan(twice),
            Err(PlanError::Route {
                at: 1,
                fault: RouteError::ListenTwice(_)
            })
        ));
        let alike = vec![route("127.0.0.1:0", "a:1"), route("127.0.0.1:0", "a:1")];
        assert!(matches!(
            plan(alike),
            Err(PlanError::Route {
                at: 1,
                fault: RouteError::NameTwice(_)
            })
        ));
        let ephemeral = vec![route("127.0.0.1:0", "a:1"), route("127.0.0.1:0", "b:1")];
        assert_eq!(plan(ephemeral), Ok(()));
    }

    #[test]
    fn forced_sockmap_refuses_unix_addresses() {
        let only = policy(Choice::Only(EngineKind::Sockmap));
        let plan = Plan::new(vec![route("unix:/a", "b:1")], only, Duration::ZERO);
        assert!(matches!(
            plan,
            Err(PlanError::Route {
                at: 0,
                fault: RouteError::SockmapNeedsTcp(_)
            })
        ));
    }

    #[test]
    fn routes_without_a_name_are_told_apart() {
        let mut names = Names::default();
        let mut of = |listen: &str| names.of(&listen.parse().unwrap());
        assert_eq!(of("127.0.0.1:0"), "127.0.0.1:0");
        assert_eq!(of("127.0.0.1:0"), "127.0.0.1:0#2");
        assert_eq!(of("127.0.0.1:1"), "127.0.0.1:1");
    }
}
