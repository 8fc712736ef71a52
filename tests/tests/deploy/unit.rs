//! The unit under systemd: what its hardening leaves of relay.

use std::{fs, io::Write as _};

use anyhow::{Context, Result, ensure};
use relay_tests::{
    needs::{self, Need},
    netns::{Netns, Place},
    patience,
    payload::Stream,
    peer::{Address, Listener, Peer, both},
    record::Engine,
    relay::Launch,
    systemd::Systemd,
};
use serde_json::Value;

const BYTES: u64 = 1 << 20;
const ADMIN: &str = "unix:/run/relay/admin.sock";

/// A service manager with the unit installed as its head says, and an upstream.
struct Installed {
    place: Place,
    upstream: Listener,
    systemd: Systemd,
}

impl Installed {
    fn new() -> Result<Self> {
        let place = Place::Inside(Netns::new()?.into());
        let upstream = place.enter(|| Listener::bind(&Address::parse("127.0.0.1:0")?))?;
        let systemd = Systemd::start(&place)?;
        let unit = systemd.path("/etc/systemd/system/relay.service");
        fs::copy(
            super::systemd::deploy()?.join("systemd/relay.service"),
            &unit,
        )?;
        // There is no journal to read it from, and a slow machine may drain for long.
        let log = "[Service]\nStandardError=append:/run/said\nStandardOutput=append:/run/said\nTimeoutStopSec=10min\n";
        let folder = unit.with_extension("service.d");
        fs::create_dir(&folder)?;
        fs::write(folder.join("test.conf"), log)?;
        let mut hosts = fs::File::options()
            .append(true)
            .create(true)
            .open(systemd.path("/etc/hosts"))?;
        hosts.write_all(b"\n127.0.0.1 upstream.test\n")?;
        systemd.control(&["daemon-reload"])?;
        Ok(Self {
            place,
            upstream,
            systemd,
        })
    }

    /// Ports below 1024, and an upstream that is a name.
    fn configure(&self, engine: Engine, ports: &[u16]) -> Result<()> {
        let to = self.upstream.address().to_string();
        let port = to.rsplit(':').next().context("no port")?;
        let head = format!(
            "engine = \"{engine}\"\ndrain-timeout = \"10m\"\n[admin]\nlisten = \"{ADMIN}\"\n[log]\nformat = \"json\"\n"
        );
        let route = |at: &u16| {
            format!("[[route]]\nlisten = \"127.0.0.1:{at}\"\nto = \"upstream.test:{port}\"\n")
        };
        let text = head + &String::from_iter(ports.iter().map(route));
        Ok(fs::write(self.systemd.path("/etc/relay.toml"), text)?)
    }

    fn said(&self) -> String {
        fs::read_to_string(self.systemd.path("/run/said")).unwrap_or_default()
    }

    fn is(&self, name: &str, value: &str) -> Result<()> {
        let is = self.systemd.property("relay", name)?;
        ensure!(is.contains(value), "{name} is {is}, not {value}");
        Ok(())
    }

    fn connect(&self, port: u16) -> Result<Peer> {
        let at = Address::parse(&format!("127.0.0.1:{port}"))?;
        self.place.enter(|| Peer::connect(&at))
    }

    /// Bytes both ways, and a connection that goes on.
    fn visit(&self, port: u16) -> Result<[Peer; 2]> {
        let client = self.connect(port)?;
        let upstream = self.upstream.accept()?;
        for (from, to, seed) in [(&client, &upstream, 1), (&upstream, &client, 2)] {
            both(
                || from.send_stream(&mut Stream::new(seed), BYTES),
                || to.expect(&mut Stream::new(seed), BYTES),
            )?;
        }
        Ok([client, upstream])
    }

    fn end([client, upstream]: [Peer; 2]) -> Result<()> {
        client.finish()?;
        upstream.expect_end()?;
        upstream.finish()?;
        client.expect_end()
    }

    /// What `relay status` says that this engine has carried.
    fn carried(&self, engine: Engine) -> Result<Option<u64>> {
        let words = ["status", "--json", "--admin", ADMIN];
        let done = self.systemd.run("/usr/local/bin/relay", &words)?;
        let status: Value =
            serde_json::from_str(&done.stdout).with_context(|| format!("{done:?}"))?;
        let mut shares = status["routes"][0]["engines"]
            .as_array()
            .into_iter()
            .flatten();
        let share = shares.find(|share| share["engine"] == engine.name());
        Ok(share.and_then(|share| share["bytes_up"].as_u64()))
    }
}

/// Whether relay confines itself where nothing keeps it from that.
fn has_landlock() -> Result<bool> {
    let anywhere = Address::parse("127.0.0.1:0")?;
    let to = Address::parse("127.0.0.1:9")?;
    let launch = Launch::forward(&anywhere, &to).with(["--engine", "copy"]);
    let relay = launch.with(["--user", "nobody"]).start()?;
    let has = relay.has_said("\"landlock\":\"enforced");
    relay.finish(0)?;
    Ok(has)
}

fn play(installed: &Installed) -> Result<()> {
    let systemd = &installed.systemd;
    let has_landlock = has_landlock()?;
    for engine in [Engine::Sockmap, Engine::Splice, Engine::Copy] {
        installed.configure(engine, &[80])?;
        systemd.control(&["restart", "relay"])?;
        installed.is("ActiveState", "active")?;
        installed.is("StatusText", engine.name())?;
        let visit = installed.visit(80)?;
        patience::until_true("the bytes to be counted", || {
            Ok(installed.carried(engine)? == Some(BYTES))
        })?;
        Installed::end(visit)?;
    }
    ensure!(has_landlock == installed.said().contains("\"landlock\":\"enforced"));

    installed.configure(Engine::Copy, &[80, 81])?;
    systemd.control(&["reload", "relay"])?;
    patience::until_true("the reload", || {
        Ok(installed.is("StatusText", "reloaded").is_ok())
    })?;
    Installed::end(installed.visit(81)?)?;

    let visit = installed.visit(80)?;
    systemd.control(&["stop", "--no-block", "relay"])?;
    patience::until_true("the count of those that go on", || {
        Ok(installed.is("StatusText", "to be ended: 1").is_ok())
    })?;
    ensure!(
        installed.connect(80).is_err(),
        "new clients are not refused"
    );
    installed.is("ActiveState", "deactivating")?;
    visit[0].send(b"still here")?;
    ensure!(visit[1].receive(10)? == b"still here");
    Installed::end(visit)?;
    patience::until_true("the end", || {
        Ok(systemd.property("relay", "ActiveState")? == "inactive")
    })?;
    installed.is("Result", "success")?;
    // What the filter of system calls would say.
    ensure!(!installed.said().contains("not permitted"));
    Ok(())
}

#[test]
fn the_unit_carries_reloads_and_drains_under_systemd() -> Result<()> {
    let name = "deploy::the_unit_carries_reloads_and_drains_under_systemd";
    let needs = [
        Need::Root,
        Need::Namespaces,
        Need::Offered(Engine::Sockmap),
        Need::Systemd,
    ];
    if !needs::met(name, &needs)? {
        return Ok(());
    }
    let installed = Installed::new()?;
    play(&installed).with_context(|| installed.said())
}
