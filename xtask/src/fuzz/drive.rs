//! One target under libFuzzer: started, watched to its end, and what it said read.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use anyhow::{Context, Result};

use crate::host;

/// The longest input. A greeting is at most 16 KiB, and a file of this size has all there is to say.
const LONGEST: usize = 18 << 10;
/// An input that takes longer than so many seconds is a finding.
const SLOWEST: u32 = 10;
/// How much of what is said before a finding is shown, in lines.
const TAIL: usize = 40;

/// Where a target finds inputs and leaves them.
pub(super) struct Paths {
    target: String,
    /// In the tree.
    corpus: PathBuf,
    /// Beside it, for all targets.
    words: PathBuf,
    /// What runs before this one have come upon.
    grown: PathBuf,
    findings: PathBuf,
}

impl Paths {
    pub(super) fn new(target: &str, corpus: &Path) -> Result<Self> {
        let own = host::target()?.join("fuzz");
        let paths = Self {
            target: target.to_owned(),
            corpus: corpus.join(target),
            words: corpus.with_file_name("words.dict"),
            grown: own.join("grown").join(target),
            findings: own.join("findings").join(target),
        };
        for path in [&paths.grown, &paths.findings] {
            fs::create_dir_all(path).with_context(|| path.display().to_string())?;
        }
        Ok(paths)
    }
}

/// What came of a run.
#[derive(Debug, Default)]
pub(super) struct Ran {
    pub(super) executions: u64,
    /// Edges that were reached.
    pub(super) coverage: u64,
    /// Inputs that each reach something of their own.
    pub(super) inputs: u64,
    pub(super) finding: Option<Finding>,
}

/// An input that shows a fault.
#[derive(Debug)]
pub(super) struct Finding {
    /// Where it lies.
    pub(super) input: String,
    pub(super) said: String,
}

/// Runs `program` on a target.
pub(super) fn run(program: &Path, paths: &Paths, period: Duration) -> Result<Ran> {
    let mut command = fuzzer(program, paths);
    command
        // 0 would be for ever.
        .arg(format!("-max_total_time={}", period.as_secs().max(1)))
        .arg(format!("-timeout={SLOWEST}"))
        .arg("-print_final_stats=1")
        .args([&paths.grown, &paths.corpus]);
    let output = command.stdin(Stdio::null()).output();
    let output = output.with_context(|| program.display().to_string())?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let mut ran = read(&said);
    if !output.status.success() {
        let lines = Vec::from_iter(said.lines());
        let tail = lines[lines.len().saturating_sub(TAIL)..].join("\n");
        ran.finding = Some(Finding {
            input: written(&said).unwrap_or_else(|| output.status.to_string()),
            said: tail,
        });
    }
    Ok(ran)
}

fn fuzzer(program: &Path, paths: &Paths) -> Command {
    let mut command = Command::new(program);
    command
        .env("RELAY_FUZZ", &paths.target)
        .arg(format!("-dict={}", paths.words.display()))
        .arg(format!("-max_len={LONGEST}"))
        .arg(format!("-artifact_prefix={}/", paths.findings.display()));
    command
}

/// `#64 pulse  cov: 123 ft: 456 corp: 7/89b ...`, and `stat::number_of_executed_units: 64` at the end.
fn read(said: &str) -> Ran {
    let mut ran = Ran::default();
    for line in said.lines() {
        let mut words = line.split_whitespace();
        let Some(first) = words.next() else { continue };
        if first == "stat::number_of_executed_units:" {
            ran.executions = number(words.next()).unwrap_or(ran.executions);
        }
        let Some(counted) = first.strip_prefix('#') else {
            continue;
        };
        ran.executions = number(Some(counted)).unwrap_or(ran.executions);
        while let Some(word) = words.next() {
            match word {
                "cov:" => ran.coverage = number(words.next()).unwrap_or(ran.coverage),
                "corp:" => {
                    let inputs = words.next().and_then(|word| word.split('/').next());
                    ran.inputs = number(inputs).unwrap_or(ran.inputs);
                }
                _ => (),
            }
        }
    }
    ran
}

fn number(word: Option<&str>) -> Option<u64> {
    word?.parse().ok()
}

/// `artifact_prefix='...'; Test unit written to PATH`
fn written(said: &str) -> Option<String> {
    let line = said
        .lines()
        .find_map(|line| line.split_once("Test unit written to "));
    line.map(|(_, path)| path.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_libfuzzer_says_is_read() {
        let said = "INFO: Seed: 1\n#2\tINITED cov: 10 ft: 12 corp: 1/1b exec/s: 0 rss: 27Mb\n\
            #4096\tpulse  cov: 300 ft: 700 corp: 20/4Kb lim: 4 exec/s: 2048 rss: 30Mb\n\
            #5000\tDONE   cov: 301 ft: 701 corp: 21/4Kb lim: 4 exec/s: 2000 rss: 30Mb\n\
            stat::number_of_executed_units: 5001\n";
        let ran = read(said);
        assert_eq!((ran.executions, ran.coverage, ran.inputs), (5001, 301, 21));
    }

    #[test]
    fn a_finding_says_where_it_lies() {
        let said = "panicked\nartifact_prefix='a/'; Test unit written to a/crash-1\nBase64: YQ==\n";
        assert_eq!(written(said).unwrap(), "a/crash-1");
        assert_eq!(written("no"), None);
    }
}
