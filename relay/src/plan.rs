//! What to forward and how, checked and free of side effects: plan, routes, limits and the engine policy.

mod address;
mod greet;
mod listen;
mod listener;
mod outgoing;
mod rate;
mod route;
mod size;
mod span;
mod tcp;
mod upstream;

use std::{
    collections::{HashMap, HashSet},
    fmt,
    net::SocketAddr,
    num::NonZeroU32,
    path::PathBuf,
    time::Duration,
};

use serde::{Deserialize, Serialize};

pub use self::{
    address::{Address, AddressError},
    greet::{
        AcceptProxy, Ask, Credentials, Greet, Place, PlaceError, Protocol, ProxyVersion, Reach,
    },
    listen::{Door, Owner},
    listener::Listen,
    outgoing::Outgoing,
    rate::{Rate, Rates},
    route::{Limits, Route},
    size::{Size, Sizes},
    span::Span,
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
    /// Fails without routes, with a listener given twice, with two routes of one name, and where a forced engine can never
    /// serve a route.
    pub fn new(routes: Vec<Route>, policy: Policy, drain: Duration) -> Result<Self, PlanError> {
        if routes.is_empty() {
            return Err(PlanError::NoRoutes);
        }
        let mut taken = Taken::default();
        for (at, route) in routes.iter().enumerate() {
            let checked = taken.take(route).and_then(|()| check(route, policy.choice));
            checked.map_err(|fault| PlanError::Route { at, fault })?;
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
        let listens = self.routes.iter().flat_map(|route| &route.listen);
        let path = |listen: &Listen| match listen {
            Listen::At(Address::Unix(path)) => Some(path.clone()),
            Listen::At(_) | Listen::Passed(_) => None,
        };
        listens.filter_map(path).collect()
    }
}

/// A port in digits; Rust would take a sign, too.
pub(crate) fn port(text: &str) -> Option<u16> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| digits)
}

/// What the routes so far have taken, each for itself.
#[derive(Default)]
struct Taken<'a> {
    names: HashSet<&'a str>,
    listens: HashSet<&'a Listen>,
    passed: Vec<&'a Listen>,
}

impl<'a> Taken<'a> {
    fn take(&mut self, route: &'a Route) -> Result<(), RouteError> {
        for listen in &route.listen {
            let is_new = match listen {
                Listen::Passed(_) => {
                    let overlaps = self.passed.iter().any(|one| one.overlaps(listen));
                    self.passed.push(listen);
                    !overlaps
                }
                Listen::At(_) => listen.is_ephemeral() || self.listens.insert(listen),
            };
            if !is_new {
                return Err(RouteError::ListenTwice(listen.clone()));
            }
        }
        match self.names.insert(&route.name) {
            true => Ok(()),
            false => Err(RouteError::NameTwice(route.name.clone())),
        }
    }
}

/// Checks that the parts of one route fit together.
fn check(route: &Route, choice: Choice) -> Result<(), RouteError> {
    let unix = route.listen.iter().find(|listen| listen.is_unix());
    let original = route.to.is_original();
    if original && route.to.0.len() > 1 {
        return Err(RouteError::OriginalBesideOthers);
    }
    if let Some(nowhere) = route.to.0.iter().find(|to| to.at.is_nowhere()) {
        return Err(RouteError::NoPort(nowhere.at.clone()));
    }
    let fixed = route.to.0.iter().map(|upstream| &upstream.at);
    let unfit = |at: &&Target| at.fixed().is_some_and(|at| !route.outgoing.fits(&at));
    if let Some(at) = fixed.clone().find(unfit) {
        return Err(match at.is_unix() {
            true => RouteError::NoClientAddress(at.to_string()),
            false => RouteError::NoSource(at.clone()),
        });
    }
    if let Some(listen) = unix {
        route.bears_unix(listen, choice)?;
    }
    if choice == SOCKMAP && route.rates.any() {
        return Err(RouteError::SockmapCannotPace(route.name.clone()));
    }
    match route.to.0.iter().find(|to| to.at.is_unix()) {
        Some(to) if choice == SOCKMAP => Err(RouteError::SockmapNeedsTcp(to.at.to_string())),
        _ => Ok(()),
    }
}

const SOCKMAP: Choice = Choice::Only(EngineKind::Sockmap);

impl Route {
    /// Whether `listen` may be a Unix socket, under this choice of engines. Of what systemd passes that is known only
    /// once it is there.
    ///
    /// # Errors
    ///
    /// Says what needs TCP.
    pub fn bears_unix(&self, listen: &Listen, choice: Choice) -> Result<(), RouteError> {
        if self.to.is_original() {
            return Err(RouteError::NoOriginal(listen.clone()));
        }
        if self.door.is_picky() {
            return Err(RouteError::NoNetworks(listen.clone()));
        }
        if self.outgoing.transparent && self.greet.accept.is_none() {
            return Err(RouteError::NoClientAddress(listen.to_string()));
        }
        match choice == SOCKMAP {
            true => Err(RouteError::SockmapNeedsTcp(listen.to_string())),
            false => Ok(()),
        }
    }
}

/// Gives the routes without a name that of their listener; a number tells those apart that have none of their own.
#[derive(Debug, Default)]
pub struct Names(HashMap<String, u32>);

impl Names {
    /// A name for a route on what is written as `listen`.
    pub fn of(&mut self, listen: &str) -> String {
        let name = listen.to_owned();
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
    ListenTwice(Listen),
    /// Two routes have one name.
    #[error("two routes are called {0}: give each a name of its own")]
    NameTwice(String),
    /// `original` leaves nothing to choose.
    #[error("to cannot be original beside other upstreams: give it a route of its own")]
    OriginalBesideOthers,
    /// Only TCP is redirected.
    #[error("to cannot be original for {0}: only TCP connections are redirected")]
    NoOriginal(Listen),
    /// Nobody can listen on port 0.
    #[error("--to {0} has port 0, where nobody listens: give the port of the upstream")]
    NoPort(Target),
    /// Clients of a Unix socket have no network address.
    #[error(
        "allow and deny cannot hold for {0}: clients of a Unix socket have no address; use the mode of its directory"
    )]
    NoNetworks(Listen),
    /// Addresses to connect from are given, and none of this family.
    #[error("source has no address of the family of {0}: give one more, for that family")]
    NoSource(Target),
    /// Only TCP connections have addresses that a client's own can stand for.
    #[error(
        "transparent-source cannot hold for {0}: a Unix socket has no client address; accept-proxy can tell one to a listener"
    )]
    NoClientAddress(String),
    /// The sockmap engine carries TCP only.
    #[error("--engine sockmap cannot serve {0}: sockmap forwards TCP only; use auto or splice")]
    SockmapNeedsTcp(String),
    /// The sockmap engine makes no connection wait.
    #[error(
        "--engine sockmap cannot keep the bandwidth limits of {0}: use auto, splice or copy, or leave the limits out"
    )]
    SockmapCannotPace(String),
}

/// Which engines may be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// One engine, or the best that serves.
    pub choice: Choice,
    /// Offer sockmap on a kernel version known to be harmful, if its self-test passes.
    pub trust_kernel: bool,
    /// Auto: a connection enters the sockmap once it has changed its direction so often, with little said each time; none
    /// for at once.
    pub offload_after: Option<NonZeroU32>,
    /// What splice and copy move bytes through.
    pub sizes: Sizes,
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
        let listen: Listen = listen.parse().unwrap();
        let to = To::from(to.parse::<Target>().unwrap());
        let name = format!("{listen} to {to}");
        Route {
            name,
            listen: vec![listen],
            to,
            door: Door::default(),
            greet: Greet::default(),
            connect: Duration::from_secs(5),
            pool: Pool::default(),
            limits: Limits::default(),
            rates: Rates::default(),
            tcp: Tcp::default(),
            outgoing: Outgoing::default(),
        }
    }

    fn policy(choice: Choice) -> Policy {
        Policy {
            choice,
            trust_kernel: false,
            offload_after: None,
            sizes: Sizes::default(),
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
    fn a_route_may_listen_at_many_places_but_at_none_twice() {
        let on = |listens: &[&str]| {
            let mut route = route("127.0.0.1:1", "a:1");
            route.listen = listens.iter().map(|one| one.parse().unwrap()).collect();
            Plan::new(vec![route], policy(Choice::Auto), Duration::ZERO).map(|_| ())
        };
        assert_eq!(
            on(&["127.0.0.1:1", "[::1]:1", "unix:/a", "systemd:a"]),
            Ok(())
        );
        for twice in [["127.0.0.1:1", "127.0.0.1:1"], ["systemd:a", "systemd"]] {
            let listen = twice[1].parse().unwrap();
            let fault = RouteError::ListenTwice(listen);
            assert_eq!(on(&twice), Err(PlanError::Route { at: 0, fault }));
        }
    }

    #[test]
    fn port_0_is_no_upstream() {
        for to in ["127.0.0.1:0", "db:0"] {
            let routes = vec![route("127.0.0.1:1", to)];
            let plan = Plan::new(routes, policy(Choice::Auto), Duration::ZERO);
            let fault = RouteError::NoPort(to.parse().unwrap());
            assert_eq!(plan.map(|_| ()), Err(PlanError::Route { at: 0, fault }));
        }
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
    fn forced_sockmap_refuses_bandwidth_limits() {
        let mut paced = route("127.0.0.1:1", "b:1");
        paced.rates.route[1] = Rate::new(Rate::LEAST);
        for (choice, refused) in [
            (Choice::Only(EngineKind::Sockmap), true),
            (Choice::Only(EngineKind::Copy), false),
            (Choice::Auto, false),
        ] {
            let plan = Plan::new(vec![paced.clone()], policy(choice), Duration::ZERO);
            assert_eq!(plan.is_err(), refused, "{choice:?}");
        }
    }

    #[test]
    fn routes_without_a_name_are_told_apart() {
        let mut names = Names::default();
        let mut of = |listen: &str| names.of(listen);
        assert_eq!(of("127.0.0.1:0"), "127.0.0.1:0");
        assert_eq!(of("127.0.0.1:0"), "127.0.0.1:0#2");
        assert_eq!(of("127.0.0.1:1"), "127.0.0.1:1");
    }
}
