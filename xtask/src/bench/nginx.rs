//! nginx as a web server behind the contestants, with a small object and a large one.

use std::{
    fs::{self, File},
    net::SocketAddr,
    process::{Child, Command, Stdio},
};

use anyhow::{Context, Result};
use tempfile::TempDir;

use super::contestant::find;

const SMALL: usize = 612;
const LARGE: u64 = 100_000_000;

/// Ends when dropped.
pub(super) struct Nginx {
    child: Child,
    _directory: TempDir,
}

impl Nginx {
    /// Listens on `listen` in the namespace at `path`.
    pub(super) fn start(path: &str, listen: SocketAddr) -> Result<Self> {
        let nginx = find("nginx").context("needs Debian's nginx-light (--install)")?;
        let directory = tempfile::tempdir()?;
        fs::write(directory.path().join("small"), vec![b'x'; SMALL])?;
        File::create(directory.path().join("large"))?.set_len(LARGE)?;
        let at = directory.path().display();
        let config = format!(
            "user root;
worker_processes 2;
worker_rlimit_nofile 20000;
pid {at}/nginx.pid;
error_log {at}/nginx.log;
daemon off;
events {{
  worker_connections 8192;
}}
http {{
  access_log off;
  sendfile on;
  tcp_nopush on;
  keepalive_requests 100000000;
  server {{
    listen {listen} backlog=4096;
    root {at};
  }}
}}
"
        );
        let file = directory.path().join("nginx.conf");
        fs::write(&file, config)?;
        let mut command = Command::new("nsenter");
        command.arg(format!("--net={path}"));
        command.args(["setpriv", "--pdeathsig", "KILL"]);
        command.args(["unshare", "--pid", "--fork", "--kill-child=KILL"]);
        command
            .arg(nginx)
            .arg("-p")
            .arg(directory.path())
            .arg("-c")
            .arg(file);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        Ok(Self {
            child: command.spawn().context("nginx")?,
            _directory: directory,
        })
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
