//! A forwarder as a child process: started, listened to, and ended on every way out.

use std::{
    io::{BufRead, BufReader, Read},
    net::SocketAddr,
    path::Path,
    process::{Child, Command, Stdio},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::socket::Address;

/// How long starting, stopping and writing a record may take on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// relay from a free port of the loopback to `upstream`, with this engine alone.
pub(crate) fn command(relay: &Path, engine: &str, upstream: &Address) -> Command {
    let mut command = Command::new(relay);
    command.args(["--listen", "127.0.0.1:0", "--to", &upstream.to_string()]);
    command.args(["--engine", engine, "--log-format", "json"]);
    command
}

/// A running forwarder; dropping it kills it.
pub(crate) struct Forwarder {
    child: Child,
    said: Arc<Said>,
    /// Where it listens.
    pub(crate) address: Address,
}

#[derive(Default)]
struct Said {
    log: Mutex<Log>,
    more: Condvar,
}

#[derive(Default)]
struct Log {
    lines: Vec<String>,
    ended: bool,
}

impl Said {
    fn lock(&self) -> MutexGuard<'_, Log> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The first thing that `find` makes of the lines, as soon as there is one.
    fn wait<T>(&self, find: impl Fn(&[String]) -> Option<T>) -> Result<T> {
        let deadline = Instant::now() + PATIENCE;
        let mut log = self.lock();
        loop {
            if let Some(found) = find(&log.lines) {
                return Ok(found);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if log.ended || left.is_zero() {
                bail!("{}", log.lines.join("\n"));
            }
            let woken = self.more.wait_timeout(log, left);
            log = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Forwarder {
    /// Starts `command`, which says on stderr in JSON where it listens.
    pub(crate) fn start(command: &mut Command) -> Result<Self> {
        let name = command.get_program().to_string_lossy().into_owned();
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("could not run {name}"))?;
        let said = Arc::<Said>::default();
        if let Some(stderr) = child.stderr.take() {
            let said = said.clone();
            thread::spawn(move || listen(stderr, &said));
        }
        let mut forwarder = Self {
            child,
            said,
            address: SocketAddr::from(([0, 0, 0, 0], 0)).into(),
        };
        let listening = |lines: &[String]| {
            let lines = lines.iter().filter_map(|line| message(line, "listening"));
            lines
                .filter_map(|line| line["listen"].as_str()?.parse::<SocketAddr>().ok())
                .next()
        };
        let address = forwarder.said.wait(listening);
        let address = address.with_context(|| format!("{name} does not listen"))?;
        forwarder.address = address.into();
        Ok(forwarder)
    }

    /// Its process.
    pub(crate) fn process(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// The access records, once there are `count`.
    pub(crate) fn records(&self, count: usize) -> Result<Vec<Value>> {
        self.said
            .wait(|lines| {
                let records = lines.iter().filter_map(|line| message(line, "connection"));
                let records = Vec::from_iter(records);
                (records.len() >= count).then_some(records)
            })
            .with_context(|| format!("no {count} access records"))
    }

    /// Asks it to end and waits until it has.
    pub(crate) fn stop(mut self) -> Result<()> {
        kill_process(self.process(), Signal::TERM)?;
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            if let Some(status) = self.child.try_wait()? {
                if !status.success() {
                    bail!(
                        "the forwarder ended with {status}: {}",
                        self.said.lock().lines.join("\n")
                    );
                }
                return Ok(());
            }
            thread::sleep(Duration::from_millis(10));
        }
        bail!("the forwarder does not end");
    }
}

impl Drop for Forwarder {
    fn drop(&mut self) {
        // Both fail where it has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn listen(stderr: impl Read, said: &Said) {
    for line in BufReader::new(stderr).lines().map_while(Result::ok) {
        said.lock().lines.push(line);
        said.more.notify_all();
    }
    said.lock().ended = true;
    said.more.notify_all();
}

fn message(line: &str, name: &str) -> Option<Value> {
    let value: Value = serde_json::from_str(line).ok()?;
    (value["message"] == name).then_some(value)
}
