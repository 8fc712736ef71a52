//! Files: TOML and the lines of rinetd, read into a plan, with the place of every fault.

#[cfg(test)]
mod props;
mod rinetd;

use std::{fmt, fs, io, ops::Range, path::PathBuf};

use merge::Merge;
use toml::Spanned;

use crate::settings::{Config, Given};

/// How a file is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// TOML.
    Toml,
    /// The lines of rinetd.
    Rinetd,
}

/// A file that can be read again, and the flags that win over it.
#[derive(Clone, Debug)]
pub(crate) struct Source {
    path: PathBuf,
    form: Form,
    flags: Given,
}

impl Source {
    pub(crate) fn new(path: PathBuf, form: Form, flags: Given) -> Self {
        Self { path, form, flags }
    }

    /// Reads the file as it is now.
    ///
    /// # Errors
    ///
    /// Names the file and, where the fault is in what it says, the line and column.
    pub(crate) fn read(&self) -> Result<Config, Fault> {
        let unreadable = |error: io::Error| match error.kind() {
            io::ErrorKind::InvalidData => "it is not UTF-8 text".to_owned(),
            _ => format!("cannot be read: {error}"),
        };
        let text = fs::read_to_string(&self.path).map_err(|error| Fault {
            path: self.path.clone(),
            place: None,
            what: unreadable(error),
        })?;
        self.understand(&text).map_err(|(at, what)| Fault {
            path: self.path.clone(),
            place: at.map(|at| Place::of(&text, at.start)),
            what,
        })
    }

    fn understand(&self, text: &str) -> Result<Config, (Option<Range<usize>>, String)> {
        let file = match self.form {
            Form::Toml => toml::from_str::<Given>(text)
                .map_err(|error| (error.span(), error.message().to_owned())),
            Form::Rinetd => rinetd::read(text).map_err(|(at, what)| (Some(at), what)),
        }?;
        let places = Vec::from_iter(file.route.iter().map(Spanned::span));
        let mut given = self.flags.clone();
        given.merge(file);
        given.config().map_err(|wrong| {
            let place = wrong.route.and_then(|at| places.get(at).cloned());
            (place, wrong.what)
        })
    }
}

/// What is wrong with a file, and where.
#[derive(Debug, thiserror::Error)]
pub(crate) struct Fault {
    path: PathBuf,
    place: Option<Place>,
    what: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.path.display())?;
        if let Some(Place { line, column }) = self.place {
            write!(f, ":{line}:{column}")?;
        }
        write!(f, ": {}", self.what)
    }
}

/// A place in a text, counted from 1; the column in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    line: usize,
    column: usize,
}

impl Place {
    fn of(text: &str, at: usize) -> Self {
        let before = text.get(..at).unwrap_or(text);
        let line = before.rsplit('\n').next().unwrap_or_default();
        Self {
            line: before.matches('\n').count() + 1,
            column: line.chars().count() + 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;
    use relay::plan::Choice;

    use super::*;

    fn read(form: Form, text: &str) -> Result<Config, String> {
        let source = Source::new("relay.toml".into(), form, Given::default());
        source.understand(text).map_err(|(at, what)| {
            let Place { line, column } = Place::of(text, at.map_or(0, |at| at.start));
            format!("{line}:{column}: {what}")
        })
    }

    #[test]
    fn a_route_wins_over_the_defaults() {
        let text = r#"
            engine = "splice"
            drain-timeout = "1m"

            [log]
            format = "json"

            [defaults]
            idle-timeout = "5m"
            connect-timeout = "1s"

            [[route]]
            name = "web"
            listen = "0.0.0.0:80"
            to = "10.0.0.5:8080"
            idle-timeout = "none"

            [[route]]
            listen = "unix:/run/a.sock"
            to = "db.internal:5432"
        "#;
        let plan = read(Form::Toml, text).unwrap().plan;
        assert_eq!(
            plan.policy.choice,
            Choice::Only(relay::plan::EngineKind::Splice)
        );
        assert_eq!(plan.drain, Duration::from_secs(60));
        let [web, db] = &plan.routes[..] else {
            panic!("{plan:?}")
        };
        assert_eq!(
            (web.name.as_str(), db.name.as_str()),
            ("web", "unix:/run/a.sock")
        );
        assert_eq!(web.limits.idle, None);
        assert_eq!(db.limits.idle, Some(Duration::from_secs(300)));
        assert_eq!(
            [web, db].map(|route| route.connect),
            [Duration::from_secs(1); 2]
        );
    }

    #[test]
    fn faults_tell_line_column_and_what_would_be_right() {
        let route = "[[route]]\nlisten = \"127.0.0.1:1\"\nto = \"a:1\"\n";
        for (text, told) in [
            (
                "engine = \"fast\"",
                "1:10: unknown variant `fast`, expected one of `auto`",
            ),
            (
                "\nengin = 1",
                "2:1: unknown field `engin`, expected one of `engine`",
            ),
            (
                "[[route]]\nlisten = 5",
                "2:10: invalid type: integer `5`, expected",
            ),
            ("[[route]]\nlisten = \"80\"", "2:10: no port"),
            (
                "[[route]]\nlisten = \"127.0.0.1:1\"",
                "1:1: a route needs to",
            ),
            ("[[route]]\nto = \"a:1\"", "1:1: a route needs listen"),
            ("[defaults]\nidle-timeout = \"5\"", "2:16: time unit needed"),
            ("[log]\nlevel = \"loud\"", "2:9: unknown variant `loud`"),
            ("[[route]\n", "1:"),
            ("", "1:1: no route"),
            (
                &format!("{route}\n{route}"),
                "5:1: --listen 127.0.0.1:1 is given twice",
            ),
        ] {
            let fault = read(Form::Toml, text).unwrap_err();
            assert!(fault.starts_with(told), "{text}\n{fault}");
        }
    }

    #[test]
    fn rinetd_lines_are_routes() {
        let text = "# a comment\n\n127.0.0.1 9000 127.0.0.1 9001\n0.0.0.0 80/tcp db 5432/tcp\n:: 443 ::1 8443\n";
        let routes = read(Form::Rinetd, text).unwrap().plan.routes;
        let told = Vec::from_iter(routes.iter().map(|r| format!("{} {}", r.listens(), r.to)));
        assert_eq!(
            told,
            [
                "127.0.0.1:9000 127.0.0.1:9001",
                "0.0.0.0:80 db:5432",
                "[::]:443 [::1]:8443"
            ]
        );
    }

    #[test]
    fn rinetd_faults_have_a_place() {
        for (text, told) in [
            (
                "\n0.0.0.0 80 db",
                "2:1: a line is: address port address port",
            ),
            ("0.0.0.0 http db 80", "1:9: `http` is not a port"),
            ("0.0.0.0 53/udp db 53", "1:9: relay forwards TCP only"),
            ("0.0.0.0 80 db 80 [timeout=5]", "1:18: "),
            ("allow 10.*", "1:1: "),
            ("unix 80 db 80", "1:1: `unix` is not a host"),
            ("0.0.0.0 80 unix:a 80", "1:12: `unix:a` is not a host"),
            ("", "1:1: no route"),
        ] {
            let fault = read(Form::Rinetd, text).unwrap_err();
            assert!(fault.starts_with(told), "{text}\n{fault}");
        }
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "\\PC{0,200}") {
            let _ = read(Form::Toml, &text);
            let _ = read(Form::Rinetd, &text);
        }

        #[test]
        fn nearly_good_text_does_not_panic(lines in proptest::collection::vec(line(), 0..12)) {
            let text = lines.join("\n");
            let _ = read(Form::Toml, &text);
            let _ = read(Form::Rinetd, &text);
        }
    }

    fn line() -> impl Strategy<Value = String> {
        const PARTS: &[&str] = &[
            "[[route]]",
            "[defaults]",
            "[log]",
            "listen = ",
            "to = ",
            "\"127.0.0.1:0\"",
            "[",
            "]",
            "{",
            "}",
            "=",
            "\"",
            "idle-timeout = \"5m\"",
            "0.0.0.0",
            "80",
            "#",
            "logfile",
            "\u{feff}",
            "é",
        ];
        proptest::collection::vec(proptest::sample::select(PARTS), 0..6)
            .prop_map(|words| words.join(" "))
    }
}
