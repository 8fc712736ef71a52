//! Files that are nearly right: each is read or has a fault with a place, and nothing panics. The example is right, and
//! tells every key.

use proptest::{collection::vec, prelude::*, sample::select};

use super::*;

const EXAMPLE: &str = include_str!("../../../examples/relay.toml");

const TABLES: &[&str] = &["", "[log]\n", "[admin]\n", "[defaults]\n", "[[route]]\n"];

fn read(form: Form, text: &str) -> Result<Config, (Option<Range<usize>>, String)> {
    let source = Source::new("relay.toml".into(), form, Given::default());
    source.understand(text)
}

/// The keys of a table, which a fault names for a key that it has not; tables of the file itself are none.
fn keys(table: &str) -> Vec<String> {
    let (_, what) = read(Form::Toml, &format!("{table}no-such-key = 1\n")).unwrap_err();
    let (_, expected) = what.split_once("expected ").unwrap_or_default();
    let words = expected.split('`').skip(1).step_by(2);
    let keys = words.filter(|key| {
        !TABLES
            .iter()
            .any(|table| table.contains(&format!("[{key}]")))
    });
    let keys = Vec::from_iter(keys.map(String::from));
    assert!(!keys.is_empty(), "{table}: {what}");
    keys
}

/// The line gives `key` a value, perhaps in a comment.
fn gives(line: &str, key: &str) -> bool {
    let line = line.strip_prefix("# ").unwrap_or(line);
    let rest = line.strip_prefix(key).map(str::trim_start);
    rest.is_some_and(|rest| rest.starts_with('='))
}

/// The lines of the example under `table`, up to the next one.
fn section(table: &str) -> String {
    let mut open = table.is_empty();
    let mut lines = String::new();
    for line in EXAMPLE.split_inclusive('\n') {
        if line.starts_with('[') {
            open = line == table;
        } else if open {
            lines.push_str(line);
        }
    }
    lines
}

#[test]
fn the_example_is_right() {
    let config = read(Form::Toml, EXAMPLE).unwrap();
    assert!(config.plan.routes.len() > 1);
}

#[test]
fn the_example_tells_every_key() {
    for table in TABLES {
        // What holds for all routes is told once.
        let told = match *table {
            "[[route]]\n" => section(table) + &section("[defaults]\n"),
            _ => section(table),
        };
        for key in keys(table) {
            let only_routes = ["name", "listen", "to"].contains(&key.as_str());
            if *table == "[defaults]\n" && only_routes {
                continue;
            }
            let here = told.lines().any(|line| gives(line, &key));
            assert!(here, "examples/relay.toml: no {key} in {table}");
        }
    }
}

#[test]
fn the_example_has_the_defaults() {
    let routes = EXAMPLE.find("[[route]]").unwrap();
    let routes = read(Form::Toml, &EXAMPLE[routes..]).unwrap();
    let whole = read(Form::Toml, EXAMPLE).unwrap();
    assert_eq!(format!("{routes:?}"), format!("{whole:?}"));
}

#[test]
fn what_the_example_has_in_comments_is_right() {
    let keys: Vec<_> = TABLES.iter().flat_map(|table| keys(table)).collect();
    let lines = Vec::from_iter(EXAMPLE.lines());
    for (at, line) in lines.iter().enumerate() {
        let Some(code) = line.strip_prefix("# ") else {
            continue;
        };
        let is_key = |code: &str| keys.iter().any(|key| gives(code, key));
        let goes_on = at > 0 && lines[at - 1].strip_prefix("# ").is_some_and(is_key);
        if is_key(code) && !goes_on {
            let mut text = lines.clone();
            text[at] = code;
            // Lines that follow each other need each other.
            let together = lines[at..].iter().map_while(|line| line.strip_prefix("# "));
            for (line, code) in text[at..].iter_mut().zip(together) {
                *line = code;
            }
            match read(Form::Toml, &text.join("\n")) {
                Ok(_) => (),
                // There is none on this host, which is as it should be.
                Err((_, what)) if what.contains("/etc/relay/password") => (),
                Err(fault) => panic!("examples/relay.toml:{}: {fault:?}", at + 1),
            }
        }
    }
}

proptest! {
    #[test]
    fn nearly_right_toml_is_read_or_has_a_place(text in file()) {
        reads_or_tells(Form::Toml, &text)?;
    }

    #[test]
    fn a_damaged_example_is_read_or_has_a_place(cuts in vec(cut(), 1..4)) {
        let mut text = EXAMPLE.to_owned();
        for (at, length, instead) in cuts {
            let mut begin = at.index(text.len());
            let mut end = (begin + length).min(text.len());
            while !text.is_char_boundary(begin) {
                begin -= 1;
            }
            while !text.is_char_boundary(end) {
                end += 1;
            }
            text.replace_range(begin..end, &instead);
        }
        reads_or_tells(Form::Toml, &text)?;
    }

    #[test]
    fn nearly_right_rinetd_is_read_or_has_a_place(text in rinetd_file()) {
        reads_or_tells(Form::Rinetd, &text)?;
    }
}

/// What was read has a route for each table or line; a fault is one to show, and lies in the text.
fn reads_or_tells(form: Form, text: &str) -> Result<(), TestCaseError> {
    match read(form, text) {
        Ok(config) => prop_assert!(!config.plan.routes.is_empty()),
        Err((at, what)) => {
            prop_assert!(!what.trim().is_empty());
            let Some(at) = at else {
                // Of the whole file.
                return Ok(());
            };
            prop_assert!(at.start <= text.len(), "{at:?} of {}", text.len());
            let place = Place::of(text, at.start);
            prop_assert!(place.line <= text.matches('\n').count() + 1);
        }
    }
    Ok(())
}

fn cut() -> impl Strategy<Value = (prop::sample::Index, usize, String)> {
    let instead = prop_oneof![
        2 => Just(String::new()),
        2 => value(),
        1 => "\\PC{0,3}",
        1 => select(&["\n", "\"", "[", "]", "{", "}", "=", "#", "'", "'''", "\\", "\r", "\0"][..])
            .prop_map(String::from),
    ];
    (any::<prop::sample::Index>(), 0_usize..12, instead)
}

/// Tables with keys that they have, and values of which many are none of theirs.
fn file() -> impl Strategy<Value = String> {
    let table = select(TABLES).prop_flat_map(|table| {
        let lines = vec((select(keys(table)), value()), 0..5);
        lines.prop_map(move |lines| {
            let lines = lines
                .iter()
                .map(|(key, value)| format!("{key} = {value}\n"));
            table.to_owned() + &String::from_iter(lines)
        })
    });
    let right = "[[route]]\nlisten = \"127.0.0.1:0\"\nto = \"a:1\"\n".to_owned();
    let parts = vec(prop_oneof![4 => table, 1 => Just(right)], 0..5);
    parts.prop_map(|parts| parts.concat())
}

fn value() -> impl Strategy<Value = String> {
    let word = prop_oneof![
        address(),
        "[0-9]{1,20} ?(ms|s|m|h|days|years|MiB|kB|%|)",
        select(
            &[
                "auto",
                "sockmap",
                "splice",
                "copy",
                "json",
                "text",
                "trace",
                "none",
                "original",
                "10.0.0.0/8",
                "::/0",
                "127.0.0.1/33",
                "0600",
                "é",
                "\\u0000",
                "",
                " ",
            ][..]
        )
        .prop_map(String::from),
        "[a-z0-9:/.@%,=\\[\\]-]{0,20}",
    ];
    let word = word.prop_map(|word| format!("\"{word}\""));
    let leaf = prop_oneof![
        6 => word,
        2 => any::<i64>().prop_map(|number| number.to_string()),
        1 => select(&["true", "false", "1.5", "nan", "1979-05-27", "0x1f", "[]", "{}", "''"][..])
            .prop_map(String::from),
    ];
    leaf.prop_recursive(2, 6, 3, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..3).prop_map(|items| format!("[{}]", items.join(", "))),
            vec((select(keys("[[route]]\n")), inner), 0..3).prop_map(|pairs| {
                let pairs = pairs.iter().map(|(key, value)| format!("{key} = {value}"));
                format!("{{ {} }}", Vec::from_iter(pairs).join(", "))
            }),
        ]
    })
}

fn address() -> impl Strategy<Value = String> {
    let host = select(
        &[
            "127.0.0.1",
            "[::1]",
            "::1",
            "0.0.0.0",
            "[fe80::1%lo]",
            "db.internal",
            "*",
            "",
            "é",
            "256.0.0.1",
        ][..],
    );
    let port = prop_oneof![
        4 => (0_u32..70_000).prop_map(|port| port.to_string()),
        1 => select(&["8000-8010", "http", "", "-1", "80-70"][..]).prop_map(String::from),
    ];
    prop_oneof![
        6 => (host, port).prop_map(|(host, port)| format!("{host}:{port}")),
        1 => "(unix|fd|srv|systemd):[a-z/@_.]{0,120}",
    ]
}

fn rinetd_file() -> impl Strategy<Value = String> {
    let word = prop_oneof![
        4 => address().prop_map(|address| address.replace([':', '[', ']'], " ")),
        2 => select(&["127.0.0.1", "::1", "80", "80/tcp", "80/udp", "allow", "deny", "logfile", "#", "[timeout=5]"][..])
            .prop_map(String::from),
        1 => "\\PC{0,6}",
    ];
    let line = vec(word, 0..6).prop_map(|words| words.join(" "));
    let right = Just("127.0.0.1 0 db 80".to_owned());
    let ending = select(&["\n", "\r\n", "\n\n", "\u{2028}"][..]);
    vec((prop_oneof![line, right], ending), 0..6).prop_map(|lines| {
        lines
            .iter()
            .map(|(line, ending)| format!("{line}{ending}"))
            .collect()
    })
}
