//! Several upstreams, and names whose addresses change.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use relay_tests::{
    dns::Dns,
    patience,
    peer::{Address, Listener, Peer, Server, echo, refusing},
    relay::{Launch, Relay},
};
use socket2::{Domain, Socket, Type};

fn address(text: &str) -> Result<Address> {
    Address::parse(text)
}

fn echoing() -> Result<Server> {
    Listener::bind(&address("127.0.0.1:0")?)?.serve(echo)
}

/// One listener for all of `to`.
fn shared(to: &[&str]) -> Launch {
    let launch = Launch::new(["--log-format", "json", "--listen", "127.0.0.1:0"]);
    to.iter()
        .fold(launch, |launch, to| launch.with(["--to", to]))
}

/// Who served a visitor.
fn visit(relay: &Relay) -> Result<String> {
    let client = Peer::connect(relay.address())?;
    client.send(b"who?")?;
    ensure!(client.receive(4)? == b"who?");
    let name = client.local()?;
    client.finish()?;
    client.expect_end()?;
    let record = relay.record_of(&name)?;
    record.upstream.context("nobody was dialled")
}

fn port(address: &Address) -> Result<u16> {
    match address {
        Address::Ip(at) => Ok(at.port()),
        Address::Unix(_) => anyhow::bail!("a Unix socket has no port"),
    }
}

/// An upstream on each of these hosts, all on one port.
fn on_one_port(hosts: &[&str]) -> Result<(u16, Vec<Listener>)> {
    patience::until("a port that is free on all", || {
        let first = Listener::bind(&address(&format!("{}:0", hosts[0]))?)?;
        let port = port(first.address())?;
        let mut all = vec![first];
        for host in &hosts[1..] {
            // A short backlog, since one is to fill up.
            match Listener::bind_with(&address(&format!("{host}:{port}"))?, 1, None) {
                Ok(listener) => all.push(listener),
                Err(_) => return Ok(None),
            }
        }
        Ok(Some((port, all)))
    })
}

/// Takes up the whole backlog, so that nobody else is answered.
fn fill(deaf: &Listener) -> Result<Vec<Socket>> {
    let Address::Ip(at) = deaf.address() else {
        anyhow::bail!("not TCP");
    };
    let mut backlog = Vec::new();
    loop {
        let socket = Socket::new(Domain::for_address(*at), Type::STREAM, None)?;
        // Over loopback a handshake is done at once, or never.
        let done = socket.connect_timeout(&(*at).into(), Duration::from_millis(500));
        backlog.push(socket);
        if done.is_err() {
            return Ok(backlog);
        }
        ensure!(backlog.len() < 64, "the backlog never fills");
    }
}

#[test]
fn clients_are_shared_out_under_every_engine() -> Result<()> {
    let (one, other) = (echoing()?, echoing()?);
    let to = [one.address().to_string(), other.address().to_string()];
    for engine in ["auto", "splice", "copy"] {
        let relay = shared(&[&to[0], &to[1]])
            .with(["--engine", engine])
            .start()?;
        for _ in 0..3 {
            for to in &to {
                ensure!(visit(&relay)? == *to);
            }
        }
        relay.finish(6)?;
    }
    Ok(())
}

#[test]
fn an_upstream_that_refuses_costs_nobody_anything() -> Result<()> {
    let (_refusing, gone) = refusing()?;
    let live = echoing()?;
    let to = live.address().to_string();
    let relay = shared(&[&gone, &to]).with(["--engine", "copy", "--eject-after", "2"]);
    let relay = relay.start()?;
    for _ in 0..6 {
        ensure!(visit(&relay)? == to);
    }
    patience::until_true("its ejection", || Ok(relay.has_said("upstream ejected")))?;
    relay.finish(6).map(drop)
}

#[test]
fn checks_see_an_upstream_go_and_come() -> Result<()> {
    let (socket, gone) = refusing()?;
    let live = echoing()?;
    let to = live.address().to_string();
    let relay = shared(&[&gone, &to]).with(["--engine", "copy", "--check-interval", "50ms"]);
    let relay = relay.start()?;
    patience::until_true("it to be seen down", || {
        Ok(relay.has_said("upstream is down"))
    })?;
    for _ in 0..4 {
        ensure!(visit(&relay)? == to);
    }
    socket.listen(4096)?;
    patience::until_true("it to be seen up", || Ok(relay.has_said("upstream is up")))?;
    relay.finish_all().map(drop)
}

#[test]
fn a_source_stays_with_its_upstream() -> Result<()> {
    let (one, other) = (echoing()?, echoing()?);
    let to = [one.address().to_string(), other.address().to_string()];
    let relay = shared(&[&to[0], &to[1]]).with(["--engine", "copy", "--balance", "source-hash"]);
    let relay = relay.start()?;
    let first = visit(&relay)?;
    for _ in 0..5 {
        ensure!(visit(&relay)? == first);
    }
    relay.finish(6).map(drop)
}

fn asking(dns: &Dns, to: &str) -> Launch {
    let server = dns.address().to_string();
    shared(&[to]).with(["--engine", "copy", "--dns", &server])
}

#[test]
fn a_name_is_followed_and_its_last_good_answer_is_kept() -> Result<()> {
    let (port, listeners) = on_one_port(&["127.0.0.1", "127.0.0.2"])?;
    let servers = listeners.into_iter().map(|listener| listener.serve(echo));
    let _servers = servers.collect::<Result<Vec<_>>>()?;
    let dns = Dns::start()?;
    dns.addresses("db.test", &["127.0.0.1"])?;
    let relay = asking(&dns, &format!("db.test:{port}")).start()?;
    ensure!(visit(&relay)? == format!("127.0.0.1:{port}"));

    dns.addresses("db.test", &["127.0.0.2"])?;
    let moved = format!("127.0.0.2:{port}");
    patience::until_true("the new address", || Ok(visit(&relay)? == moved))?;

    dns.silence(true);
    patience::until_true("the resolver to fail", || {
        Ok(relay.has_said("name does not resolve"))
    })?;
    ensure!(visit(&relay)? == moved);

    dns.silence(false);
    dns.addresses("db.test", &["127.0.0.1"])?;
    let back = format!("127.0.0.1:{port}");
    patience::until_true("the first address again", || Ok(visit(&relay)? == back))?;
    relay.finish_all().map(drop)
}

#[test]
fn services_say_port_and_order() -> Result<()> {
    let (first, second) = (echoing()?, echoing()?);
    let (one, other) = (port(first.address())?, port(second.address())?);
    let dns = Dns::start()?;
    dns.addresses("a.db.test", &["127.0.0.1"])?;
    let service = "_pg._tcp.db.test";
    dns.services(
        service,
        &[(1, 1, one, "a.db.test"), (2, 9, other, "a.db.test")],
    )?;
    let relay = asking(&dns, &format!("srv:{service}")).start()?;
    for _ in 0..3 {
        ensure!(visit(&relay)? == first.address().to_string());
    }
    dns.services(service, &[(1, 1, other, "a.db.test")])?;
    let moved = second.address().to_string();
    patience::until_true("the new service", || Ok(visit(&relay)? == moved))?;
    relay.finish_all().map(drop)
}

#[test]
fn a_silent_family_does_not_hold_up_the_other() -> Result<()> {
    let (port, mut listeners) = on_one_port(&["127.0.0.1", "[::1]"])?;
    let deaf = listeners.pop().context("no listener")?;
    let _backlog = fill(&deaf)?;
    let live = listeners.pop().context("no listener")?.serve(echo)?;
    let dns = Dns::start()?;
    dns.addresses("both.test", &["127.0.0.1", "::1"])?;
    let relay = asking(&dns, &format!("both.test:{port}"));
    let relay = relay.with(["--connect-timeout", "10m"]).start()?;
    let begun = Instant::now();
    ensure!(visit(&relay)? == live.address().to_string());
    // IPv6 alone would have had five minutes.
    ensure!(
        begun.elapsed() < Duration::from_secs(100),
        "{:?}",
        begun.elapsed()
    );
    relay.finish(1).map(drop)
}

/// Whoever follows a name follows it to the other server.
#[test]
fn other_name_servers_are_asked_after_a_reload() -> Result<()> {
    let (port, listeners) = on_one_port(&["127.0.0.1", "127.0.0.2"])?;
    let servers = listeners.into_iter().map(|listener| listener.serve(echo));
    let _servers = servers.collect::<Result<Vec<_>>>()?;
    let (one, other) = (Dns::start()?, Dns::start()?);
    one.addresses("db.test", &["127.0.0.1"])?;
    other.addresses("db.test", &["127.0.0.2"])?;
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("relay.toml");
    let write = |dns: &Dns| {
        let dns = dns.address();
        let text = format!(
            "engine = \"copy\"\ndns = [\"{dns}\"]\n[[route]]\nlisten = \"127.0.0.1:0\"\nto = \"db.test:{port}\"\n"
        );
        std::fs::write(&file, text)
    };
    write(&one)?;
    let relay = Launch::config(&file).start()?;
    ensure!(visit(&relay)? == format!("127.0.0.1:{port}"));
    write(&other)?;
    relay.signal(rustix::process::Signal::HUP)?;
    relay.says("\"reloaded\"", 1)?;
    let moved = format!("127.0.0.2:{port}");
    patience::until_true("the other server's address", || Ok(visit(&relay)? == moved))?;
    relay.finish_all().map(drop)
}
