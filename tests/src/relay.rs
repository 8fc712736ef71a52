//! Starts the `relay` binary, reads what it says, and makes sure that it ends.

use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader, Read},
    os::unix::process::{CommandExt, ExitStatusExt},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
};

use anyhow::{Context, Result, bail, ensure};
use rustix::{
    process::{Pid, Resource, Rlimit, Signal, kill_process, prlimit},
    thread::{CapabilitySet, remove_capability_from_bounding_set},
};
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};
use serde_json::Value;

use crate::{
    census::Census,
    netns::{Place, on_a_thread},
    patience,
    peer::Address,
    record::Record,
};

/// Where the binary under test is.
///
/// # Errors
///
/// Fails when there is none.
pub fn binary() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os("RELAY_BIN") {
        return Ok(path.into());
    }
    // The test is target/PROFILE/deps/NAME-HASH.
    let test = std::env::current_exe()?;
    let beside = test.parent().and_then(Path::parent);
    let beside = beside.context("no target folder")?.join("relay");
    ensure!(
        beside.exists(),
        "there is no relay at {}: run `cargo xtask test`, or set RELAY_BIN to the binary",
        beside.display()
    );
    Ok(beside)
}

/// How relay is to be started.
#[derive(Clone, Debug)]
pub struct Launch {
    arguments: Vec<String>,
    place: Place,
    user: Option<u32>,
    without: Vec<CapabilitySet>,
    refused: Vec<i64>,
}

impl Launch {
    /// With these arguments, here, with all that the tests themselves may do.
    #[must_use]
    pub fn new<A: Into<String>>(arguments: impl IntoIterator<Item = A>) -> Self {
        Self {
            arguments: arguments.into_iter().map(Into::into).collect(),
            place: Place::Here,
            user: None,
            without: Vec::new(),
            refused: Vec::new(),
        }
    }

    /// The forwarder from `listen` to `to`, with its log in JSON.
    #[must_use]
    pub fn forward(listen: &Address, to: &Address) -> Self {
        Self::new(["--log-format", "json"]).route(listen, to)
    }

    /// One more route.
    #[must_use]
    pub fn route(self, listen: &Address, to: &Address) -> Self {
        self.with(["--listen", &listen.to_string(), "--to", &to.to_string()])
    }

    /// More arguments.
    #[must_use]
    pub fn with<A: Into<String>>(mut self, arguments: impl IntoIterator<Item = A>) -> Self {
        self.arguments.extend(arguments.into_iter().map(Into::into));
        self
    }

    /// In this place.
    #[must_use]
    pub fn at(mut self, place: &Place) -> Self {
        self.place = place.clone();
        self
    }

    /// As another user, so without capabilities.
    #[must_use]
    pub fn user(mut self, user: u32) -> Self {
        self.user = Some(user);
        self
    }

    /// As the same user, without this capability.
    #[must_use]
    pub fn without(mut self, capability: CapabilitySet) -> Self {
        self.without.push(capability);
        self
    }

    /// Under a seccomp profile that answers this system call with `EPERM`.
    #[must_use]
    pub fn refuse(mut self, call: i64) -> Self {
        self.refused.push(call);
        self
    }

    /// Starts it and waits until every route listens.
    ///
    /// # Errors
    ///
    /// Fails when it ends instead, with what it said.
    pub fn start(self) -> Result<Relay> {
        let routes = self.arguments.iter().filter(|&one| one == "--listen");
        let routes = routes.count();
        let (child, keep) = self.spawn(&|command| {
            command.stdout(Stdio::null()).stderr(Stdio::piped());
        })?;
        let mut relay = Relay::of(child, keep)?;
        relay.wait_for_listeners(routes)?;
        relay.baseline = Some(Census::of(relay.process)?);
        Ok(relay)
    }

    /// Runs it to its end.
    ///
    /// # Errors
    ///
    /// Fails when it does not end.
    pub fn run(self) -> Result<Finished> {
        let (mut child, _keep) = self.spawn(&|command| {
            command.stdout(Stdio::piped()).stderr(Stdio::piped());
        })?;
        let mut stdout = child.stdout.take().context("no stdout")?;
        let mut stderr = child.stderr.take().context("no stderr")?;
        let reading = thread::spawn(move || {
            let mut text = String::new();
            stdout.read_to_string(&mut text).map(|_| text)
        });
        let reading_errors = thread::spawn(move || {
            let mut text = String::new();
            stderr.read_to_string(&mut text).map(|_| text)
        });
        let status = match patience::until("relay to end", || Ok(child.try_wait()?)) {
            Ok(status) => status,
            Err(error) => {
                let _ = child.kill();
                let _ = child.wait();
                let said = reading_errors.join();
                return Err(error.context(format!("{said:?}")));
            }
        };
        let text = |joined: thread::Result<std::io::Result<String>>| match joined {
            Ok(text) => Ok(text?),
            Err(_) => bail!("the reader panicked"),
        };
        Ok(Finished {
            status,
            stdout: text(reading.join())?,
            stderr: text(reading_errors.join())?,
        })
    }

    /// Spawns it with its standard streams as `streams` says; the caller waits for it.
    ///
    /// The second value has to outlive the process.
    ///
    /// # Errors
    ///
    /// Fails when the thread cannot be prepared or the binary not be run.
    pub fn spawn(
        &self,
        streams: &(dyn Fn(&mut Command) + Sync),
    ) -> Result<(Child, Option<tempfile::TempDir>)> {
        // Namespace, bounding set and seccomp profile belong to the thread, and the child inherits them from it.
        on_a_thread(|| {
            let mut binary = binary()?;
            let mut keep = None;
            if self.user.is_some() {
                let (folder, copy) = for_everybody(&binary)?;
                (keep, binary) = (Some(folder), copy);
            }
            self.place.move_thread()?;
            for capability in &self.without {
                remove_capability_from_bounding_set(*capability)?;
            }
            let mut command = Command::new(&binary);
            command.args(&self.arguments).stdin(Stdio::null());
            command.current_dir("/");
            if let Some(user) = self.user {
                command.uid(user).gid(user);
            }
            streams(&mut command);
            if !self.refused.is_empty() {
                seccompiler::apply_filter(&profile(&self.refused)?)?;
            }
            let child = command
                .spawn()
                .with_context(|| format!("start {}", binary.display()))?;
            Ok((child, keep))
        })
    }
}

/// A copy that every user may reach: the build folder may be in a home that is closed to others.
fn for_everybody(binary: &Path) -> Result<(tempfile::TempDir, PathBuf)> {
    use std::{fs, os::unix::fs::PermissionsExt};
    let folder = tempfile::tempdir()?;
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755))?;
    let copy = folder.path().join("relay");
    fs::copy(binary, &copy)?;
    fs::set_permissions(&copy, fs::Permissions::from_mode(0o755))?;
    Ok((folder, copy))
}

fn profile(refused: &[i64]) -> Result<BpfProgram> {
    let rules: BTreeMap<i64, Vec<_>> = refused.iter().map(|call| (*call, vec![])).collect();
    let refusal = SeccompAction::Errno(libc::EPERM.unsigned_abs());
    let machine = std::env::consts::ARCH.try_into()?;
    Ok(SeccompFilter::new(rules, SeccompAction::Allow, refusal, machine)?.try_into()?)
}

/// A process that has ended.
#[derive(Debug)]
pub struct Finished {
    /// How.
    pub status: ExitStatus,
    /// What it wrote to standard output.
    pub stdout: String,
    /// What it wrote to standard error.
    pub stderr: String,
}

impl Finished {
    /// Checks that it failed with `code` and one line that has all of `words`.
    ///
    /// # Errors
    ///
    /// Fails otherwise.
    pub fn failed(&self, code: i32, words: &[&str]) -> Result<()> {
        ensure!(
            self.status.code() == Some(code),
            "not exit code {code}: {self:?}"
        );
        ensure!(!self.stderr.contains("panicked"), "it panicked: {self:?}");
        let has_all = |line: &str| words.iter().all(|word| line.contains(word));
        ensure!(
            self.stderr.lines().any(has_all),
            "no line with {words:?}: {self:?}"
        );
        Ok(())
    }
}

/// A forwarder that runs. Dropping it kills it; what a failed test leaves is printed.
#[derive(Debug)]
pub struct Relay {
    child: Child,
    process: Pid,
    log: Arc<Log>,
    addresses: Vec<Address>,
    baseline: Option<Census>,
    finished: bool,
    _keep: Option<tempfile::TempDir>,
}

#[derive(Debug, Default)]
struct Log(Mutex<Said>);

#[derive(Debug, Default)]
struct Said {
    lines: Vec<String>,
    records: Vec<Record>,
    listening: Vec<Address>,
    /// The first line that is not what the log promises.
    broken: Option<String>,
    ended: bool,
}

impl Log {
    fn lock(&self) -> MutexGuard<'_, Said> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, line: String) {
        let mut said = self.lock();
        if let Err(fault) = said.take_in(&line) {
            said.broken.get_or_insert(format!("{line}: {fault:#}"));
        }
        said.lines.push(line);
    }
}

impl Said {
    fn take_in(&mut self, line: &str) -> Result<()> {
        let value: Value = serde_json::from_str(line)?;
        match value["message"].as_str().context("no message")? {
            "connection" => self.records.push(serde_json::from_value(value)?),
            "listening" => {
                let address = value["listen"].as_str().context("no address")?;
                self.listening.push(Address::parse(address)?);
            }
            _ => (),
        }
        Ok(())
    }
}

impl Relay {
    fn of(mut child: Child, keep: Option<tempfile::TempDir>) -> Result<Self> {
        let stderr = child.stderr.take().context("no stderr")?;
        let log = Arc::new(Log::default());
        thread::spawn({
            let log = log.clone();
            move || {
                for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                    log.add(line);
                }
                log.lock().ended = true;
            }
        });
        Ok(Self {
            process: Pid::from_child(&child),
            child,
            log,
            addresses: Vec::new(),
            baseline: None,
            finished: false,
            _keep: keep,
        })
    }

    fn wait_for_listeners(&mut self, count: usize) -> Result<()> {
        let log = self.log.clone();
        patience::until_true("relay to listen", || {
            let said = log.lock();
            if said.listening.len() < count && said.ended {
                bail!("relay ended:\n{}", said.lines.join("\n"));
            }
            Ok(said.listening.len() >= count)
        })?;
        self.addresses = log.lock().listening.clone();
        Ok(())
    }

    /// Where the first route listens.
    #[must_use]
    pub fn address(&self) -> &Address {
        &self.addresses[0]
    }

    /// Where all routes listen, in the order in which they came up.
    #[must_use]
    pub fn addresses(&self) -> &[Address] {
        &self.addresses
    }

    /// Its process.
    #[must_use]
    pub fn process(&self) -> Pid {
        self.process
    }

    /// Waits for this many access records, and gives all there are.
    ///
    /// # Errors
    ///
    /// Fails when they do not come.
    pub fn records(&self, count: usize) -> Result<Vec<Record>> {
        patience::until(&format!("{count} records"), || {
            let said = self.log.lock();
            Ok((said.records.len() >= count).then(|| said.records.clone()))
        })
        .with_context(|| format!("{} came", self.log.lock().records.len()))
    }

    /// Waits for the record of the connection from `client`.
    ///
    /// # Errors
    ///
    /// Fails when it does not come.
    pub fn record_of(&self, client: &str) -> Result<Record> {
        patience::until(&format!("the record of {client}"), || {
            let said = self.log.lock();
            Ok(said
                .records
                .iter()
                .find(|one| one.client == client)
                .cloned())
        })
    }

    /// Waits for the only record.
    ///
    /// # Errors
    ///
    /// Fails when it does not come, or another one does.
    pub fn record(&self) -> Result<Record> {
        let mut records = self.records(1)?;
        ensure!(records.len() == 1, "more than one record: {records:?}");
        records.pop().context("no record")
    }

    /// Whether a line of the log has `words`.
    #[must_use]
    pub fn has_said(&self, words: &str) -> bool {
        let said = self.log.lock();
        said.lines.iter().any(|line| line.contains(words))
    }

    /// What it held when it began to listen.
    ///
    /// # Errors
    ///
    /// Fails before that.
    pub fn baseline(&self) -> Result<&Census> {
        self.baseline.as_ref().context("no baseline")
    }

    /// Waits until it holds no more than at the beginning.
    ///
    /// # Errors
    ///
    /// Fails when something has leaked.
    pub fn settle(&self) -> Result<()> {
        let baseline = self.baseline()?;
        let mut last = None;
        patience::until_true("descriptors and map entries to be given back", || {
            let census = Census::of(self.process)?;
            let back = census.is_back_at(baseline);
            last = Some(census);
            Ok(back)
        })
        .with_context(|| format!("held: {last:?}, at the beginning: {baseline:?}"))
    }

    /// Limits how many descriptors it may have from now on.
    ///
    /// # Errors
    ///
    /// Fails without privileges.
    pub fn limit_descriptors(&self, count: u64) -> Result<()> {
        let limit = Rlimit {
            current: Some(count),
            maximum: Some(count),
        };
        prlimit(Some(self.process), Resource::Nofile, limit)?;
        Ok(())
    }

    /// Sends it a signal.
    ///
    /// # Errors
    ///
    /// Fails when it is gone.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        Ok(kill_process(self.process, signal)?)
    }

    /// Stops it as SIGSTOP does and waits until it has stopped.
    ///
    /// # Errors
    ///
    /// Fails when it is gone.
    pub fn pause(&self) -> Result<()> {
        self.signal(Signal::STOP)?;
        let stat = format!("/proc/{}/stat", self.process.as_raw_nonzero());
        patience::until_true("relay to stop", || {
            let stat = std::fs::read_to_string(&stat)?;
            let after_name = stat.rsplit_once(')').map(|(_, rest)| rest.trim_start());
            Ok(after_name.is_some_and(|rest| rest.starts_with('T')))
        })
    }

    /// Lets it go on after [`Relay::pause`].
    ///
    /// # Errors
    ///
    /// Fails when it is gone.
    pub fn resume(&self) -> Result<()> {
        self.signal(Signal::CONT)
    }

    /// Waits until it has ended, and checks that all it said was in order.
    ///
    /// # Errors
    ///
    /// Fails when it does not end, or was killed by a signal.
    pub fn exit_code(&mut self) -> Result<i32> {
        let status = patience::until("relay to end", || Ok(self.child.try_wait()?))?;
        let log = self.log.clone();
        patience::until_true("the end of its log", || Ok(log.lock().ended))?;
        if let Some(broken) = &log.lock().broken {
            bail!("the log is not JSON: {broken}");
        }
        match (status.code(), status.signal()) {
            (Some(code), _) => {
                self.finished = true;
                Ok(code)
            }
            (None, signal) => bail!("relay was ended by signal {signal:?}"),
        }
    }

    /// Kills it.
    ///
    /// # Errors
    ///
    /// Fails when that does not end it.
    pub fn kill(mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        self.finished = true;
        Ok(())
    }

    /// Waits for `connections` records and for everything to be given back; then asks it to end, which must be clean.
    ///
    /// # Errors
    ///
    /// Fails when there are other records, when something has leaked, and when the end is not clean.
    pub fn finish(self, connections: usize) -> Result<Vec<Record>> {
        self.records(connections)?;
        let said = self.log.clone();
        let records = self.finish_all()?;
        if records.len() != connections {
            let lines = said.lock().lines.join("\n");
            bail!("{} records, not {connections}:\n{lines}", records.len());
        }
        Ok(records)
    }

    /// The same, however many connections there were.
    ///
    /// # Errors
    ///
    /// Fails when something has leaked, and when the end is not clean.
    pub fn finish_all(mut self) -> Result<Vec<Record>> {
        self.settle()?;
        self.signal(Signal::TERM)?;
        let code = self.exit_code()?;
        if code != 0 {
            self.finished = false;
            bail!("exit code {code}, not 0");
        }
        let records = self.log.lock().records.clone();
        Ok(records)
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if !self.finished {
            let said = self.log.lock();
            eprintln!("--- what relay said ({} lines):", said.lines.len());
            let skipped = said.lines.len().saturating_sub(60);
            for line in &said.lines[skipped..] {
                eprintln!("{line}");
            }
        }
    }
}
