//! How clients are taken: limits, lists of networks, socket options, and listeners of every kind.

use std::{thread, time::Duration};

use anyhow::{Context, Result, bail, ensure};
use relay_tests::{
    matrix::{Scenario, Stage, play},
    needs::{Need, met},
    patience,
    payload::Stream,
    peer::{Address, Listener, Peer, both},
    record::Engine,
    relay::Launch,
    topology::Wire,
};
use rustix::process::Signal;

/// Plays `scenario` under each engine in turn.
fn under_each(name: &str, scenario: Scenario) -> Result<()> {
    [Engine::Sockmap, Engine::Splice, Engine::Copy]
        .into_iter()
        .try_for_each(|engine| {
            play(
                &format!("{}::{name}", engine.name()),
                engine,
                Wire::Loopback,
                scenario,
            )
        })
}

/// Long enough to see that something does not happen.
const A_WHILE: Duration = Duration::from_millis(300);

#[test]
fn at_max_connections_clients_wait_in_the_backlog() -> Result<()> {
    under_each("at_max_connections", |stage| {
        let listener = stage.listen()?;
        let launch = stage.launch(listener.address());
        let relay = launch.with(["--max-connections", "2"]).start()?;
        let one = stage.join(&relay, &listener)?;
        let two = stage.join(&relay, &listener)?;
        // Connected by the kernel, which keeps what they say.
        let waiting = stage.connect(&relay)?;
        waiting.send(b"me too")?;
        relay.says("max-connections is reached", 1)?;
        thread::sleep(A_WHILE);
        ensure!(relay.records(0)?.is_empty());
        one.client.reset()?;
        one.upstream.expect_reset()?;
        let third = listener.accept()?;
        ensure!(third.receive(6)? == b"me too");
        for (client, upstream) in [(two.client, two.upstream), (waiting, third)] {
            client.finish()?;
            upstream.expect_end()?;
            upstream.finish()?;
            client.expect_end()?;
        }
        stage.finish(relay, 3).map(drop)
    })
}

#[test]
fn the_total_holds_for_all_routes_together() -> Result<()> {
    under_each("the_total", |stage| {
        let listener = stage.listen()?;
        let launch = stage.launch(listener.address());
        let launch = launch.route(&stage.net.at_relay(), listener.address());
        let relay = launch.with(["--max-connections-total", "1"]).start()?;
        let one = stage.join(&relay, &listener)?;
        let waiting = Peer::connect(&relay.addresses()[1])?;
        waiting.send(b"me too")?;
        relay.says("max-connections-total is reached", 1)?;
        one.client.reset()?;
        one.upstream.expect_reset()?;
        let second = listener.accept()?;
        ensure!(second.receive(6)? == b"me too");
        waiting.reset()?;
        second.expect_reset()?;
        stage.finish(relay, 2).map(drop)
    })
}

#[test]
fn a_life_ends_whatever_moves() -> Result<()> {
    under_each("a_life", |stage| {
        let listener = stage.listen()?;
        let launch = stage.launch(listener.address());
        let relay = launch.with(["--max-life", "1s"]).start()?;
        let (busy, calm) = (
            stage.join(&relay, &listener)?,
            stage.join(&relay, &listener)?,
        );
        while busy.client.send(b"more").is_ok() {
            thread::sleep(Duration::from_millis(10));
        }
        busy.upstream.expect_reset()?;
        calm.client.expect_reset()?;
        calm.upstream.expect_reset()?;
        for record in stage.finish(relay, 2)? {
            record.ended("relay", "life")?;
            ensure!(record.duration_ms >= 1000, "too early: {record:?}");
        }
        Ok(())
    })
}

#[test]
fn bytes_go_through_small_buffers() -> Result<()> {
    under_each("small_buffers", |stage| {
        let listener = stage.listen()?;
        let launch = stage.launch(listener.address());
        let options =
            "--send-buffer 16KiB --receive-buffer 200KiB --keepalive-idle none --user-timeout 1m";
        let relay = launch.with(options.split_whitespace()).start()?;
        let ends = stage.join(&relay, &listener)?;
        const BYTES: u64 = 2 << 20;
        let send = |from: &Peer| {
            from.send_stream(&mut Stream::new(1), BYTES)?;
            from.finish()
        };
        let receive = |at: &Peer| {
            at.expect(&mut Stream::new(1), BYTES)?;
            at.expect_end()
        };
        both(
            || both(|| send(&ends.client), || send(&ends.upstream)),
            || both(|| receive(&ends.client), || receive(&ends.upstream)),
        )?;
        stage.finish(relay, 1)?[0].moved_after_greeting(BYTES, BYTES)?;
        Ok(())
    })
}

/// ss(8) shows what the sockets have that relay has towards clients and upstreams.
#[test]
fn options_are_on_both_sides() -> Result<()> {
    let upstream = Listener::bind(&local()?)?;
    let launch = Launch::forward(&local()?, upstream.address());
    let options = "--engine copy --congestion reno --keepalive-idle 77s --send-buffer 20KiB";
    let relay = launch.with(options.split_whitespace()).start()?;
    let client = Peer::connect(relay.address())?;
    client.send(b"hello")?;
    let accepted = upstream.accept()?;
    ensure!(accepted.receive(5)? == b"hello");
    let ss = |side: &str, name: String| -> Result<String> {
        let output = std::process::Command::new("ss")
            .args(["-Htnimo", side, &name])
            .output()?;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let from_relay = accepted.as_socket().peer_addr()?.as_socket();
    let from_relay = from_relay.context("not an IP client")?.to_string();
    for (side, name) in [("dst", client.local()?), ("src", from_relay)] {
        // The timer is another one as long as something is not acknowledged.
        patience::until_true("the options", || {
            let said = ss(side, name.clone())?;
            let words = ["reno", "tb40960", "(keepalive,1min1"];
            Ok(words.iter().all(|words| said.contains(words)))
        })?;
    }
    client.reset()?;
    relay.finish(1).map(drop)
}

#[test]
fn an_option_that_the_kernel_refuses_is_named() -> Result<()> {
    for (option, words) in [
        (
            "--congestion no-such",
            &["set congestion", "available_congestion_control"][..],
        ),
        ("--send-buffer 1GiB", &["set send-buffer", "wmem_max"]),
        ("--receive-buffer 1GiB", &["set receive-buffer", "rmem_max"]),
        ("--keepalive-idle 12h", &["set keepalive-idle", "32767"]),
        ("--keepalive-count 128", &["set keepalive-count", "127"]),
    ] {
        for listen in ["127.0.0.1:0", "unix:/nowhere/a"] {
            let line = format!("--listen {listen} --to 127.0.0.1:1 --engine copy {option}");
            let finished = Launch::new(line.split_whitespace()).run()?;
            finished.failed(1, words).with_context(|| line)?;
        }
    }
    Ok(())
}

#[test]
fn a_socket_for_every_address_takes_both_families_or_one() -> Result<()> {
    if !met("v6only", &[Need::Ipv6])? {
        return Ok(());
    }
    let upstream = Listener::bind(&local()?)?;
    for (options, both) in [("", true), ("--v6only", false)] {
        let launch = Launch::forward(&Address::parse("[::]:0")?, upstream.address());
        let relay = launch
            .with(["--engine", "copy"])
            .with(options.split_whitespace())
            .start()?;
        let Address::Ip(at) = relay.address() else {
            bail!("not an IP listener")
        };
        let v4 = Peer::connect(&Address::parse(&format!("127.0.0.1:{}", at.port()))?);
        ensure!(v4.is_ok() == both, "{options}: {v4:?}");
        let v6 = Peer::connect(&Address::parse(&format!("[::1]:{}", at.port()))?)?;
        for client in [v4.ok(), Some(v6)].into_iter().flatten() {
            client.reset()?;
        }
        relay.finish(if both { 2 } else { 1 })?;
    }
    Ok(())
}

#[test]
fn the_file_of_a_unix_socket_has_the_mode_asked_for() -> Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    let folder = tempfile::tempdir()?;
    for mode in [0o600, 0o666] {
        let path = folder.path().join("front");
        let launch = Launch::forward(
            &Address::Unix(path.clone()),
            &Address::parse("127.0.0.1:1")?,
        );
        let options = format!("--engine copy --socket-mode {mode:o}");
        let relay = launch.with(options.split_whitespace()).start()?;
        let found = std::fs::metadata(&path)?.permissions().mode() & 0o777;
        ensure!(found == mode, "{found:o}, not {mode:o}");
        relay.finish(0)?;
    }
    let line = "--listen unix:/nowhere/a --to 127.0.0.1:1 --socket-mode 888";
    let finished = Launch::new(line.split_whitespace()).run()?;
    finished.failed(2, &["--socket-mode", "octal"])
}

fn local() -> Result<Address> {
    Address::parse("127.0.0.1:0")
}

#[test]
fn a_reload_changes_limits_and_lists_for_what_comes() -> Result<()> {
    let upstream = Listener::bind(&local()?)?;
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("relay.toml");
    let write = |total: u32, route: &str| {
        let text = format!(
            "engine = \"copy\"\nmax-connections-total = {total}\n[[route]]\nlisten = \"127.0.0.1:0\"\n\
             to = \"{}\"\n{route}\n",
            upstream.address()
        );
        std::fs::write(&path, text)
    };
    write(0, "max-connections = 1")?;
    let relay = Launch::config(&path).start()?;
    let reload = |count| {
        relay.signal(Signal::HUP)?;
        relay.says("\"reloaded\"", count)
    };
    let join = || -> Result<_> {
        let client = Peer::connect(relay.address())?;
        client.send(b"hello")?;
        Ok(client)
    };
    let reached = |client: &Peer| -> Result<Peer> {
        let peer = upstream.accept()?;
        ensure!(peer.receive(5)? == b"hello");
        ensure!(client.local()?.starts_with("127.0.0.1"));
        Ok(peer)
    };
    let one = join()?;
    let first = reached(&one)?;
    let two = join()?;
    relay.says("max-connections is reached", 1)?;
    write(2, "max-connections = 3")?;
    reload(1)?;
    let second = reached(&two)?;
    let three = join()?;
    relay.says("clients wait in the backlog", 1)?;
    write(
        3,
        "max-connections = 3\ndeny = [\"127.0.0.0/8\"]\nbacklog = 9",
    )?;
    reload(2)?;
    three.expect_reset()?;
    for (client, peer) in [(one, first), (two, second)] {
        client.send(b"still")?;
        ensure!(peer.receive(5)? == b"still");
        client.reset()?;
    }
    relay.finish(3).map(drop)
}

#[test]
fn clients_from_other_networks_are_reset_and_recorded() -> Result<()> {
    for (lists, taken) in [
        (&["--allow", "127.0.0.0/8"][..], true),
        (&["--allow", "10.0.0.0/8"], false),
        (&["--allow", "10.0.0.0/8", "--allow", "127.0.0.1"], true),
        (&["--allow", "127.0.0.0/8", "--deny", "127.0.0.1"], false),
        (&["--deny", "10.0.0.0/8"], true),
        (&["--deny", "::/0"], true),
    ] {
        let upstream = Listener::bind(&local()?)?;
        let launch = Launch::forward(&local()?, upstream.address());
        let relay = launch
            .with(["--engine", "copy"])
            .with(lists.iter().copied())
            .start()?;
        let client = Peer::connect(relay.address())?;
        if taken {
            client.send(b"hello")?;
            ensure!(upstream.accept()?.receive(5)? == b"hello", "{lists:?}");
            client.reset()?;
        } else {
            client.expect_reset()?;
        }
        let record = relay.finish(1)?.remove(0);
        if !taken {
            record.ended("relay", "denied")?;
            ensure!(record.engine.is_none(), "{record:?}");
        }
    }
    Ok(())
}

#[test]
fn lists_on_a_unix_listener_are_refused() -> Result<()> {
    let line = "--listen unix:/nowhere/a --to 127.0.0.1:1 --allow 10.0.0.0/8";
    let finished = Launch::new(line.split_whitespace()).run()?;
    finished.failed(2, &["allow", "unix:/nowhere/a"])?;
    let line = "--listen 127.0.0.1:0 --to 127.0.0.1:1 --deny 10.0.0.0/33";
    let finished = Launch::new(line.split_whitespace()).run()?;
    finished.failed(2, &["--deny", "network"])
}

/// ss(8) shows the backlog of a listener as its send queue.
#[test]
fn the_backlog_is_as_long_as_asked() -> Result<()> {
    let stage = Stage {
        engine: Engine::Copy,
        net: Wire::Loopback.build()?,
    };
    let listener = stage.listen()?;
    let launch = stage.launch(listener.address());
    let relay = launch.with(["--backlog", "7"]).start()?;
    let Address::Ip(at) = relay.address() else {
        bail!("not an IP listener")
    };
    let output = std::process::Command::new("ss")
        .args(["-Hltn", "sport", "=", &at.port().to_string()])
        .output()?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let columns: Vec<_> = said.split_whitespace().collect();
    ensure!(columns.get(2) == Some(&"7"), "{said}");
    relay.finish(0).map(drop)
}
