//! Proxies of a few lines around libraries: tokio's copy, tokio-splice2, realm's core, and Go's io.Copy.

use std::{path::PathBuf, process::Command};

use super::{Contestant, OverUnix, Site, Source, Way, program};
use crate::{
    bench::ends::{Ends, Kind},
    host,
    load::socket::Address,
};

pub(super) const SPLICE2: Contestant = of("tokio-splice2", "rival-splice2", Way::Splice);
pub(super) const TOKIO: Contestant = of("tokio copy", "rival-tokio", Way::Copy);
pub(super) const REALM: Contestant = Contestant {
    over_unix: OverUnix::Not("it listens on TCP and connects to TCP only"),
    ..of("realm", "rival-realm", Way::Splice)
};
pub(super) const GO: Contestant = Contestant {
    over_unix: OverUnix::By(go),
    ..of("go io.Copy", "go", Way::Splice)
};

/// Of its streams up: its runtime splices to TCP from either, to Unix only from TCP, and that not in every version.
fn go(ends: Ends) -> Way {
    match (ends.client, ends.upstream) {
        (_, Kind::Tcp) => Way::Splice,
        (Kind::Tcp, Kind::Unix) => Way::Either,
        (Kind::Unix, Kind::Unix) => Way::Copy,
    }
}

const fn of(name: &'static str, program: &'static str, way: Way) -> Contestant {
    Contestant {
        name,
        way,
        over_unix: OverUnix::Alike,
        source: Source::Rival(program),
        version: &["--version"],
        more: &[],
        start: |site| Ok(command(site)),
    }
}

fn command(site: &Site<'_>) -> Command {
    let mut command = Command::new(site.program);
    command.args([&site.listen, &site.to].map(Address::to_string));
    command.env("GOMAXPROCS", site.threads.to_string());
    command
}

/// Builds those in Rust, a workspace of their own; gives their directory, or why they cannot take part.
pub(super) fn build() -> Result<PathBuf, String> {
    let [source, target] = places()?;
    let mut command = host::cargo();
    command.args(["build", "--release", "--locked", "--quiet"]);
    command
        .arg("--manifest-path")
        .arg(source.join("Cargo.toml"));
    command.arg("--target-dir").arg(&target);
    host::succeed(&mut command).map_err(|error| format!("{error:#}"))?;
    Ok(target.join("release"))
}

/// Builds the one in Go.
pub(super) fn build_go() -> Result<PathBuf, String> {
    let [source, target] = places()?;
    let go = program::find("go").ok_or("needs Go: Debian's golang-go (--install)")?;
    let output = target.join("rival-go");
    let mut command = Command::new(go);
    command.args(["build", "-o"]).arg(&output).arg("rival.go");
    command.current_dir(source.join("go"));
    host::succeed(&mut command).map_err(|error| format!("{error:#}"))?;
    Ok(output)
}

fn places() -> Result<[PathBuf; 2], String> {
    let places = host::root().and_then(|root| Ok((root, host::target()?)));
    let (root, target) = places.map_err(|error| format!("{error:#}"))?;
    Ok([root.join("tests/benches/rivals"), target.join("rivals")])
}
