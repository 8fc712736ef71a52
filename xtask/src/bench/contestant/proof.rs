//! What really moves a contestant's bytes: relay's record, or the system calls of the others.

use std::{
    fs,
    path::Path,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};

use super::{Program, Way};
use crate::{bench::lab::Lab, load::flow};

const PROBE: Duration = Duration::from_millis(1000);
const PATIENCE: Duration = Duration::from_secs(15);

/// Moves bytes up through it and fails unless it does so in this way. Gives what did it.
pub(in crate::bench) fn prove(lab: &Lab, program: &Program, way: Way) -> Result<String> {
    let address = &program.address;
    let probe = || lab.as_client(|| flow::up(address, PROBE, 1, 64 * 1024));
    match way {
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
        Way::Splice | Way::Copy | Way::Either => {
            let calls = calls(program, || probe().map(drop))?;
            let spliced = count(&calls, &["splice"]);
            let reads = count(&calls, &["read", "recvfrom", "readv", "recvmsg"]);
            ensure!(
                way != Way::Splice || spliced > 0,
                "it does not splice: {calls:?}"
            );
            ensure!(way != Way::Copy || spliced == 0, "it splices: {calls:?}");
            if spliced > 0 {
                return Ok(format!("splice(2), {spliced} calls"));
            }
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
    let mut tracer = attach(program, &output)?;
    let acted = act();
    // The table is written at the end.
    stop(&mut tracer)?;
    acted?;
    let table = fs::read_to_string(&output).context("strace wrote no table")?;
    Ok(table.lines().filter_map(row).collect())
}

/// strace on all processes.
fn attach(program: &Program, output: &Path) -> Result<Child> {
    let deadline = Instant::now() + PATIENCE;
    while Instant::now() < deadline {
        let processes = program.processes()?;
        let mut command = Command::new("strace");
        command.args(["-f", "-c", "-U", "name,calls", "-o"]);
        command.arg(output);
        for process in &processes {
            command.args(["-p", &process.to_string()]);
        }
        command.stdin(Stdio::null()).stderr(Stdio::null());
        let mut tracer = command.spawn().context("strace, of Debian's strace")?;
        let traced = wait_traced(program, &processes, &mut tracer, deadline);
        if !matches!(traced, Ok(true)) {
            stop(&mut tracer)?;
        }
        if traced? {
            return Ok(tracer);
        }
    }
    bail!("strace does not attach");
}

/// By force where it has to be. To let go of the first process of a PID namespace that was killed meanwhile strace waits for
/// its end, and that process waits for others, which strace has yet to reap.
fn stop(tracer: &mut Child) -> Result<()> {
    let _ = kill_process(Pid::from_child(tracer), Signal::INT);
    let deadline = Instant::now() + PATIENCE;
    while tracer.try_wait()?.is_none() {
        if Instant::now() > deadline {
            tracer.kill()?;
        }
        thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

/// Waits until all of `known` are traced. False when there is another that is not, for it was forked meanwhile.
fn wait_traced(
    program: &Program,
    known: &[u32],
    tracer: &mut Child,
    deadline: Instant,
) -> Result<bool> {
    while Instant::now() < deadline {
        if let Some(status) = tracer.try_wait()? {
            bail!("strace ended: {status}");
        }
        let untraced = |process: &u32| {
            let status = fs::read_to_string(format!("/proc/{process}/status"));
            // One that has ended needs no tracer.
            status.is_ok_and(|status| status.contains("TracerPid:\t0\n"))
        };
        let left = program.processes()?.into_iter().filter(untraced);
        let left = Vec::from_iter(left);
        if left.is_empty() {
            return Ok(true);
        }
        if left.iter().all(|process| !known.contains(process)) {
            return Ok(false);
        }
        thread::sleep(Duration::from_millis(10));
    }
    Ok(false)
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
