//! One compiled set of tests, run to its end while its words are shown and kept.

use std::{
    io::{self, BufRead, BufReader, Read, Write},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Command, ExitStatus, Stdio},
    sync::{Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::Value;

/// Longer than any set of tests takes, and well within what a pipeline allows for all of them.
const LIMIT: Duration = Duration::from_secs(15 * 60);

/// A compiled set of tests.
pub(super) struct Binary {
    pub(super) name: String,
    pub(super) path: PathBuf,
    /// Of its package; it runs in there.
    pub(super) directory: PathBuf,
    /// Drives the program from outside.
    pub(super) drives: bool,
}

impl Binary {
    /// What one of cargo's messages says was built, if it is a set of tests.
    pub(super) fn built(message: &Value) -> Option<Self> {
        let text = |value: &Value| value.as_str().map(str::to_owned);
        if message["reason"] != "compiler-artifact" || message["profile"]["test"] != true {
            return None;
        }
        let kind = text(&message["target"]["kind"][0])?;
        let target = text(&message["target"]["name"])?;
        let manifest = PathBuf::from(text(&message["manifest_path"])?);
        let directory = manifest.parent()?.to_owned();
        let package = directory.file_name()?.to_string_lossy().into_owned();
        Some(Self {
            name: format!("{package}: {kind} {target}"),
            path: text(&message["executable"])?.into(),
            directory,
            drives: kind == "test",
        })
    }
}

/// What came of a set of tests.
pub(super) struct Ran {
    pub(super) said: String,
    pub(super) status: ExitStatus,
    /// It was killed at the limit.
    pub(super) hung: bool,
}

/// Runs `command` in a process group of its own, with no limit where it is a `soak`.
pub(super) fn run(command: &mut Command, relay: &Path, skips: &Path, soak: bool) -> Result<Ran> {
    command
        .env("RELAY_BIN", relay)
        .env("RELAY_SKIPS", skips)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0);
    let name = command.get_program().to_string_lossy().into_owned();
    let mut child = command
        .spawn()
        .with_context(|| format!("could not run {name}"))?;
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let group = Pid::from_child(&child);
    let begun = Instant::now();
    let said = Mutex::new(String::new());
    thread::scope(|scope| {
        // A process left behind by a test may hold them open: they are not waited for without an end.
        let readers = [
            scope.spawn(|| show(stdout, io::stdout(), &said)),
            scope.spawn(|| show(stderr, io::stderr(), &said)),
        ];
        let mut hung = false;
        let status = loop {
            if let Some(status) = child.try_wait()? {
                break status;
            }
            if !soak && !hung && begun.elapsed() > LIMIT {
                hung = true;
                let _ = kill_process_group(group, Signal::KILL);
            }
            thread::sleep(Duration::from_millis(20));
        };
        let closing = Instant::now();
        while readers.iter().any(|reader| !reader.is_finished()) {
            if closing.elapsed() > Duration::from_secs(5) {
                let _ = kill_process_group(group, Signal::KILL);
            }
            thread::sleep(Duration::from_millis(5));
        }
        let said = std::mem::take(&mut *said.lock().unwrap_or_else(PoisonError::into_inner));
        Ok(Ran { said, status, hung })
    })
}

fn show(from: Option<impl Read>, mut to: impl Write, said: &Mutex<String>) {
    let Some(from) = from else { return };
    let mut lines = BufReader::new(from);
    let mut line = Vec::new();
    while lines
        .read_until(b'\n', &mut line)
        .is_ok_and(|read| read > 0)
    {
        // Whoever reads this may be gone; the account at the end is what counts.
        let _ = to.write_all(&line).and_then(|()| to.flush());
        said.lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push_str(&String::from_utf8_lossy(&line));
        line.clear();
    }
}
