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

/// Splice with pipes of every size, and copy with buffers.
pub(in crate::bench) const SPLICE_SIZES: [Contestant; 7] = [
    sized(SPLICE, "relay splice 16K", &["--pipe-size=16KiB"]),
    sized(SPLICE, "relay splice 32K", &["--pipe-size=32KiB"]),
    sized(SPLICE, "relay splice 64K", &["--pipe-size=64KiB"]),
    sized(SPLICE, "relay splice 128K", &["--pipe-size=128KiB"]),
    sized(SPLICE, "relay splice 256K", &["--pipe-size=256KiB"]),
    sized(SPLICE, "relay splice 512K", &["--pipe-size=512KiB"]),
    sized(SPLICE, "relay splice 1M", &["--pipe-size=1MiB"]),
];
pub(in crate::bench) const COPY_SIZES: [Contestant; 7] = [
    sized(COPY, "relay copy 16K", &["--buffer-size=16KiB"]),
    sized(COPY, "relay copy 32K", &["--buffer-size=32KiB"]),
    sized(COPY, "relay copy 64K", &["--buffer-size=64KiB"]),
    sized(COPY, "relay copy 128K", &["--buffer-size=128KiB"]),
    sized(COPY, "relay copy 256K", &["--buffer-size=256KiB"]),
    sized(COPY, "relay copy 512K", &["--buffer-size=512KiB"]),
    sized(COPY, "relay copy 1M", &["--buffer-size=1MiB"]),
];

const fn sized(of: Contestant, name: &'static str, more: &'static [&'static str]) -> Contestant {
    Contestant { name, more, ..of }
}

const fn of(name: &'static str, engine: &'static str, start: super::Start) -> Contestant {
    Contestant {
        name,
        way: Way::Engine(engine),
        over_unix: OverUnix::Alike,
        source: Source::Relay,
        version: &["--version"],
        more: &[],
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
