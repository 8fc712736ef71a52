//! Where client, relay and upstream live, and how they are joined: one loopback, or three namespaces and two veth pairs.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    process::{Command, Stdio},
    sync::Arc,
};

use anyhow::Result;

use crate::{
    needs::Need,
    netns::{Netns, Place},
    peer::Address,
};

/// Three places and the addresses by which they reach each other.
#[derive(Debug)]
pub struct Topology {
    /// Where clients are.
    pub client: Place,
    /// Where relay is.
    pub relay: Place,
    /// Where upstreams are.
    pub upstream: Place,
    /// Where clients find relay.
    pub relay_ip: IpAddr,
    /// Where relay finds upstreams.
    pub upstream_ip: IpAddr,
}

/// How the three are joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wire {
    /// All on the loopback of this machine.
    Loopback,
    /// Each in a namespace, with a veth pair between neighbours.
    Veth,
    /// Like [`Wire::Veth`], with delay and loss on the way to the clients.
    Lossy,
}

impl Wire {
    /// What it takes.
    #[must_use]
    pub fn needs(self) -> &'static [Need] {
        match self {
            Self::Loopback => &[],
            Self::Veth => &[Need::Namespaces],
            Self::Lossy => &[Need::Namespaces, Need::Netem],
        }
    }

    /// Builds it.
    ///
    /// # Errors
    ///
    /// Fails without privileges.
    pub fn build(self) -> Result<Topology> {
        match self {
            Self::Loopback => Ok(Topology {
                client: Place::Here,
                relay: Place::Here,
                upstream: Place::Here,
                relay_ip: Ipv4Addr::LOCALHOST.into(),
                upstream_ip: Ipv4Addr::LOCALHOST.into(),
            }),
            Self::Veth => veth(),
            Self::Lossy => {
                let topology = veth()?;
                for (place, link) in [(&topology.client, "relay"), (&topology.relay, "clients")] {
                    place.enter(|| netem(link))?;
                }
                Ok(topology)
            }
        }
    }
}

impl Topology {
    /// Any port where clients find relay.
    #[must_use]
    pub fn at_relay(&self) -> Address {
        Address::Ip(SocketAddr::new(self.relay_ip, 0))
    }

    /// Any port where relay finds upstreams.
    #[must_use]
    pub fn at_upstream(&self) -> Address {
        Address::Ip(SocketAddr::new(self.upstream_ip, 0))
    }
}

/// relay's links are `clients` and `upstreams`; each of the others has one, `relay`.
fn veth() -> Result<Topology> {
    let (client, relay, upstream) = (Netns::new()?, Netns::new()?, Netns::new()?);
    relay.ip(&format!(
        "link add clients type veth peer name relay netns {}\n\
         link add upstreams type veth peer name relay netns {}\n\
         addr add 10.99.1.1/24 dev clients\n\
         addr add 10.99.2.1/24 dev upstreams\n\
         link set clients up\n\
         link set upstreams up\n",
        client.name(),
        upstream.name()
    ))?;
    client.ip("addr add 10.99.1.2/24 dev relay\nlink set relay up\n")?;
    upstream.ip("addr add 10.99.2.2/24 dev relay\nlink set relay up\n")?;
    let place = |netns| Place::Inside(Arc::new(netns));
    let topology = Topology {
        client: place(client),
        relay: place(relay),
        upstream: place(upstream),
        relay_ip: Ipv4Addr::new(10, 99, 1, 1).into(),
        upstream_ip: Ipv4Addr::new(10, 99, 2, 2).into(),
    };
    topology.relay.enter(|| {
        gro("clients");
        gro("upstreams");
        Ok(())
    })?;
    Ok(topology)
}

/// Lets the kernel join received segments, where ethtool(8) is there to ask for it.
fn gro(link: &str) {
    let _ = Command::new("ethtool")
        .args(["-K", link, "gro", "on"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
}

fn netem(link: &str) -> Result<()> {
    let status = Command::new("tc")
        .args(["qdisc", "add", "dev", link, "root", "netem"])
        .args(["delay", "5ms", "2ms", "loss", "1%"])
        .status()?;
    anyhow::ensure!(status.success(), "tc netem");
    Ok(())
}
