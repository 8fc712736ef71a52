//! `cargo xtask fuzz`: gives everything that relay parses bytes that nobody meant, guided by the code they reach.

mod build;
mod drive;

use std::{collections::BTreeSet, fs, path::Path, process::ExitCode, time::Duration};

use anyhow::{Context, Result, bail};

use self::drive::{Paths, Ran};
use crate::host;

/// Fuzz what relay parses; needs a C++ compiler, for libFuzzer, and stable Rust.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The targets [default: all; each has a directory in tests/fuzz/corpus].
    #[arg(value_name = "TARGET")]
    targets: Vec<String>,
    /// How long each runs.
    #[arg(long = "for", value_name = "DURATION", default_value = "60s", value_parser = humantime::parse_duration)]
    period: Duration,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let corpus = host::root()?.join("tests/fuzz/corpus");
    let targets = chosen(&args.targets, &corpus)?;
    let program = build::build()?;
    let mut rows = Vec::new();
    for target in targets {
        println!("=== {target}");
        let paths = Paths::new(&target, &corpus)?;
        let ran = drive::run(&program, &paths, args.period)?;
        if let Some(finding) = &ran.finding {
            println!("{}", finding.said);
        }
        rows.push((target, ran));
    }
    print!("{}", table(&rows));
    let found = rows.iter().any(|(_, ran)| ran.finding.is_some());
    Ok(match found {
        false => ExitCode::SUCCESS,
        true => ExitCode::FAILURE,
    })
}

fn chosen(asked: &[String], corpus: &Path) -> Result<BTreeSet<String>> {
    let entries = fs::read_dir(corpus).with_context(|| corpus.display().to_string())?;
    let mut all = BTreeSet::new();
    for entry in entries {
        all.insert(entry?.file_name().to_string_lossy().into_owned());
    }
    if let Some(unknown) = asked.iter().find(|asked| !all.contains(*asked)) {
        let all = Vec::from_iter(all).join(", ");
        bail!("there is no target {unknown}: use one of {all}");
    }
    Ok(match asked {
        [] => all,
        asked => asked.iter().cloned().collect(),
    })
}

fn table(rows: &[(String, Ran)]) -> String {
    let mut table = format!(
        "\n{:<14}{:>12}{:>10}{:>8}  finding\n",
        "target", "executions", "coverage", "inputs"
    );
    for (target, ran) in rows {
        let found = ran.finding.as_ref();
        let found = found.map_or("none".into(), |finding| finding.input.clone());
        let Ran {
            executions,
            coverage,
            inputs,
            ..
        } = ran;
        table += &format!("{target:<14}{executions:>12}{coverage:>10}{inputs:>8}  {found}\n");
    }
    table
}
