//! nginx with its stream module.

use std::{fs, process::Command};

use anyhow::Result;

use super::{Contestant, OverUnix, Site, Source, Way};

const MODULE: &str = "/usr/lib/nginx/modules/ngx_stream_module.so";

pub(super) const NGINX: Contestant = Contestant {
    name: "nginx stream",
    way: Way::Copy,
    over_unix: OverUnix::Alike,
    source: Source::Debian {
        program: "nginx",
        package: "nginx-light",
        needs: Some((MODULE, "libnginx-mod-stream")),
    },
    version: &["-v"],
    more: &[],
    start: command,
};

fn command(site: &Site<'_>) -> Result<Command> {
    let Site {
        listen,
        to,
        threads,
        directory,
        ..
    } = site;
    let directory = directory.display();
    let config = format!(
        "load_module {MODULE};
user root;
worker_processes {threads};
worker_rlimit_nofile 20000;
pid {directory}/nginx.pid;
error_log {directory}/nginx.log;
daemon off;
events {{
  worker_connections 12000;
}}
stream {{
  server {{
    listen {listen} backlog=4096;
    proxy_pass {to};
    proxy_buffer_size 64k;
    proxy_timeout 1h;
    proxy_half_close on;
    tcp_nodelay on;
  }}
}}
"
    );
    let path = site.directory.join("nginx.conf");
    fs::write(&path, config)?;
    let mut command = Command::new(site.program);
    command.arg("-p").arg(site.directory).arg("-c").arg(path);
    Ok(command)
}
