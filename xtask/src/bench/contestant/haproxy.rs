//! HAProxy in its tcp mode, with splice(2) and without.

use std::{fs, process::Command};

use anyhow::Result;
use rustix::process::{Resource, getrlimit};

use super::{Contestant, OverUnix, Site, Source, Way};
use crate::load::socket::Address;

pub(super) const SPLICING: Contestant = Contestant {
    name: "haproxy splice",
    way: Way::Splice,
    over_unix: OverUnix::Alike,
    source: SOURCE,
    version: &["-v"],
    more: &[],
    start: |site| command(site, SPLICE),
};

pub(super) const COPYING: Contestant = Contestant {
    name: "haproxy",
    way: Way::Copy,
    over_unix: OverUnix::Alike,
    source: SOURCE,
    version: &["-v"],
    more: &[],
    start: |site| command(site, ""),
};

const SOURCE: Source = Source::Debian {
    program: "haproxy",
    package: "haproxy",
    needs: None,
};

/// `splice-auto` alone was never seen to splice with 2.6, however long the stream.
const SPLICE: &str = "option splice-auto
  option splice-request
  option splice-response";

fn command(site: &Site<'_>, option: &str) -> Result<Command> {
    let [listen, to] = [&site.listen, &site.to].map(address);
    let threads = site.threads;
    // By itself it asks for more than it is given, and ends.
    let descriptors = getrlimit(Resource::Nofile).maximum.unwrap_or(1 << 20);
    let config = format!(
        "global
  nbthread {threads}
  fd-hard-limit {descriptors}
  tune.pipesize 1048576
defaults
  mode tcp
  timeout connect 10s
  timeout client 1h
  timeout server 1h
  {option}
listen bench
  bind {listen} backlog 4096
  server upstream {to}
"
    );
    let path = site.directory.join("haproxy.cfg");
    fs::write(&path, config)?;
    let mut command = Command::new(site.program);
    // In the foreground.
    command.arg("-db").arg("-f").arg(path);
    Ok(command)
}

/// Its name for an address.
fn address(address: &Address) -> String {
    match address {
        Address::Tcp(address) => address.to_string(),
        Address::Unix(path) => format!("unix@{}", path.display()),
    }
}
