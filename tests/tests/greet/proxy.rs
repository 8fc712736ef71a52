//! PROXY protocol, accepted and sent.

use std::{fs, net::SocketAddr};

use anyhow::{Context, Result, ensure};
use relay_tests::{
    matrix::Stage,
    netns::Place,
    payload::Stream,
    peer::{Address, Listener, Peer, go_on},
    peers::{self, Service, open_folder},
    relay::{Launch, Relay},
    topology::Wire,
};
use rustix::process::Signal;

use super::under_each;

const V1: &[u8] = b"PROXY TCP4 192.0.2.1 192.0.2.2 7 8\r\n";
const V2: &[u8] = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c\xc0\0\x02\x01\xc0\0\x02\x02\0\x07\0\x08";
const SOURCE: &str = "192.0.2.1:7";

const LENGTH: u64 = 300_000;

fn accepting(stage: &Stage, to: &Address) -> Launch {
    trusting(stage.launch(to))
}

fn trusting(launch: Launch) -> Launch {
    launch.with(["--accept-proxy", "--proxy-from", "127.0.0.0/8"])
}

fn all_from_the_source(stage: &Stage, relay: Relay, connections: usize) -> Result<()> {
    for record in stage.finish(relay, connections)? {
        ensure!(record.client == SOURCE, "{record:?}");
        record.moved(LENGTH, LENGTH)?.ended("client", "end")?;
    }
    Ok(())
}

#[test]
fn headers_are_read_and_nothing_behind_them() -> Result<()> {
    under_each("headers_are_read", Wire::Loopback, |stage| {
        let listener = stage.listen()?;
        let relay = accepting(stage, listener.address()).start()?;
        for header in [V1, V2] {
            for early in [0, 1, 3000, 60_000] {
                let client = stage.connect(&relay)?;
                let mut said = header.to_vec();
                said.extend(Stream::new(1).take(early));
                client.send(&said)?;
                go_on(&client, &listener.accept()?, early as u64, LENGTH)?;
            }
            let client = stage.connect(&relay)?;
            for byte in header {
                client.send(&[*byte])?;
            }
            go_on(&client, &listener.accept()?, 0, LENGTH)?;
        }
        all_from_the_source(stage, relay, 10)
    })
}

/// Which engine takes a connection whose client has said all is the ladder's to choose.
#[test]
fn a_client_may_end_right_behind_its_header() -> Result<()> {
    under_each("may_end_right_behind", Wire::Loopback, |stage| {
        let listener = stage.listen()?;
        let relay = trusting(stage.launch_ladder(listener.address())).start()?;
        for (header, bytes) in [(V1, 0), (V2, 0), (V1, 5000), (V2, 5000)] {
            let client = stage.connect(&relay)?;
            let mut said = header.to_vec();
            said.extend(Stream::new(1).take(bytes));
            client.send(&said)?;
            client.finish()?;
            let upstream = listener.accept()?;
            upstream.expect(&mut Stream::new(1), bytes as u64)?;
            upstream.expect_end()?;
            upstream.send(b"bye")?;
            upstream.finish()?;
            ensure!(client.receive(3)? == b"bye");
            client.expect_end()?;
        }
        for record in relay.finish(4)? {
            ensure!(record.client == SOURCE, "{record:?}");
        }
        Ok(())
    })
}

#[test]
fn what_is_no_header_is_reset_by_reason() -> Result<()> {
    under_each("what_is_no_header", Wire::Loopback, |stage| {
        let listener = stage.listen()?;
        let launch = accepting(stage, listener.address());
        let relay = launch.with(["--proxy-timeout", "500ms"]).start()?;
        for said in [&b"GET / HTTP/1.1\r\n"[..], b"PROXY TCP4 no\r\n", b""] {
            let client = stage.connect(&relay)?;
            client.send(said)?;
            client.expect_reset()?;
        }
        let client = stage.connect(&relay)?;
        client.send(&V2[..20])?;
        client.finish()?;
        client.expect_reset()?;
        let mut reasons = Vec::new();
        for record in relay.finish(4)? {
            record.ended("client", "greeting")?;
            reasons.push(record.end.reason.context("no reason")?);
        }
        reasons.sort();
        ensure!(
            reasons == ["ended", "late", "malformed", "malformed"],
            "{reasons:?}"
        );
        Ok(())
    })
}

#[test]
fn headers_from_elsewhere_are_not_believed() -> Result<()> {
    under_each("headers_from_elsewhere", Wire::Loopback, |stage| {
        let listener = stage.listen()?;
        let launch = stage.launch(listener.address());
        let launch = launch.with(["--accept-proxy", "--proxy-from", "10.0.0.0/8"]);
        let relay = launch.start()?;
        let client = stage.connect(&relay)?;
        client.expect_reset()?;
        let record = relay.finish(1)?.remove(0);
        record.ended("client", "greeting")?;
        ensure!(record.end.reason.as_deref() == Some("untrusted"));
        Ok(())
    })
}

#[test]
fn trust_has_to_be_given() -> Result<()> {
    let line = "--listen 127.0.0.1:0 --to 127.0.0.1:1 --accept-proxy";
    let finished = Launch::new(line.split_whitespace()).run()?;
    finished.failed(2, &["accept-proxy", "proxy-from"])
}

/// Version 1, as the one that it connects to reads it.
fn header(upstream: &Peer) -> Result<String> {
    let mut line = Vec::new();
    while !line.ends_with(b"\r\n") {
        line.extend(upstream.receive(1)?);
    }
    Ok(String::from_utf8(line)?)
}

#[test]
fn the_upstream_is_told_who_connects() -> Result<()> {
    under_each("the_upstream_is_told", Wire::Loopback, |stage| {
        let listener = stage.listen()?;
        let launch = stage.launch(listener.address());
        let relay = launch.with(["--send-proxy", "v1"]).start()?;
        let client = stage.connect(&relay)?;
        let upstream = listener.accept()?;
        let (source, destination) = (client.local()?, relay.address().to_string());
        let expected = format!(
            "PROXY TCP4 127.0.0.1 127.0.0.1 {} {}\r\n",
            source.trim_start_matches("127.0.0.1:"),
            destination.trim_start_matches("127.0.0.1:")
        );
        let said = header(&upstream)?;
        ensure!(said == expected, "{said}");
        go_on(&client, &upstream, 0, LENGTH)?;
        let record = stage.finish(relay, 1)?.remove(0);
        record.moved(LENGTH, LENGTH).map(drop)
    })
}

/// relay between two others that speak it passes on what the first one said.
#[test]
fn what_is_accepted_is_what_is_sent() -> Result<()> {
    under_each("what_is_accepted", Wire::Loopback, |stage| {
        let listener = stage.listen()?;
        for (version, expected) in [("v1", V1), ("v2", V2)] {
            let launch = accepting(stage, listener.address());
            let relay = launch.with(["--send-proxy", version]).start()?;
            for header in [V1, V2] {
                let client = stage.connect(&relay)?;
                client.send(header)?;
                let upstream = listener.accept()?;
                ensure!(upstream.receive(expected.len())? == expected);
                go_on(&client, &upstream, 0, LENGTH)?;
            }
            all_from_the_source(stage, relay, 2)?;
        }
        Ok(())
    })
}

fn haproxy(place: &Place, address: SocketAddr, bind: &str, server: &str) -> Result<Service> {
    let folder = open_folder()?;
    let config = folder.path().join("haproxy.cfg");
    let text = format!(
        "global\n nbthread 1\n\
         defaults\n mode tcp\n timeout connect 60s\n timeout client 600s\n timeout server 600s\n\
         listen chain\n bind {address} {bind}\n server next {server}\n"
    );
    fs::write(&config, text)?;
    Service::start(
        place,
        "haproxy",
        |haproxy| {
            haproxy.arg("-db").arg("-f").arg(&config);
            Ok(())
        },
        address,
        Signal::TERM,
    )
}

/// Everybody may send with a SYN and take what comes with one, cookie or not; ip-sysctl.rst.
const FAST_OPEN: &str = "1543";

#[test]
fn a_header_goes_with_the_syn() -> Result<()> {
    under_each("a_header_goes_with_the_syn", Wire::Veth, |stage| {
        let (near, far) = (&stage.net.relay, &stage.net.upstream);
        near.sysctl("net/ipv4/tcp_fastopen", FAST_OPEN)?;
        // A listener takes it for itself when it begins to listen.
        far.sysctl("net/ipv4/tcp_fastopen", FAST_OPEN)?;
        let listener = stage.listen()?;
        let launch = stage.launch(listener.address());
        let relay = launch.with(["--send-proxy", "v1", "--fast-open"]).start()?;
        // An upstream whose system takes nothing with a SYN, and then one that does.
        for (sysctl, taken) in [("0", 0), (FAST_OPEN, 1)] {
            far.sysctl("net/ipv4/tcp_fastopen", sysctl)?;
            let client = stage.connect(&relay)?;
            let upstream = listener.accept()?;
            let said = header(&upstream)?;
            let local: SocketAddr = client.local()?.parse()?;
            let source = format!("PROXY TCP4 {} ", local.ip());
            ensure!(said.starts_with(&source), "{said}");
            // Whoever speaks first.
            upstream.send(b"220 ready\r\n")?;
            ensure!(client.receive(11)? == b"220 ready\r\n");
            go_on(&client, &upstream, 0, LENGTH)?;
            ensure!(far.counted("TCPFastOpenPassive")? == taken, "with {sysctl}");
        }
        for record in stage.finish(relay, 2)? {
            record.moved(LENGTH, LENGTH + 11)?.ended("client", "end")?;
        }
        Ok(())
    })
}

/// The SYN takes the header, and still nobody is there.
#[test]
fn a_header_with_the_syn_looks_for_the_next_upstream() -> Result<()> {
    under_each("a_header_with_the_syn_looks", Wire::Veth, |stage| {
        stage.net.relay.sysctl("net/ipv4/tcp_fastopen", FAST_OPEN)?;
        stage
            .net
            .upstream
            .sysctl("net/ipv4/tcp_fastopen", FAST_OPEN)?;
        let listener = stage.listen()?;
        let nobody = Address::Ip(SocketAddr::new(stage.net.upstream_ip, 1));
        let launch = stage
            .launch(&nobody)
            .with(["--to", &listener.address().to_string()]);
        let relay = launch.with(["--send-proxy", "v1", "--fast-open"]).start()?;
        for _ in 0..3 {
            let client = stage.connect(&relay)?;
            let upstream = listener.accept()?;
            header(&upstream)?;
            go_on(&client, &upstream, 0, LENGTH)?;
        }
        stage.finish(relay, 3).map(drop)
    })
}

fn versions() -> [(&'static str, &'static str); 2] {
    [("v1", "send-proxy"), ("v2", "send-proxy-v2")]
}

#[test]
fn haproxy_in_front_says_who_connects() -> Result<()> {
    under_each("haproxy_in_front", Wire::Veth, |stage| {
        if !peers::met("haproxy_in_front", &["haproxy"])? {
            return Ok(());
        }
        let listener = stage.listen()?;
        let launch = stage.launch(listener.address());
        let launch = launch.with(["--accept-proxy", "--proxy-from", "10.99.1.0/24"]);
        let relay = launch.start()?;
        for (number, (_, send)) in versions().into_iter().enumerate() {
            let port = 8081 + u16::try_from(number)?;
            let front = SocketAddr::new([10, 99, 1, 2].into(), port);
            let server = format!("{} {send}", relay.address());
            let _haproxy = haproxy(&stage.net.client, front, "", &server)?;
            let client = stage
                .net
                .client
                .enter(|| Peer::connect(&Address::Ip(front)))?;
            let local = client.local()?;
            client.send(b"hello")?;
            let upstream = listener.accept()?;
            ensure!(upstream.receive(5)? == b"hello");
            upstream.send(b"hello")?;
            ensure!(client.receive(5)? == b"hello");
            client.reset()?;
            let records = relay.records(number + 1)?;
            ensure!(records[number].client == local, "{records:?}, not {local}");
        }
        stage.finish(relay, 2).map(drop)
    })
}

#[test]
fn haproxy_behind_hears_who_connects() -> Result<()> {
    under_each("haproxy_behind", Wire::Veth, |stage| {
        if !peers::met("haproxy_behind", &["haproxy"])? {
            return Ok(());
        }
        let place = &stage.net.upstream;
        let listener = place.enter(|| Listener::bind(&stage.net.at_upstream()))?;
        for (number, (version, _)) in versions().into_iter().enumerate() {
            let port = 8081 + u16::try_from(number)?;
            let behind = SocketAddr::new(stage.net.upstream_ip, port);
            let server = format!("{} send-proxy", listener.address());
            let _haproxy = haproxy(place, behind, "accept-proxy", &server)?;
            let launch = stage.launch(&Address::Ip(behind));
            let relay = launch.with(["--send-proxy", version]).start()?;
            let client = stage.connect(&relay)?;
            client.send(b"hello")?;
            let upstream = listener.accept()?;
            let said = header(&upstream)?;
            let local: SocketAddr = client.local()?.parse()?;
            let source = format!("PROXY TCP4 {} {} ", local.ip(), stage.net.relay_ip);
            ensure!(said.starts_with(&source), "{said}");
            ensure!(said.contains(&format!(" {} ", local.port())), "{said}");
            ensure!(upstream.receive(5)? == b"hello");
            client.finish()?;
            upstream.expect_end()?;
            upstream.finish()?;
            client.expect_end()?;
            stage.finish(relay, 1)?;
        }
        Ok(())
    })
}
