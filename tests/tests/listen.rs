//! How clients are taken: limits, lists of networks, socket options, and listeners of every kind.

use std::{thread, time::Duration};

use anyhow::{Result, ensure};
use relay_tests::{
    matrix::{Scenario, Stage, play},
    peer::{Address, Listener, Peer},
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
        anyhow::bail!("not an IP listener")
    };
    let output = std::process::Command::new("ss")
        .args(["-Hltn", "sport", "=", &at.port().to_string()])
        .output()?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let columns: Vec<_> = said.split_whitespace().collect();
    ensure!(columns.get(2) == Some(&"7"), "{said}");
    relay.finish(0).map(drop)
}
