//! systemd: the unit is in order and hardened, and relay tells the service manager what it does.

use std::{fs, os::unix::net::UnixDatagram, path::PathBuf, process::Command};

use anyhow::{Context, Result, ensure};
use relay_tests::{
    needs::{self, Need},
    patience,
    peer::{Address, Listener},
    relay::{Launch, binary},
};
use rustix::process::Signal;

/// Tenths of systemd's exposure level, which ends at 100; what is above it needs a reason.
const EXPOSURE: &str = "--threshold=21";

pub(crate) fn deploy() -> Result<PathBuf> {
    let tests = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    Ok(tests.parent().context("no parent")?.join("deploy"))
}

/// The units as they are installed, but for where the binary is.
fn installed(folder: &tempfile::TempDir, files: &[(&str, &str)]) -> Result<Vec<PathBuf>> {
    let binary = binary()?.display().to_string();
    let mut units = Vec::new();
    for (file, to) in files {
        let text = fs::read_to_string(deploy()?.join("systemd").join(file))?;
        let path = folder.path().join(to);
        fs::create_dir_all(path.parent().context("no parent")?)?;
        fs::write(&path, text.replace("/usr/local/bin/relay", &binary))?;
        // A drop-in is found by what it adds to.
        if !file.ends_with(".conf") {
            units.push(path);
        }
    }
    Ok(units)
}

const SERVICE: (&str, &str) = ("relay.service", "relay.service");

/// The unit alone, and the variant for which systemd has the listeners.
const VARIANTS: [&[(&str, &str)]; 2] = [
    &[SERVICE],
    &[
        SERVICE,
        ("relay.socket", "relay.socket"),
        (
            "socket-activated.conf",
            "relay.service.d/socket-activated.conf",
        ),
    ],
];

fn analyze(words: &[&str], units: &[PathBuf]) -> Result<String> {
    let mut command = Command::new("systemd-analyze");
    let output = command.args(words).args(units).output()?;
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said).into_owned();
    ensure!(output.status.success(), "{words:?}: {said}");
    Ok(said)
}

#[test]
fn the_units_are_in_order() -> Result<()> {
    let name = "deploy::the_units_are_in_order";
    if !needs::met(name, &[Need::Program("systemd-analyze")])? {
        return Ok(());
    }
    VARIANTS.into_iter().try_for_each(in_order)
}

fn in_order(files: &[(&str, &str)]) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let units = installed(&folder, files)?;
    let said = analyze(&["verify", "--man=no"], &units)?;
    let ours: Vec<_> = said.lines().filter(|line| line.contains("relay")).collect();
    ensure!(ours.is_empty(), "{ours:#?}");
    let services = units
        .into_iter()
        .filter(|unit| unit.extension().is_some_and(|kind| kind == "service"));
    for service in services {
        let said = analyze(&["security", "--offline=yes", EXPOSURE], &[service])?;
        let level = said.lines().last().context("no level")?;
        println!("{level}");
    }
    Ok(())
}

/// What came to `NOTIFY_SOCKET`.
struct Manager {
    _folder: tempfile::TempDir,
    socket: UnixDatagram,
    path: PathBuf,
}

impl Manager {
    fn new() -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("notify");
        let socket = UnixDatagram::bind(&path)?;
        socket.set_read_timeout(Some(patience::limit()))?;
        Ok(Self {
            _folder: folder,
            socket,
            path,
        })
    }

    fn is_told(&self, words: &[&str]) -> Result<()> {
        let mut buffer = [0; 4096];
        let count = loop {
            match self.socket.recv(&mut buffer) {
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => (),
                other => break other.with_context(|| format!("waiting for {words:?}"))?,
            }
        };
        let told = std::str::from_utf8(&buffer[..count])?;
        for word in words {
            ensure!(told.contains(word), "no {word}: {told}");
        }
        Ok(())
    }
}

#[test]
fn the_service_manager_is_told_which_process_has_taken_over() -> Result<()> {
    let manager = Manager::new()?;
    let listener = Listener::bind(&Address::parse("127.0.0.1:0")?)?;
    let folder = tempfile::tempdir()?;
    let launch = || {
        let handover = format!("unix:{}", folder.path().join("handover").display());
        let launch = Launch::forward(&Address::parse("127.0.0.1:0")?, listener.address());
        let launch = launch.with(["--engine", "copy", "--handover", &handover]);
        Ok::<_, anyhow::Error>(launch.variable("NOTIFY_SOCKET", &manager.path))
    };
    let mut old = launch()?.start()?;
    manager.is_told(&["READY=1"])?;
    let mut new = launch()?.start()?;
    let process = new.process().as_raw_nonzero();
    manager.is_told(&[&format!("MAINPID={process}")])?;
    manager.is_told(&["READY=1"])?;
    ensure!(old.exit_code()? == 0);
    new.signal(Signal::TERM)?;
    // That the old one stops is no news of the service.
    manager.is_told(&["STOPPING=1"])?;
    ensure!(new.exit_code()? == 0);
    manager.socket.set_nonblocking(true)?;
    ensure!(manager.socket.recv(&mut [0; 64]).is_err(), "there is more");
    Ok(())
}

#[test]
fn the_service_manager_is_told() -> Result<()> {
    let manager = Manager::new()?;
    let listener = Listener::bind(&Address::parse("127.0.0.1:0")?)?;
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("relay.toml");
    let text = format!(
        "engine = \"copy\"\n[[route]]\nlisten = \"127.0.0.1:0\"\nto = \"{}\"\n",
        listener.address()
    );
    fs::write(&file, &text)?;
    let launch = Launch::config(&file).variable("NOTIFY_SOCKET", &manager.path);
    let mut relay = launch.start()?;
    manager.is_told(&["READY=1", "STATUS=engines copy"])?;
    relay.signal(Signal::HUP)?;
    manager.is_told(&["RELOADING=1", "MONOTONIC_USEC="])?;
    manager.is_told(&["READY=1", "STATUS=reloaded"])?;
    fs::write(&file, "nonsense")?;
    relay.signal(Signal::HUP)?;
    manager.is_told(&["RELOADING=1"])?;
    manager.is_told(&["READY=1", "STATUS=not reloaded"])?;
    relay.signal(Signal::TERM)?;
    manager.is_told(&["STOPPING=1"])?;
    ensure!(relay.exit_code()? == 0);
    Ok(())
}
