//! What a test cannot do without, and the one way to skip one.

use std::{
    fs::OpenOptions,
    io::Write as _,
    path::Path,
    process::{Command, Stdio},
    sync::OnceLock,
};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::{
    docker::Docker,
    netns::{Netns, Place},
    rawtcp::tap::DEVICE,
    record::Engine,
    relay::Launch,
    systemd::Systemd,
};

/// Something that not every machine has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// The tests run as root.
    Root,
    /// Network namespaces can be made.
    Namespaces,
    /// The kernel has the netem queueing discipline.
    Netem,
    /// relay offers this engine.
    Offered(Engine),
    /// The kernel speaks multipath TCP.
    Mptcp,
    /// There is an IPv6 loopback.
    Ipv6,
    /// TUN devices can be made.
    Tun,
    /// A Docker daemon can be started.
    Docker,
    /// systemd can be the first process of namespaces of its own.
    Systemd,
    /// This program is installed.
    Program(&'static str),
}

impl Need {
    /// Why it is not met; none when it is.
    fn missing(self) -> Option<String> {
        match self {
            Self::Root => {
                let root = rustix::process::geteuid().is_root();
                (!root).then(|| "needs root".into())
            }
            Self::Namespaces => once(&NAMESPACES, || {
                let made = Netns::new().err();
                made.map(|fault| format!("needs network namespaces: {fault:#}"))
            }),
            Self::Netem => once(&NETEM, netem),
            Self::Offered(engine) => offered(engine),
            Self::Mptcp => {
                let enabled = std::fs::read_to_string("/proc/sys/net/mptcp/enabled");
                let enabled = enabled.is_ok_and(|text| text.trim() == "1");
                (!enabled).then(|| "needs a kernel that speaks MPTCP".into())
            }
            Self::Ipv6 => {
                let bound = std::net::TcpListener::bind("[::1]:0").err();
                bound.map(|fault| format!("needs the IPv6 loopback: {fault}"))
            }
            Self::Tun => {
                let opened = std::fs::File::options().read(true).write(true).open(DEVICE);
                let fault = opened.err();
                fault.map(|fault| format!("needs TUN devices: {DEVICE}: {fault}"))
            }
            Self::Docker => {
                let programs = ["dockerd", "docker", "rustup"].map(Self::Program);
                let missing = programs.into_iter().find_map(Self::missing);
                missing.or_else(|| {
                    let fault = Docker::start().err();
                    fault.map(|fault| format!("needs a Docker daemon: {fault:#}"))
                })
            }
            Self::Systemd => {
                let fault = Systemd::start(&Place::Here).err();
                fault.map(|fault| format!("needs systemd as the first process: {fault:#}"))
            }
            Self::Program(name) => {
                let found = program(name).is_none();
                found.then(|| format!("needs {name}"))
            }
        }
    }
}

/// Where an installed program is.
#[must_use]
pub fn program(name: &str) -> Option<std::path::PathBuf> {
    let path = std::env::var("PATH").unwrap_or_default();
    let folders = path.split(':').chain(["/usr/sbin", "/sbin"]);
    let mut places: Vec<_> = folders.map(|folder| Path::new(folder).join(name)).collect();
    // Debian keeps the server's programs out of the path, one folder for each version.
    if let Ok(versions) = std::fs::read_dir("/usr/lib/postgresql") {
        places.extend(
            versions
                .flatten()
                .map(|one| one.path().join("bin").join(name)),
        );
    }
    places.into_iter().find(|place| place.is_file())
}

/// Whether the test called `name` may run. One that may not is written to the file in `RELAY_SKIPS`.
///
/// # Errors
///
/// Fails instead of skipping under `RELAY_REQUIRE=all`, netem excepted: not every kernel is built with it.
pub fn met(name: &str, needs: &[Need]) -> Result<bool> {
    let missing = needs
        .iter()
        .find_map(|need| need.missing().map(|reason| (*need, reason)));
    let Some((need, reason)) = missing else {
        return Ok(true);
    };
    let required = std::env::var("RELAY_REQUIRE").is_ok_and(|value| value == "all");
    if required && need != Need::Netem {
        bail!("{reason}, and RELAY_REQUIRE=all forbids to skip");
    }
    eprintln!("skipped {name}: {reason}");
    if let Some(path) = std::env::var_os("RELAY_SKIPS") {
        let mut file = OpenOptions::new().create(true).append(true).open(path)?;
        // One write, so that lines of tests that run at the same time stay whole.
        file.write_all(format!("{name}: {reason}\n").as_bytes())?;
    }
    Ok(false)
}

type Answer = OnceLock<Option<String>>;

static NAMESPACES: Answer = OnceLock::new();
static NETEM: Answer = OnceLock::new();
static CHECKED: OnceLock<Result<Value, String>> = OnceLock::new();

fn once(answer: &Answer, ask: impl FnOnce() -> Option<String>) -> Option<String> {
    answer.get_or_init(ask).clone()
}

fn netem() -> Option<String> {
    let tried = || -> Result<Option<String>> {
        let place = Place::Inside(Netns::new()?.into());
        let output = place.enter(|| {
            Command::new("tc")
                .args(["qdisc", "add", "dev", "lo", "root", "netem", "delay", "1ms"])
                .stdout(Stdio::null())
                .output()
                .context("tc(8)")
        })?;
        let said = String::from_utf8_lossy(&output.stderr);
        let failed = !output.status.success();
        Ok(failed.then(|| format!("needs netem: {}", said.trim())))
    };
    tried().unwrap_or_else(|fault| Some(format!("needs netem: {fault:#}")))
}

/// What `relay check --json` prints.
///
/// # Errors
///
/// Fails when it cannot be run or prints no JSON.
pub fn check() -> Result<&'static Value> {
    let checked = CHECKED.get_or_init(|| {
        let run = || -> Result<Value> {
            let finished = Launch::new(["check", "--json"]).run()?;
            serde_json::from_str(&finished.stdout).with_context(|| format!("{finished:?}"))
        };
        run().map_err(|fault| format!("{fault:#}"))
    });
    checked
        .as_ref()
        .map_err(|fault| anyhow::anyhow!("relay check --json: {fault}"))
}

fn offered(engine: Engine) -> Option<String> {
    if engine == Engine::Copy {
        return None;
    }
    // Without the map there is nothing to choose.
    let engine = match engine {
        Engine::Auto => Engine::Sockmap,
        engine => engine,
    };
    let checked = match check() {
        Ok(checked) => checked,
        Err(fault) => return Some(format!("{fault:#}")),
    };
    let rows = checked["engines"].as_array();
    let row = rows.and_then(|rows| rows.iter().find(|row| row["engine"] == engine.name()));
    match row {
        Some(row) if row["offered"] == true => None,
        Some(row) => Some(format!("needs the {engine} engine: {row}")),
        None => Some(format!(
            "relay check says nothing about {engine}: {checked}"
        )),
    }
}
