//! What really moves a contestant's bytes: relay's record, or the system calls of the others.

use std::{
    fs,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};

use super::{Program, Way};
use crate::{bench::lab::Lab, load::flow};

const PROBE: Duration = Duration::from_millis(1000);
const PATIENCE: Duration = Duration::from_secs(15);

/// Moves bytes through it and fails unless it does so in the way it stands for. Gives what did it.
pub(in crate::bench) fn prove(lab: &Lab, program: &Program) -> Result<String> {
    let address = &program.address;
    let probe = || lab.as_client(|| flow::up(address, PROBE, 1, 64 * 1024));
    match program.contestant.way {
        Way::Routed => Ok("the kernel routes".into()),
        Way::Engine(wanted) => {
            probe()?;
            let engine = engine(program)?;
            ensure!(
                wanted == "auto" || engine == wanted,
                "{engine} has carried it, not {wanted}"
            );
            Ok(engine)
        }
        Way::Splice => {
            let calls = calls(program, || probe().map(drop))?;
            let spliced = count(&calls, &["splice"]);
            ensure!(spliced > 0, "it does not splice: {calls:?}");
            Ok(format!("splice(2), {spliced} calls"))
        }
        Way::Copy => {
            let calls = calls(program, || probe().map(drop))?;
            let spliced = count(&calls, &["splice"]);
            ensure!(spliced == 0, "it splices: {calls:?}");
            let reads = count(&calls, &["read", "recvfrom", "readv", "recvmsg"]);
            ensure!(reads > 0, "it reads nothing: {calls:?}");
            Ok(format!("copies, {reads} reads"))
        }
    }
}

/// The engine in the last record.
fn engine(program: &Program) -> Result<String> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let said = program.said();
        let records = said.iter().rev().filter_map(|line| {
            let line: serde_json::Value = serde_json::from_str(line).ok()?;
            (line["message"] == "connection" && line["bytes_up"].as_u64()? > 0)
                .then(|| line["engine"].as_str().map(str::to_owned))?
        });
        if let Some(engine) = { records }.next() {
            return Ok(engine);
        }
        ensure!(Instant::now() < deadline, "it has written no record");
        thread::sleep(Duration::from_millis(10));
    }
}

/// System calls by name, and how often each was made while `act` ran.
pub(in crate::bench) fn calls(
    program: &Program,
    act: impl FnOnce() -> Result<()>,
) -> Result<Vec<(String, u64)>> {
    let directory = tempfile::tempdir()?;
    let output = directory.path().join("calls");
    let mut command = Command::new("strace");
    command
        .args(["-f", "-c", "-U", "name,calls", "-o"])
        .arg(&output);
    for process in program.processes()? {
        command.args(["-p", &process.to_string()]);
    }
    command.stdin(Stdio::null()).stderr(Stdio::null());
    let mut tracer = command.spawn().context("strace, of Debian's strace")?;
    let traced = wait_traced(program, &mut tracer).and_then(|()| act());
    // The table is written at the end.
    let _ = kill_process(Pid::from_child(&tracer), Signal::INT);
    tracer.wait()?;
    traced?;
    let table = fs::read_to_string(&output).context("strace wrote no table")?;
    Ok(table.lines().filter_map(row).collect())
}

fn wait_traced(program: &Program, tracer: &mut std::process::Child) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    while Instant::now() < deadline {
        if let Some(status) = tracer.try_wait()? {
            bail!("strace ended: {status}");
        }
        let processes = program.processes()?;
        let traced = |process: &u32| {
            let status = fs::read_to_string(format!("/proc/{process}/status"));
            // One that has ended needs no tracer.
            status.map_or(true, |status| !status.contains("TracerPid:\t0\n"))
        };
        if processes.iter().all(traced) {
            return Ok(());
        }
        thread::sleep(Duration::from_millis(10));
    }
    bail!("strace does not attach");
}

fn row(line: &str) -> Option<(String, u64)> {
    let (name, calls) = line.trim().split_once(char::is_whitespace)?;
    let calls = calls.trim().parse().ok()?;
    (name != "total").then(|| (name.to_owned(), calls))
}

/// Those of these names together.
pub(in crate::bench) fn count(calls: &[(String, u64)], names: &[&str]) -> u64 {
    let of = calls
        .iter()
        .filter(|(name, _)| names.contains(&name.as_str()));
    of.map(|(_, calls)| calls).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_calls_is_read() {
        let table = "syscall                calls\n---------------- ---------\nsplice                 120\nepoll_wait               7\n---------------- ---------\ntotal                  127\n";
        let calls = Vec::from_iter(table.lines().filter_map(row));
        assert_eq!(count(&calls, &["splice"]), 120);
        assert_eq!(count(&calls, &["splice", "epoll_wait"]), 127);
        assert_eq!(calls.len(), 2);
    }
}
