//! socat, a process for each connection.

use std::process::Command;

use super::{Contestant, OverUnix, Site, Source, Way};
use crate::load::socket::Address;

pub(super) const SOCAT: Contestant = Contestant {
    name: "socat",
    way: Way::Copy,
    over_unix: OverUnix::Alike,
    source: Source::Debian {
        program: "socat",
        package: "socat",
        needs: None,
    },
    version: &["-V"],
    more: &[],
    start: |site| Ok(command(site)),
};

fn command(site: &Site<'_>) -> Command {
    let mut command = Command::new(site.program);
    command.args(["-b", "65536"]);
    command.arg(match &site.listen {
        Address::Tcp(at) => format!(
            "TCP-LISTEN:{},bind={},reuseaddr,fork,nodelay,backlog=4096",
            at.port(),
            at.ip()
        ),
        Address::Unix(path) => format!("UNIX-LISTEN:{},fork,backlog=4096", path.display()),
    });
    command.arg(match &site.to {
        Address::Tcp(to) => format!("TCP:{to},nodelay"),
        Address::Unix(path) => format!("UNIX-CONNECT:{}", path.display()),
    });
    command
}
