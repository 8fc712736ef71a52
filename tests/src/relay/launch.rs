//! How the binary is started: arguments, namespace, user, capabilities, seccomp profile.

use std::{
    collections::BTreeMap,
    io::{ErrorKind, Read},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    thread,
};

use anyhow::{Context, Result, bail, ensure};
use rustix::thread::{CapabilitySet, remove_capability_from_bounding_set};
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};

use super::Relay;
use crate::{
    census::Census,
    netns::{Place, on_a_thread},
    patience,
    peer::Address,
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
    variables: Vec<(String, PathBuf)>,
    by: Vec<String>,
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
            variables: Vec::new(),
            by: Vec::new(),
        }
    }

    /// The forwarder from `listen` to `to`, with its log in JSON.
    #[must_use]
    pub fn forward(listen: &Address, to: &Address) -> Self {
        Self::new(["--log-format", "json"]).route(listen, to)
    }

    /// The forwarder that reads `file`, with its log in JSON.
    #[must_use]
    pub fn config(file: &Path) -> Self {
        let flags = ["--log-format", "json", "--config"].map(String::from);
        Self::new(flags.into_iter().chain([file.display().to_string()]))
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

    /// With a path in this environment variable.
    #[must_use]
    pub fn variable(mut self, name: &str, path: &Path) -> Self {
        self.variables.push((name.to_owned(), path.to_owned()));
        self
    }

    /// By another program, given with its arguments, which come before relay's own.
    #[must_use]
    pub fn by(mut self, words: Vec<String>) -> Self {
        self.by = words;
        self
    }

    /// Starts it and waits until every route listens.
    ///
    /// # Errors
    ///
    /// Fails when it ends instead, with what it said.
    pub fn start(self) -> Result<Relay> {
        let (child, keep) = self.spawn(&|command| {
            command.stdout(Stdio::null()).stderr(Stdio::piped());
        })?;
        let mut relay = Relay::of(child, keep)?;
        relay.wait_for_listeners()?;
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
            let mut command = match &self.by[..] {
                [] => Command::new(&binary),
                [program, words @ ..] => {
                    let mut command = Command::new(program);
                    command.args(words);
                    command
                }
            };
            command.args(&self.arguments).stdin(Stdio::null());
            command.current_dir("/");
            let variables = self.variables.iter();
            command.envs(variables.map(|(name, path)| (name, path)));
            if let Some(user) = self.user {
                command.uid(user).gid(user);
            }
            streams(&mut command);
            if !self.refused.is_empty() {
                seccompiler::apply_filter(&profile(&self.refused)?)?;
            }
            let child = patience::until("the binary to be nobody's to write", || {
                match command.spawn() {
                    // Another thread's child, between its fork and its exec, still has the copy open for writing.
                    Err(error) if error.kind() == ErrorKind::ExecutableFileBusy => Ok(None),
                    other => Ok(Some(other?)),
                }
            });
            let child = child.with_context(|| format!("start {}", binary.display()))?;
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
