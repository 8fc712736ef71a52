//! `cargo xtask bench`: relay's engines and what people would use instead, side by side, in interleaved rounds.

mod cgroup;
mod compare;
mod contestant;
mod curves;
mod ends;
mod figures;
mod html;
mod interrupt;
mod lab;
mod machine;
mod nginx;
mod profile;
mod results;
mod rounds;
mod table;
mod workload;

use std::{
    cell::RefCell,
    fs,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};

use self::{
    contestant::{Built, Contestant},
    machine::Machine,
    profile::Profiler,
    results::Run,
    rounds::Kit,
    workload::Workload,
};
use crate::host;

/// Compare relay with other forwarders on this machine; needs root.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Workloads, or how their names begin; all of them when absent.
    workloads: Vec<String>,
    /// The most telling workloads only, in short rounds: three minutes.
    #[arg(long)]
    quick: bool,
    /// How often each contestant has its turn [default: 5, 3 with --quick].
    #[arg(long, value_name = "COUNT")]
    rounds: Option<usize>,
    /// How long a turn lasts, in milliseconds [default: 1000, 500 with --quick].
    #[arg(long, value_name = "MS")]
    time: Option<u64>,
    /// Contestants, or how their names begin; all of them when absent. May be given several times.
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// Install what Debian has and this machine lacks.
    #[arg(long)]
    install: bool,
    /// The relay to compare, when it is not to be built from this tree.
    #[arg(long, value_name = "FILE")]
    relay: Option<PathBuf>,
    /// Where the raw samples go [default: bench.json in the target directory].
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Where the report goes [default: bench.html in the target directory].
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Give everyone one more turn of each workload, for a flame graph by perf [default DIR: bench-profile in the target
    /// directory].
    #[arg(long, value_name = "DIR", num_args = 0..=1, require_equals = true)]
    profile: Option<Option<PathBuf>>,
    /// Say what changed beyond the noise since this run.
    #[arg(long, value_name = "OLD.json")]
    compare: Option<PathBuf>,
    /// Make the report of this run anew, and measure nothing.
    #[arg(long, value_name = "RUN.json", conflicts_with_all = ["workloads", "quick", "rounds", "time", "only", "install", "json"])]
    report: Option<PathBuf>,
    /// Say which workloads and contestants there are.
    #[arg(long)]
    list: bool,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    if args.list {
        list();
        return Ok(ExitCode::SUCCESS);
    }
    // Before an hour is spent on the rest.
    let old = args.compare.as_deref().map(read).transpose()?;
    let results = match &args.report {
        Some(path) => read(path)?,
        None => measure(args)?,
    };
    if args.report.is_none() {
        let path = or_target(args.json.as_ref(), "bench.json")?;
        fs::write(&path, serde_json::to_string_pretty(&results)? + "\n")
            .with_context(|| path.display().to_string())?;
        println!("\nraw samples: {}", path.display());
    }
    let path = or_target(args.html.as_ref(), "bench.html")?;
    let graphs = graphs(args)?.filter(|directory| directory.is_dir());
    let graphs = graphs.map(|directory| profile::link(&directory, &path));
    let graphs = graphs.transpose()?;
    fs::write(&path, html::page(&results, graphs.as_deref()))
        .with_context(|| path.display().to_string())?;
    println!("report: {}", path.display());
    if interrupt::came() {
        println!("interrupted: what was done before is in them");
        return Ok(ExitCode::from(interrupt::CODE));
    }
    if let Some(old) = old {
        println!("\n{}", compare::compare(&old, &results));
    }
    Ok(ExitCode::SUCCESS)
}

fn measure(args: &Args) -> Result<Run> {
    interrupt::listen()?;
    cgroup::sweep();
    let mut workloads = chosen(args)?;
    let contestants = contestants(&args.only)?;
    workloads.retain(|workload| !(workload.contestants)(&contestants).is_empty());
    if args.install {
        install(&contestants, args.profile.is_some())?;
    }
    let graphs = graphs(args)?;
    let mut profiler = graphs.as_deref().map(Profiler::new).transpose()?;
    if let Some(profiler) = &mut profiler
        && args.relay.is_none()
        && contestants.iter().any(Contestant::is_ours)
    {
        profiler.build()?;
    }
    let kit = Kit {
        built: Built::new(&contestants, args.relay.as_deref())?,
        contestants,
        rounds: args.rounds.unwrap_or(if args.quick { 3 } else { 5 }).max(1),
        time: Duration::from_millis(args.time.unwrap_or(if args.quick { 500 } else { 1000 })),
        proofs: RefCell::default(),
        profiler,
    };
    let begun = host::output(Command::new("date").args(["-u", "+%Y-%m-%dT%H:%M:%SZ"]))?;
    let mut results = Run {
        begun,
        command: command_line(std::env::args().skip(1)),
        commit: commit().unwrap_or_else(|_| "unknown".into()),
        machine: Machine::here(),
        tables: Vec::new(),
    };
    let progress = kit.progress(&workloads);
    for workload in &workloads {
        if interrupt::came() {
            break;
        }
        let table = kit
            .play(workload, &progress)
            .with_context(|| workload.name.clone())?;
        progress.suspend(|| println!("{}", table::text(&table)));
        if let Some(graphs) = &graphs {
            progress.suspend(|| print!("{}", profile::listing(graphs, &table)));
        }
        results.tables.push(table);
    }
    progress.finish_and_clear();
    Ok(results)
}

fn read(path: &Path) -> Result<Run> {
    let name = || path.display().to_string();
    let text = fs::read_to_string(path).with_context(name)?;
    serde_json::from_str(&text).with_context(|| format!("{}: not a run of this command", name()))
}

fn or_target(given: Option<&PathBuf>, name: &str) -> Result<PathBuf> {
    match given {
        Some(path) => Ok(path.clone()),
        None => Ok(host::target()?.join(name)),
    }
}

/// The directory of the flame graphs, where they are wanted.
fn graphs(args: &Args) -> Result<Option<PathBuf>> {
    match &args.profile {
        None => Ok(None),
        Some(Some(given)) => Ok(Some(given.clone())),
        Some(None) => profile::default_directory().map(Some),
    }
}

fn list() {
    println!("workloads (* with --quick):");
    for workload in workload::all() {
        let quick = if workload.quick { '*' } else { ' ' };
        println!("  {:16} {quick} {}", workload.name, workload.about);
    }
    println!("contestants:");
    for contestant in contestant::ALL {
        println!("  {}", contestant.name);
    }
}

fn chosen(args: &Args) -> Result<Vec<Workload>> {
    let all = workload::all();
    let names = Vec::from_iter(all.iter().map(|workload| workload.name.clone()));
    let wanted = named(&names, &args.workloads, "workload")?;
    let wanted = |(at, workload): &(usize, Workload)| match args.workloads.is_empty() {
        true => workload.quick || !args.quick,
        false => wanted[*at],
    };
    let chosen = all.into_iter().enumerate().filter(wanted);
    Ok(chosen.map(|(_, workload)| workload).collect())
}

fn contestants(only: &[String]) -> Result<Vec<Contestant>> {
    let all = contestant::ALL;
    let names = Vec::from_iter(all.iter().map(|one| one.name.to_owned()));
    let wanted = named(&names, only, "contestant")?;
    let wanted = all
        .iter()
        .zip(wanted)
        .filter(|(_, wanted)| *wanted || only.is_empty());
    Ok(wanted.map(|(one, _)| *one).collect())
}

/// Which of `names` are meant: by its name, or, where there is none of that name, by how it begins.
fn named(names: &[String], given: &[String], what: &str) -> Result<Vec<bool>> {
    let mut wanted = vec![false; names.len()];
    for word in given {
        let exact = names.contains(word);
        let means = |name: &String| {
            if exact {
                name == word
            } else {
                name.starts_with(word)
            }
        };
        let meant = Vec::from_iter(names.iter().map(means));
        ensure!(
            meant.contains(&true),
            "there is no {what} {word}: --list tells which there are"
        );
        for (wanted, meant) in wanted.iter_mut().zip(meant) {
            *wanted |= meant;
        }
    }
    Ok(wanted)
}

/// Without starting the servers that come with the packages: a bench leaves no service behind.
fn install(contestants: &[Contestant], profile: bool) -> Result<()> {
    let mut tools = vec![
        ("strace", "strace"),
        ("ethtool", "ethtool"),
        ("go", "golang-go"),
        ("wrk", "wrk"),
    ];
    tools.extend(profile.then_some(("perf", profile::PACKAGE)));
    // Go may be there from elsewhere, in a version of its user's choice.
    let missing = tools
        .iter()
        .filter(|(program, _)| contestant::find(program).is_none());
    let mut packages = Vec::from_iter(missing.map(|(_, package)| *package));
    packages.extend(contestants.iter().flat_map(Contestant::missing));
    packages.sort_unstable();
    packages.dedup();
    if packages.is_empty() {
        return Ok(());
    }
    if host::which("apt-get").is_none() {
        bail!(
            "--install needs apt-get; this takes: {}",
            packages.join(" ")
        );
    }
    let script = "policy=/usr/sbin/policy-rc.d
        if [ ! -e $policy ]; then printf '#!/bin/sh\\nexit 101\\n' >$policy && chmod 755 $policy && trap 'rm -f $policy' EXIT; fi
        apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -qy --no-install-recommends \"$@\"";
    let mut command = Command::new("sh");
    command.args(["-c", script, "sh"]).args(packages);
    host::succeed(&mut command)
}

/// What has been asked for, without where files of this machine lie.
fn command_line(arguments: impl Iterator<Item = String>) -> String {
    let mut words = vec!["cargo xtask".to_owned()];
    let mut is_path = false;
    for word in arguments {
        let name = word.split('=').next().unwrap_or_default();
        let takes_path = ["--json", "--html", "--relay"].contains(&name);
        if !takes_path && !is_path {
            words.push(word.clone());
        }
        is_path = takes_path && !word.contains('=');
    }
    words.join(" ")
}

fn commit() -> Result<String> {
    let root = host::root()?;
    let git = |words: &[&str]| host::output(Command::new("git").current_dir(root).args(words));
    let changed = !git(&["status", "--porcelain"])?.is_empty();
    let commit = git(&["rev-parse", "--short", "HEAD"])?;
    Ok(if changed { commit + "+" } else { commit })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_names_no_files() {
        let of = |line: &str| command_line(line.split(' ').map(str::to_owned));
        assert_eq!(
            of("bench idle --json /a/b --rounds 3 --html=c --relay d"),
            "cargo xtask bench idle --rounds 3"
        );
        assert_eq!(of("bench"), "cargo xtask bench");
    }

    #[test]
    fn a_name_means_itself_and_a_beginning_all_that_begin_so() {
        let names = ["pingpong-64x1", "pingpong-64x16", "bulk-1"].map(str::to_owned);
        let of = |words: &[&str]| {
            let words = Vec::from_iter(words.iter().map(|word| (*word).to_owned()));
            named(&names, &words, "workload").map_err(|error| error.to_string())
        };
        assert_eq!(of(&["pingpong-64x1"]), Ok(vec![true, false, false]));
        assert_eq!(of(&["pingpong", "bulk-1"]), Ok(vec![true; 3]));
        assert!(of(&["pong"]).unwrap_err().contains("no workload pong"));
    }
}
