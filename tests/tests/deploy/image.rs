//! The container image: built as its users build it, and run with and without the capabilities that sockmap takes.

use anyhow::{Result, ensure};
use relay_tests::{
    docker::Docker,
    needs::{self, Need},
    peer::{Address, Listener, Peer, exchange},
    record::{Engine, Record},
    relay::Launch,
};
use rustix::process::Signal;

const IMAGE: &str = "relay-under-test";
const BYTES: u64 = 1 << 20;

/// Bytes both ways through relay in a container; the record of that.
fn carry(docker: &Docker, flags: &[&str], arguments: &[&str]) -> Result<Record> {
    let anywhere = Address::parse("127.0.0.1:0")?;
    let listener = Listener::bind(&anywhere)?;
    let mut words = docker.words()?;
    words.extend(["run", "--rm", "--network", "host"].map(String::from));
    words.extend(flags.iter().map(ToString::to_string));
    words.push(IMAGE.to_owned());
    let launch = Launch::forward(&anywhere, listener.address());
    let mut relay = launch.with(arguments.iter().copied()).by(words).start()?;
    let client = Peer::connect(relay.address())?;
    let upstream = listener.accept()?;
    exchange(&client, &upstream, BYTES)?;
    let record = relay.record()?;
    record.ended("client", "end")?.moved(BYTES, BYTES)?;
    // The client passes it on to the container, and its exit code back.
    relay.signal(Signal::TERM)?;
    let code = relay.exit_code()?;
    ensure!(code == 0, "exit code {code}");
    Ok(record)
}

#[test]
fn the_image_offers_what_its_capabilities_allow() -> Result<()> {
    let name = "deploy::the_image_offers_what_its_capabilities_allow";
    let needs = [Need::Root, Need::Docker, Need::Offered(Engine::Sockmap)];
    if !needs::met(name, &needs)? {
        return Ok(());
    }
    let docker = Docker::start()?;
    docker.build(IMAGE)?;
    let admin = ["--cap-add", "SYS_ADMIN", "--cap-add", "NET_ADMIN"];
    for arguments in [&[][..], &["--user", "65534:65534"]] {
        let record = carry(&docker, &[], arguments)?;
        record.carried_by(Engine::Splice)?;
        let why = record.why_not(Engine::Sockmap)?;
        ensure!(why.contains("CAP_BPF"), "{why}");
        let record = carry(&docker, &admin, arguments)?;
        ensure!(record.declined.is_empty(), "{record:?}");
    }
    let record = carry(&docker, &["--cap-drop", "ALL"], &[])?;
    record.carried_by(Engine::Splice).map(drop)
}
