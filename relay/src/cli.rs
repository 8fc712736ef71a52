//! The command line: flags as typed, and their one conversion into a plan.

mod ask;

use std::{
    ffi::OsString,
    io::{self, Write},
    path::PathBuf,
    process::ExitCode,
};

use clap::{Args, Parser, Subcommand, error::ErrorKind};
use relay::{
    plan::{Address, Plan, Target, To, Upstream},
    privileges::Wanted,
};
use toml::Spanned;

pub(crate) use self::ask::Ask;
use crate::{
    config::{Form, Source},
    logs::Log,
    settings::{Config, Given, Settings},
};

/// Exit code for a command line that cannot be carried out.
const USAGE: u8 = 2;

/// What to do.
#[derive(Debug)]
pub(crate) enum Command {
    /// Forward.
    Serve(Serve),
    /// Say what this host can do.
    Check(Check),
    /// Ask a relay that runs.
    Ask(Ask),
}

/// How to forward.
#[derive(Debug)]
pub(crate) struct Serve {
    pub(crate) plan: Plan,
    pub(crate) log: Log,
    pub(crate) privileges: Wanted,
    pub(crate) admin: Option<Address>,
    /// What to read again when a reload is asked for; flags cannot change.
    pub(crate) source: Option<Box<Source>>,
}

impl Serve {
    fn new(config: Config, source: Option<Box<Source>>) -> Self {
        let Config {
            plan,
            log,
            privileges,
            admin,
        } = config;
        Self {
            plan,
            log,
            privileges,
            admin,
            source,
        }
    }
}

/// Why there is nothing to do: bad usage, or a text that was asked for.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// `--help` or `--version`.
    Asked(String),
    /// One line that names the flag and the fault.
    Usage(String),
}

impl Refusal {
    /// Prints it and says how the process ends. A reader that is gone is no fault.
    pub(crate) fn report(&self) -> ExitCode {
        match self {
            Self::Asked(text) => {
                let _ = io::stdout().write_all(text.as_bytes());
                ExitCode::SUCCESS
            }
            Self::Usage(fault) => {
                complain(fault);
                ExitCode::from(USAGE)
            }
        }
    }
}

/// Says on stderr, in one line, why relay gives up.
pub(crate) fn complain(fault: &str) {
    let line = fault.split_whitespace().collect::<Vec<_>>().join(" ");
    let _ = io::stderr().write_all(format!("relay: {line}\n").as_bytes());
}

/// Reads the command line.
pub(crate) fn parse(words: impl IntoIterator<Item = OsString>) -> Result<Command, Refusal> {
    let typed = Typed::try_parse_from(words).map_err(|error| refusal(&error))?;
    match typed.command {
        Some(Commands::Check(check)) => match check.file.form() {
            Some((path, form)) => Err(examine(path, form, check.json)),
            None => Ok(Command::Check(check)),
        },
        Some(Commands::Ask(ask)) => Ok(Command::Ask(ask)),
        None => serve(typed.serve)
            .map(Command::Serve)
            .map_err(Refusal::Usage),
    }
}

fn refusal(error: &clap::Error) -> Refusal {
    let text = error.to_string();
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => Refusal::Asked(text),
        _ => {
            let fault = text.strip_prefix("error: ").unwrap_or(&text);
            let end = ["\n\nUsage:", "\n\nFor more information"]
                .iter()
                .filter_map(|mark| fault.rfind(mark))
                .min();
            let fault = fault[..end.unwrap_or(fault.len())].replace("\n\n  tip:", "; tip:");
            Refusal::Usage(format!("{fault}; try --help"))
        }
    }
}

#[derive(Debug, Parser)]
#[command(
    name = "relay",
    version,
    about = "Forwards TCP connections, inside the kernel where the kernel allows it",
    long_about = "Forwards TCP connections, inside the kernel where the kernel allows it.\n\n\
        Each --listen takes clients for the --to at the same place in the command line; one --listen with several --to \
        shares its clients out. One record per connection goes \
        to stderr when it ends. SIGTERM and SIGINT stop: no new clients, time for the live ones, then a reset; a second \
        signal skips the wait.",
    after_long_help = "\
Examples:
  relay --listen 0.0.0.0:8080 --to 10.0.0.5:80
  relay --listen 0.0.0.0:8080 --to 10.0.0.5:80 --to 10.0.0.6:80 --balance least-connections
  relay --listen '[::]:5432' --to db.internal:5432 --idle-timeout 30m
  relay --listen 127.0.0.1:9000 --to unix:/run/app.sock --log-format json
  relay --config /etc/relay.toml
  relay check
  relay check --config /etc/relay.toml
  relay --config /etc/relay.toml --admin unix:/run/relay.sock
  relay top

Exit codes:
  0  stopped, and every connection came to its own end
  1  connections had to be cut, or relay could not start
  2  bad usage

Durations: 500ms, 10s, 5m, 1h 30m, 2days; none where a limit may be absent.",
    args_conflicts_with_subcommands = true,
    disable_help_subcommand = true
)]
struct Typed {
    #[command(subcommand)]
    command: Option<Commands>,
    #[command(flatten)]
    serve: Flags,
}

#[derive(Debug, Subcommand)]
enum Commands {
    /// Prints what this host can do for each engine, or whether a config is in order.
    #[command(
        long_about = "Prints what this host can do for each engine, what is missing, and what would help; with --config or \
        --rinetd, whether that file is in order.\n\n\
        It starts the engines as relay itself would, self-test included, and forwards nothing. The exit code is 0 \
        whatever it finds; 1 when it could not look. A file is read and nothing else: no listener, no engine; the exit \
        code is 2 when it has a fault."
    )]
    Check(Check),
    #[command(flatten)]
    Ask(Ask),
}

/// How to look.
#[derive(Args, Debug)]
pub(crate) struct Check {
    /// Print one JSON object instead of tables.
    #[arg(long)]
    pub(crate) json: bool,
    /// Test sockmap also on a kernel version known to harm it.
    #[arg(long)]
    pub(crate) trust_kernel: bool,
    #[command(flatten)]
    file: File,
}

/// A file to read the routes from.
#[derive(Args, Debug)]
#[group(multiple = false)]
struct File {
    /// Reads settings and routes from a TOML file; flags of the process win, those of routes go into the file.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Reads routes from a file in the form of rinetd: address, port, address, port.
    #[arg(long, value_name = "FILE")]
    rinetd: Option<PathBuf>,
}

impl File {
    fn form(&self) -> Option<(PathBuf, Form)> {
        let rinetd = self.rinetd.clone().map(|path| (path, Form::Rinetd));
        let config = self.config.clone().map(|path| (path, Form::Toml));
        config.or(rinetd)
    }
}

#[derive(Args, Debug)]
struct Flags {
    /// Where clients connect: host:port, [v6]:port or unix:/path; once per --to.
    ///
    /// Port 0 takes a free one, which the `listening` line tells. A name listens on the first of its addresses that
    /// can be bound. A stale Unix socket is taken over, anything else in its place is left alone.
    #[arg(long, value_name = "ADDR", conflicts_with = "File")]
    listen: Vec<Address>,
    /// Where their connections go: host:port, [v6]:port, unix:/path or srv:name; once per --listen, or several for one.
    ///
    /// Several for one --listen are upstreams of one route, which shares connections out as --balance says and goes to
    /// the next when one fails. A name stands for all of its addresses, srv:name for all that its SRV records say; both
    /// are resolved again when the answer expires. With `original`, clients that a rule of iptables or nftables redirects
    /// to relay reach where they wanted to go.
    #[arg(long, value_name = "ADDR", conflicts_with = "File")]
    to: Vec<Target>,
    #[command(flatten)]
    file: File,
    #[command(flatten)]
    given: Given,
}

/// What is to be said of a file: its routes, or its fault.
fn examine(path: PathBuf, form: Form, json: bool) -> Refusal {
    let plan = match Source::new(path, form, Given::default()).read() {
        Ok(config) => config.plan,
        Err(fault) => return Refusal::Usage(fault.to_string()),
    };
    let routes = plan.routes.iter();
    Refusal::Asked(match json {
        true => {
            let routes = routes.map(|route| {
                serde_json::json!({
                    "route": route.name,
                    "listen": route.listen.to_string(),
                    "to": route.to.to_string(),
                })
            });
            let routes = Vec::from_iter(routes);
            format!("{}\n", serde_json::json!({ "routes": routes }))
        }
        false => {
            let routes =
                routes.map(|route| format!("{}: {} -> {}\n", route.name, route.listen, route.to));
            String::from_iter(routes)
        }
    })
}

fn serve(flags: Flags) -> Result<Serve, String> {
    let mut given = flags.given;
    if let Some((path, form)) = flags.file.form() {
        let source = Source::new(path, form, given);
        let config = source.read().map_err(|fault| fault.to_string())?;
        return Ok(Serve::new(config, Some(Box::new(source))));
    }
    let (listens, tos) = (flags.listen.len(), flags.to.len());
    if given.defaults.asks() && tos == 0 {
        let routes = flags.listen.into_iter().map(Settings::asking);
        given.route = routes.map(|route| Spanned::new(0..0, route)).collect();
        let config = given.config().map_err(|wrong| wrong.what)?;
        return Ok(Serve::new(config, None));
    }
    let all = flags.to.into_iter().map(Upstream::from);
    let to = match listens {
        1 if tos > 0 => vec![To(all.collect())],
        _ if listens == tos => all.map(|only| To(vec![only])).collect(),
        _ => {
            return Err(format!(
                "--listen is given {listens} times and --to {tos} times: each --listen needs a --to of its own, or one \
                 --listen takes them all"
            ));
        }
    };
    let pairs = flags.listen.into_iter().zip(to);
    let routes = pairs.map(|(listen, to)| Spanned::new(0..0, Settings::pair(listen, to)));
    given.route = routes.collect();
    let config = given.config().map_err(|wrong| wrong.what)?;
    Ok(Serve::new(config, None))
}

#[cfg(test)]
mod tests {
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
            Ok(Command::Serve(serve)) => serve,
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
            .map(|r| format!("{} {}", r.listen, r.to))
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
}
