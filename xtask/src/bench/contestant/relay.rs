//! relay itself, with each engine and with its own choice.

use std::process::Command;

use super::{Contestant, OverUnix, Site, Source, Way};

pub(super) const AUTO: Contestant = of("relay auto", "auto", |site| Ok(command(site, "auto")));
pub(super) const SOCKMAP: Contestant = Contestant {
    over_unix: OverUnix::Not("its sockmap engine carries TCP only"),
    ..of("relay sockmap", "sockmap", |site| {
        Ok(command(site, "sockmap"))
    })
};
pub(super) const SPLICE: Contestant =
    of("relay splice", "splice", |site| Ok(command(site, "splice")));
pub(super) const COPY: Contestant = of("relay copy", "copy", |site| Ok(command(site, "copy")));

const fn of(name: &'static str, engine: &'static str, start: super::Start) -> Contestant {
    Contestant {
        name,
        way: Way::Engine(engine),
        over_unix: OverUnix::Alike,
        source: Source::Relay,
        version: &["--version"],
        start,
    }
}

fn command(site: &Site<'_>, engine: &str) -> Command {
    let mut command = Command::new(site.program);
    command.args(["--listen", &site.listen.to_string()]);
    command.args(["--to", &site.to.to_string()]);
    command.args(["--engine", engine, "--log-format", "json"]);
    command
}
