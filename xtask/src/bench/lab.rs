//! The lab: a namespace for clients, one for the upstream, and between them one for each contestant, all joined by veth.
//! They vanish with this process, however it ends.

use std::{
    fs::{self, File},
    io::{Read, Write},
    net::{IpAddr, Ipv4Addr, SocketAddr},
    os::fd::AsFd,
    process::{Child, Command, Stdio},
    thread,
};

use anyhow::{Context, Result, anyhow, ensure};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use tempfile::TempDir;

use super::{
    ends::{Ends, Kind},
    nginx::Nginx,
};
use crate::{
    host,
    load::{socket::Address, upstream::Upstream},
};

/// Where every contestant listens, in a namespace of its own.
pub(super) const PORT: u16 = 9000;

/// So many connections a second that ports must come back sooner than after a minute; and no limit on half-open ones.
const SYSCTLS: &[(&str, &str)] = &[
    ("net/ipv4/ip_local_port_range", "1100 65535"),
    ("net/ipv4/tcp_tw_reuse", "1"),
    ("net/ipv4/tcp_max_tw_buckets", "4096"),
    ("net/core/somaxconn", "4096"),
    ("net/ipv4/tcp_max_syn_backlog", "4096"),
];

/// Who answers behind the contestants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Server {
    /// The load generator's own part.
    Ours,
    /// nginx with two objects, `small` and `large`.
    Nginx,
}

/// Clients and the upstream.
pub(super) struct Lab {
    client: Namespace,
    upstreams: Namespace,
    pub(super) server: Server,
    behind: Behind,
    places: u8,
}

enum Behind {
    Ours(Upstream),
    Nginx(#[expect(dead_code, reason = "it ends when dropped")] Nginx),
}

/// A namespace between the two, for one contestant.
pub(super) struct Place {
    pub(super) namespace: Namespace,
    number: u8,
    ends: Ends,
    /// For Unix sockets, which know no network namespaces.
    directory: TempDir,
    /// The upstream, where it is not the lab's: on a Unix socket clients have no address to tell whose they are.
    upstream: Option<Upstream>,
}

impl Lab {
    pub(super) fn new(server: Server) -> Result<Self> {
        let made = || Namespace::new().context("network namespaces need root");
        let (client, upstreams) = (made()?, made()?);
        let listen = SocketAddr::from(([0, 0, 0, 0], PORT));
        let behind = match server {
            Server::Ours => Behind::Ours(upstreams.enter(|| Upstream::start(listen.into()))?),
            Server::Nginx => Behind::Nginx(Nginx::start(&upstreams.path(), listen)?),
        };
        Ok(Self {
            client,
            upstreams,
            server,
            behind,
            places: 0,
        })
    }

    /// A place for one more contestant, between these ends.
    pub(super) fn place(&mut self, ends: Ends) -> Result<Place> {
        let namespace = Namespace::new()?;
        self.places += 1;
        let mut place = Place {
            namespace,
            number: self.places,
            ends,
            directory: tempfile::tempdir()?,
            upstream: None,
        };
        if ends.upstream == Kind::Unix {
            place.upstream = Some(Upstream::start(place.to())?);
        }
        let number = place.number;
        let at = |net: u8, end: u8| format!("10.{net}.{number}.{end}/24");
        let middle = &place.namespace;
        let name = format!("m{number}");
        middle.join("client", &at(77, 2), &self.client, &name, &at(77, 1))?;
        middle.join("server", &at(78, 1), &self.upstreams, &name, &at(78, 2))?;
        Ok(place)
    }

    /// Has the kernel route between the two through `place`, and gives where the upstream is then.
    pub(super) fn route(&self, place: &Place) -> Result<Address> {
        let number = place.number;
        place.namespace.set("net/ipv4/ip_forward", "1")?;
        let route = |namespace: &Namespace, net: u8, gate: Ipv4Addr| {
            let net = format!("10.{net}.{number}.0/24");
            namespace.ip(&["route", "add", &net, "via", &gate.to_string()])
        };
        route(&self.client, 78, Ipv4Addr::new(10, 77, number, 2))?;
        route(&self.upstreams, 77, Ipv4Addr::new(10, 78, number, 1))?;
        Ok(place.to())
    }

    /// Calls `act` where the clients are.
    pub(super) fn as_client<T: Send>(&self, act: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        self.client.enter(act)
    }

    /// Fails when the upstream has seen something wrong with connections that come by `place`.
    pub(super) fn faultless(&self, place: &Place) -> Result<()> {
        let ours = |client: Option<IpAddr>| client.is_some_and(|client| place.has(client));
        let faults = match (&place.upstream, &self.behind) {
            (Some(upstream), _) => upstream.faults(),
            (None, Behind::Ours(upstream)) => upstream.faults_of(ours),
            (None, Behind::Nginx(_)) => return Ok(()),
        };
        ensure!(faults.is_empty(), "{}", faults.join("; "));
        Ok(())
    }
}

impl Place {
    /// Where a contestant listens here.
    pub(super) fn listen(&self) -> Address {
        self.address(self.ends.client, 77, "listen")
    }

    /// Whether the upstream sees a client at `address` that comes by here.
    fn has(&self, address: IpAddr) -> bool {
        match address {
            IpAddr::V4(address) => address.octets()[2] == self.number,
            IpAddr::V6(_) => false,
        }
    }

    /// Where the upstream is, seen from here.
    pub(super) fn to(&self) -> Address {
        self.address(self.ends.upstream, 78, "upstream")
    }

    fn address(&self, kind: Kind, net: u8, name: &str) -> Address {
        match kind {
            Kind::Tcp => SocketAddr::from(([10, net, self.number, 2], PORT)).into(),
            Kind::Unix => Address::Unix(self.directory.path().join(name)),
        }
    }
}

/// A namespace that lasts as long as a process that waits for this one to close a pipe.
pub(super) struct Namespace(Child);

impl Namespace {
    fn new() -> Result<Self> {
        let mut command = Command::new("unshare");
        command.args(["--net", "cat"]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut namespace = Self(command.spawn().context("unshare")?);
        // When it answers it is in the namespace.
        let (stdin, stdout) = (namespace.0.stdin.as_mut(), namespace.0.stdout.as_mut());
        stdin.context("no pipe")?.write_all(b"\n")?;
        stdout
            .context("no pipe")?
            .read_exact(&mut [0])
            .context("unshare --net")?;
        namespace.ip(&["link", "set", "lo", "up"])?;
        for (name, value) in SYSCTLS {
            namespace.set(name, value)?;
        }
        Ok(namespace)
    }

    pub(super) fn path(&self) -> String {
        format!("/proc/{}/ns/net", self.0.id())
    }

    fn set(&self, name: &str, value: &str) -> Result<()> {
        let path = format!("/proc/sys/{name}");
        self.enter(|| fs::write(&path, value).with_context(|| path.clone()))
    }

    fn ip(&self, arguments: &[&str]) -> Result<()> {
        let net = format!("--net={}", self.path());
        host::succeed(Command::new("nsenter").args([&net, "ip"]).args(arguments))
    }

    fn join(&self, name: &str, address: &str, other: &Self, theirs: &str, at: &str) -> Result<()> {
        let process = other.0.id().to_string();
        let link = ["link", "add", name, "type", "veth", "peer", "name", theirs];
        self.ip(&[&link[..], &["netns", &process]].concat())?;
        for (end, name, address) in [(self, name, address), (other, theirs, at)] {
            end.ip(&["address", "add", address, "dev", name])?;
            end.ip(&["link", "set", name, "up"])?;
        }
        Ok(())
    }

    /// Calls `act` on a thread in here; threads that it starts are in here too.
    pub(super) fn enter<T: Send>(&self, act: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        let file = File::open(self.path()).with_context(|| self.path())?;
        let inside = || {
            move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))
                .context("setns")?;
            act()
        };
        let joined = thread::scope(|scope| scope.spawn(inside).join());
        joined.map_err(|_| anyhow!("a thread in a namespace panicked"))?
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
