//! Sockets that systemd passes.

use std::{
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    thread,
};

use anyhow::{Context, Result, anyhow, ensure};
use relay_tests::{
    matrix::Stage,
    needs::{Need, met},
    patience,
    payload::Stream,
    peer::{Address, Listener, Peer, both},
    record::Engine,
    relay::{Launch, Relay, binary},
    topology::Wire,
};
use rustix::process::Signal;

use super::under_each;

const ACTIVATE: Need = Need::Program("systemd-socket-activate");

/// What systemd does for a .socket unit: it listens, and starts relay when the first client comes.
fn activated(launch: Launch, words: &[&str]) -> Result<Launch> {
    let program = ["systemd-socket-activate"]
        .into_iter()
        .chain(words.iter().copied());
    let mut by = Vec::from_iter(program.map(String::from));
    by.push(binary()?.display().to_string());
    // What it says itself is no log of relay's.
    let quiet = launch.variable("SYSTEMD_LOG_LEVEL", Path::new("crit"));
    Ok(quiet.by(by))
}

/// The relay that a client has started, and that client.
fn woken(stage: &Stage, launch: Launch, at: &Address) -> Result<(Relay, Peer)> {
    thread::scope(|scope| {
        let first = scope.spawn(|| {
            patience::until("systemd-socket-activate to listen", || {
                Ok(stage.net.client.enter(|| Peer::connect(at)).ok())
            })
        });
        let relay = launch.start();
        let first = first.join().map_err(|_| anyhow!("the client panicked"))?;
        Ok((relay?, first?))
    })
}

const BYTES: u64 = 1 << 20;

/// A megabyte each way, to the end.
fn exchange(client: &Peer, upstream: &Peer) -> Result<()> {
    let send = |from: &Peer, seed| {
        from.send_stream(&mut Stream::new(seed), BYTES)?;
        from.finish()
    };
    let receive = |at: &Peer, seed| {
        at.expect(&mut Stream::new(seed), BYTES)?;
        at.expect_end()
    };
    both(
        || both(|| send(client, 1), || send(upstream, 2)),
        || both(|| receive(upstream, 1), || receive(client, 2)),
    )
}

#[test]
fn a_socket_of_systemd_is_served_and_outlives_relay() -> Result<()> {
    if !met("a_socket_of_systemd_is_served", &[ACTIVATE])? {
        return Ok(());
    }
    under_each("systemd", Wire::Veth, |stage| {
        let to = stage.listen()?;
        let folder = tempfile::tempdir()?;
        let file = folder.path().join("relay.toml");
        let write = |more: &str| {
            let text = format!(
                "engine = \"{}\"\n[[route]]\nname = \"web\"\nlisten = \"systemd:web\"\nto = \"{}\"\n{more}\n",
                stage.engine,
                to.address()
            );
            fs::write(&file, text)
        };
        write("")?;
        // Without the sockets.
        let told = Launch::new(["check", "--config"]).with([file.display().to_string()]);
        let told = told.run()?;
        ensure!(told.stdout.starts_with("web: systemd:web -> "), "{told:?}");
        let at = Address::Ip(SocketAddr::new(stage.net.relay_ip, 7000));
        let launch = Launch::config(&file).at(&stage.net.relay);
        let other = folder.path().join("other").display().to_string();
        let words = ["-l", "10.99.1.1:7000", "-l", &other, "--fdname=web:other"];
        let (relay, first) = woken(stage, activated(launch, &words)?, &at)?;
        ensure!(relay.address() == &at);
        ensure!(relay.has_said("systemd:other"), "the other is not named");
        exchange(&first, &to.accept()?)?;
        write("max-life = \"1h\"")?;
        relay.signal(Signal::HUP)?;
        relay.says("\"reloaded\"", 1)?;
        let second = stage.net.client.enter(|| Peer::connect(&at))?;
        exchange(&second, &to.accept()?)?;
        for record in stage.finish(relay, 2)? {
            ensure!(record.listener == at.to_string());
            record.moved(BYTES, BYTES)?;
        }
        Ok(())
    })
}

#[test]
fn all_sockets_of_systemd_are_served_and_no_file_is_removed() -> Result<()> {
    if !met("all_sockets_of_systemd", &[ACTIVATE])? {
        return Ok(());
    }
    under_each("all_of_systemd", Wire::Veth, |stage| {
        let to = stage.listen()?;
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("front");
        let launch = Launch::new(["--log-format", "json", "--listen", "systemd", "--to"])
            .with([to.address().to_string()])
            .at(&stage.net.relay);
        let launch = match stage.engine {
            Engine::Sockmap => launch.with(["--offload-after", "0"]),
            other => launch.with(["--engine", other.name()]),
        };
        let words = ["-l", "10.99.1.1:7000", "-l", &path.display().to_string()];
        let launch = activated(launch, &words)?;
        let at = Address::Ip(SocketAddr::new(stage.net.relay_ip, 7000));
        let (relay, first) = woken(stage, launch, &at)?;
        ensure!(relay.addresses() == [at, Address::Unix(path.clone())]);
        exchange(&first, &to.accept()?)?;
        let second = Peer::connect(&Address::Unix(path.clone()))?;
        exchange(&second, &to.accept()?)?;
        relay.finish(2)?;
        ensure!(path.exists(), "the file is systemd's");
        Ok(())
    })
}

/// By a shell, which opens descriptor 3 and is then relay itself, with the same number.
fn with_third(open: &str, listen: &str) -> Result<Launch> {
    let script = format!("LISTEN_PID=$$ LISTEN_FDS=1 LISTEN_FDNAMES=web exec \"$0\" \"$@\" {open}");
    let binary = binary()?.display().to_string();
    let by = ["sh".into(), "-c".into(), script, binary];
    let line = format!("--engine copy --to 127.0.0.1:1 --listen {listen}");
    Ok(Launch::new(line.split(' ')).by(by.into()))
}

#[test]
fn what_is_not_passed_or_no_listener_is_named() -> Result<()> {
    for (open, listen, words) in [
        ("3</dev/null", "systemd", ["--listen systemd:", "listen"]),
        (
            "3</dev/null",
            "systemd:web",
            ["--listen systemd:web:", "listen"],
        ),
        (
            "3</dev/null",
            "systemd:api",
            ["systemd:api", "it passed web"],
        ),
        (
            "3<&-",
            "systemd",
            ["sockets that systemd passes", "Bad file descriptor"],
        ),
    ] {
        let told = with_third(open, listen)?.run()?;
        told.failed(1, &words)
            .with_context(|| format!("{open} {listen}"))?;
    }
    let told = Launch::new("--engine copy --to 127.0.0.1:1 --listen systemd".split(' ')).run()?;
    told.failed(1, &["systemd", "passed none", ".socket"])
}

#[test]
fn networks_cannot_be_told_at_a_unix_socket_of_systemd() -> Result<()> {
    if !met("networks_at_systemd", &[ACTIVATE])? {
        return Ok(());
    }
    let folder = tempfile::tempdir()?;
    let path: PathBuf = folder.path().join("front");
    let launch =
        Launch::new("--engine copy --to 127.0.0.1:1 --listen systemd --allow ::1".split(' '));
    let launch = activated(launch, &["-l", &path.display().to_string()])?;
    thread::scope(|scope| {
        let woken = scope.spawn(|| {
            patience::until("systemd-socket-activate to listen", || {
                Ok(Peer::connect(&Address::Unix(path.clone())).ok())
            })
        });
        let told = launch.run()?;
        woken.join().map_err(|_| anyhow!("the client panicked"))??;
        told.failed(1, &["allow and deny", "for systemd"])
    })?;
    // Nobody has it any more.
    Listener::bind(&Address::Unix(path))
        .map(drop)
        .err()
        .context("the file is gone")
        .map(drop)
}
