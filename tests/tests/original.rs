//! `to = "original"`: clients that nftables sends to relay reach where they wanted to go.

use std::{
    collections::BTreeSet,
    net::{IpAddr, SocketAddr},
};

use anyhow::{Result, bail, ensure};
use relay_tests::{
    needs::{self, Need},
    netns::{Netns, Place},
    peer::{Address, Listener, Peer, converse},
    record::Engine,
    relay::{Launch, Relay},
    steer::{deliver_marked, nft, routed},
    topology::Topology,
};

const ENGINES: [Engine; 3] = [Engine::Sockmap, Engine::Splice, Engine::Copy];

/// Where upstreams are, in both families.
const UPSTREAMS: [&str; 2] = ["10.99.2.2:0", "[fd99:2::2]:0"];

/// The engines for which all needs are met.
fn engines(name: &str) -> Result<Vec<Engine>> {
    let mut met = Vec::new();
    for engine in ENGINES {
        let needs = [
            Need::Namespaces,
            Need::Program("nft"),
            Need::Offered(engine),
        ];
        if needs::met(&format!("{}::{name}", engine.name()), &needs)? {
            met.push(engine);
        }
    }
    Ok(met)
}

fn ip(address: &Address) -> Result<SocketAddr> {
    match address {
        Address::Ip(address) => Ok(*address),
        Address::Unix(path) => bail!("{}", path.display()),
    }
}

fn port(address: &Address) -> Result<u16> {
    Ok(ip(address)?.port())
}

fn upstream(net: &Topology, at: &str) -> Result<Listener> {
    let at = Address::parse(at)?;
    net.upstream.enter(|| Listener::bind(&at))
}

/// relay with one route, for both families.
fn to_original(place: &Place, engine: Engine) -> Launch {
    let launch = Launch::new(["--log-format", "json", "--listen", "[::]:0"]);
    let launch = launch.with(["--to", "original", "--engine", engine.name()]);
    launch.at(place)
}

/// Some bytes each way, from a client in `place` that dials the upstream itself, and gives whom the upstream saw.
fn talk(place: &Place, to: &Listener) -> Result<IpAddr> {
    let client = place.enter(|| Peer::connect(to.address()))?;
    Ok(converse(&client, to)?.ip())
}

fn carried(relay: Relay, engine: Engine, to: &[Listener]) -> Result<()> {
    let records = relay.finish(to.len())?;
    for record in &records {
        record.carried_by(engine)?.ended("client", "end")?;
    }
    // A record is written behind the end that the peers see, so the next connection's may come before it.
    let reached = records.iter().filter_map(|record| record.upstream.clone());
    let wanted = to.iter().map(|to| to.address().to_string());
    let (reached, wanted) = (BTreeSet::from_iter(reached), BTreeSet::from_iter(wanted));
    ensure!(reached == wanted, "{reached:?}, not {wanted:?}");
    Ok(())
}

#[test]
fn redirected_clients_reach_where_they_wanted_to_go() -> Result<()> {
    for engine in engines("redirected")? {
        let net = routed()?;
        let relay = to_original(&net.relay, engine).start()?;
        let upstreams = [upstream(&net, UPSTREAMS[0])?, upstream(&net, UPSTREAMS[1])?];
        let here = port(relay.address())?;
        nft(
            &net.relay,
            "nat hook prerouting priority dstnat",
            &format!("iifname \"clients\" meta l4proto tcp redirect to :{here}"),
        )?;
        for (upstream, own) in upstreams.iter().zip(["10.99.2.1", "fd99:2::1"]) {
            let seen = talk(&net.client, upstream)?;
            ensure!(seen == own.parse::<IpAddr>()?, "{seen}");
        }
        carried(relay, engine, &upstreams)?;
    }
    Ok(())
}

#[test]
fn diverted_clients_reach_where_they_wanted_to_go() -> Result<()> {
    for engine in engines("diverted")? {
        let net = routed()?;
        let launch = to_original(&net.relay, engine);
        let relay = launch.with(["--transparent"]).start()?;
        let upstreams = [upstream(&net, UPSTREAMS[0])?, upstream(&net, UPSTREAMS[1])?];
        let here = port(relay.address())?;
        divert(&net, here)?;
        for upstream in &upstreams {
            talk(&net.client, upstream)?;
        }
        carried(relay, engine, &upstreams)?;
    }
    Ok(())
}

/// TPROXY for what clients send, and a route that keeps it here.
fn divert(net: &Topology, here: u16) -> Result<()> {
    deliver_marked(&net.relay)?;
    nft(
        &net.relay,
        "filter hook prerouting priority mangle",
        &format!("iifname \"clients\" meta l4proto tcp tproxy to :{here} meta mark set 1 accept"),
    )
}

/// A sidecar without an exemption for relay: it would dial itself without end.
#[test]
fn a_redirect_that_catches_relay_itself_is_told_and_ends() -> Result<()> {
    for engine in engines("itself")? {
        let place = Place::Inside(Netns::new()?.into());
        let upstream = place.enter(|| Listener::bind(&Address::parse("127.0.0.1:0")?))?;
        let relay = to_original(&place, engine).start()?;
        let (there, here) = (port(upstream.address())?, port(relay.address())?);
        output(&place, there, here, "")?;
        let client = place.enter(|| Peer::connect(upstream.address()))?;
        client.expect_reset()?;
        relay.says("it is relay itself", 1)?;
        for record in relay.finish_all()? {
            ensure!(record.end.how != "end", "{record:?}");
        }
    }
    Ok(())
}

/// A redirect of what this host itself sends.
fn output(place: &Place, there: u16, here: u16, but: &str) -> Result<()> {
    nft(
        place,
        "nat hook output priority -100",
        &format!("{but} tcp dport {there} redirect to :{here}"),
    )
}

/// The sidecar: relay runs as a user of its own, whose connections are left alone.
#[test]
fn a_sidecar_with_a_user_of_its_own_serves_its_neighbours() -> Result<()> {
    const USER: u32 = 61_234;
    for engine in engines("sidecar")? {
        if engine == Engine::Sockmap {
            // It needs capabilities that this user has not got.
            continue;
        }
        let place = Place::Inside(Netns::new()?.into());
        let upstream = place.enter(|| Listener::bind(&Address::parse("127.0.0.1:0")?))?;
        let relay = to_original(&place, engine).user(USER).start()?;
        let (there, here) = (port(upstream.address())?, port(relay.address())?);
        output(&place, there, here, &format!("meta skuid != {USER}"))?;
        talk(&place, &upstream)?;
        carried(relay, engine, &[upstream])?;
    }
    Ok(())
}

#[test]
fn clients_of_relay_itself_are_reset() -> Result<()> {
    if !engines("clients of relay itself")?.contains(&Engine::Copy) {
        return Ok(());
    }
    let net = routed()?;
    let launch = to_original(&net.relay, Engine::Copy);
    let to = Address::parse("10.99.2.2:1")?;
    let relay = launch.route(&net.at_relay(), &to).start()?;
    let [original, plain] = relay.addresses() else {
        bail!("{:?}", relay.addresses());
    };
    let (here, other) = (port(original)?, port(plain)?);
    // Not redirected at all.
    let direct = SocketAddr::new(net.relay_ip, here);
    let client = net.client.enter(|| Peer::connect(&Address::Ip(direct)))?;
    client.expect_reset()?;
    relay.says("it connected to relay itself", 1)?;
    // Redirected, and on its way to another listener of relay.
    nft(
        &net.relay,
        "nat hook prerouting priority dstnat",
        &format!("tcp dport {other} redirect to :{here}"),
    )?;
    let client = net.client.enter(|| Peer::connect(plain))?;
    client.expect_reset()?;
    relay.says("where relay listens", 1)?;
    for record in relay.finish(2)? {
        record.ended("relay", "error")?;
        ensure!(record.upstream.is_none(), "{record:?}");
    }
    Ok(())
}

#[test]
fn what_has_no_original_destination_is_refused_at_the_start() -> Result<()> {
    for (line, words) in [
        (
            "--listen original --to 127.0.0.1:1",
            "listen cannot be original",
        ),
        ("--listen unix:/nowhere/a --to original", "only TCP"),
    ] {
        let finished = Launch::new(line.split_whitespace()).run()?;
        finished.failed(2, &[words])?;
    }
    if needs::met("transparent without privileges", &[Need::Root])? {
        let launch = Launch::new(["--listen", "127.0.0.1:0", "--to", "original", "--engine"]);
        let launch = launch.with(["copy", "--transparent"]).user(61_234);
        launch.run()?.failed(1, &["transparent", "CAP_NET_ADMIN"])?;
    }
    Ok(())
}
