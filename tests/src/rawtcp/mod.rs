//! Attacks relay with segments made by hand: a namespace with relay and ordinary peers, and a TUN device behind which the
//! test itself is the other end of TCP.

pub mod endpoint;
pub mod scramble;
pub mod tap;
mod wire;

use std::{
    net::{Ipv4Addr, SocketAddr, SocketAddrV4},
    sync::{
        Arc,
        atomic::{AtomicU16, Ordering},
    },
};

use anyhow::{Result, bail};

use self::{
    endpoint::{Endpoint, Terms},
    tap::Tap,
};
use crate::{
    matrix::Stage,
    needs::{self, Need},
    netns::{Netns, Place},
    peer::{Address, Listener, Peer},
    record::Engine,
    relay::Relay,
    topology::Topology,
};

const DEVICE: &str = "raw";
const KERNEL: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
const TEST: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);

/// Where the test listens when it is relay's upstream.
const UPSTREAM: SocketAddrV4 = SocketAddrV4::new(TEST, 7000);

/// A stage whose client, or whose upstream, can be the test itself.
#[derive(Debug)]
pub struct Bench {
    /// The engine, and the place of relay and of the ordinary peers.
    pub stage: Stage,
    tap: Tap,
    port: AtomicU16,
}

/// Plays `case` under `engine`, or skips it.
///
/// # Errors
///
/// Fails when the case does.
pub fn play(name: &str, engine: Engine, case: fn(&Bench) -> Result<()>) -> Result<()> {
    play_on(name, engine, case, false)
}

/// The same on a device with offload.
///
/// # Errors
///
/// Fails when the case does.
pub fn play_offloaded(name: &str, engine: Engine, case: fn(&Bench) -> Result<()>) -> Result<()> {
    play_on(name, engine, case, true)
}

fn play_on(
    name: &str,
    engine: Engine,
    case: fn(&Bench) -> Result<()>,
    offload: bool,
) -> Result<()> {
    let needs = [Need::Offered(engine), Need::Namespaces, Need::Tun];
    if !needs::met(name, &needs)? {
        return Ok(());
    }
    case(&Bench::new(engine, offload)?)
}

impl Bench {
    fn new(engine: Engine, offload: bool) -> Result<Self> {
        let netns = Arc::new(Netns::new()?);
        let place = Place::Inside(netns.clone());
        let tap = Tap::new(&place, DEVICE, offload)?;
        // A queue that is never full: the test is slower than the kernel.
        netns.ip(&format!(
            "addr add {KERNEL}/24 dev {DEVICE}\n\
             link set {DEVICE} mtu 65535 txqueuelen 100000 up\n"
        ))?;
        let net = Topology {
            client: place.clone(),
            relay: place.clone(),
            upstream: place,
            relay_ip: KERNEL.into(),
            upstream_ip: KERNEL.into(),
        };
        Ok(Self {
            stage: Stage { engine, net },
            tap,
            port: AtomicU16::new(40000),
        })
    }

    /// The handshake with relay up to its SYN-ACK; what is said next completes it.
    ///
    /// # Errors
    ///
    /// Fails when relay does not answer.
    pub fn dial(&self, relay: &Relay, terms: Terms) -> Result<Endpoint<'_>> {
        let &Address::Ip(SocketAddr::V4(to)) = relay.address() else {
            bail!("not an IPv4 address");
        };
        let port = self.port.fetch_add(1, Ordering::Relaxed);
        Endpoint::dial(&self.tap, SocketAddrV4::new(TEST, port), to, terms)
    }

    /// A client made by hand, connected to relay, and its upstream.
    ///
    /// # Errors
    ///
    /// Fails when one of the two does not come.
    pub fn join(
        &self,
        relay: &Relay,
        listener: &Listener,
        terms: Terms,
    ) -> Result<(Endpoint<'_>, Peer)> {
        let mut client = self.dial(relay, terms)?;
        client.acknowledge()?;
        Ok((client, listener.accept()?))
    }

    /// relay in front of the test.
    ///
    /// # Errors
    ///
    /// Fails when it does not start.
    pub fn relay_to_test(&self) -> Result<Relay> {
        self.stage.relay(&Address::Ip(UPSTREAM.into()))
    }

    /// A client, and the test as its upstream, which has just sent its SYN-ACK.
    ///
    /// # Errors
    ///
    /// Fails when relay does not connect.
    pub fn serve(&self, relay: &Relay, terms: Terms) -> Result<(Peer, Endpoint<'_>)> {
        let client = self.stage.connect(relay)?;
        Ok((client, Endpoint::accept(&self.tap, UPSTREAM, terms)?))
    }
}
