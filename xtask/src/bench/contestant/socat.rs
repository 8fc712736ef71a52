//! socat, a process for each connection.

use std::process::Command;

use super::{Contestant, Site, Source, Way};

pub(super) const SOCAT: Contestant = Contestant {
    name: "socat",
    way: Way::Copy,
    source: Source::Debian {
        program: "socat",
        package: "socat",
        needs: None,
    },
    version: &["-V"],
    start: |site| Ok(command(site)),
};

fn command(site: &Site<'_>) -> Command {
    let (listen, to) = (site.listen, site.to);
    let mut command = Command::new(site.program);
    command.args(["-b", "65536"]);
    let (ip, port) = (listen.ip(), listen.port());
    command.arg(format!(
        "TCP-LISTEN:{port},bind={ip},reuseaddr,fork,nodelay,backlog=4096"
    ));
    command.arg(format!("TCP:{to},nodelay"));
    command
}
