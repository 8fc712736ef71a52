//! relay's own end of connections to upstreams: source, interface, mark, and the client's own address.

use std::{fs, net::SocketAddr};

use anyhow::{Context, Result, bail, ensure};
use relay_tests::{
    needs::{self, Need},
    netns::Place,
    peer::{Address, Listener, Peer, converse},
    record::Engine,
    relay::{Launch, Relay},
    steer::{deliver_marked, netns, nft, routed},
    topology::{Topology, Wire},
};
use rustix::{process::Signal, thread::CapabilitySet};

const ENGINES: [Engine; 3] = [Engine::Sockmap, Engine::Splice, Engine::Copy];

/// The engines for which all needs are met.
fn engines(name: &str, needs: &[Need]) -> Result<Vec<Engine>> {
    let mut met = Vec::new();
    for engine in ENGINES {
        let name = format!("{}::{name}", engine.name());
        if needs::met(&name, &[needs, &[Need::Offered(engine)]].concat())? {
            met.push(engine);
        }
    }
    Ok(met)
}

fn upstream(net: &Topology, at: &str) -> Result<Listener> {
    let at = Address::parse(at)?;
    net.upstream.enter(|| Listener::bind(&at))
}

/// Some bytes each way between a client in `place` and an upstream; gives who the client is, and who it seemed to be.
fn talk(place: &Place, relay: &Address, to: &Listener) -> Result<(SocketAddr, SocketAddr)> {
    let client = place.enter(|| Peer::connect(relay))?;
    let own = client.local()?.parse()?;
    let seen = converse(&client, to)?;
    Ok((own, seen))
}

fn carried(relay: Relay, engine: Engine, count: usize) -> Result<()> {
    for record in relay.finish(count)? {
        record.carried_by(engine)?.ended("client", "end")?;
    }
    Ok(())
}

fn forward(engine: Engine, listen: &str, to: &Listener) -> Result<Launch> {
    let launch = Launch::forward(&Address::parse(listen)?, to.address());
    Ok(launch.with(["--engine", engine.name()]))
}

#[test]
fn upstreams_are_connected_to_from_the_source() -> Result<()> {
    for engine in engines("source", &[])? {
        let listener = Listener::bind(&Address::parse("127.0.0.1:0")?)?;
        let launch = forward(engine, "127.0.0.1:0", &listener)?;
        let relay = launch.with(["--source", "127.0.0.9"]).start()?;
        for _ in 0..2 {
            let (_, seen) = talk(&Place::Here, relay.address(), &listener)?;
            ensure!(seen.ip().to_string() == "127.0.0.9", "{seen}");
        }
        carried(relay, engine, 2)?;
    }
    Ok(())
}

#[test]
fn checks_come_from_the_source_too() -> Result<()> {
    let listener = Listener::bind(&Address::parse("127.0.0.1:0")?)?;
    let launch = forward(Engine::Copy, "127.0.0.1:0", &listener)?;
    let check = ["--source", "127.0.0.9", "--check-interval", "50ms"];
    let relay = launch.with(check).start()?;
    let check = listener.accept()?;
    // Unless it has been reset already.
    if let Ok(seen) = check.as_socket().peer_addr() {
        let seen = seen.as_socket().context("no address")?;
        ensure!(seen.ip().to_string() == "127.0.0.9", "{seen}");
    }
    relay.finish_all().map(drop)
}

/// The upstream's second address can be reached by a route for marked packets only.
#[test]
fn connections_to_upstreams_are_marked() -> Result<()> {
    for engine in engines("mark", &[Need::Namespaces])? {
        let net = Wire::Veth.build()?;
        netns(&net.upstream)?.ip("addr add 10.99.9.9/32 dev lo\n")?;
        netns(&net.relay)?.ip("route add 10.99.9.9/32 via 10.99.2.2 table 200\n\
             rule add fwmark 0x10 lookup 200\n")?;
        let listener = upstream(&net, "10.99.9.9:0")?;
        let launch = forward(engine, "10.99.1.1:0", &listener)?.at(&net.relay);
        let relay = launch.clone().with(["--mark", "0x10"]).start()?;
        talk(&net.client, relay.address(), &listener)?;
        carried(relay, engine, 1)?;
        let relay = launch.start()?;
        let client = net.client.enter(|| Peer::connect(relay.address()))?;
        client.expect_reset()?;
        relay.finish(1)?[0].ended("upstream", "error")?;
    }
    Ok(())
}

#[test]
fn connections_to_upstreams_go_through_the_interface() -> Result<()> {
    for engine in engines("interface", &[Need::Namespaces])? {
        let net = Wire::Veth.build()?;
        let listener = upstream(&net, "10.99.2.2:0")?;
        let launch = forward(engine, "10.99.1.1:0", &listener)?.at(&net.relay);
        let launch = launch.with(["--connect-timeout", "500ms"]);
        let relay = launch.clone().with(["--interface", "upstreams"]).start()?;
        talk(&net.client, relay.address(), &listener)?;
        carried(relay, engine, 1)?;
        // Nobody there has that address.
        let relay = launch.with(["--interface", "lo"]).start()?;
        let client = net.client.enter(|| Peer::connect(relay.address()))?;
        client.expect_reset()?;
        relay.finish(1)?[0].ended("upstream", "error")?;
    }
    Ok(())
}

/// Answers to clients' addresses come to relay, and stay there.
fn transparent() -> Result<Topology> {
    let net = routed()?;
    deliver_marked(&net.relay)?;
    nft(
        &net.relay,
        "filter hook prerouting priority mangle",
        "iifname \"upstreams\" meta l4proto tcp meta mark set 1 accept",
    )?;
    Ok(net)
}

const TRANSPARENT: [Need; 2] = [Need::Namespaces, Need::Program("nft")];

#[test]
fn upstreams_see_the_clients_own_address() -> Result<()> {
    for engine in engines("transparent", &TRANSPARENT)? {
        let net = transparent()?;
        for (at, listen) in [
            ("10.99.2.2:0", "10.99.1.1:0"),
            ("[fd99:2::2]:0", "[fd99:1::1]:0"),
        ] {
            let listener = upstream(&net, at)?;
            let launch = forward(engine, listen, &listener)?.at(&net.relay);
            let relay = launch.with(["--transparent-source"]).start()?;
            for _ in 0..3 {
                let (own, seen) = talk(&net.client, relay.address(), &listener)?;
                // Its port, too, as nobody else has it.
                ensure!(seen == own, "{seen}, not {own}");
            }
            carried(relay, engine, 3)?;
        }
    }
    Ok(())
}

/// A header can say of two clients that they are the same.
#[test]
fn a_client_whose_port_is_taken_keeps_its_address() -> Result<()> {
    for engine in engines("port taken", &TRANSPARENT)? {
        let net = transparent()?;
        let listener = upstream(&net, "10.99.2.2:0")?;
        let relay = behind_a_proxy(&net, engine, &listener)?;
        let connect = || -> Result<Peer> {
            let client = net.client.enter(|| Peer::connect(relay.address()))?;
            client.send(HEADER)?;
            Ok(client)
        };
        let first = connect()?;
        let held = listener.accept()?;
        let seen = converse(&connect()?, &listener)?;
        ensure!(seen.ip().to_string() == "10.99.1.77" && seen.port() != 4321);
        first.finish()?;
        held.expect_end()?;
        held.finish()?;
        first.expect_end()?;
        carried(relay, engine, 2)?;
    }
    Ok(())
}

const HEADER: &[u8] = b"PROXY TCP4 10.99.1.77 10.99.1.1 4321 80\r\n";

fn behind_a_proxy(net: &Topology, engine: Engine, to: &Listener) -> Result<Relay> {
    let launch = forward(engine, "10.99.1.1:0", to)?.at(&net.relay);
    let launch = launch.with(["--transparent-source", "--accept-proxy"]);
    launch.with(["--proxy-from", "10.99.1.0/24"]).start()
}

#[test]
fn the_address_of_a_header_is_the_clients_own() -> Result<()> {
    for engine in engines("transparent header", &TRANSPARENT)? {
        let net = transparent()?;
        let listener = upstream(&net, "10.99.2.2:0")?;
        let relay = behind_a_proxy(&net, engine, &listener)?;
        let client = net.client.enter(|| Peer::connect(relay.address()))?;
        client.send(HEADER)?;
        let seen = converse(&client, &listener)?;
        ensure!(seen.to_string() == "10.99.1.77:4321", "{seen}");
        carried(relay, engine, 1)?;
    }
    Ok(())
}

/// Clients of both families on one listener, and upstreams of one.
#[test]
fn a_client_of_another_family_is_reset_and_told_once() -> Result<()> {
    for engine in engines("other family", &TRANSPARENT)? {
        let net = transparent()?;
        let listener = upstream(&net, "10.99.2.2:0")?;
        let launch = forward(engine, "[::]:0", &listener)?.at(&net.relay);
        let relay = launch.with(["--transparent-source"]).start()?;
        let Address::Ip(at) = relay.address() else {
            bail!("not TCP");
        };
        let relay_v6 = Address::parse(&format!("[fd99:1::1]:{}", at.port()))?;
        let relay_v4 = Address::parse(&format!("10.99.1.1:{}", at.port()))?;
        for _ in 0..2 {
            let client = net.client.enter(|| Peer::connect(&relay_v6))?;
            client.expect_reset()?;
        }
        let (own, seen) = talk(&net.client, &relay_v4, &listener)?;
        ensure!(own == seen, "{seen}, not {own}");
        relay.says("no upstream has an address of the family", 1)?;
        let ended = relay.finish(3)?.into_iter().map(|record| record.end.how);
        ensure!(ended.filter(|how| how == "error").count() == 2);
    }
    Ok(())
}

/// TPROXY on the way in and the client's address on the way out: neither side sees relay.
#[test]
fn neither_end_of_a_diverted_connection_sees_relay() -> Result<()> {
    for engine in engines("unseen", &TRANSPARENT)? {
        let net = routed()?;
        deliver_marked(&net.relay)?;
        let launch = Launch::new(["--log-format", "json", "--listen", "[::]:0"]);
        let launch = launch.with(["--to", "original", "--transparent", "--transparent-source"]);
        let launch = launch.with(["--engine", engine.name()]).at(&net.relay);
        let relay = launch.start()?;
        let Address::Ip(at) = relay.address() else {
            bail!("not TCP");
        };
        nft(
            &net.relay,
            "filter hook prerouting priority mangle",
            &format!(
                "iifname \"upstreams\" meta l4proto tcp meta mark set 1 accept\n\
                 iifname \"clients\" meta l4proto tcp tproxy to :{} meta mark set 1 accept",
                at.port()
            ),
        )?;
        for at in ["10.99.2.2:0", "[fd99:2::2]:0"] {
            let listener = upstream(&net, at)?;
            for _ in 0..2 {
                let (own, seen) = talk(&net.client, listener.address(), &listener)?;
                ensure!(own == seen, "{seen}, not {own}");
            }
        }
        carried(relay, engine, 4)?;
    }
    Ok(())
}

/// Under `--user` a capability that every connection needs must be kept, and that is said at the start.
#[test]
fn what_needs_privileges_says_so_at_the_start() -> Result<()> {
    let name = "outgoing::what_needs_privileges_says_so_at_the_start";
    if !needs::met(name, &[Need::Root])? {
        return Ok(());
    }
    let launch = Launch::new(["--listen", "127.0.0.1:0", "--to", "127.0.0.1:9"]);
    let launch = launch.with(["--engine", "copy", "--user", "nobody"]);
    for (flag, capability) in [
        (&["--mark", "16"][..], "net_admin"),
        (&["--transparent-source"], "net_raw"),
    ] {
        let words = [
            &flag[0][2..],
            "127.0.0.1:0",
            "--keep-capabilities",
            capability,
        ];
        let refused = launch.clone().with(flag.iter().copied());
        refused.run()?.failed(1, &words)?;
        let kept = ["--keep-capabilities", capability];
        let kept = launch.clone().with(flag.iter().copied()).with(kept);
        let kept = kept.with(["--log-format", "json"]);
        kept.start()?.finish(0)?;
    }
    let raw = Launch::new(["--listen", "127.0.0.1:0", "--to", "127.0.0.1:9", "--engine"]);
    let raw = raw.with(["copy", "--mark", "16"]);
    let raw = raw.without(CapabilitySet::NET_RAW);
    let raw = raw.without(CapabilitySet::NET_ADMIN);
    raw.run()?.failed(1, &["mark", "CAP_NET_ADMIN"])
}

/// What is kept is enough for every connection.
#[test]
fn marks_and_client_addresses_go_on_without_root() -> Result<()> {
    let needs = [Need::Root, Need::Namespaces, Need::Program("nft")];
    for engine in engines("kept", &needs)? {
        let net = transparent()?;
        let listener = upstream(&net, "10.99.2.2:0")?;
        let launch = forward(engine, "10.99.1.1:0", &listener)?.at(&net.relay);
        let launch = launch.with(["--transparent-source", "--mark", "7", "--user", "nobody"]);
        let kept = ["--keep-capabilities", "net_admin"];
        let relay = launch.with(kept).start()?;
        let (own, seen) = talk(&net.client, relay.address(), &listener)?;
        ensure!(own == seen, "{seen}, not {own}");
        carried(relay, engine, 1)?;
    }
    Ok(())
}

#[test]
fn what_cannot_be_had_is_a_fault_of_the_start() -> Result<()> {
    let pair = [
        "--listen",
        "127.0.0.1:0",
        "--to",
        "127.0.0.1:9",
        "--engine",
        "copy",
    ];
    for (flags, code, words) in [
        (
            &["--source", "192.0.2.1"][..],
            1,
            &["source", "no interface of this host"][..],
        ),
        (&["--interface", "no-such-0"], 1, &["no such network"]),
        (&["--interface", "much-too-long-a-name"], 2, &["eth1"]),
        (&["--source", "::1"], 2, &["family of 127.0.0.1:9"]),
        (&["--source", "0.0.0.0"], 2, &["leave source out"]),
        (&["--mark", "0xg"], 2, &["not a mark"]),
    ] {
        let finished = Launch::new(pair).with(flags.iter().copied()).run()?;
        finished.failed(code, words)?;
    }
    let unix = "--listen 127.0.0.1:0 --to unix:/a --transparent-source";
    let finished = Launch::new(unix.split_whitespace()).run()?;
    finished.failed(2, &["transparent-source", "unix:/a"])
}

#[test]
fn a_reload_that_asks_for_too_much_changes_nothing() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("relay.toml");
    let listener = Listener::bind(&Address::parse("127.0.0.1:0")?)?;
    let write = |more: &str| {
        let to = listener.address();
        let text = format!(
            "engine = \"copy\"\n[[route]]\nlisten = \"127.0.0.1:0\"\nto = \"{to}\"\n{more}\n"
        );
        fs::write(&file, text)
    };
    write("")?;
    let relay = Launch::config(&file).start()?;
    write("source = \"192.0.2.1\"")?;
    relay.signal(Signal::HUP)?;
    relay.says("no interface of this host has that address", 1)?;
    let (_, seen) = talk(&Place::Here, relay.address(), &listener)?;
    ensure!(seen.ip().to_string() == "127.0.0.1", "{seen}");
    write("source = \"127.0.0.9\"")?;
    relay.signal(Signal::HUP)?;
    relay.says("\"reloaded\"", 1)?;
    let (_, seen) = talk(&Place::Here, relay.address(), &listener)?;
    ensure!(seen.ip().to_string() == "127.0.0.9", "{seen}");
    carried(relay, Engine::Copy, 2)
}
