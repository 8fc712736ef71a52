//! The bench itself: what it starts is gone afterwards, and who dies is reported while the rest go on.

use std::{
    ffi::OsStr,
    fs::{self, File},
    os::unix::{fs::symlink, process::CommandExt},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use anyhow::{Context, Result, ensure};
use relay_tests::{
    needs::{self, Need},
    patience,
    relay::binary,
};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// What socat does is seen with strace.
const NEEDS: [Need; 4] = [
    Need::Root,
    Need::Namespaces,
    Need::Program("socat"),
    Need::Program("strace"),
];

struct Bench {
    child: Child,
    directory: tempfile::TempDir,
}

impl Bench {
    /// A ping-pong of all three.
    fn start(rounds: u32) -> Result<Self> {
        Self::of(
            "pingpong-64x1",
            &["direct", "socat", "relay splice"],
            rounds,
        )
    }

    fn of(workload: &str, contestants: &[&str], rounds: u32) -> Result<Self> {
        Self::with(workload, contestants, rounds, 100, |_, _| Ok(()))
    }

    /// With turns of `millis`, and what `more` adds to the command, which may write to the directory.
    fn with(
        workload: &str,
        contestants: &[&str],
        rounds: u32,
        millis: u32,
        more: impl FnOnce(&mut Command, &Path) -> Result<()>,
    ) -> Result<Self> {
        let directory = tempfile::tempdir()?;
        let mut command = Command::new(xtask()?);
        command.args(["bench", workload, "--time", &millis.to_string()]);
        command.args(["--rounds", &rounds.to_string()]);
        for contestant in contestants {
            command.args(["--only", contestant]);
        }
        command.arg("--relay").arg(binary()?);
        command.arg("--json").arg(directory.path().join("json"));
        command.arg("--html").arg(directory.path().join("html"));
        command.stdin(Stdio::null()).stdout(Stdio::null());
        more(&mut command, directory.path())?;
        // What it hears is meant for it alone.
        command.process_group(0);
        let child = command.spawn().context("xtask")?;
        Ok(Self { child, directory })
    }

    /// With flame graphs, and what it says kept.
    fn profiling(millis: u32, path: &OsStr) -> Result<Self> {
        let contestants = ["direct", "socat", "relay splice"];
        Self::with(
            "pingpong-64x1",
            &contestants,
            1,
            millis,
            |command, directory| {
                let graphs = directory.join("graphs");
                command.arg(format!("--profile={}", graphs.display()));
                command.env("PATH", path);
                command.stderr(File::create(directory.join("said"))?);
                Ok(())
            },
        )
    }

    fn said(&self) -> Result<String> {
        Ok(fs::read_to_string(self.directory.path().join("said"))?)
    }

    /// The control groups of its contestants.
    fn groups(&self) -> Vec<PathBuf> {
        let mark = format!("relay-bench-{}-", self.child.id());
        let mut found = Vec::new();
        let mut places = vec![PathBuf::from("/sys/fs/cgroup")];
        let mounted = fs::read_dir("/sys/fs/cgroup").into_iter().flatten();
        places.extend(mounted.flatten().map(|entry| entry.path()));
        for place in places {
            let entries = fs::read_dir(place).into_iter().flatten().flatten();
            let of_bench = |path: &PathBuf| {
                let name = path
                    .file_name()
                    .map(|name| name.to_string_lossy().into_owned());
                name.is_some_and(|name| name.starts_with(&mark))
            };
            found.extend(entries.map(|entry| entry.path()).filter(of_bench));
        }
        found
    }

    /// The processes of a contestant, once there are any.
    fn processes(&self, contestant: &str) -> Result<Vec<Pid>> {
        patience::until("a contestant", || {
            let groups = self.groups();
            let group = groups
                .iter()
                .find(|path| path.to_string_lossy().ends_with(contestant));
            let listed = group.and_then(|path| fs::read_to_string(path.join("cgroup.procs")).ok());
            let listed = listed.unwrap_or_default();
            let numbers = listed
                .lines()
                .filter_map(|line| Pid::from_raw(line.parse().ok()?));
            let numbers = Vec::from_iter(numbers);
            // Its first process holds the namespace of the others.
            Ok((numbers.len() > 1).then_some(numbers))
        })
    }

    fn wait(&mut self) -> Result<i32> {
        let status = patience::until("the bench to end", || Ok(self.child.try_wait()?))?;
        status.code().context("killed")
    }

    fn results(&self) -> Result<Value> {
        let text = fs::read_to_string(self.directory.path().join("json"))?;
        Ok(serde_json::from_str(&text)?)
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        // Both fail where it has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn xtask() -> Result<PathBuf> {
    // Not the one that runs the tests: building them may have put another in its place.
    let path = binary()?.with_file_name("xtask");
    ensure!(
        path.is_file(),
        "there is no xtask at {}: run `cargo xtask test`",
        path.display()
    );
    Ok(path)
}

fn row<'a>(results: &'a Value, contestant: &str) -> Result<&'a Value> {
    let rows = results["tables"][0]["rows"].as_array().context("no rows")?;
    let found = rows.iter().find(|row| row["contestant"] == contestant);
    found.with_context(|| format!("no row of {contestant}: {results}"))
}

fn rounds(row: &Value) -> usize {
    let rounds = row["rounds"].as_array();
    rounds.map_or(0, |rounds| {
        rounds.iter().filter(|round| !round.is_null()).count()
    })
}

fn gone(process: Pid) -> bool {
    !Path::new(&format!("/proc/{}", process.as_raw_pid())).exists()
}

#[test]
fn rounds_are_counted_and_nothing_is_left_behind() -> Result<()> {
    if !needs::met("rounds_are_counted_and_nothing_is_left_behind", &NEEDS)? {
        return Ok(());
    }
    let mut bench = Bench::start(2)?;
    ensure!(bench.wait()? == 0, "the bench failed");
    let results = bench.results()?;
    for contestant in ["direct", "socat", "relay splice"] {
        let row = row(&results, contestant)?;
        ensure!(rounds(row) == 2 && row["fault"].is_null(), "{row}");
        let rate = row["rounds"][0][0].as_f64().context("no rate")?;
        ensure!(rate > 1.0, "{row}");
    }
    ensure!(
        row(&results, "relay splice")?["moved_by"] == "splice",
        "{results}"
    );
    ensure!(bench.groups().is_empty(), "{:?} are left", bench.groups());
    let page = fs::read_to_string(bench.directory.path().join("html"))?;
    for word in ["relay splice", "socat", "pingpong-64x1", "<svg"] {
        ensure!(page.contains(word), "no {word} in the report");
    }
    ensure!(
        !page.contains("<script") && !page.contains("src="),
        "not one file"
    );
    Ok(())
}

#[test]
fn unix_sockets_are_measured_and_who_knows_none_does_not_take_part() -> Result<()> {
    const NAME: &str = "unix_sockets_are_measured_and_who_knows_none_does_not_take_part";
    if !needs::met(NAME, &NEEDS)? {
        return Ok(());
    }
    let contestants = ["direct", "relay sockmap", "relay splice", "socat"];
    let mut bench = Bench::of("unix-unix-64k", &contestants, 1)?;
    ensure!(bench.wait()? == 0, "the bench failed");
    let results = bench.results()?;
    for (contestant, moved_by) in [("relay splice", "splice"), ("socat", "copies")] {
        let row = row(&results, contestant)?;
        ensure!(rounds(row) == 1 && row["fault"].is_null(), "{row}");
        let rate = row["rounds"][0][0].as_f64().context("no rate")?;
        ensure!(rate > 0.0, "{row}");
        let seen = row["moved_by"].as_str().context("nothing seen")?;
        ensure!(seen.starts_with(moved_by), "{row}");
    }
    let page = fs::read_to_string(bench.directory.path().join("html"))?;
    for contestant in ["direct", "relay sockmap"] {
        let row = row(&results, contestant)?;
        ensure!(rounds(row) == 0 && row["fault"].is_null(), "{row}");
        ensure!(row["absent"].is_string(), "{row}");
        ensure!(
            page.contains(&format!("{contestant} does not take part")),
            "nothing of {contestant} in the report"
        );
    }
    Ok(())
}

#[test]
fn who_dies_is_reported_and_the_rest_go_on() -> Result<()> {
    if !needs::met("who_dies_is_reported_and_the_rest_go_on", &NEEDS)? {
        return Ok(());
    }
    let mut bench = Bench::start(12)?;
    // Past its start, of which a failure is told, too.
    bench.processes("relay-splice")?;
    for process in bench.processes("socat")? {
        // One may be gone with another.
        let _ = kill_process(process, Signal::KILL);
    }
    ensure!(bench.wait()? == 0, "the bench failed");
    let results = bench.results()?;
    let socat = row(&results, "socat")?;
    let fault = socat["fault"].as_str().context("no fault of socat")?;
    ensure!(fault.contains("ended") && rounds(socat) < 12, "{socat}");
    for contestant in ["direct", "relay splice"] {
        ensure!(rounds(row(&results, contestant)?) == 12, "{results}");
    }
    Ok(())
}

#[test]
fn an_interrupt_keeps_what_is_done_and_leaves_nothing() -> Result<()> {
    if !needs::met("an_interrupt_keeps_what_is_done_and_leaves_nothing", &NEEDS)? {
        return Ok(());
    }
    let mut bench = Bench::start(10_000)?;
    let processes = bench.processes("relay-splice")?;
    bench.processes("socat")?;
    kill_process(Pid::from_child(&bench.child), Signal::INT)?;
    ensure!(bench.wait()? == 130, "no code of an interrupt");
    ensure!(bench.groups().is_empty(), "{:?} are left", bench.groups());
    patience::until_true("its processes to end", || {
        Ok(processes.iter().all(|one| gone(*one)))
    })?;
    row(&bench.results()?, "relay splice")?;
    Ok(())
}

/// Whether perf is there, may record all CPUs, and is told what the kernel's functions are called.
fn perf_works() -> Result<bool> {
    let directory = tempfile::tempdir()?;
    let mut perf = Command::new("perf");
    perf.args(["record", "--all-cpus", "--output"]);
    perf.arg(directory.path().join("data")).args(["--", "true"]);
    perf.stdout(Stdio::null()).stderr(Stdio::null());
    let records = perf.status().is_ok_and(|status| status.success());
    let symbols = fs::read_to_string("/proc/kallsyms")?;
    let mut first = symbols.lines().take(100);
    Ok(records && first.any(|line| !line.starts_with("0000000000000000")))
}

/// The processes that `parent` has started and whose names begin with `name`.
fn children(parent: u32, name: &str) -> Result<Vec<Pid>> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")?.flatten() {
        let status = fs::read_to_string(entry.path().join("status"));
        // One that ends meanwhile is none.
        let Ok(status) = status else { continue };
        let of = |key: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(key));
            line.unwrap_or_default().trim().to_owned()
        };
        if of("Name:").starts_with(name) && of("PPid:") == parent.to_string() {
            found.extend(of("Pid:").parse().ok().and_then(Pid::from_raw));
        }
    }
    Ok(found)
}

#[test]
fn without_a_perf_that_records_nothing_is_measured() -> Result<()> {
    let refused = |programs: &Path, words: [&str; 2]| {
        let mut bench = Bench::profiling(100, programs.as_os_str())?;
        let (code, said) = (bench.wait()?, bench.said()?);
        let told = words.iter().all(|word| said.contains(word));
        ensure!(code == 1 && told, "{code}, {words:?}: {said}");
        ensure!(bench.results().is_err(), "it has measured");
        Ok(())
    };
    let programs = tempfile::tempdir()?;
    refused(programs.path(), ["linux-perf", "--install"])?;
    // Fails as perf does, whatever it is told to do.
    symlink("/bin/false", programs.path().join("perf"))?;
    refused(programs.path(), ["perf_event_paranoid=-1", "CAP_PERFMON"])
}

#[test]
fn a_profile_names_what_ran() -> Result<()> {
    if !needs::met("a_profile_names_what_ran", &NEEDS)? {
        return Ok(());
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut bench = Bench::profiling(100, &path)?;
    let code = bench.wait()?;
    if !perf_works()? {
        let said = bench.said()?;
        let why = ["linux-perf", "perf_event_paranoid=-1", "kptr_restrict"];
        let told = why.iter().any(|word| said.contains(word));
        ensure!(code == 1 && told, "{code}: {said}");
        return Ok(());
    }
    ensure!(code == 0, "{}", bench.said()?);
    let results = bench.results()?;
    let page = fs::read_to_string(bench.directory.path().join("html"))?;
    for contestant in ["direct", "socat", "relay splice"] {
        let row = row(&results, contestant)?;
        ensure!(rounds(row) == 1 && row["fault"].is_null(), "{row}");
        let profile = &row["profile"];
        let name = profile["svg"].as_str().context(bench.said()?)?;
        ensure!(
            page.contains(&format!("href=\"graphs/{name}\"")),
            "no link to {name}"
        );
        let svg = fs::read_to_string(bench.directory.path().join("graphs").join(name))?;
        // Under every round trip, in whichever functions it was met.
        ensure!(svg.contains("<svg") && svg.contains("tcp_sendmsg"), "{svg}");
        let hottest = profile["hottest"][0][0].as_str().context("no function")?;
        ensure!(page.contains(hottest), "no {hottest} in the report");
    }
    let kept = fs::read_dir(bench.directory.path().join("graphs"))?;
    ensure!(kept.count() == 3, "more than the graphs is kept");
    Ok(())
}

#[test]
fn an_end_in_mid_profile_leaves_no_perf() -> Result<()> {
    if !needs::met("an_end_in_mid_profile_leaves_no_perf", &NEEDS)? || !perf_works()? {
        return Ok(());
    }
    let path = std::env::var_os("PATH").context("no PATH")?;
    for signal in [Signal::INT, Signal::KILL] {
        let mut bench = Bench::profiling(1000, &path)?;
        let parent = bench.child.id();
        // One that only tries whether perf works is there before them.
        bench.processes("relay-splice")?;
        let perf = patience::until("perf", || {
            let perf = children(parent, "perf")?;
            Ok((!perf.is_empty()).then_some(perf))
        })?;
        kill_process(Pid::from_child(&bench.child), signal)?;
        let code = patience::until("the bench to end", || Ok(bench.child.try_wait()?))?.code();
        let expected = (signal == Signal::INT).then_some(130);
        ensure!(code == expected, "{code:?}: {}", bench.said()?);
        patience::until_true("perf to end", || Ok(perf.iter().all(|one| gone(*one))))?;
        // What a killed one could not remove, the next one does.
        let mut next = Bench::start(1)?;
        ensure!(next.wait()? == 0, "{}", next.said()?);
        ensure!(bench.groups().is_empty(), "{:?} are left", bench.groups());
    }
    Ok(())
}

#[test]
fn larger_pipes_and_buffers_take_fewer_calls() -> Result<()> {
    if !needs::met("larger_pipes_and_buffers_take_fewer_calls", &NEEDS)? {
        return Ok(());
    }
    for (workload, contestant) in [("pipe-size", "relay splice"), ("buffer-size", "relay copy")] {
        let mut bench = Bench::of(workload, &[contestant], 1)?;
        ensure!(bench.wait()? == 0, "the bench failed");
        let results = bench.results()?;
        let calls = |size| -> Result<f64> {
            let row = row(&results, &format!("{contestant} {size}"))?;
            row["rounds"][0][4]
                .as_f64()
                .with_context(|| row.to_string())
        };
        let (small, large) = (calls("16K")?, calls("512K")?);
        ensure!(small > 2.0 * large, "{workload}: {small}, {large}");
    }
    Ok(())
}
