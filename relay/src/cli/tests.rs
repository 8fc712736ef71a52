//! What the command line is held to.

use clap::CommandFactory;
use proptest::prelude::*;

use std::time::Duration;

use relay::plan::{Balance, Choice, Limits};

use super::*;

const PAIR: &str = "--listen 127.0.0.1:0 --to 127.0.0.1:1";

fn of(line: &str) -> Result<Command, Refusal> {
    parse(
        std::iter::once("relay")
            .chain(line.split_whitespace())
            .map(Into::into),
    )
}

fn served(line: &str) -> Serve {
    match of(line) {
        Ok(Command::Serve(serve)) => *serve,
        other => panic!("{line}: {other:?}"),
    }
}

fn fault(line: &str) -> String {
    match of(line) {
        Err(Refusal::Usage(fault)) => fault,
        other => panic!("{line}: {other:?}"),
    }
}

#[test]
fn the_flags_agree_with_each_other() {
    Typed::command().debug_assert();
}

#[test]
fn a_pair_is_enough() {
    let plan = served(PAIR).plan;
    assert_eq!(plan.routes.len(), 1);
    assert_eq!(plan.policy.choice, Choice::Auto);
    assert_eq!(plan.drain, Duration::from_secs(10));
    assert_eq!(plan.routes[0].connect, Duration::from_secs(5));
    let hour = Some(Duration::from_secs(3600));
    let limits = plan.routes[0].limits;
    assert_eq!((limits.idle, limits.half_close), (None, hour));
}

#[test]
fn pairs_keep_their_order() {
    let routes = served("--listen a:1 --to b:2 --to unix:/c --listen [::1]:3")
        .plan
        .routes;
    let told: Vec<_> = routes
        .iter()
        .map(|r| format!("{} {}", r.listens(), r.to))
        .collect();
    assert_eq!(told, ["a:1 b:2", "[::1]:3 unix:/c"]);
}

#[test]
fn one_listener_takes_several_upstreams() {
    let routes = served("--listen a:1 --to b:2 --to srv:c --balance source-hash")
        .plan
        .routes;
    assert_eq!(routes.len(), 1);
    assert_eq!(routes[0].to.to_string(), "b:2, srv:c");
    assert_eq!(routes[0].pool.balance, Balance::SourceHash);
}

#[test]
fn one_upstream_takes_several_listeners() {
    let routes = served("--listen a:1 --listen [::1]:2 --to b:2").plan.routes;
    assert_eq!(routes.len(), 1);
    assert_eq!(routes[0].name, "a:1, [::1]:2");
    assert_eq!(routes[0].listens(), "a:1, [::1]:2");
}

#[test]
fn ranges_of_ports_go_to_one_or_port_by_port() {
    let one = served("--listen a:1-3 --to b:2").plan.routes;
    assert_eq!((one.len(), one[0].listen.len()), (1, 3));
    assert_eq!(one[0].name, "a:1-3");
    let each = served("--listen a:1-3 --to b:11-13").plan.routes;
    let told = each
        .iter()
        .map(|r| format!("{} {} {}", r.name, r.listens(), r.to));
    assert_eq!(
        Vec::from_iter(told),
        ["a:1 a:1 b:11", "a:2 a:2 b:12", "a:3 a:3 b:13"]
    );
}

#[test]
fn no_limit_can_be_typed() {
    let plan = served(&format!(
        "{PAIR} --half-close-timeout none --idle-timeout 0 --drain-timeout 0s"
    ))
    .plan;
    assert_eq!(plan.routes[0].limits, Limits::default());
    assert_eq!(plan.drain, Duration::ZERO);
    assert_eq!(
        served(&format!("{PAIR} --drain-timeout none")).plan.drain,
        Duration::from_secs(100 * 365 * 24 * 3600)
    );
}

#[test]
fn faults_name_the_flag_and_the_cause() {
    for (line, parts) in [
        ("", ["--listen", "--to"]),
        ("--listen 127.0.0.1:1", ["--listen is given 1", "--to 0"]),
        ("--listen 80 --to a:1", ["'--listen <ADDR>'", "no port"]),
        (
            "--listen *:80 --to a:1",
            ["'--listen <ADDR>'", "0.0.0.0:port"],
        ),
        ("--listen a:9-8 --to a:1", ["'--listen <ADDR>'", "FROM-TO"]),
        (
            "--listen a:1-3 --to a:1-2",
            ["range of 2 ports", "a:1-3 has 3"],
        ),
        ("--listen a:1 --to a:0", ["port 0", "a:0"]),
        ("--listen a:1 --to ::1:80", ["'--to <ADDR>'", "brackets"]),
        ("--listen a:1 --to a:99999", ["'--to <ADDR>'", "65535"]),
        (
            &format!("{PAIR} --drain-timeout 5"),
            ["'--drain-timeout <DURATION>'", "unit"],
        ),
        (
            &format!("{PAIR} --connect-timeout 0"),
            ["'--connect-timeout <DURATION>'", "longer than 0"],
        ),
        (
            &format!("{PAIR} --connect-timeout none"),
            ["'--connect-timeout <DURATION>'", "'none'"],
        ),
        (
            &format!("{PAIR} --idle-timeout 999years"),
            ["'--idle-timeout <DURATION>'", "100 years"],
        ),
        (
            &format!("{PAIR} --engine fast"),
            ["'--engine <ENGINE>'", "splice"],
        ),
        (
            &format!("{PAIR} --log-level loud"),
            ["'--log-level <LEVEL>'", "debug"],
        ),
        (&format!("{PAIR} --lisen a:1"), ["'--lisen'", "--listen"]),
        (&format!("{PAIR} check"), ["check", ""]),
        ("check --listen a:1", ["--listen", ""]),
        (
            "--engine sockmap --listen unix:/a --to a:1",
            ["--engine sockmap", "unix:/a"],
        ),
        (
            "--listen a:1 --to b:1 --listen a:1 --to c:1",
            ["--listen a:1", "twice"],
        ),
    ] {
        let fault = fault(line);
        for part in parts {
            assert!(fault.contains(part), "{line}: {fault}");
        }
    }
}

#[test]
fn help_and_version_are_no_faults() {
    for line in ["--help", "-h", "--version", "-V", "check --help"] {
        assert!(matches!(of(line), Err(Refusal::Asked(_))), "{line}");
    }
    assert!(matches!(
        of("check --json"),
        Ok(Command::Check(Check { json: true, .. }))
    ));
}

proptest! {
    #[test]
    fn no_text_panics(words in proptest::collection::vec(word(), 0..8)) {
        let _ = parse(std::iter::once("relay".into()).chain(words.into_iter().map(OsString::from)));
    }
}

const FLAGS: &[&str] = &[
    "--listen",
    "--to",
    "--engine",
    "--drain-timeout",
    "--connect-timeout",
    "--idle-timeout",
    "--half-close-timeout",
    "--log-format",
    "--log-level",
    "check",
    "--json",
    "--",
    "unix:",
    "[::]:0",
];

/// Flags with any text behind them, and any text.
fn word() -> impl Strategy<Value = String> {
    prop_oneof![
        proptest::sample::select(FLAGS).prop_map(String::from),
        "\\PC{0,40}",
        "[0-9]{1,25} ?[a-z]{0,6}",
        "[\\[\\]:a-f0-9./@%]{0,40}",
        any::<String>(),
    ]
}

#[test]
fn pipes_and_buffers_have_bounds() {
    let sizes = served(&format!("{PAIR} --pipe-size 64KiB --buffer-size 4KiB"))
        .plan
        .policy
        .sizes;
    assert_eq!(
        (sizes.pipe.bytes(), sizes.buffer.bytes()),
        (64 << 10, 4 << 10)
    );
    for flag in ["--pipe-size", "--buffer-size"] {
        for size in ["4095", "65MiB", "0"] {
            let fault = fault(&format!("{PAIR} {flag} {size}"));
            assert!(
                fault.contains(flag) && fault.contains("from 4KiB to 64MiB"),
                "{fault}"
            );
        }
        assert!(fault(&format!("{PAIR} {flag} much")).contains("write 64KiB for one"));
    }
}

#[test]
fn when_a_connection_is_offloaded_can_be_said() {
    let after = |line: &str| served(&format!("{PAIR}{line}")).plan.policy.offload_after;
    assert_eq!(after("").map(u32::from), Some(8));
    assert_eq!(after(" --offload-after 3").map(u32::from), Some(3));
    assert_eq!(after(" --offload-after 0"), None);
}
