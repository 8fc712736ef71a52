//! Privileges that are given up after the start: by every thread, with every engine, and what a reload can do then.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, ensure};
use relay_tests::{
    needs::{self, Need},
    netns::{Netns, Place},
    peer::{Address, Listener, Peer, exchange},
    record::Engine,
    relay::{Launch, Relay},
};
use rustix::{process::Signal, thread::CapabilitySet};

const NOBODY: u32 = 65534;
const BYTES: u64 = 3 << 20;

fn anywhere() -> Result<Address> {
    Address::parse("127.0.0.1:0")
}

/// What /proc says of a thread.
struct Thread(String);

impl Thread {
    /// All of the process.
    fn all(relay: &Relay) -> Result<Vec<Self>> {
        let tasks = format!("/proc/{}/task", relay.process().as_raw_nonzero());
        let mut threads = Vec::new();
        for task in fs::read_dir(tasks)? {
            // One that has just ended is no matter.
            if let Ok(status) = fs::read_to_string(task?.path().join("status")) {
                threads.push(Self(status));
            }
        }
        ensure!(threads.len() > 1, "no threads");
        Ok(threads)
    }

    fn has(&self, field: &str, value: &str) -> Result<()> {
        let mut lines = self.0.lines();
        let line = lines.find_map(|line| line.strip_prefix(field)?.strip_prefix(":\t"));
        let line = line.context(field.to_owned())?;
        ensure!(line == value, "{field} is {line}, not {value}: {}", self.0);
        Ok(())
    }
}

/// Every thread runs as nobody, with these capabilities and none to come.
fn is_nobody(relay: &Relay, capabilities: CapabilitySet) -> Result<()> {
    let nobody = [NOBODY.to_string(), NOBODY.to_string()].join("\t");
    for thread in Thread::all(relay)? {
        for ids in ["Uid", "Gid"] {
            thread.has(ids, &[nobody.as_str(), &nobody].join("\t"))?;
        }
        for set in ["CapInh", "CapBnd", "CapAmb"] {
            thread.has(set, &format!("{:016x}", 0))?;
        }
        for set in ["CapPrm", "CapEff"] {
            thread.has(set, &format!("{:016x}", capabilities.bits()))?;
        }
        thread.has("NoNewPrivs", "1")?;
    }
    Ok(())
}

fn visit(address: &Address, listener: &Listener) -> Result<()> {
    let client = Peer::connect(address)?;
    let upstream = listener.accept()?;
    exchange(&client, &upstream, BYTES)
}

fn carries(name: &str, engine: Engine) -> Result<()> {
    if !needs::met(name, &[Need::Root, Need::Offered(engine)])? {
        return Ok(());
    }
    let listener = Listener::bind(&anywhere()?)?;
    let launch = Launch::forward(&anywhere()?, listener.address()).with(["--user", "nobody"]);
    let relay = launch.with(["--engine", engine.name()]).start()?;
    is_nobody(&relay, CapabilitySet::empty())?;
    for _ in 0..3 {
        visit(relay.address(), &listener)?;
    }
    is_nobody(&relay, CapabilitySet::empty())?;
    for record in relay.finish(3)? {
        record.carried_by(engine)?.moved(BYTES, BYTES)?;
    }
    Ok(())
}

#[test]
fn sockmap_carries_without_privileges() -> Result<()> {
    carries(
        "deploy::sockmap_carries_without_privileges",
        Engine::Sockmap,
    )
}

#[test]
fn splice_carries_without_privileges() -> Result<()> {
    carries("deploy::splice_carries_without_privileges", Engine::Splice)
}

#[test]
fn copy_carries_without_privileges() -> Result<()> {
    carries("deploy::copy_carries_without_privileges", Engine::Copy)
}

/// A file that every user may read, and where it lies.
struct File {
    _folder: tempfile::TempDir,
    path: PathBuf,
}

impl File {
    fn new() -> Result<Self> {
        let folder = tempfile::tempdir()?;
        open_to_all(folder.path(), 0o755)?;
        let path = folder.path().join("relay.toml");
        Ok(Self {
            _folder: folder,
            path,
        })
    }

    fn write(&self, listen: &[&str], to: &Address) -> Result<()> {
        let route = |listen: &&str| format!("[[route]]\nlisten = \"{listen}\"\nto = \"{to}\"\n");
        let routes = listen.iter().map(route);
        fs::write(&self.path, String::from_iter(routes))?;
        open_to_all(&self.path, 0o644)
    }
}

fn open_to_all(path: &Path, mode: u32) -> Result<()> {
    Ok(fs::set_permissions(path, fs::Permissions::from_mode(mode))?)
}

/// With other listeners than at its start.
fn stop(mut relay: Relay) -> Result<()> {
    relay.signal(Signal::TERM)?;
    let code = relay.exit_code()?;
    ensure!(code == 0, "exit code {code}");
    Ok(())
}

#[test]
fn a_reload_says_what_it_cannot_do_any_more() -> Result<()> {
    let name = "deploy::a_reload_says_what_it_cannot_do_any_more";
    if !needs::met(name, &[Need::Root, Need::Namespaces])? {
        return Ok(());
    }
    let place = Place::Inside(Netns::new()?.into());
    let listener = place.enter(|| Listener::bind(&anywhere()?))?;
    let file = File::new()?;
    file.write(&["127.0.0.1:0"], listener.address())?;
    let relay = Launch::config(&file.path).at(&place);
    let relay = relay.with(["--user", "nobody"]).start()?;
    ensure!(relay.has_said("listen on ports below 1024 (CAP_NET_BIND_SERVICE)"));
    file.write(&["127.0.0.1:0", "127.0.0.1:80"], listener.address())?;
    relay.signal(Signal::HUP)?;
    relay.says("not reloaded", 1)?;
    ensure!(relay.has_said("127.0.0.1:80: cannot listen: Permission denied"));
    ensure!(relay.has_said("CAP_NET_BIND_SERVICE, or a port from"));
    place.enter(|| visit(relay.address(), &listener))?;
    file.write(&["127.0.0.1:0", "127.0.0.1:1080"], listener.address())?;
    relay.signal(Signal::HUP)?;
    relay.says("\"reloaded\"", 1)?;
    place.enter(|| visit(&relay.listening()[1], &listener))?;
    fs::set_permissions(&file.path, fs::Permissions::from_mode(0o600))?;
    relay.signal(Signal::HUP)?;
    relay.says("not reloaded", 2)?;
    ensure!(relay.has_said("cannot be read: Permission denied"));
    stop(relay)
}

#[test]
fn what_is_kept_serves_a_reload() -> Result<()> {
    let name = "deploy::what_is_kept_serves_a_reload";
    if !needs::met(name, &[Need::Root, Need::Namespaces])? {
        return Ok(());
    }
    let place = Place::Inside(Netns::new()?.into());
    let listener = place.enter(|| Listener::bind(&anywhere()?))?;
    let file = File::new()?;
    file.write(&["127.0.0.1:0"], listener.address())?;
    let kept = [
        "--user",
        "nobody",
        "--keep-capabilities",
        "net_bind_service",
    ];
    let relay = Launch::config(&file.path).at(&place).with(kept).start()?;
    is_nobody(&relay, CapabilitySet::NET_BIND_SERVICE)?;
    file.write(&["127.0.0.1:80"], listener.address())?;
    relay.signal(Signal::HUP)?;
    relay.says("\"reloaded\"", 1)?;
    place.enter(|| visit(&relay.listening()[1], &listener))?;
    is_nobody(&relay, CapabilitySet::NET_BIND_SERVICE)?;
    relay.finish(1).map(drop)
}

#[test]
fn sockets_can_be_made_where_they_were_asked_for() -> Result<()> {
    let name = "deploy::sockets_can_be_made_where_they_were_asked_for";
    if !needs::met(name, &[Need::Root])? {
        return Ok(());
    }
    let listener = Listener::bind(&anywhere()?)?;
    let (inside, outside) = (tempfile::tempdir()?, tempfile::tempdir()?);
    let mut sockets = Vec::new();
    for folder in [inside.path(), inside.path(), outside.path()] {
        open_to_all(folder, 0o777)?;
        let path = folder.join(format!("{}.sock", sockets.len()));
        sockets.push(Address::Unix(path).to_string());
    }
    let [one, two, other] = &sockets[..] else {
        unreachable!()
    };
    let file = File::new()?;
    file.write(&[one], listener.address())?;
    let relay = Launch::config(&file.path).with(["--user", "nobody"]);
    let relay = relay.start()?;
    file.write(&[two], listener.address())?;
    relay.signal(Signal::HUP)?;
    relay.says("\"reloaded\"", 1)?;
    visit(&Address::parse(two)?, &listener)?;
    file.write(&[two, other], listener.address())?;
    relay.signal(Signal::HUP)?;
    // An older kernel has no Landlock; the log tells.
    match relay.has_said("\"landlock\":\"enforced") {
        true => relay.says("not reloaded", 1)?,
        false => relay.says("\"reloaded\"", 2)?,
    }
    stop(relay)
}

#[test]
fn capabilities_go_without_another_user() -> Result<()> {
    let name = "deploy::capabilities_go_without_another_user";
    if !needs::met(name, &[Need::Root])? {
        return Ok(());
    }
    let listener = Listener::bind(&anywhere()?)?;
    let launch = Launch::forward(&anywhere()?, listener.address());
    let relay = launch.with(["--keep-capabilities", "none"]).start()?;
    for thread in Thread::all(&relay)? {
        thread.has("CapEff", &format!("{:016x}", 0))?;
        thread.has("Uid", "0\t0\t0\t0")?;
    }
    visit(relay.address(), &listener)?;
    relay.finish(1).map(drop)
}

#[test]
fn users_that_cannot_be_had_are_one_clear_line() -> Result<()> {
    let pair = ["--listen", "127.0.0.1:0", "--to", "127.0.0.1:9"];
    for (user, words) in [
        ("no-such-user-here", "no such user"),
        ("4123456", "write 4123456:GROUP"),
        ("root", "name another user"),
    ] {
        let finished = Launch::new(pair).with(["--user", user]).run()?;
        finished.failed(1, &["--user", user, words])?;
    }
    let finished = Launch::new(pair).with(["--user", "a:b:c"]).run()?;
    finished.failed(2, &["--user", "NAME:GROUP"])?;
    let finished = Launch::new(pair).with(["--keep-capabilities", "all"]);
    finished.run()?.failed(2, &["--keep-capabilities", "all"])
}

#[test]
fn only_root_can_become_somebody() -> Result<()> {
    if !needs::met("deploy::only_root_can_become_somebody", &[Need::Root])? {
        return Ok(());
    }
    let pair = ["--listen", "127.0.0.1:0", "--to", "127.0.0.1:9"];
    let launch = Launch::new(pair).with(["--user", "4123456:4123456"]);
    let finished = launch.user(NOBODY).run()?;
    finished.failed(1, &["--user", "CAP_SETUID", "as root"])
}
