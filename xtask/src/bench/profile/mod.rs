//! `--profile`: `perf` over the whole machine while a contestant has a turn of its own, for a flame graph of it.

mod graph;

use std::{
    fs::{self, File},
    io::{BufReader, Read, Write},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use anyhow::{Context, Result, bail, ensure};

use self::graph::Stacks;
use super::{
    contestant::{Contestant, find},
    results::{Profile, Table},
};
use crate::{host, run};

/// Debian's package.
pub(super) const PACKAGE: &str = "linux-perf";

/// A CPU takes so many samples a second; not 1000, so as not to keep step with a timer.
const FREQUENCY: u32 = 999;

/// Records turns and draws them.
pub(super) struct Profiler {
    perf: PathBuf,
    /// Where the graphs go.
    directory: PathBuf,
    /// The relay whose stacks can be followed, where it is not given.
    relay: Option<PathBuf>,
}

impl Profiler {
    /// Fails where perf is missing or cannot record, with the way out.
    pub(super) fn new(directory: &Path) -> Result<Self> {
        let perf = find("perf").with_context(|| {
            format!("--profile needs perf: Debian's {PACKAGE}, which --install gets")
        })?;
        fs::create_dir_all(directory).with_context(|| directory.display().to_string())?;
        let profiler = Self {
            perf,
            directory: fs::canonicalize(directory)?,
            relay: None,
        };
        let scratch = tempfile::tempdir()?;
        profiler
            .record(&scratch.path().join("data"), || Ok(()))
            .with_context(way_out)?;
        let symbols = fs::read_to_string("/proc/kallsyms").context("/proc/kallsyms")?;
        ensure!(
            graph::shows_addresses(&symbols),
            "the kernel hides its symbols from perf: `sysctl kernel.kptr_restrict=1` shows them to root"
        );
        Ok(profiler)
    }

    /// Builds relay so that its stacks can be followed, beside the one that is measured.
    pub(super) fn build(&mut self) -> Result<()> {
        self.relay = Some(run::build_with_frames()?);
        Ok(())
    }

    /// What is to be started instead of what is measured.
    pub(super) fn program(&self, contestant: Contestant) -> Option<PathBuf> {
        self.relay.clone().filter(|_| contestant.is_ours())
    }

    /// Does `turn` and draws where CPU time went meanwhile.
    pub(super) fn watch<T>(
        &self,
        workload: &str,
        contestant: &str,
        turn: impl FnOnce() -> Result<T>,
    ) -> Result<Profile> {
        let scratch = tempfile::tempdir()?;
        let data = scratch.path().join("data");
        self.record(&data, turn)?;
        let stacks = self.read(&data)?;
        let svg = graph::file_name(workload, contestant);
        let path = self.directory.join(&svg);
        let file = File::create(&path).with_context(|| path.display().to_string())?;
        stacks.draw(&format!("{contestant}, {workload}"), FREQUENCY, file)?;
        Ok(Profile {
            svg,
            samples: stacks.busy(),
            idle: stacks.idle,
            hottest: stacks.hottest(),
        })
    }

    /// Records all CPUs while `act` runs: what the kernel does for a connection is in no process's account.
    fn record<T>(&self, data: &Path, act: impl FnOnce() -> Result<T>) -> Result<T> {
        let said = data.with_extension("said");
        let mut perf = Command::new(&self.perf);
        perf.args(["record", "--all-cpus", "--call-graph", "fp", "--freq"]);
        perf.arg(FREQUENCY.to_string());
        perf.args(["--no-buildid", "--no-buildid-cache", "--output"])
            .arg(data);
        // Started once perf counts, and perf ends with it: at the latest when this process does, whose pipe it reads.
        perf.args(["--", "cat"]);
        perf.stdin(Stdio::piped()).stdout(Stdio::piped());
        perf.stderr(File::create(&said)?);
        // The turn under way is the last when Ctrl-C comes, and is recorded whole.
        perf.process_group(0);
        let mut perf = perf.spawn().context("perf")?;
        let recording = wait_recording(&mut perf);
        let done = recording.is_ok().then(act);
        drop(perf.stdin.take());
        let status = perf.wait()?;
        match done {
            Some(done) if status.success() => done,
            _ => bail!(
                "perf record: {}",
                graph::complaint(&fs::read_to_string(said)?)
            ),
        }
    }

    fn read(&self, data: &Path) -> Result<Stacks> {
        let mut script = Command::new(&self.perf);
        // Inlined functions would take a debugger's look at every address.
        script.args(["script", "--no-inline", "--fields"]);
        script.args(["comm,tid,time,event,ip,sym,dso", "--input"]);
        script.arg(data).env_remove("DEBUGINFOD_URLS");
        script.stdin(Stdio::null()).stderr(Stdio::null());
        let mut script = script.stdout(Stdio::piped()).spawn().context("perf")?;
        let text = script.stdout.take().context("no pipe")?;
        let stacks = Stacks::read(BufReader::new(text));
        let status = script.wait()?;
        ensure!(status.success(), "perf script: {status}");
        stacks
    }
}

/// The graphs of one workload, for the terminal.
pub(super) fn listing(directory: &Path, table: &Table) -> String {
    let rows = table.rows.iter();
    let graphs = rows.filter_map(|row| Some((&row.contestant, row.profile.as_ref()?)));
    let lines = graphs.map(|(contestant, profile)| {
        let svg = directory.join(&profile.svg);
        format!("flame graph of {contestant}: {}\n", svg.display())
    });
    lines.collect()
}

/// Where the graphs in `directory` are for a page at `page`: the shorter way where it leads down.
pub(super) fn link(directory: &Path, page: &Path) -> Result<String> {
    let directory = fs::canonicalize(directory)?;
    let beside = match page.parent() {
        Some(parent) if parent != Path::new("") => fs::canonicalize(parent)?,
        _ => std::env::current_dir()?,
    };
    let link = directory.strip_prefix(&beside).unwrap_or(&directory);
    Ok(match link.to_string_lossy() {
        link if link.is_empty() => String::new(),
        link => format!("{link}/"),
    })
}

/// Where they go when no place is named.
pub(super) fn default_directory() -> Result<PathBuf> {
    Ok(host::target()?.join("bench-profile"))
}

fn wait_recording(perf: &mut Child) -> Result<()> {
    let stdin = perf.stdin.as_mut().context("no pipe")?;
    stdin.write_all(b"\n")?;
    let stdout = perf.stdout.as_mut().context("no pipe")?;
    Ok(stdout.read_exact(&mut [0])?)
}

fn way_out() -> String {
    let paranoid = fs::read_to_string("/proc/sys/kernel/perf_event_paranoid");
    let paranoid = paranoid.unwrap_or_else(|_| "absent".into());
    format!(
        "--profile needs a perf that can record all CPUs: as root, in a container with CAP_PERFMON and a seccomp profile that \
         lets perf_event_open pass, or with `sysctl kernel.perf_event_paranoid=-1` (it is {})",
        paranoid.trim()
    )
}
