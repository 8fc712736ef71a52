//! Which file may use which crate, and where `unsafe` may stand.

use proc_macro2::{TokenStream, TokenTree};
use quote::ToTokens as _;

use super::{Finding, source::Source};

/// What is kept to a few files.
struct Rule {
    /// An identifier: a crate where a path begins with it, or the keyword itself.
    word: &'static str,
    /// Where the rule holds.
    within: &'static str,
    /// The files and directories in there that may.
    may: &'static [&'static str],
}

const RULES: [Rule; 5] = [
    Rule {
        word: "unsafe",
        within: "",
        may: &["relay/src/sys/", "relay-common/src/pod.rs", "relay-ebpf/"],
    },
    Rule {
        word: "clap",
        within: "relay/",
        may: &["relay/src/cli", "relay/src/settings"],
    },
    Rule {
        word: "aya",
        within: "relay/",
        may: &["relay/src/probe.rs", "relay/src/engine/sockmap/kernel.rs"],
    },
    Rule {
        word: "aya_log",
        within: "relay/",
        may: &["relay/src/engine/sockmap/kernel.rs"],
    },
    Rule {
        word: "anyhow",
        within: "relay/",
        may: &[
            "relay/src/main.rs",
            "relay/src/start.rs",
            "relay/src/ask.rs",
            "relay/src/check.rs",
            "relay/src/desk.rs",
            "relay/src/logs.rs",
            "relay/src/status.rs",
            "relay/src/top",
        ],
    },
];

pub(super) fn check(source: &Source) -> Vec<Finding> {
    let holds = |rule: &&Rule| {
        let path = source.path.as_str();
        path.starts_with(rule.within) && !rule.may.iter().any(|may| path.starts_with(may))
    };
    let rules = Vec::from_iter(RULES.iter().filter(holds));
    let mut findings = Vec::new();
    search(source.syntax.to_token_stream(), &mut |word, line, path| {
        let broken = rules
            .iter()
            .find(|rule| word == rule.word && (path || word == "unsafe"));
        if let Some(rule) = broken {
            findings.push(Finding {
                path: source.path.clone(),
                line,
                message: format!("`{word}` is kept to {}", rule.may.join(", ")),
            });
        }
    });
    findings
}

/// Calls `found` with every identifier, its line, and whether a path begins with it or is nothing else.
///
/// Tokens rather than syntax, because the arguments of macros and attributes are only that.
fn search(tokens: TokenStream, found: &mut impl FnMut(&str, usize, bool)) {
    let tokens = Vec::from_iter(tokens);
    let punctuation = |index: Option<usize>, character| {
        let token = index.and_then(|index| tokens.get(index));
        matches!(token, Some(TokenTree::Punct(punct)) if punct.as_char() == character)
    };
    for (index, token) in tokens.iter().enumerate() {
        match token {
            TokenTree::Group(group) => search(group.stream(), found),
            TokenTree::Ident(ident) => {
                let after = |token: &TokenTree| match token {
                    TokenTree::Ident(word) => word != "use" && word != "return" && word != "in",
                    TokenTree::Punct(punct) => punct.as_char() == '>',
                    TokenTree::Group(_) | TokenTree::Literal(_) => false,
                };
                // `a::word` and `<A>::word` go on with a path; `::word` begins one.
                let goes_on = punctuation(index.checked_sub(1), ':')
                    && index
                        .checked_sub(3)
                        .is_some_and(|three| after(&tokens[three]));
                let begins = !goes_on
                    && punctuation(Some(index + 1), ':')
                    && punctuation(Some(index + 2), ':');
                let before = index.checked_sub(1).and_then(|before| tokens.get(before));
                let imported = matches!(before, Some(TokenTree::Ident(word)) if word == "use" || word == "crate");
                found(
                    &ident.to_string(),
                    ident.span().start().line,
                    begins || imported,
                );
            }
            TokenTree::Punct(_) | TokenTree::Literal(_) => (),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: [usize; 0] = [];

    fn found(path: &str, text: &str) -> Vec<usize> {
        let source = Source::parse(path, text).unwrap();
        Vec::from_iter(check(&source).iter().map(|finding| finding.line))
    }

    #[test]
    fn unsafe_is_kept_to_its_rooms() {
        let text = "//! A.\nfn f() {\n    unsafe { g() }\n}\n";
        assert_eq!(found("relay/src/serve.rs", text), [3]);
        assert_eq!(found("tests/src/peer.rs", text), [3]);
        assert_eq!(found("relay/src/sys/tcp.rs", text), NONE);
        assert_eq!(found("relay-ebpf/src/main.rs", text), NONE);
        assert_eq!(
            found("relay/src/serve.rs", "fn f() { m!(unsafe { g() }) }"),
            [1]
        );
    }

    #[test]
    fn a_crate_is_kept_to_its_files() {
        for text in [
            "use clap::Parser;",
            "#[derive(clap::Args)] struct A;",
            "fn f() { m!(clap::x()) }",
            "fn f() { ::clap::x() }",
            "use clap as c;",
        ] {
            assert_eq!(found("relay/src/config.rs", text), [1], "{text}");
            assert_eq!(found("relay/src/cli.rs", text), NONE, "{text}");
            assert_eq!(found("xtask/src/main.rs", text), NONE, "{text}");
        }
    }

    #[test]
    fn a_name_that_is_no_crate_is_not_found() {
        assert_eq!(
            found("relay/src/plan.rs", "fn f(aya: u8) -> u8 { aya }"),
            NONE
        );
        assert_eq!(found("relay/src/plan.rs", "use crate::aya::x;"), NONE);
    }
}
