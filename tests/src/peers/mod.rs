//! Servers and clients that people really run, with configurations of the test's own, in its namespaces.

mod nginx;
mod postgres;
mod sshd;

use std::{
    fs::{self, File, Permissions},
    io::{Read, Seek},
    net::SocketAddr,
    os::unix::fs::PermissionsExt,
    process::{Child, Command, Stdio},
    sync::mpsc::{Receiver, Sender, channel},
    thread::{self, JoinHandle},
};

use anyhow::{Context, Result, anyhow, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};

use crate::{
    needs::{self, Need},
    netns::Place,
    patience,
};

pub use nginx::Nginx;
pub use postgres::Postgres;
pub use sshd::Sshd;

/// Whether the test called `name` may run: these programs are installed, and the one that starts servers.
///
/// # Errors
///
/// As [`needs::met`].
pub fn met(name: &str, programs: &[&'static str]) -> Result<bool> {
    let programs = programs.iter().chain(&["setpriv"]);
    let needs: Vec<_> = programs.map(|&name| Need::Program(name)).collect();
    needs::met(name, &needs)
}

/// A command that runs an installed program.
///
/// # Errors
///
/// Fails when it is not installed.
pub fn program(name: &str) -> Result<Command> {
    let path = needs::program(name).with_context(|| format!("no {name}"))?;
    let mut command = Command::new(path);
    command.env("LC_ALL", "C").current_dir("/");
    Ok(command)
}

/// The same through setpriv(1), with these options of it.
fn by_setpriv(options: &[&str], name: &str) -> Result<Command> {
    let mut command = program("setpriv")?;
    command.args(options).arg("--");
    command.arg(needs::program(name).with_context(|| format!("no {name}"))?);
    Ok(command)
}

/// Runs it to its end in `place`, and gives what it printed.
///
/// # Errors
///
/// Fails when it does, with what it said.
pub fn run(place: &Place, command: &mut Command) -> Result<String> {
    let output = place.enter(|| Ok(command.stdin(Stdio::null()).output()?))?;
    let said = String::from_utf8_lossy(&output.stderr);
    let printed = String::from_utf8_lossy(&output.stdout);
    ensure!(
        output.status.success(),
        "{command:?}: {}: {said}{printed}",
        output.status
    );
    Ok(printed.into_owned())
}

/// A folder that every user may enter.
///
/// # Errors
///
/// Fails when none can be made.
pub fn open_folder() -> Result<tempfile::TempDir> {
    let folder = tempfile::tempdir()?;
    fs::set_permissions(folder.path(), Permissions::from_mode(0o755))?;
    Ok(folder)
}

/// A server. It is asked to end when this is dropped, and by the kernel when the tests are killed.
#[derive(Debug)]
pub struct Service {
    /// Dropped to end it.
    stop: Option<Sender<()>>,
    keeper: Option<JoinHandle<()>>,
}

impl Service {
    /// Starts the program in `place` and waits until it listens at `address`. `end` is the signal that ends it and its
    /// processes at once.
    ///
    /// # Errors
    ///
    /// Fails when it ends instead, with what it said.
    pub fn start(
        place: &Place,
        name: &str,
        setup: impl FnOnce(&mut Command) -> Result<()>,
        address: SocketAddr,
        end: Signal,
    ) -> Result<Self> {
        Self::start_as(place, name, &[], setup, address, end)
    }

    fn start_as(
        place: &Place,
        name: &str,
        options: &[&str],
        setup: impl FnOnce(&mut Command) -> Result<()>,
        address: SocketAddr,
        end: Signal,
    ) -> Result<Self> {
        let signal = match end {
            Signal::INT => "INT",
            _ => "TERM",
        };
        let options = [&["--pdeathsig", signal], options].concat();
        let mut command = by_setpriv(&options, name)?;
        setup(&mut command)?;
        let said = tempfile::tempfile()?;
        command.stdin(Stdio::null()).stdout(Stdio::null());
        command.stderr(said.try_clone()?);
        let (started, answer) = channel();
        let (stop, stopped) = channel();
        // The kernel takes the thread for the parent: the one that starts it has to live as long.
        let keeper = thread::Builder::new().name(name.into()).spawn({
            let place = place.clone();
            move || keep(&place, command, address, end, &started, &stopped)
        })?;
        let service = Self {
            stop: Some(stop),
            keeper: Some(keeper),
        };
        let answer = answer.recv().context("the keeper is gone")?;
        match answer {
            Ok(()) => Ok(service),
            Err(fault) => Err(fault.context(format!("{name}: {}", last_words(said)))),
        }
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(keeper) = self.keeper.take() {
            let _ = keeper.join();
        }
    }
}

/// The thread of one server.
fn keep(
    place: &Place,
    mut command: Command,
    address: SocketAddr,
    end: Signal,
    started: &Sender<Result<()>>,
    stopped: &Receiver<()>,
) {
    let spawned = place.move_thread().and_then(|()| Ok(command.spawn()?));
    let mut child = match spawned {
        Ok(child) => child,
        Err(fault) => {
            let _ = started.send(Err(fault));
            return;
        }
    };
    let listens = patience::until_true("it to listen", || {
        if let Some(status) = child.try_wait()? {
            bail!("it ended: {status}");
        }
        listens(address.port())
    });
    let _ = started.send(listens);
    // An error is the end of the test.
    let _ = stopped.recv();
    finish(&mut child, end);
}

/// Whether somebody listens on `port` in the namespace of this thread. Nobody is disturbed by a connection.
fn listens(port: u16) -> Result<bool> {
    /// `TCP_LISTEN`.
    const LISTEN: &str = "0A";
    let port = format!(":{port:04X}");
    for family in ["tcp", "tcp6"] {
        let Ok(sockets) = fs::read_to_string(format!("/proc/thread-self/net/{family}")) else {
            continue;
        };
        // A number, the own address, the other's, the state.
        let mut rows = sockets.lines().map(|line| line.split_whitespace().skip(1));
        if rows.any(|mut row| {
            let local = row.next();
            local.is_some_and(|local| local.ends_with(&port)) && row.nth(1) == Some(LISTEN)
        }) {
            return Ok(true);
        }
    }
    Ok(false)
}

fn finish(child: &mut Child, end: Signal) {
    if let Ok(None) = child.try_wait() {
        let _ = kill_process(Pid::from_child(child), end);
    }
    if patience::until("the server to end", || Ok(child.try_wait()?)).is_err() {
        let _ = child.kill();
        let _ = child.wait();
    }
}

fn last_words(mut file: File) -> String {
    let mut said = Vec::new();
    let _ = file.rewind().and_then(|()| file.read_to_end(&mut said));
    String::from_utf8_lossy(&said).into_owned()
}

/// User and group of an account.
fn account(name: &str) -> Result<(u32, u32)> {
    let accounts = fs::read_to_string("/etc/passwd")?;
    let mut lines = accounts.lines().map(|line| line.split(':'));
    let line = lines.find(|line| line.clone().next() == Some(name));
    let line = line.with_context(|| format!("no user {name}"))?;
    let numbers: Vec<_> = line.skip(2).take(2).collect();
    match numbers[..] {
        [user, group] => Ok((user.parse()?, group.parse()?)),
        _ => Err(anyhow!("/etc/passwd: {name}")),
    }
}
