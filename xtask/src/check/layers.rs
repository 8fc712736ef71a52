//! The direction of imports inside relay: from higher rows to lower ones, and in no circle.

use std::collections::{BTreeMap, BTreeSet};

use super::{Finding, imports, source::Source};

/// The rows, lowest first. Modules of a row that is not `blind` may import each other, though not in a circle.
const ROWS: [Row; 7] = [
    Row::new(&["sys"]),
    Row::new(&["pair", "close", "plan", "decline"]),
    Row::new(&[
        "probe",
        "notify",
        "privileges",
        "drain",
        "pace",
        "stats",
        "tune",
    ]),
    Row {
        modules: &["accept", "connect", "greet", "engine"],
        blind: true,
    },
    Row::new(&["upstream"]),
    Row::new(&["serve", "admin", "handover"]),
    Row::new(&[
        "cli", "settings", "config", "main", "start", "ask", "desk", "status", "top", "logs",
        "check",
    ]),
];

struct Row {
    modules: &'static [&'static str],
    blind: bool,
}

impl Row {
    const fn new(modules: &'static [&'static str]) -> Self {
        Self {
            modules,
            blind: false,
        }
    }
}

fn row(module: &str) -> Option<usize> {
    ROWS.iter().position(|row| row.modules.contains(&module))
}

pub(super) fn check(sources: &[Source]) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut beside = Beside::default();
    for source in sources {
        // lib.rs declares every module and belongs to none.
        let Some(from) = imports::top(&source.path).filter(|top| *top != "lib") else {
            continue;
        };
        let mut find = |line, message| {
            findings.push(Finding {
                path: source.path.clone(),
                line,
                message,
            });
        };
        let Some(row_from) = row(from) else {
            find(
                1,
                format!("module `{from}` has no row in xtask/src/check/layers.rs"),
            );
            continue;
        };
        for import in imports::imports(source) {
            let to = import.module.as_str();
            // Anything else named there is an item of the crate itself.
            let Some(row_to) = row(to) else { continue };
            if from == to || row_to < row_from {
                continue;
            }
            if row_to > row_from {
                find(
                    import.line,
                    format!("`{from}` (row {row_from}) may not import `{to}` (row {row_to})"),
                );
            } else if ROWS[row_from].blind {
                find(
                    import.line,
                    format!("`{from}` and `{to}` share row {row_from} and are blind to each other"),
                );
            } else {
                beside.add(from, to, source, import.line);
            }
        }
    }
    findings.extend(beside.circles());
    findings
}

/// Imports between modules of one row.
#[derive(Default)]
struct Beside {
    /// By importing and imported module; the first place of each.
    edges: BTreeMap<(String, String), (String, usize)>,
}

impl Beside {
    fn add(&mut self, from: &str, to: &str, source: &Source, line: usize) {
        let edge = (from.to_owned(), to.to_owned());
        self.edges
            .entry(edge)
            .or_insert((source.path.clone(), line));
    }

    /// A finding for every import that lies on a circle.
    fn circles(&self) -> Vec<Finding> {
        let on_circle = |((from, to), (path, line)): (&(String, String), &(String, usize))| {
            self.reaches(to, from).then(|| Finding {
                path: path.clone(),
                line: *line,
                message: format!("`{from}` imports `{to}`, which imports `{from}` in turn"),
            })
        };
        self.edges.iter().filter_map(on_circle).collect()
    }

    fn reaches(&self, from: &str, to: &str) -> bool {
        let mut seen = BTreeSet::from([from]);
        let mut ahead = vec![from];
        while let Some(module) = ahead.pop() {
            if module == to {
                return true;
            }
            let next = self.edges.keys().filter(|(from, _)| from == module);
            ahead.extend(next.map(|(_, to)| to.as_str()).filter(|to| seen.insert(to)));
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(files: &[(&str, &str)]) -> Vec<String> {
        let parse = |(path, text): &(&str, &str)| {
            Source::parse(&format!("relay/src/{path}"), text).unwrap()
        };
        let sources = Vec::from_iter(files.iter().map(parse));
        Vec::from_iter(check(&sources).into_iter().map(|finding| finding.path))
    }

    #[test]
    fn only_lower_rows_are_imported() {
        assert!(found(&[("engine/mod.rs", "use crate::{pair::Pair, stats::record};")]).is_empty());
        assert_eq!(
            found(&[("pair.rs", "use crate::serve;")]),
            ["relay/src/pair.rs"]
        );
        assert_eq!(
            found(&[("sys/tcp.rs", "use crate::pair::Side;")]),
            ["relay/src/sys/tcp.rs"]
        );
    }

    #[test]
    fn accept_connect_and_engine_are_blind_to_each_other() {
        assert_eq!(
            found(&[("connect.rs", "use crate::accept;")]),
            ["relay/src/connect.rs"]
        );
        assert!(found(&[("engine/copy.rs", "use crate::engine::duplex;")]).is_empty());
    }

    #[test]
    fn a_circle_in_a_row_is_found() {
        let (close, decline) = ("use crate::pair;", "use crate::close;");
        let line = [("close.rs", close), ("decline.rs", decline)];
        assert!(found(&line).is_empty());
        let circle = [line[0], line[1], ("pair.rs", "use crate::decline;")];
        assert_eq!(
            found(&circle),
            [
                "relay/src/close.rs",
                "relay/src/decline.rs",
                "relay/src/pair.rs"
            ]
        );
    }

    #[test]
    fn a_module_without_a_row_is_found() {
        assert_eq!(found(&[("odds.rs", "")]), ["relay/src/odds.rs"]);
        assert!(found(&[("lib.rs", "pub mod odds;")]).is_empty());
    }
}
