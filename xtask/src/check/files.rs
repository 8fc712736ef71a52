//! Rules for a file as a whole: it opens with a sentence, and it is not too long.

use super::{Finding, source::Source};

/// A compass is 150 lines; this is where a file has become two.
const LINES: usize = 500;

pub(super) fn check(source: &Source) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut find = |line, message: String| {
        findings.push(Finding {
            path: source.path.clone(),
            line,
            message,
        });
    };
    if !opens_with_sentence(&source.text) {
        let message = "a file opens with a `//!` sentence that says what it owns";
        find(1, message.to_owned());
    }
    let lines = source.text.lines().count();
    if lines > LINES {
        find(LINES + 1, format!("{lines} lines; the most is {LINES}"));
    }
    findings
}

fn opens_with_sentence(text: &str) -> bool {
    let opening = text.lines().map_while(|line| line.strip_prefix("//! "));
    opening
        .last()
        .is_some_and(|end| end.ends_with(['.', '?', '!', ':']))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(text: &str) -> usize {
        check(&Source::parse("relay/src/a.rs", text).unwrap()).len()
    }

    #[test]
    fn a_file_without_a_sentence_is_found() {
        assert_eq!(messages("//! What it owns.\n"), 0);
        assert_eq!(
            messages("//! What it owns,\n//! in two lines.\n//!\n//! More\n"),
            0
        );
        assert_eq!(messages("//! no end\n"), 1);
        assert_eq!(messages("// What it owns.\n"), 1);
        assert_eq!(messages("\n//! What it owns.\n"), 1);
        assert_eq!(messages(""), 1);
    }

    #[test]
    fn a_long_file_is_found() {
        let text = |lines| format!("//! What it owns.\n{}", "\n".repeat(lines - 1));
        assert_eq!(messages(&text(LINES)), 0);
        assert_eq!(messages(&text(LINES + 1)), 1);
    }
}
