//! `relay check`: starts the engines as relay would and prints what came of it.

use std::{
    io::{self, Write},
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::Context;
use relay::{
    drain::{Drain, Room},
    engine::{
        sockmap::{SelfTest, Sockmap},
        splice::Splice,
    },
    plan::{EngineKind, Sizes},
    probe::{self, Fact},
};
use serde::Serialize;

use crate::cli::Check;

/// What was found.
#[derive(Serialize)]
struct Report {
    version: &'static str,
    engines: Vec<Row>,
    facts: Vec<Fact>,
}

/// One engine.
#[derive(Serialize)]
struct Row {
    engine: EngineKind,
    offered: bool,
    /// What keeps it from being offered, and what would help.
    missing: Option<String>,
    /// How long it took to start, self-test included.
    took_ms: u64,
    /// What the self-test found; sockmap alone has one, and fails it as what is missing.
    selftest: Option<String>,
}

impl Row {
    fn new<T>(engine: EngineKind, started: &Result<T, Arc<str>>, took: Duration) -> Self {
        Self {
            engine,
            offered: started.is_ok(),
            missing: started.as_ref().err().map(ToString::to_string),
            took_ms: u64::try_from(took.as_millis()).unwrap_or(u64::MAX),
            selftest: None,
        }
    }
}

/// Looks and prints. What it finds is no error.
pub(crate) async fn run(check: Check) -> anyhow::Result<()> {
    let drain = Drain::new();
    let begun = Instant::now();
    let sockmap = Sockmap::start(check.trust_kernel, &drain).await;
    let selftest = sockmap.as_ref().map(|sockmap| {
        let SelfTest { took, stalled } = sockmap.selftest();
        let (took, stalled) = (took.as_millis(), stalled / 1024);
        format!("self-test passed in {took} ms; a sender got {stalled} KiB past a stalled reader")
    });
    let sockmap = Row {
        selftest: selftest.ok(),
        ..Row::new(EngineKind::Sockmap, &sockmap, begun.elapsed())
    };
    let begun = Instant::now();
    let splice = Row::new(
        EngineKind::Splice,
        &Splice::start(Sizes::default(), &Room::default()),
        begun.elapsed(),
    );
    let copy = Row::new(EngineKind::Copy, &Ok(()), Duration::ZERO);
    let report = Report {
        version: env!("CARGO_PKG_VERSION"),
        engines: vec![sockmap, splice, copy],
        facts: probe::facts(),
    };
    let text = match check.json {
        true => serde_json::to_string(&report).context("the report")? + "\n",
        false => table(&report),
    };
    match io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(error).context("cannot print the report")
        }
        _ => Ok(()),
    }
}

fn table(report: &Report) -> String {
    let mut text = format!("relay {}\n\n", report.version);
    let engines = report.engines.iter().map(|row| {
        let offered = match row.offered {
            true => "yes",
            false => "no",
        };
        let note = row.missing.as_ref().or(row.selftest.as_ref());
        let note = note.map_or_else(|| "-".into(), String::clone);
        [row.engine.name().into(), offered.into(), note]
    });
    columns(
        &mut text,
        ["engine", "offered", "what is missing, and the fix"],
        engines,
    );
    text.push('\n');
    let facts = report.facts.iter().map(|fact| {
        let fix = fact.fix.clone().unwrap_or_else(|| "-".into());
        [fact.name.into(), fact.value.clone(), fix]
    });
    columns(
        &mut text,
        ["host", "found", "what is wrong, and the fix"],
        facts,
    );
    text
}

/// Adds a table whose first two columns are as wide as their widest text.
fn columns(text: &mut String, head: [&str; 3], rows: impl Iterator<Item = [String; 3]>) {
    let rows: Vec<_> = std::iter::once(head.map(String::from))
        .chain(rows)
        .collect();
    let widest = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    let (first, second) = (widest(0).unwrap_or(0), widest(1).unwrap_or(0));
    for [name, found, note] in &rows {
        text.push_str(&format!("{name:first$}  {found:second$}  {note}\n"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_names_engine_cause_and_fix() {
        let missing = Err(Arc::from("needs CAP_BPF: run as root"));
        let report = Report {
            version: "1.2.3",
            engines: vec![
                Row::new::<()>(EngineKind::Sockmap, &missing, Duration::from_millis(3)),
                Row::new(EngineKind::Copy, &Ok(()), Duration::ZERO),
            ],
            facts: vec![Fact {
                name: "kernel",
                value: "6.18.44".into(),
                fix: None,
            }],
        };
        let expected = "\
relay 1.2.3

engine   offered  what is missing, and the fix
sockmap  no       needs CAP_BPF: run as root
copy     yes      -

host    found    what is wrong, and the fix
kernel  6.18.44  -
";
        assert_eq!(table(&report), expected);
    }
}
