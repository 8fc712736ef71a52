//! What is told of upstreams while they go down, come back, move and are replaced.

use std::fs;

use anyhow::{Context, Result, ensure};
use relay_tests::{
    desk::Desk,
    dns::Dns,
    patience,
    peer::{Address, Listener, Peer, Server, echo, refusing},
    relay::{Launch, Relay},
};
use serde_json::Value;

use crate::page::Page;

fn echoing() -> Result<Server> {
    Listener::bind(&Address::parse("127.0.0.1:0")?)?.serve(echo)
}

fn visit(relay: &Relay) -> Result<()> {
    let client = Peer::connect(relay.address())?;
    client.send(b"who?")?;
    ensure!(client.receive(4)? == b"who?");
    client.finish()?;
    client.expect_end()
}

/// The endpoint at this address, of any upstream of the only route.
fn endpoint(desk: &Desk, at: &str) -> Result<Value> {
    let routes = desk.json("/routes")?;
    let upstreams = routes[0]["upstreams"].as_array().context("no upstreams")?;
    let mut endpoints = upstreams
        .iter()
        .filter_map(|one| one["endpoints"].as_array())
        .flatten();
    let found = endpoints.find(|one| one["address"] == at).cloned();
    found.with_context(|| format!("no {at}: {routes}"))
}

/// Waits until page, JSON and tables all say that the one at this address is in this state.
fn is_told(desk: &Desk, at: &str, state: &str) -> Result<Value> {
    patience::until_true(&format!("{at} to be {state}"), || {
        Ok(endpoint(desk, at)?["state"] == state)
    })?;
    let page = Page::read(&desk.get("/metrics")?)?;
    for one in ["up", "ejected", "down"] {
        let labels = [("upstream", at), ("address", at), ("state", one)];
        let is_so = page.sum("relay_upstream_state", &labels)? == 1;
        ensure!(is_so == (one == state), "{one}, and it is {state}");
    }
    let tables = desk.command(&["status"])?.stdout;
    let mut lines = tables.lines();
    let has = |line: &str| line.contains(&format!("{at}  {at}")) && line.contains(state);
    ensure!(lines.any(has), "no {state} {at} in\n{tables}");
    endpoint(desk, at)
}

#[test]
fn an_upstream_that_goes_down_and_comes_back_is_told() -> Result<()> {
    let (desk, live, (socket, gone)) = (Desk::new()?, echoing()?, refusing()?);
    let launch = Launch::new(["--log-format", "json", "--listen", "127.0.0.1:0"]);
    let admin = desk.address.to_string();
    let relay = launch
        .with(["--to", &gone, "--to", &live.address().to_string()])
        .with(["--engine", "copy", "--check-interval", "50ms"])
        .with(["--check-timeout", "1m"])
        .with(["--admin", &admin])
        .start()?;
    desk.is_ready(200)?;
    let down = is_told(&desk, &gone, "down")?;
    let has = |key: &str, word: &str| down[key].as_str().is_some_and(|told| told.contains(word));
    ensure!(
        has("cause", "checks in a row failed") && has("last_error", "refused"),
        "{down}"
    );
    for _ in 0..3 {
        visit(&relay)?;
    }
    socket.listen(4096)?;
    let up = is_told(&desk, &gone, "up")?;
    ensure!(
        up["cause"].is_null() && up["last_error"].is_string(),
        "{up}"
    );
    let page = Page::read(&desk.get("/metrics")?)?;
    let sum = |name: &str, at: &str| page.sum(name, &[("route", "127.0.0.1:0"), ("upstream", at)]);
    let checks = sum("relay_upstream_checks_total", &gone)?;
    let failed = sum("relay_upstream_check_failures_total", &gone)?;
    ensure!(failed >= 1 && checks > failed, "{failed} of {checks}");
    let live = live.address().to_string();
    ensure!(sum("relay_upstream_connects_total", &live)? == 3);
    ensure!(sum("relay_upstream_connect_failures_total", &live)? == 0);
    ensure!(sum("relay_upstream_connects_total", &gone)? == 0);
    ensure!(sum("relay_upstream_resolved", &live)? == 1);
    relay.finish_all().map(drop)
}

#[test]
fn an_ejection_is_told_and_live_connections_are_counted() -> Result<()> {
    let (desk, live, (_socket, gone)) = (Desk::new()?, echoing()?, refusing()?);
    let live = live.address().to_string();
    let launch = Launch::new(["--log-format", "json", "--listen", "127.0.0.1:0"]);
    let relay = launch
        .with(["--to", &gone, "--to", &live, "--engine", "copy"])
        .with(["--eject-after", "1", "--eject-for", "1h"])
        .with(["--admin", &desk.address.to_string()])
        .start()?;
    desk.is_ready(200)?;
    for _ in 0..2 {
        visit(&relay)?;
    }
    let ejected = is_told(&desk, &gone, "ejected")?;
    ensure!(
        ejected["connects"] == 1 && ejected["connect_failures"] == 1,
        "{ejected}"
    );
    let client = Peer::connect(relay.address())?;
    let address = [("address", live.as_str())];
    let active = || {
        let page = Page::read(&desk.get("/metrics")?)?;
        page.sum("relay_upstream_connections_active", &address)
    };
    patience::until_true("the connection to count", || Ok(active()? == 1))?;
    drop(client);
    patience::until_true("its end to count", || Ok(active()? == 0))?;
    relay.finish_all().map(drop)
}

#[test]
fn addresses_that_a_name_has_no_more_are_gone() -> Result<()> {
    let (desk, dns) = (Desk::new()?, Dns::start()?);
    dns.addresses("db.test", &["127.0.0.1"])?;
    let launch = Launch::new(["--log-format", "json", "--listen", "127.0.0.1:0"]);
    let relay = launch
        .with(["--to", "db.test:9", "--engine", "copy"])
        .with(["--dns", &dns.address().to_string()])
        .with(["--admin", &desk.address.to_string()])
        .start()?;
    let at = |address: &str| -> Result<bool> {
        let page = Page::read(&desk.get("/metrics")?)?;
        let labels = [("upstream", "db.test:9"), ("address", address)];
        let told = page.has("relay_upstream_state", &labels);
        let counted = page.has("relay_upstream_connections_active", &labels);
        ensure!(told == counted, "{address}");
        Ok(told)
    };
    patience::until_true("the first address", || at("127.0.0.1:9"))?;
    dns.addresses("db.test", &["127.0.0.2"])?;
    patience::until_true("the second address", || at("127.0.0.2:9"))?;
    ensure!(!at("127.0.0.1:9")?, "the first one is told for ever");
    dns.silence(true);
    patience::until_true("the name not to resolve", || {
        let page = Page::read(&desk.get("/metrics")?)?;
        Ok(page.sum("relay_upstream_resolved", &[("upstream", "db.test:9")])? == 0)
    })?;
    ensure!(at("127.0.0.2:9")?, "the last good answer is forgotten");
    relay.finish(0).map(drop)
}

/// What is checked for a route ends with it, though its connections go on.
#[test]
fn upstreams_of_a_route_that_is_gone_are_gone() -> Result<()> {
    let (desk, folder) = (Desk::new()?, tempfile::tempdir()?);
    let (old, new) = (Listener::bind(&Address::parse("127.0.0.1:0")?)?, echoing()?);
    let before = old.address().to_string();
    let after = new.address().to_string();
    let file = folder.path().join("relay.toml");
    let write = |to: &str| {
        let admin = &desk.address;
        fs::write(
            &file,
            format!(
                "engine = \"copy\"\n[admin]\nlisten = \"{admin}\"\n[[route]]\nlisten = \"127.0.0.1:0\"\nto = \"{to}\"\ncheck-interval = \"20ms\"\ncheck-timeout = \"1m\"\n"
            ),
        )
    };
    write(&before)?;
    let relay = Launch::config(&file).start()?;
    let client = Peer::connect(relay.address())?;
    client.send(b"stay")?;
    // Checks come and go beside the client.
    let upstream = patience::until("the client", || {
        let peer = old.accept()?;
        Ok(peer
            .receive(4)
            .is_ok_and(|said| said == b"stay")
            .then_some(peer))
    })?;
    write(&after)?;
    desk.command(&["reload"])?;
    endpoint(&desk, &after)?;
    let page = Page::read(&desk.get("/metrics")?)?;
    ensure!(!page.has("relay_upstream_state", &[("upstream", &before)]));
    // A check of it would fail from here on.
    drop(old);
    patience::until_true("many checks of the new one", || {
        Ok(endpoint(&desk, &after)?["checks"].as_u64() > Some(20))
    })?;
    ensure!(
        !relay.has_said("upstream is down"),
        "the old one is still checked"
    );
    upstream.send(b"still here")?;
    ensure!(client.receive(10)? == b"still here");
    drop((client, upstream));
    relay.finish_all().map(drop)
}
