//! Starts the `relay` binary, reads what it says, and makes sure that it ends.

mod launch;

use std::{
    collections::HashSet,
    io::{BufRead, BufReader},
    os::unix::process::ExitStatusExt,
    process::Child,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Resource, Rlimit, Signal, kill_process, prlimit};
use serde_json::Value;

use crate::{census::Census, patience, peer::Address, record::Record};

pub use launch::{Finished, Launch, binary};

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
    /// Those of `records` that [`Relay::record_of`] gave.
    given: HashSet<usize>,
    listening: Vec<Address>,
    /// All routes listen.
    started: bool,
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
            "engines offered, best first" => self.started = true,
            _ => (),
        }
        Ok(())
    }

    fn give(&mut self, client: &str) -> Option<Record> {
        let mut records = self.records.iter().enumerate();
        let (at, record) =
            records.find(|(at, one)| one.client == client && !self.given.contains(at))?;
        self.given.insert(at);
        Some(record.clone())
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

    fn wait_for_listeners(&mut self) -> Result<()> {
        let log = self.log.clone();
        patience::until_true("relay to listen", || {
            let said = log.lock();
            if !said.started && said.ended {
                bail!("relay ended:\n{}", said.lines.join("\n"));
            }
            Ok(said.started)
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

    /// Where it has come to listen by now, also since its start.
    #[must_use]
    pub fn listening(&self) -> Vec<Address> {
        self.log.lock().listening.clone()
    }

    /// Waits until a line of the log has `words`, `count` times in all.
    ///
    /// # Errors
    ///
    /// Fails when it does not come.
    pub fn says(&self, words: &str, count: usize) -> Result<()> {
        patience::until_true(&format!("relay to say {words:?}"), || {
            let said = self.log.lock();
            let found = said.lines.iter().filter(|line| line.contains(words));
            Ok(found.count() >= count)
        })
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

    /// Waits for the record of the connection from `client`, and gives each record once: a port that is free again is
    /// soon another connection's.
    ///
    /// # Errors
    ///
    /// Fails when it does not come.
    pub fn record_of(&self, client: &str) -> Result<Record> {
        patience::until(&format!("the record of {client}"), || {
            Ok(self.log.lock().give(client))
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
