//! More clients than the limit of open files has room for: they wait, and none is reset.

use anyhow::{Context, Result, ensure};
use relay_tests::{
    needs::{self, Need},
    netns::{Netns, Place},
    peer::{Address, Listener, Peer, echo, many},
    record::Engine,
    relay::{Launch, Relay, binary},
};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// What relay may have open.
const FILES: u32 = 256;

/// Clients at once: many times what there is room for.
const CLIENTS: u64 = 5000;

/// What a test has open besides its clients.
const OTHERS: u64 = 600;

/// Tests of this file, which run at the same time.
const TESTS: u64 = 3;

/// Who talks at once.
const TALKING: u64 = 8;

/// So many clients as this process may have, which has to be many more than relay.
fn clients() -> Result<u64> {
    let wanted = TESTS * (CLIENTS + OTHERS);
    let limit = getrlimit(Resource::Nofile);
    let maximum = limit.maximum.map(|most| most.max(wanted));
    for maximum in [maximum, limit.maximum] {
        let raised = Rlimit {
            current: maximum,
            maximum,
        };
        // Only root may have more than the second.
        if setrlimit(Resource::Nofile, raised).is_ok() {
            break;
        }
    }
    let files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let clients = (files / TESTS).saturating_sub(OTHERS).min(CLIENTS);
    ensure!(clients > 2 * u64::from(FILES), "open files: {files}");
    Ok(clients)
}

fn launch(place: &Place, to: &Address) -> Result<Launch> {
    let launch = Launch::forward(&Address::parse("127.0.0.1:0")?, to).at(place);
    let limit = format!("--nofile={FILES}:{FILES}");
    let relay = binary()?.display().to_string();
    let launch = launch.with(["--backlog", "8192"]);
    Ok(launch.by(vec!["prlimit".into(), limit, relay]))
}

/// A backlog for all of them, so that none has to knock twice.
fn place() -> Result<Place> {
    let place = Place::Inside(Netns::new()?.into());
    place.sysctl("net/core/somaxconn", "8192")?;
    Ok(place)
}

fn serves_all(relay: &Relay, place: &Place) -> Result<u64> {
    let count = clients()?;
    let connect = |_| Peer::connect(relay.address());
    let waiting = place.enter(|| (0..count).map(connect).collect::<Result<Vec<_>>>())?;
    let waiting = waiting
        .into_iter()
        .map(|peer| std::sync::Mutex::new(Some(peer)));
    let waiting = Vec::from_iter(waiting);
    // In the order in which they came, more or less: those at the end of the backlog wait for those before.
    many(count, TALKING, |number| {
        let mut client = waiting[usize::try_from(number)?]
            .lock()
            .ok()
            .context("poisoned")?;
        let client = client.take().context("no client")?;
        client.send(b"still there?")?;
        ensure!(client.receive(12)? == b"still there?");
        client.finish()?;
        client.expect_end()
    })?;
    Ok(count)
}

fn plays(name: &str, engine: &str, offered: Engine) -> Result<()> {
    let needs = [
        Need::Namespaces,
        Need::Program("prlimit"),
        Need::Offered(offered),
    ];
    if !needs::met(&format!("descriptors::{name}"), &needs)? {
        return Ok(());
    }
    let place = place()?;
    let listener = place.enter(|| Listener::bind(&Address::parse("127.0.0.1:0")?))?;
    let server = listener.serve(echo)?;
    let launch = launch(&place, server.address())?;
    let relay = launch.with(["--engine", engine]).start()?;
    let count = serves_all(&relay, &place)?;
    relay.says("the limit of open files", 1)?;
    for record in relay.finish(usize::try_from(count)?)? {
        record.ended("client", "end")?;
    }
    server.stop()
}

#[test]
fn clients_wait_for_descriptors_with_all_engines() -> Result<()> {
    plays("all", "auto", Engine::Sockmap)
}

#[test]
fn clients_wait_for_descriptors_and_pipes() -> Result<()> {
    plays("splice", "splice", Engine::Splice)
}

#[test]
fn clients_wait_for_descriptors_with_copy() -> Result<()> {
    plays("copy", "copy", Engine::Copy)
}
