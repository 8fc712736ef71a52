//! Health, readiness, log level, reload, and what the admin listener bears.

use std::{fs, os::unix::fs::PermissionsExt, thread, time::Duration};

use anyhow::{Context, Result, ensure};
use relay_tests::{
    census::{self, Census},
    desk::Desk,
    needs::{self, Need},
    patience,
    peer::{Address, Listener, Peer, echo},
    relay::Launch,
};
use rustix::process::Signal;

fn anywhere() -> Result<Listener> {
    Listener::bind(&Address::parse("127.0.0.1:0")?)
}

#[test]
fn relay_is_ready_while_it_serves_and_not_while_it_drains() -> Result<()> {
    let (desk, to) = (Desk::new()?, anywhere()?);
    let launch = desk
        .launch(&to)?
        .with(["--engine", "copy", "--drain-timeout", "none"]);
    let mut relay = launch.start()?;
    desk.is_ready(200)?;
    let client = Peer::connect(relay.address())?;
    let upstream = to.accept()?;
    relay.signal(Signal::TERM)?;
    desk.is_ready(503)?;
    // It lives, and tells what goes on.
    desk.get("/healthz")?;
    let status = desk.json("/status")?;
    ensure!(
        status["phase"] == "draining" && status["routes"][0]["active"] == 1,
        "{status}"
    );
    drop((client, upstream));
    ensure!(relay.exit_code()? == 0);
    let Address::Unix(path) = &desk.address else {
        anyhow::bail!("not a path");
    };
    ensure!(!path.exists(), "the socket was left behind");
    Ok(())
}

#[test]
fn the_socket_is_its_owners_alone_and_bears_bad_requests() -> Result<()> {
    let (desk, to) = (Desk::new()?, anywhere()?);
    let relay = desk.launch(&to)?.with(["--engine", "copy"]).start()?;
    let Address::Unix(path) = &desk.address else {
        anyhow::bail!("not a path");
    };
    let mode = fs::metadata(path)?.permissions().mode() & 0o777;
    ensure!(mode == 0o600, "mode {mode:o}");
    for (method, path, body, code) in [
        ("GET", "/nowhere", "", 404),
        ("POST", "/metrics", "", 405),
        ("GET", "/reload", "", 405),
        ("PUT", "/log-level", "loud", 400),
        ("PUT", "/log-level", &"x".repeat(100_000), 400),
        ("POST", "/reload", "", 409),
    ] {
        let answer = desk.ask(method, path, body);
        // A body that is too large may be cut off by a reset.
        let Ok(answer) = answer else {
            ensure!(body.len() > 1_000, "{method} {path}: {answer:?}");
            continue;
        };
        ensure!(answer.code == code, "{method} {path}: {answer:?}");
    }
    // A header without end is not waited for; one without measure is not read.
    let slow = Peer::connect(&desk.address)?;
    slow.send(b"GET /metrics HTTP/1.1\r\nHost:")?;
    let large = Peer::connect(&desk.address)?;
    let _ = large.send(format!("GET / HTTP/1.1\r\nA: {}", "x".repeat(100_000)).as_bytes());
    for peer in [slow, large] {
        let mut buffer = vec![0; 4096];
        while peer.read(&mut buffer).is_ok_and(|count| count > 0) {}
    }
    desk.get("/healthz")?;
    relay.finish(0).map(drop)
}

#[test]
fn a_web_page_changes_nothing() -> Result<()> {
    let (desk, to) = (Desk::new()?, anywhere()?);
    let relay = desk.launch(&to)?.with(["--engine", "copy"]).start()?;
    let page = Peer::connect(&desk.address)?;
    page.send(b"POST /reload HTTP/1.1\r\nHost: a\r\nOrigin: http://evil.example\r\nContent-Length: 0\r\n\r\n")?;
    ensure!(page.receive(12)? == b"HTTP/1.1 403");
    relay.finish(0).map(drop)
}

#[test]
fn the_log_level_is_changed_while_relay_runs() -> Result<()> {
    let (desk, to) = (Desk::new()?, anywhere()?);
    let relay = desk.launch(&to)?.with(["--engine", "copy"]).start()?;
    let garble = || Peer::connect(&desk.address)?.send(b"garble\r\n\r\n");
    garble()?;
    desk.get("/healthz")?;
    ensure!(!relay.has_said("a request failed"));
    let done = desk.command(&["log-level", "debug"])?;
    ensure!(
        done.status.success() && done.stdout == "debug\n",
        "{done:?}"
    );
    patience::until_true("a line of the new level", || {
        garble()?;
        Ok(relay.has_said("a request failed"))
    })?;
    desk.command(&["log-level", "loud"])?
        .failed(2, &["loud", "debug"])?;
    relay.finish(0).map(drop)
}

#[test]
fn reload_is_asked_for_and_says_what_it_did() -> Result<()> {
    let (desk, to, folder) = (Desk::new()?, anywhere()?, tempfile::tempdir()?);
    let file = folder.path().join("relay.toml");
    let head = format!(
        "engine = \"copy\"\n[admin]\nlisten = \"{}\"\n",
        desk.address
    );
    let route = |name: &str| {
        let to = to.address();
        format!("[[route]]\nname = \"{name}\"\nlisten = \"127.0.0.1:0\"\nto = \"{to}\"\n")
    };
    fs::write(&file, head.clone() + &route("one"))?;
    let relay = Launch::config(&file).start()?;
    desk.is_ready(200)?;
    fs::write(&file, head.clone() + &route("one") + &route("two"))?;
    let done = desk.command(&["reload"])?;
    ensure!(
        done.status.success() && done.stdout.contains("opened 1"),
        "{done:?}"
    );
    let names = |routes: &serde_json::Value| {
        let routes = routes.as_array().cloned().unwrap_or_default();
        let open = routes
            .into_iter()
            .filter(|route| route["listeners"] != serde_json::json!([]));
        Vec::from_iter(open.filter_map(|route| route["name"].as_str().map(String::from)))
    };
    let routes = desk.json("/routes")?;
    ensure!(names(&routes) == ["one", "two"], "{routes}");
    fs::write(&file, head.clone() + "[[route]]\n")?;
    desk.command(&["reload"])?
        .failed(1, &["relay.toml:4:1", "listen"])?;
    fs::write(&file, head + &route("two"))?;
    desk.command(&["reload"])?;
    let routes = desk.json("/routes")?;
    ensure!(names(&routes) == ["two"], "{routes}");
    relay.finish(0).map(drop)
}

#[test]
fn status_is_for_people_and_for_programs() -> Result<()> {
    let (desk, to) = (Desk::new()?, anywhere()?);
    let relay = desk.launch(&to)?.with(["--engine", "copy"]).start()?;
    desk.is_ready(200)?;
    let words = desk.command(&["status"])?;
    for word in [
        "serving",
        "copy",
        "127.0.0.1:0",
        &relay.address().to_string(),
    ] {
        ensure!(words.stdout.contains(word), "no {word}: {words:?}");
    }
    let json = desk.command(&["status", "--json"])?.stdout;
    let json: serde_json::Value = serde_json::from_str(&json)?;
    ensure!(
        json["routes"][0]["listeners"][0]["to"] == to.address().to_string(),
        "{json}"
    );
    relay.finish(0)?;
    let address = desk.address.to_string();
    desk.command(&["status"])?
        .failed(1, &["--admin", &address, "is relay running"])
}

#[test]
fn an_admin_listener_that_cannot_be_had_names_flag_and_cause() -> Result<()> {
    let to = anywhere()?;
    let launch = Launch::forward(&Address::parse("127.0.0.1:0")?, to.address());
    let launch = launch.with(["--engine", "copy", "--admin", "unix:/nowhere/relay.sock"]);
    launch
        .run()?
        .failed(1, &["--admin unix:/nowhere/relay.sock", "directory"])
}

/// How many descriptors relay may have besides those that it begins with.
const SPARE: usize = 4;

/// Of 2 seconds; a loop over accept(2) takes all of one processor.
const SPIN: Duration = Duration::from_millis(600);

#[test]
fn the_listener_outlives_a_lack_of_descriptors() -> Result<()> {
    if !needs::met("the_listener_outlives_a_lack_of_descriptors", &[Need::Root])? {
        return Ok(());
    }
    let (desk, to) = (Desk::new()?, anywhere()?);
    let relay = desk.launch(&to)?.with(["--engine", "copy"]).start()?;
    let server = to.serve(|peer| {
        // Its client may be reset for want of a descriptor.
        let _ = echo(peer);
        Ok(())
    })?;
    desk.is_ready(200)?;
    let open = Census::of(relay.process())?;
    let open = open.sockets + open.pipes + open.others;
    relay.limit_descriptors(u64::try_from(open + SPARE)?)?;
    let clients = (0..20).map(|_| Peer::connect(relay.address()));
    let clients = clients.collect::<Result<Vec<_>>>()?;
    let asking = Peer::connect(&desk.address)?;
    asking.send(b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n")?;
    let before = census::processor(relay.process())?;
    thread::sleep(Duration::from_secs(2));
    let used = census::processor(relay.process())? - before;
    ensure!(
        used < SPIN,
        "{used:?} of processor time in 2 s without descriptors"
    );
    drop(clients);
    ensure!(asking.receive(12).context("after the lack")? == b"HTTP/1.1 200");
    patience::until_true("clients that wait to be gone", || {
        let status = desk.json("/status")?;
        Ok(status["routes"][0]["active"] == 0)
    })?;
    let errors = desk.json("/routes")?[0]["accept_errors"].as_u64();
    ensure!(errors > Some(0), "no accept error was counted");
    relay.finish_all()?;
    server.stop()
}
