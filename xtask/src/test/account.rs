//! What came of all sets of tests: the sums, what was skipped and why, and what each failed one said.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use super::binary::Ran;

/// How much of a set that ended without a closing line is shown.
const TAIL: usize = 100;

/// The sums over all sets.
#[derive(Debug, Default)]
pub(super) struct Account {
    passed: usize,
    failed: usize,
    /// Test and reason; one test may have several.
    skipped: BTreeMap<String, BTreeSet<String>>,
    /// The set, and what it said of its failures.
    failures: Vec<(String, String)>,
}

impl Account {
    /// Adds what the set called `name` said.
    pub(super) fn add(&mut self, name: &str, ran: &Ran) {
        let mut failed = 0;
        let mut closed = false;
        for closing in ran.said.lines().filter_map(closing) {
            closed = true;
            self.passed += closing.passed;
            failed += closing.failed;
        }
        for line in ran.said.lines() {
            if let Some((test, reason)) = ignored(line) {
                self.skip(&format!("{name}: {test}"), reason);
            }
        }
        if ran.status.success() && (closed || ran.said.trim().is_empty()) {
            self.failed += failed;
            return;
        }
        let mut story = match ran.hung {
            true => "killed: it did not end\n".to_owned(),
            false => format!("{}\n", ran.status),
        };
        if failed > 0 {
            story.push_str(failures(&ran.said));
        } else {
            let lines = Vec::from_iter(ran.said.lines());
            story.push_str(&lines[lines.len().saturating_sub(TAIL)..].join("\n"));
        }
        // A set that crashed has not counted its failure.
        self.failed += failed.max(1);
        self.failures.push((name.to_owned(), story));
    }

    /// Takes in the list that tests write: `name: reason`, a line each. They have counted themselves as passed.
    pub(super) fn skipped(&mut self, list: &str) {
        let mut names = BTreeSet::new();
        for line in list.lines() {
            let (name, reason) = line.split_once(": ").unwrap_or((line, "no reason given"));
            names.insert(name);
            self.skip(name, reason);
        }
        self.passed = self.passed.saturating_sub(names.len());
    }

    fn skip(&mut self, name: &str, reason: &str) {
        let reasons = self.skipped.entry(name.to_owned()).or_default();
        reasons.insert(reason.to_owned());
    }

    /// Whether anything failed.
    pub(super) fn failed(&self) -> bool {
        self.failed > 0
    }
}

impl fmt::Display for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f)?;
        for (name, story) in &self.failures {
            writeln!(f, "=== failed: {name}\n{}\n", story.trim_end())?;
        }
        for (name, reasons) in &self.skipped {
            let reasons = Vec::from_iter(reasons.iter().map(String::as_str));
            writeln!(f, "skipped {name}: {}", reasons.join("; "))?;
        }
        let Self { passed, failed, .. } = self;
        writeln!(
            f,
            "{passed} passed, {failed} failed, {} skipped",
            self.skipped.len()
        )
    }
}

struct Closing {
    passed: usize,
    failed: usize,
}

/// `test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s`
fn closing(line: &str) -> Option<Closing> {
    let (_, counts) = line.strip_prefix("test result: ")?.split_once(". ")?;
    let count = |what: &str| {
        let count = counts.split("; ").find_map(|part| part.strip_suffix(what));
        count?.trim().parse().ok()
    };
    Some(Closing {
        passed: count("passed")?,
        failed: count("failed")?,
    })
}

/// `test NAME ... ignored, reason`
fn ignored(line: &str) -> Option<(&str, &str)> {
    let (test, verdict) = line.strip_prefix("test ")?.split_once(" ... ")?;
    let reason = verdict.strip_prefix("ignored")?;
    let reason = reason.strip_prefix(", ").unwrap_or("runs with --soak");
    Some((test, reason))
}

/// What libtest says between its `failures:` and its closing line: each failed test's words, and their names.
fn failures(said: &str) -> &str {
    let begin = said.find("\nfailures:\n").map_or(0, |at| at + 1);
    let end = said.rfind("\ntest result: ").unwrap_or(said.len());
    &said[begin.min(end)..end]
}

#[cfg(test)]
mod tests {
    use std::{os::unix::process::ExitStatusExt, process::ExitStatus};

    use super::*;

    fn ran(said: &str, code: i32) -> Ran {
        Ran {
            said: said.to_owned(),
            status: ExitStatus::from_raw(code << 8),
            hung: false,
        }
    }

    const GOOD: &str = "running 3 tests\ntest a ... ok\ntest b ... ignored\ntest c ... ok\n\n\
        test result: ok. 2 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s\n";
    const BAD: &str = "running 2 tests\ntest a ... ok\ntest b ... FAILED\n\nfailures:\n\n---- b stdout ----\nwhy\n\n\n\
        failures:\n    b\n\n\
        test result: FAILED. 1 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s\n";

    #[test]
    fn the_sums_are_over_all_sets() {
        let mut account = Account::default();
        account.add("one", &ran(GOOD, 0));
        account.add("two", &ran(BAD, 101));
        assert!(account.failed());
        let text = account.to_string();
        assert!(
            text.ends_with("\n3 passed, 1 failed, 1 skipped\n"),
            "{text}"
        );
        assert!(text.contains("skipped one: b: runs with --soak"), "{text}");
        assert!(text.contains("---- b stdout ----\nwhy"), "{text}");
    }

    #[test]
    fn a_skip_is_not_a_pass() {
        let mut account = Account::default();
        account.add("one", &ran(GOOD, 0));
        account.skipped("a: needs root\na: needs netem\n");
        let text = account.to_string();
        assert!(
            text.contains("skipped a: needs netem; needs root\n"),
            "{text}"
        );
        assert!(
            text.ends_with("\n1 passed, 0 failed, 2 skipped\n"),
            "{text}"
        );
    }

    #[test]
    fn a_set_that_crashes_has_failed() {
        let mut account = Account::default();
        account.add(
            "one",
            &ran("running 3 tests\ntest a ... ok\nsegfault\n", 139),
        );
        let text = account.to_string();
        assert!(text.contains("segfault"), "{text}");
        assert!(
            text.ends_with("\n0 passed, 1 failed, 0 skipped\n"),
            "{text}"
        );
    }

    #[test]
    fn a_set_that_ends_early_has_failed() {
        let mut account = Account::default();
        account.add("one", &ran("running 3 tests\n", 0));
        assert!(account.failed());
    }
}
