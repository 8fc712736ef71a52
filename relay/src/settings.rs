//! Settings: what may be said of the process and of a route, in flags and in files alike.
//!
//! A flag and its key have one name: `--connect-timeout` and `connect-timeout`.

mod greeting;
mod listen;
mod moving;
mod observed;
mod outgoing;
mod to;
mod values;

use std::{net::IpAddr, num::NonZeroU32, path::PathBuf, time::Duration};

use bytesize::ByteSize;
use clap::Args;
use merge::{Merge, option::overwrite_none};
use relay::{
    plan::{
        Address, Check, Door, Eject, Greet, Limits, Listen, Names, Outgoing, Place, Plan, Policy,
        Pool, Route, Sizes, Span, Target, To,
    },
    privileges::{Account, Keep, Wanted},
};
use serde::Deserialize;
use toml::Spanned;

pub(crate) use self::values::{Level, Positive};
use self::{
    listen::Listens,
    observed::{Admin, Logging},
    to::Tos,
    values::{
        Balancing, Engine, LONGEST, Limit, Mode, Network, Permissions, Proxy, Server, Socket,
        Speed, Vessel,
    },
};
use crate::logs::Log;

/// All that was given, by flags or by a file: the process's own settings, then the tables of a file.
#[derive(Args, Clone, Debug, Default, Deserialize, Merge)]
#[merge(strategy = overwrite_none)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct Given {
    /// What moves the bytes [default: auto].
    #[arg(long, value_name = "ENGINE")]
    engine: Option<Engine>,
    /// Offer sockmap also on a kernel version known to harm it, for kernels that were patched.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    trust_kernel: Option<bool>,
    /// With auto, has a connection enter the sockmap once it has changed its direction so often, with little said each time;
    /// until then splice carries it, which is cheaper to begin with and faster for bulk. 0 for at once [default: 8].
    #[arg(long, value_name = "COUNT")]
    offload_after: Option<u32>,
    /// Bytes that a pipe of splice is to hold, from 4KiB to 64MiB; the kernel may grant less [default: 1MiB].
    #[arg(long, value_name = "SIZE")]
    pipe_size: Option<Vessel>,
    /// Bytes that a buffer of copy holds, from 4KiB to 64MiB [default: 256KiB].
    #[arg(long, value_name = "SIZE")]
    buffer_size: Option<Vessel>,
    /// How long live connections may go on after a stop; 0 resets them at once, none waits for ever [default: 10s].
    #[arg(long, value_name = "DURATION")]
    drain_timeout: Option<Limit>,
    /// Connections at once, of all routes together; at the limit clients wait in the backlog; 0 for any number [default: 0].
    #[arg(long, value_name = "COUNT")]
    max_connections_total: Option<u32>,
    /// Whom to run as once listeners are bound and engines loaded: NAME or NAME:GROUP, names or numbers.
    ///
    /// All capabilities are given up then, and files can neither be written nor executed; the log says what a reload
    /// cannot do without them.
    #[arg(long, value_name = "NAME[:GROUP]")]
    user: Option<Account>,
    /// Capabilities not to give up with --user; without it, gives up all but these: none, or names with commas.
    #[arg(long, value_name = "NAMES")]
    keep_capabilities: Option<Keep>,
    /// Restarts without a gap: a relay that starts takes the listeners of the one that runs, which offers them here:
    /// unix:/path, for both the same.
    ///
    /// The new one opens what it was not given and starts its engines; only then the old one stops accepting, and drains. No
    /// client is refused, and none that waits is lost. If the new one fails, the old one goes on.
    #[arg(long, value_name = "ADDR")]
    handover: Option<Socket>,
    /// Asks this name server, as ip or ip:port, instead of those in /etc/resolv.conf; may be given several times.
    /// /etc/hosts comes first in any case.
    #[arg(long, value_name = "ADDR")]
    dns: Option<Vec<Server>>,
    #[command(flatten)]
    #[merge(strategy = Merge::merge)]
    log: Logging,
    #[command(flatten)]
    #[merge(strategy = Merge::merge)]
    admin: Admin,
    /// What holds for routes that say nothing else.
    #[command(flatten, next_help_heading = "Routes")]
    #[merge(strategy = Merge::merge)]
    pub(crate) defaults: Settings,
    #[arg(skip)]
    #[merge(strategy = merge::vec::append)]
    pub(crate) route: Vec<Spanned<Settings>>,
}

/// What is to be done.
#[derive(Debug)]
pub(crate) struct Config {
    pub(crate) plan: Plan,
    pub(crate) log: Log,
    pub(crate) privileges: Wanted,
    /// Where to be seen and steered.
    pub(crate) admin: Option<Address>,
    /// Where another relay may ask for the listeners.
    pub(crate) handover: Option<PathBuf>,
}

/// Why it cannot be done.
#[derive(Debug)]
pub(crate) struct Wrong {
    /// The route at fault, counted from 0.
    pub(crate) route: Option<usize>,
    pub(crate) what: String,
}

impl Given {
    /// Checks all of it. What a route says wins over the defaults.
    pub(crate) fn config(self) -> Result<Config, Wrong> {
        let mut names = Names::default();
        let mut routes = Vec::with_capacity(self.route.len());
        // Which of the given ones each is of: a range of ports can be a route for each.
        let mut given = Vec::with_capacity(self.route.len());
        for (at, route) in self.route.into_iter().enumerate() {
            let all = route.into_inner().routes(&self.defaults, &mut names);
            routes.extend(all.map_err(|what| Wrong {
                route: Some(at),
                what,
            })?);
            given.resize(routes.len(), at);
        }
        let sizes = Sizes::default();
        let policy = Policy {
            choice: self.engine.unwrap_or(Engine::Auto).into(),
            trust_kernel: self.trust_kernel.unwrap_or(false),
            offload_after: NonZeroU32::new(self.offload_after.unwrap_or(8)),
            sizes: Sizes {
                pipe: self.pipe_size.map_or(sizes.pipe, |size| size.0),
                buffer: self.buffer_size.map_or(sizes.buffer, |size| size.0),
            },
        };
        let ten = Limit(Some(Duration::from_secs(10)));
        let drain = self.drain_timeout.unwrap_or(ten).0.unwrap_or(LONGEST);
        let mut plan = Plan::new(routes, policy, drain).map_err(|error| Wrong {
            route: error.route().and_then(|at| given.get(at).copied()),
            what: error.to_string(),
        })?;
        plan.max_connections = self.max_connections_total.and_then(NonZeroU32::new);
        let servers = self.dns.unwrap_or_default().into_iter();
        plan.dns = servers.map(|server| server.0).collect();
        let log = self.log.log();
        let privileges = Wanted {
            user: self.user,
            keep: self.keep_capabilities,
        };
        Ok(Config {
            plan,
            log,
            privileges,
            admin: self.admin.listen,
            handover: self.handover.map(|socket| socket.0),
        })
    }
}

/// What may be said of a route.
#[derive(Args, Clone, Debug, Default, Deserialize, Merge)]
#[merge(strategy = overwrite_none)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct Settings {
    /// What records and metrics call it.
    #[arg(skip)]
    name: Option<String>,
    /// Where clients connect.
    #[arg(skip)]
    listen: Option<Listens>,
    /// Where their connections go.
    #[arg(skip)]
    to: Option<Tos>,
    /// Connects to upstreams from this address; may be given once for IPv4 and once for IPv6, and then addresses of a family
    /// without one are not dialled [default: what the host's routes say].
    #[arg(long, value_name = "IP")]
    #[serde(deserialize_with = "outgoing::one_or_more")]
    source: Option<Vec<IpAddr>>,
    /// Connects to upstreams through this network interface only.
    #[arg(long, value_name = "NAME", value_parser = outgoing::interface)]
    #[serde(deserialize_with = "outgoing::interface_key")]
    interface: Option<String>,
    /// Marks what is sent to upstreams, for ip rule and nftables; 0 for no mark. Needs CAP_NET_ADMIN (CAP_NET_RAW from Linux
    /// 5.17 on) for every connection: keep it beside --user [default: 0].
    #[arg(long, value_name = "MARK", value_parser = outgoing::mark)]
    mark: Option<u32>,
    /// Connects to upstreams from the client's own address, that of a PROXY header included, and its port if that is free; a
    /// client without an address of the upstream's family is reset. Needs CAP_NET_RAW or CAP_NET_ADMIN for every connection,
    /// and routes that bring the answers back: docs/uses/transparent-source.md [default: false].
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    transparent_source: Option<bool>,
    /// How one of several upstreams is chosen; all ways honour weights [default: round-robin].
    #[arg(long, value_name = "WAY")]
    balance: Option<Balancing>,
    /// How long it may take until an upstream has accepted, names and all attempts included; cannot be 0 or none
    /// [default: 5s].
    #[arg(long, value_name = "DURATION")]
    connect_timeout: Option<Positive>,
    /// How long one attempt may take, where there are more upstreams or addresses to try [default: an equal share of
    /// what is left of connect-timeout].
    #[arg(long, value_name = "DURATION")]
    attempt_timeout: Option<Positive>,
    /// Leaves an upstream out after so many failed attempts in a row, unless it is the last usable one; 0 for never
    /// [default: 3].
    #[arg(long, value_name = "COUNT")]
    eject_after: Option<u32>,
    /// For how long it is left out [default: 10s].
    #[arg(long, value_name = "DURATION")]
    eject_for: Option<Positive>,
    /// Connects to every upstream so often, to see whether it is there; none for never [default: none].
    #[arg(long, value_name = "DURATION")]
    check_interval: Option<Limit>,
    /// How long such a check may take [default: 2s].
    #[arg(long, value_name = "DURATION")]
    check_timeout: Option<Positive>,
    /// Takes an upstream back after so many good checks in a row [default: 2].
    #[arg(long, value_name = "COUNT")]
    rise: Option<NonZeroU32>,
    /// Leaves an upstream out after so many bad checks in a row [default: 3].
    #[arg(long, value_name = "COUNT")]
    fall: Option<NonZeroU32>,
    /// Ends a connection without a byte for this long; 0 or none for never [default: none].
    #[arg(long, value_name = "DURATION")]
    idle_timeout: Option<Limit>,
    /// The same once one side has ended its direction; 0 or none for never [default: 1h].
    #[arg(long, value_name = "DURATION")]
    half_close_timeout: Option<Limit>,
    /// Ends a connection after this time, whatever moves; 0 or none for never [default: none].
    #[arg(long, value_name = "DURATION")]
    max_life: Option<Limit>,
    /// Bytes per second from the client to the upstream, for each connection: 10MiB/s; 0 or none for no limit [default:
    /// none].
    #[arg(long, value_name = "RATE")]
    upload_rate: Option<Speed>,
    /// The same from the upstream to the client.
    #[arg(long, value_name = "RATE")]
    download_rate: Option<Speed>,
    /// Bytes per second from clients to upstreams, for all connections of the route together, which share it evenly; 0 or
    /// none for no limit [default: none].
    #[arg(long, value_name = "RATE")]
    route_upload_rate: Option<Speed>,
    /// The same from upstreams to clients.
    #[arg(long, value_name = "RATE")]
    route_download_rate: Option<Speed>,
    /// Connections of the route at once; at the limit clients wait in the backlog; 0 for any number [default: 0].
    #[arg(long, value_name = "COUNT")]
    max_connections: Option<u32>,
    /// Clients that may wait to be accepted; the kernel clamps it to net.core.somaxconn [default: 4096].
    #[arg(long, value_name = "COUNT")]
    backlog: Option<NonZeroU32>,
    /// Takes clients from this network only; may be given several times. Others are reset.
    #[arg(long, value_name = "NETWORK")]
    allow: Option<Vec<Network>>,
    /// Takes no IPv4 clients on a socket for every IPv6 address [default: false].
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    v6only: Option<bool>,
    /// Permissions of the file of a Unix socket to listen on, octal [default: what the umask leaves of 777].
    #[arg(long, value_name = "MODE")]
    socket_mode: Option<Permissions>,
    /// Who has the file of a Unix socket to listen on: NAME or NAME:GROUP, names or numbers [default: whom relay is started as].
    #[arg(long, value_name = "NAME[:GROUP]")]
    socket_owner: Option<Account>,
    /// Opens a listening socket for each core, among which the kernel shares clients out [default: false].
    ///
    /// Another process of the same user can then listen there, too. A reload does not change it for a listener that is
    /// open.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    reuse_port: Option<bool>,
    /// Asks a silent peer after this long whether it is still there (keepalive); none or 0 turns that off [default: 1m].
    #[arg(long, value_name = "DURATION")]
    keepalive_idle: Option<Limit>,
    /// How often it is asked [default: 10s].
    #[arg(long, value_name = "DURATION")]
    keepalive_interval: Option<Positive>,
    /// How many questions may go unanswered [default: 6].
    #[arg(long, value_name = "COUNT")]
    keepalive_count: Option<u32>,
    /// Gives a connection up when bytes stay unacknowledged for this long; 0 or none leaves it to the kernel [default: none].
    #[arg(long, value_name = "DURATION")]
    user_timeout: Option<Limit>,
    /// Sends small segments at once [default: true].
    #[arg(long, value_name = "BOOL")]
    nodelay: Option<bool>,
    /// Lets clients send with their SYN, which needs 2 in net.ipv4.tcp_fastopen, and sends the header of send-proxy with relay's
    /// own, which needs 1 [default: false].
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    fast_open: Option<bool>,
    /// The congestion control of its sockets, bbr for one [default: the system's].
    #[arg(long, value_name = "NAME")]
    congestion: Option<String>,
    /// A fixed size for the send buffer of its sockets, up to net.core.wmem_max [default: the kernel adjusts it].
    #[arg(long, value_name = "SIZE")]
    send_buffer: Option<ByteSize>,
    /// A fixed size for the receive buffer of its sockets, up to net.core.rmem_max [default: the kernel adjusts it].
    #[arg(long, value_name = "SIZE")]
    receive_buffer: Option<ByteSize>,
    /// Takes connections to any address that the kernel diverts here by TPROXY; for `to = "original"`. Needs CAP_NET_ADMIN
    /// when the listener is opened.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    transparent: Option<bool>,
    /// Takes no clients from this network, also if it is allowed; may be given several times.
    #[arg(long, value_name = "NETWORK")]
    deny: Option<Vec<Network>>,
    /// Clients begin with a PROXY protocol header, of version 1 or 2, whose address is then the client's.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    accept_proxy: Option<bool>,
    /// Believes headers from this network, and resets who comes from another; may be given several times.
    #[arg(long, value_name = "NETWORK")]
    proxy_from: Option<Vec<Network>>,
    /// How long the header may take; cannot be 0 or none [default: 3s].
    #[arg(long, value_name = "DURATION")]
    proxy_timeout: Option<Positive>,
    /// Tells the upstream the client's address in a PROXY protocol header of this version.
    #[arg(long, value_name = "VERSION")]
    send_proxy: Option<Proxy>,
    /// Who says where connections go: the route, in `to`, or each client, by SOCKS5 or HTTP CONNECT [default: forward].
    #[arg(long, value_name = "MODE")]
    mode: Option<Mode>,
    /// How long clients may take to say it; cannot be 0 or none [default: 10s].
    #[arg(long, value_name = "DURATION")]
    handshake_timeout: Option<Positive>,
    /// The user that clients have to name; needs auth-password-file [default: clients need no password].
    #[arg(long, value_name = "NAME")]
    auth_user: Option<String>,
    /// The file with the password of that user in its first line; read with the settings.
    #[arg(long, value_name = "FILE")]
    auth_password_file: Option<PathBuf>,
    /// Connects clients only there: NETWORK, NETWORK:PORT or NETWORK:FROM-TO; may be given several times [default:
    /// everywhere but to loopback, link-local, unspecified and multicast addresses].
    #[arg(long, value_name = "PLACE")]
    allow_to: Option<Vec<Place>>,
    /// Connects clients never there, also where it is allowed; may be given several times.
    #[arg(long, value_name = "PLACE")]
    deny_to: Option<Vec<Place>>,
}

impl Settings {
    /// A route whose clients say where to.
    pub(crate) fn asking(listen: Span<Listen>) -> Self {
        Self {
            listen: Some(Listens(vec![listen])),
            ..Self::default()
        }
    }

    /// Whether clients say where to.
    pub(crate) fn asks(&self) -> bool {
        self.mode.is_some_and(|mode| mode.protocol().is_some())
    }

    /// A route that says only where from and where to.
    pub(crate) fn pair(listen: Vec<Span<Listen>>, to: Vec<Span<Target>>) -> Self {
        Self {
            listen: Some(Listens(listen)),
            to: Some(to.into()),
            ..Self::default()
        }
    }

    /// The routes that these settings, completed by `defaults`, describe: one, or one for each port where listeners and
    /// upstreams have ranges.
    fn routes(mut self, defaults: &Self, names: &mut Names) -> Result<Vec<Route>, String> {
        self.merge(defaults.clone());
        let greet = self.greet()?;
        let outgoing = self.outgoing()?;
        let listens = self.listen.take().ok_or("a route needs listen")?;
        let tos = match (self.to.take(), &greet.ask) {
            (None, Some(_)) => Tos::default(),
            (Some(_), Some(_)) => {
                return Err(
                    "mode socks5 or http-connect takes no to: clients say where they go".into(),
                );
            }
            (to, None) => to.ok_or("a route needs to")?,
        };
        let (listen, to) = (listens.all(), tos.at(0));
        let name = self.name.take();
        let route = self.route((greet, outgoing), listen, to)?;
        let Some(ports) = tos.ports()? else {
            let name = name.unwrap_or_else(|| names.of(&listens.to_string()));
            return Ok(vec![Route { name, ..route }]);
        };
        let port = |at| {
            let (listen, to) = (listens.at(at, ports)?, tos.at(at));
            let name = match &name {
                Some(name) => {
                    let first = listen.first().map(ToString::to_string);
                    let port = first.as_deref().and_then(|first| first.rsplit(':').next());
                    format!("{name}:{}", port.unwrap_or_default())
                }
                None => {
                    let all = listen.iter().map(ToString::to_string);
                    names.of(&Vec::from_iter(all).join(", "))
                }
            };
            Ok(Route {
                name,
                listen,
                to,
                ..route.clone()
            })
        };
        (0..ports).map(port).collect()
    }

    /// One route of these settings, without a name.
    fn route(
        mut self,
        (greet, outgoing): (Greet, Outgoing),
        listen: Vec<Listen>,
        to: To,
    ) -> Result<Route, String> {
        let (tcp, rates) = (self.tcp(), self.rates());
        let interval = self.check_interval.and_then(Limit::or_never);
        let check = interval.map(|interval| Check {
            interval,
            timeout: self
                .check_timeout
                .map_or(Duration::from_secs(2), |limit| limit.0),
            rise: self.rise.map_or(2, NonZeroU32::get),
            fall: self.fall.map_or(3, NonZeroU32::get),
        });
        let eject = Eject {
            after: self.eject_after.unwrap_or(3),
            period: self
                .eject_for
                .map_or(Duration::from_secs(10), |limit| limit.0),
        };
        let owner = self.socket_owner.map(values::owner).transpose()?;
        let door = Door::default();
        let networks = |given: Option<Vec<Network>>| {
            let given = given.unwrap_or_default().into_iter();
            given.map(|network| network.0).collect()
        };
        let door = Door {
            backlog: self.backlog.map_or(door.backlog, NonZeroU32::get),
            max_connections: self.max_connections.and_then(NonZeroU32::new),
            allow: networks(self.allow),
            deny: networks(self.deny),
            transparent: self.transparent.unwrap_or(false),
            v6only: self.v6only.unwrap_or(false),
            mode: self.socket_mode.map(|mode| mode.0),
            owner,
            reuse_port: self.reuse_port.unwrap_or(false),
        };
        let hour = Limit(Some(Duration::from_secs(3600)));
        Ok(Route {
            name: String::new(),
            listen,
            to,
            door,
            greet,
            connect: self
                .connect_timeout
                .map_or(Duration::from_secs(5), |limit| limit.0),
            pool: Pool {
                balance: self.balance.unwrap_or(Balancing::RoundRobin).into(),
                attempt: self.attempt_timeout.map(|limit| limit.0),
                eject: (eject.after > 0).then_some(eject),
                check,
            },
            limits: Limits {
                idle: self.idle_timeout.and_then(Limit::or_never),
                half_close: self.half_close_timeout.unwrap_or(hour).or_never(),
                life: self.max_life.and_then(Limit::or_never),
            },
            rates,
            tcp,
            outgoing,
        })
    }
}
