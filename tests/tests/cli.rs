//! The command as its operator sees it: flags, faults, exit codes, logs, signals.

use std::{
    fs,
    process::{Child, Command, Stdio},
};

use anyhow::{Context, Result, ensure};
use relay_tests::{
    needs, patience,
    payload::Stream,
    peer::{Address, Listener, Peer, Server, both, echo},
    relay::{Finished, Launch, binary},
};
use rustix::process::{Pid, Signal, kill_process};

fn anywhere() -> Result<Address> {
    Address::parse("127.0.0.1:0")
}

fn echoing() -> Result<Server> {
    Listener::bind(&anywhere()?)?.serve(echo)
}

fn run(line: &str) -> Result<Finished> {
    Launch::new(line.split_whitespace()).run()
}

fn visit(address: &Address) -> Result<()> {
    let client = Peer::connect(address)?;
    let (mut sent, mut came) = (Stream::new(1), Stream::new(1));
    both(
        || {
            client.send_stream(&mut sent, 100_000)?;
            client.finish()
        },
        || client.expect(&mut came, 100_000),
    )?;
    client.expect_end()
}

#[test]
fn help_and_version_are_no_faults() -> Result<()> {
    for (flag, word) in [("--help", "--listen"), ("--version", "relay")] {
        let finished = run(flag)?;
        ensure!(finished.status.success(), "{finished:?}");
        ensure!(finished.stdout.contains(word), "{finished:?}");
    }
    Ok(())
}

#[test]
fn bad_usage_is_exit_code_2_and_one_line() -> Result<()> {
    for (line, words) in [
        ("", &["--listen", "--to"][..]),
        ("--listen 127.0.0.1:0", &["--listen", "--to"]),
        (
            "--listen 127.0.0.1:0 --listen [::1]:0 --to 127.0.0.1:1 --to 127.0.0.1:2 --to 127.0.0.1:3",
            &["--listen", "--to"],
        ),
        ("--listen nonsense --to 127.0.0.1:1", &["--listen", "port"]),
        ("--listen 127.0.0.1:0 --to ::1:80", &["--to", "brackets"]),
        (
            "--listen 127.0.0.1:0 --to 127.0.0.1:99999",
            &["--to", "65535"],
        ),
        (
            "--listen 127.0.0.1:0 --to 127.0.0.1:1 --engine warp",
            &["--engine", "warp"],
        ),
        (
            "--listen 127.0.0.1:0 --to 127.0.0.1:1 --drain-timeout soon",
            &["--drain-timeout"],
        ),
        (
            "--listen unix:/nowhere/a --to 127.0.0.1:1 --engine sockmap",
            &["--engine", "unix:"],
        ),
        ("--frobnicate", &["--frobnicate"]),
    ] {
        let finished = run(line)?;
        finished.failed(2, words).context(line)?;
        ensure!(finished.stderr.lines().count() == 1, "{finished:?}");
        ensure!(finished.stdout.is_empty(), "{finished:?}");
    }
    Ok(())
}

#[test]
fn a_port_in_use_names_flag_and_cause() -> Result<()> {
    let taken = Listener::bind(&anywhere()?)?;
    let address = taken.address().to_string();
    let line = format!("--listen {address} --to 127.0.0.1:1 --engine copy");
    run(&line)?.failed(1, &["--listen", &address, "in use"])
}

#[test]
fn an_address_of_others_names_flag_and_cause() -> Result<()> {
    // TEST-NET-1 of RFC 5737 is on no interface.
    run("--listen 192.0.2.1:0 --to 127.0.0.1:1 --engine copy")?
        .failed(1, &["--listen", "192.0.2.1"])
}

#[test]
fn several_pairs_are_served_each_by_its_own() -> Result<()> {
    let (one, other) = (Listener::bind(&anywhere()?)?, Listener::bind(&anywhere()?)?);
    let launch = Launch::forward(&anywhere()?, one.address());
    let launch = launch.route(&anywhere()?, other.address());
    let relay = launch.with(["--engine", "copy"]).start()?;
    ensure!(relay.addresses().len() == 2);
    for (front, listener) in relay.addresses().iter().zip([one, other]) {
        let client = Peer::connect(front)?;
        client.send(b"which?")?;
        ensure!(listener.accept()?.receive(6)? == b"which?");
    }
    relay.finish(2).map(drop)
}

/// Ports come again: a run of 200 connections looked at the record of an earlier one.
#[test]
fn a_port_that_comes_again_has_a_record_of_its_own() -> Result<()> {
    let listener = Listener::bind(&anywhere()?)?;
    let launch = Launch::forward(&anywhere()?, listener.address());
    let relay = launch.with(["--engine", "copy"]).start()?;
    // No other test connects from there, so that the port stays free in between.
    let client = Peer::connect_again("127.77.0.1:0", relay.address())?;
    let name = client.local()?;
    client.send(b"one")?;
    listener.accept()?.receive(3)?;
    client.reset()?;
    relay.record_of(&name)?.moved(3, 0)?;
    let client = Peer::connect_again(&name, relay.address())?;
    client.send(b"another")?;
    listener.accept()?.receive(7)?;
    client.reset()?;
    relay.record_of(&name)?.moved(7, 0)?;
    relay.finish(2).map(drop)
}

#[test]
fn both_signals_end_an_idle_relay_with_0() -> Result<()> {
    for signal in [Signal::TERM, Signal::INT] {
        let launch = Launch::forward(&anywhere()?, &Address::parse("127.0.0.1:1")?);
        let mut relay = launch.with(["--engine", "copy"]).start()?;
        relay.signal(signal)?;
        let code = relay.exit_code()?;
        ensure!(code == 0, "exit code {code} after {signal:?}");
    }
    Ok(())
}

#[test]
fn a_second_signal_skips_the_wait() -> Result<()> {
    let listener = Listener::bind(&anywhere()?)?;
    let launch = Launch::forward(&anywhere()?, listener.address());
    let mut relay = launch
        .with(["--engine", "copy", "--drain-timeout", "1h"])
        .start()?;
    let client = Peer::connect(relay.address())?;
    let upstream = listener.accept()?;
    client.send(b"hello")?;
    upstream.receive(5)?;
    relay.signal(Signal::TERM)?;
    patience::until_true("relay to say that it stops", || {
        Ok(relay.has_said("stopping"))
    })?;
    relay.signal(Signal::TERM)?;
    client.expect_reset()?;
    upstream.expect_reset()?;
    let code = relay.exit_code()?;
    ensure!(code == 1, "exit code {code}");
    relay.record()?.ended("relay", "drain").map(drop)
}

#[test]
fn a_stale_unix_socket_is_taken_over_and_left_clean() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("front");
    let front = Address::Unix(path.clone());
    drop(Listener::bind(&front)?);
    ensure!(path.exists(), "the socket of a dead process stays");
    let server = echoing()?;
    let launch = Launch::forward(&front, server.address());
    let relay = launch.with(["--engine", "copy"]).start()?;
    visit(&front)?;
    relay.finish(1)?;
    ensure!(!path.exists(), "relay leaves its own socket behind");
    server.stop()
}

#[test]
fn a_live_unix_socket_is_not_taken_over() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let front = Address::Unix(folder.path().join("front"));
    let live = Listener::bind(&front)?;
    run(&format!("--listen {front} --to 127.0.0.1:1 --engine copy"))?
        .failed(1, &["--listen", "in use"])?;
    let client = Peer::connect(&front)?;
    client.send(b"still?")?;
    // What relay tried may be in the queue in front.
    patience::until_true("the client", || Ok(live.accept()?.receive(6).is_ok()))
}

#[test]
fn a_file_in_place_of_a_unix_socket_is_left_alone() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("front");
    fs::write(&path, "precious")?;
    let line = format!(
        "--listen unix:{} --to 127.0.0.1:1 --engine copy",
        path.display()
    );
    run(&line)?.failed(1, &["--listen"])?;
    ensure!(fs::read_to_string(&path)? == "precious");
    Ok(())
}

#[test]
fn an_upstream_without_an_address_is_a_reset() -> Result<()> {
    // RFC 6761 promises that this name has none.
    let launch = Launch::new(["--log-format", "json", "--listen", "127.0.0.1:0"]);
    let launch = launch.with(["--to", "no-such-host.invalid:1", "--engine", "copy"]);
    let relay = launch.start()?;
    Peer::connect(relay.address())?.expect_reset()?;
    let record = relay.finish(1)?.pop().context("no record")?;
    ensure!(
        record.end.how == "error" && record.engine.is_none(),
        "{record:?}"
    );
    Ok(())
}

#[test]
fn check_says_the_same_in_json_and_in_words() -> Result<()> {
    let json = needs::check()?;
    for engine in ["sockmap", "splice", "copy"] {
        let rows = json["engines"].as_array().context("no engines")?;
        let row = rows.iter().find(|row| row["engine"] == engine);
        let row = row.with_context(|| format!("no {engine}"))?;
        let offered = row["offered"].as_bool().context("no answer")?;
        ensure!(offered == row["missing"].is_null(), "{row}");
    }
    let words = Launch::new(["check"]).run()?;
    ensure!(words.status.success(), "{words:?}");
    for word in ["sockmap", "splice", "copy", "kernel"] {
        ensure!(words.stdout.contains(word), "no {word}: {words:?}");
    }
    Ok(())
}

/// Starts relay by a shell that closes what `redirect` says, on a Unix socket, since nobody reads its port.
fn with_streams_closed(redirect: &str, level: &str) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let front = Address::Unix(folder.path().join("front"));
    let server = echoing()?;
    let relay = Command::new("sh")
        .args(["-c", &format!("exec \"$0\" \"$@\" {redirect}")])
        .arg(binary()?)
        .args(["--engine", "copy", "--log-level", level])
        .args(["--listen", &front.to_string()])
        .args(["--to", &server.address().to_string()])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    serves_and_ends(relay, &front).with_context(|| redirect.to_owned())?;
    server.stop()
}

/// Visits `relay` at `front` and asks it to end, which must be clean.
fn serves_and_ends(mut relay: Child, front: &Address) -> Result<()> {
    let result = (|| {
        patience::until_true("relay to listen", || Ok(Peer::connect(front).is_ok()))?;
        (0..5).try_for_each(|_| visit(front))?;
        kill_process(Pid::from_child(&relay), Signal::TERM)?;
        let status = patience::until("relay to end", || Ok(relay.try_wait()?))?;
        ensure!(status.code() == Some(0), "{status:?}");
        Ok(())
    })();
    if result.is_err() {
        let _ = relay.kill();
        let _ = relay.wait();
    }
    result
}

#[test]
fn closed_standard_streams_are_no_fault() -> Result<()> {
    with_streams_closed("<&-", "info")?;
    with_streams_closed("2>&-", "info")?;
    // Three free numbers for its own descriptors: no log may go into a connection.
    with_streams_closed("<&- >&- 2>&-", "trace")
}

#[test]
fn a_log_that_nobody_reads_is_no_fault() -> Result<()> {
    with_streams_closed("2>/dev/full", "info")?;
    let folder = tempfile::tempdir()?;
    let front = Address::Unix(folder.path().join("front"));
    let server = echoing()?;
    let launch = Launch::forward(&front, server.address()).with(["--engine", "copy"]);
    let (mut relay, _keep) = launch.spawn(&|command| {
        command.stdout(Stdio::null()).stderr(Stdio::piped());
    })?;
    // The reader goes away: from now on writing is EPIPE.
    drop(relay.stderr.take());
    serves_and_ends(relay, &front)?;
    server.stop()
}

#[test]
fn the_text_log_has_one_line_per_connection() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let front = Address::Unix(folder.path().join("front"));
    let server = echoing()?;
    let launch = Launch::new(["--log-format", "text", "--engine", "copy"]);
    let launch = launch.route(&front, server.address());
    let (relay, _keep) = launch.spawn(&|command| {
        command.stdout(Stdio::null()).stderr(Stdio::piped());
    })?;
    let process = Pid::from_child(&relay);
    let result = (|| {
        patience::until_true("relay to listen", || Ok(Peer::connect(&front).is_ok()))?;
        visit(&front)
    })();
    kill_process(process, Signal::TERM)?;
    let output = relay.wait_with_output()?;
    result?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.code() == Some(0), "{output:?}");
    ensure!(
        said.lines().any(|line| line.contains("listening")),
        "{said}"
    );
    let of_visit = said
        .lines()
        .filter(|line| line.contains("up=100000 down=100000"));
    ensure!(of_visit.count() == 1, "{said}");
    ensure!(said.contains("engine=copy"), "{said}");
    server.stop()
}
