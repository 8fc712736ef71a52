//! Several listeners of one route, and ranges of ports.

use std::{
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, ensure};
use relay_tests::{
    matrix::Stage,
    needs::{Need, met},
    patience,
    peer::{Address, Listener, Peer},
    relay::{Launch, Relay},
    topology::Wire,
};
use rustix::process::Signal;

use super::under_each;

/// A file in a folder of its own, written again and again.
struct File {
    _folder: tempfile::TempDir,
    path: PathBuf,
}

impl File {
    fn new() -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("relay.toml");
        Ok(Self {
            _folder: folder,
            path,
        })
    }

    fn write(&self, text: &str) -> Result<&Path> {
        fs::write(&self.path, text)?;
        Ok(&self.path)
    }
}

/// What came to one of the listeners goes through, and is dropped.
fn visit(stage: &Stage, at: &Address, to: &Listener) -> Result<()> {
    let client = stage.net.client.enter(|| Peer::connect(at))?;
    client.send(b"hello")?;
    let upstream = to.accept()?;
    ensure!(upstream.receive(5)? == b"hello");
    upstream.finish()?;
    client.expect_end()?;
    client.finish()?;
    upstream.expect_end()
}

fn reload(relay: &Relay, done: usize) -> Result<()> {
    relay.signal(Signal::HUP)?;
    relay.says("\"reloaded\"", done)
}

/// The sockets that listen in relay's namespace, by port.
fn inode(stage: &Stage, port: u16) -> Result<String> {
    stage.net.relay.enter(|| {
        let output = std::process::Command::new("ss")
            .args(["-Hltne", "sport", "=", &port.to_string()])
            .output()?;
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let ino = said
            .split_whitespace()
            .find(|word| word.starts_with("ino:"));
        Ok(ino
            .with_context(|| format!("nobody listens on {port}"))?
            .to_owned())
    })
}

#[test]
fn a_route_has_several_listeners_and_a_reload_keeps_those_that_stay() -> Result<()> {
    under_each("several_listeners", Wire::Veth, |stage| {
        let to = stage.listen()?;
        let file = File::new()?;
        let route = |listen: &str, more: &str| {
            format!(
                "engine = \"{}\"\n[[route]]\nname = \"web\"\nlisten = {listen}\nto = \"{}\"\n{more}\n",
                stage.engine,
                to.address()
            )
        };
        file.write(&route(r#"["10.99.1.1:7001", "10.99.1.1:7002"]"#, ""))?;
        let relay = Launch::config(&file.path).at(&stage.net.relay).start()?;
        let at = |port: u16| Address::Ip(SocketAddr::new(stage.net.relay_ip, port));
        ensure!(relay.addresses() == [at(7001), at(7002)]);
        visit(stage, &at(7001), &to)?;
        visit(stage, &at(7002), &to)?;
        let kept = inode(stage, 7002)?;
        // Another order, another name of the route that has it, and other settings.
        file.write(&route(
            r#"["10.99.1.1:7003", "10.99.1.1:7002"]"#,
            "max-life = \"1h\"",
        ))?;
        reload(&relay, 1)?;
        ensure!(relay.has_said("listeners opened 1, closed 1; routes changed 1, kept 0"));
        ensure!(inode(stage, 7002)? == kept, "another socket");
        visit(stage, &at(7002), &to)?;
        visit(stage, &at(7003), &to)?;
        patience::until_true("the listener to be closed", || {
            let tried = stage
                .net
                .client
                .enter(|| Peer::connect(&at(7001)).map(drop));
            Ok(tried.is_err())
        })?;
        reload(&relay, 2)?;
        ensure!(relay.has_said("listeners opened 0, closed 0; routes changed 0, kept 1"));
        let records = relay.finish(4)?;
        let mut came = Vec::from_iter(records.iter().map(|record| record.listener.as_str()));
        came.sort_unstable();
        let expected = [7001, 7002, 7002, 7003].map(|port| at(port).to_string());
        ensure!(came == expected, "{came:?}");
        for record in records {
            ensure!(record.route == "web");
            record.carried_by(stage.engine)?;
        }
        Ok(())
    })
}

#[test]
fn a_range_of_ports_goes_to_one_upstream_or_port_by_port() -> Result<()> {
    under_each("ranges", Wire::Veth, |stage| {
        let on = |port: u16| {
            let at = Address::Ip(SocketAddr::new(stage.net.upstream_ip, port));
            stage.net.upstream.enter(|| Listener::bind(&at))
        };
        let tos = [on(9001)?, on(9002)?, on(9003)?];
        let launch = Launch::new(["--log-format", "json", "--engine", stage.engine.name()])
            .with("--listen 10.99.1.1:8001-8003 --to 10.99.2.2:9001-9003".split(' '))
            .with("--listen 10.99.1.1:8011-8013 --to 10.99.2.2:9002".split(' '))
            .at(&stage.net.relay);
        let relay = launch.start()?;
        let at = |port: u16| Address::Ip(SocketAddr::new(stage.net.relay_ip, port));
        for (port, to) in (8001..).zip(&tos) {
            visit(stage, &at(port), to)?;
        }
        for port in 8011..=8013 {
            visit(stage, &at(port), &tos[1])?;
        }
        let records = stage.finish(relay, 6)?;
        let mut routes = Vec::from_iter(records.iter().map(|record| record.route.as_str()));
        routes.sort_unstable();
        let all = "10.99.1.1:8011-8013";
        let each = ["10.99.1.1:8001", "10.99.1.1:8002", "10.99.1.1:8003"];
        ensure!(routes == [&each[..], &[all; 3]].concat(), "{routes:?}");
        Ok(())
    })
}

#[test]
fn the_limit_of_a_route_is_that_of_all_its_listeners() -> Result<()> {
    under_each("one_limit", Wire::Loopback, |stage| {
        let to = stage.listen()?;
        let launch = stage.launch(to.address());
        let more = ["--listen", "127.0.0.1:0", "--max-connections", "1"];
        let relay = launch.with(more).start()?;
        let one = stage.join(&relay, &to)?;
        let waiting = Peer::connect(&relay.addresses()[1])?;
        waiting.send(b"me too")?;
        relay.says("max-connections is reached", 1)?;
        one.client.reset()?;
        one.upstream.expect_reset()?;
        let second = to.accept()?;
        ensure!(second.receive(6)? == b"me too");
        waiting.reset()?;
        second.expect_reset()?;
        stage.finish(relay, 2).map(drop)
    })
}

#[test]
fn faults_of_lists_and_ranges_have_a_place() -> Result<()> {
    let file = File::new()?;
    for (route, words) in [
        (
            "listen = []\nto = \"a:1\"",
            [":2:10", "say where to listen"],
        ),
        ("listen = \"a:9-8\"\nto = \"a:1\"", [":2:10", "FROM-TO"]),
        (
            "listen = [\"a:1\", \"*:2\"]\nto = \"a:1\"",
            [":2:18", "0.0.0.0:port"],
        ),
        (
            "listen = \"a:1-3\"\nto = \"b:1-2\"",
            [":1:1", "a:1-3 has 3"],
        ),
        ("listen = \"a:1\"\nto = \"b:1-2\"", [":1:1", "a:1 has 1"]),
        ("listen = \"a:1\"\nto = \"b:0\"", [":1:1", "port 0"]),
        (
            "listen = [\"a:1\", \"a:1\"]\nto = \"b:1\"",
            [":1:1", "twice"],
        ),
        (
            "listen = \"original\"\nto = \"b:1\"",
            [":2:10", "cannot be original"],
        ),
    ] {
        let path = file
            .write(&format!("[[route]]\n{route}\n"))?
            .display()
            .to_string();
        let told = Launch::new(["check", "--config", &path]).run()?;
        told.failed(2, &words).with_context(|| route)?;
    }
    Ok(())
}

/// The sockets that listen on `port`, where the tests are.
fn sockets(port: u16) -> Result<Vec<String>> {
    let output = std::process::Command::new("ss")
        .args(["-Hltne", "sport", "=", &port.to_string()])
        .output()?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let inode = |line: &str| {
        Some(
            line.split_whitespace()
                .find(|word| word.starts_with("ino:"))?
                .to_owned(),
        )
    };
    let mut inodes = Vec::from_iter(said.lines().filter_map(inode));
    inodes.sort_unstable();
    Ok(inodes)
}

#[test]
fn with_reuse_port_each_core_has_a_socket_and_a_reload_closes_none() -> Result<()> {
    under_each("reuse_port", Wire::Loopback, |stage| {
        let to = stage.listen()?;
        let file = File::new()?;
        let route = |more: &str| {
            format!(
                "engine = \"{}\"\n[[route]]\nlisten = \"127.0.0.1:0\"\nto = \"{}\"\nreuse-port = true\n{more}\n",
                stage.engine,
                to.address()
            )
        };
        file.write(&route(""))?;
        let relay = Launch::config(&file.path).start()?;
        let [Address::Ip(at)] = relay.addresses() else {
            anyhow::bail!("not one listener: {:?}", relay.addresses());
        };
        let before = sockets(at.port())?;
        let cores = std::thread::available_parallelism()?.get();
        ensure!(before.len() == cores, "{before:?}, not {cores}");
        for number in 0..24 {
            visit(stage, relay.address(), &to)?;
            if number == 12 {
                file.write(&route("max-life = \"1h\""))?;
                reload(&relay, 1)?;
                ensure!(relay.has_said("listeners opened 0, closed 0; routes changed 1, kept 0"));
            }
        }
        ensure!(sockets(at.port())? == before, "other sockets");
        stage.finish(relay, 24).map(drop)
    })
}

#[test]
fn the_file_of_a_unix_socket_has_the_owner_asked_for() -> Result<()> {
    use std::os::unix::fs::MetadataExt as _;
    if !met("the_owner_asked_for", &[Need::Root])? {
        return Ok(());
    }
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("front");
    let to = Listener::bind(&Address::parse("127.0.0.1:0")?)?;
    let launch = |owner: &str| {
        let options = format!("--engine copy --socket-mode 660 --socket-owner {owner}");
        let launch = Launch::forward(&Address::Unix(path.clone()), to.address());
        launch.with(options.split(' ').map(String::from))
    };
    for (owner, expected) in [
        ("4123456:4123457", (4_123_456, 4_123_457)),
        ("65534", (65534, 0)),
    ] {
        let relay = launch(owner).start()?;
        let found = fs::metadata(&path)?;
        ensure!((found.uid(), found.gid()) == expected, "{found:?}");
        ensure!(found.mode() & 0o777 == 0o660, "{found:?}");
        relay.finish(0)?;
    }
    let told = launch("no-such-user-here").run()?;
    told.failed(2, &["socket-owner no-such-user-here", "no such user"])?;
    // As somebody who may not give files away.
    std::os::unix::fs::chown(folder.path(), Some(65534), None)?;
    let told = launch("0:0").user(65534).run()?;
    told.failed(1, &["set socket-owner", "CAP_CHOWN"])
}
