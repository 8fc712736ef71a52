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
    plan::{Address, Listen, Plan, Span, Target},
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
    Serve(Box<Serve>),
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
    pub(crate) handover: Option<PathBuf>,
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
            handover,
        } = config;
        Self {
            plan,
            log,
            privileges,
            admin,
            handover,
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
            .map(|serve| Command::Serve(Box::new(serve)))
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
        shares its clients out, and several --listen with one --to are one route. One record per connection goes \
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
    /// Where clients connect: host:port, host:FROM-TO, [v6]:port, unix:/path, systemd or systemd:NAME; once per --to, or
    /// several for one.
    ///
    /// A range of ports is a listener on each; where --to has a range of as many, they go port by port, each a route of its
    /// own. `systemd` stands for all sockets that systemd passes, `systemd:NAME` for those with this FileDescriptorName=.
    /// Port 0 takes a free one, which the `listening` line tells. A name listens on the first of its addresses that
    /// can be bound. A stale Unix socket is taken over, anything else in its place is left alone.
    #[arg(long, value_name = "ADDR", conflicts_with = "File")]
    listen: Vec<Span<Listen>>,
    /// Where their connections go: host:port, host:FROM-TO, [v6]:port, unix:/path or srv:name; once per --listen, or several
    /// for one.
    ///
    /// Several for one --listen are upstreams of one route, which shares connections out as --balance says and goes to
    /// the next when one fails. A name stands for all of its addresses, srv:name for all that its SRV records say; both
    /// are resolved again when the answer expires. With `original`, clients that a rule of iptables or nftables redirects
    /// to relay reach where they wanted to go.
    #[arg(long, value_name = "ADDR", conflicts_with = "File")]
    to: Vec<Span<Target>>,
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
                    "listen": Vec::from_iter(route.listen.iter().map(ToString::to_string)),
                    "to": route.to.to_string(),
                })
            });
            let routes = Vec::from_iter(routes);
            format!("{}\n", serde_json::json!({ "routes": routes }))
        }
        false => {
            let routes = routes
                .map(|route| format!("{}: {} -> {}\n", route.name, route.listens(), route.to));
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
    let routes = match (listens, tos) {
        (1.., 1) | (1, 1..) => vec![Settings::pair(flags.listen, flags.to)],
        _ if listens == tos => {
            let pairs = flags.listen.into_iter().zip(flags.to);
            pairs
                .map(|(listen, to)| Settings::pair(vec![listen], vec![to]))
                .collect()
        }
        _ => {
            return Err(format!(
                "--listen is given {listens} times and --to {tos} times: each --listen needs a --to of its own, or one \
                 --listen takes them all, or one --to"
            ));
        }
    };
    let routes = routes.into_iter().map(|route| Spanned::new(0..0, route));
    given.route = routes.collect();
    let config = given.config().map_err(|wrong| wrong.what)?;
    Ok(Serve::new(config, None))
}

#[cfg(test)]
mod tests;
