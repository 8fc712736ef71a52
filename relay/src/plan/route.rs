//! Routes: their listeners, where connections go, and their limits.

use std::time::Duration;

use super::{Door, Greet, Listen, Outgoing, Pool, Rates, Tcp, To};

/// Where clients connect and where their connections go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// What records call this route.
    pub name: String,
    /// Where clients connect; never empty.
    pub listen: Vec<Listen>,
    /// Where their connections are forwarded to.
    pub to: To,
    /// Who may connect, and how many.
    pub door: Door,
    /// What is said before the bytes.
    pub greet: Greet,
    /// How long a dial may take, whoever is tried in that time.
    pub connect: Duration,
    /// How upstreams are chosen, and when one is left out.
    pub pool: Pool,
    /// When a connection without traffic is ended.
    pub limits: Limits,
    /// How fast its bytes may move.
    pub rates: Rates,
    /// What its sockets have.
    pub tcp: Tcp,
    /// What its connections to upstreams have at relay's own end.
    pub outgoing: Outgoing,
}

impl Route {
    /// Its listeners, in one text.
    #[must_use]
    pub fn listens(&self) -> String {
        let all = self.listen.iter().map(ToString::to_string);
        Vec::from_iter(all).join(", ")
    }
}

/// How long a connection may go without a byte in either direction, and how long it may be at all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// With both directions open; none means for ever.
    pub idle: Option<Duration>,
    /// Once one side has ended its direction; none means for ever.
    pub half_close: Option<Duration>,
    /// From accept to end, whatever moves; none means for ever.
    pub life: Option<Duration>,
}
