//! A Docker daemon of the tests' own: nothing outside its folder, no bridge, no firewall rules.

use std::{
    fs::File,
    path::PathBuf,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};

use crate::{needs::program, patience};

/// How long the daemon may take to end before it is killed.
const END: Duration = Duration::from_secs(20);

/// A daemon that runs. Dropping it ends it and its containers.
#[derive(Debug)]
pub struct Docker {
    daemon: Child,
    folder: tempfile::TempDir,
}

impl Docker {
    /// Starts one.
    ///
    /// # Errors
    ///
    /// Fails when it does not come up, with what it said.
    pub fn start() -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let path = |name: &str| folder.path().join(name);
        let said = File::create(path("said"))?;
        let daemon = program("dockerd").context("no dockerd")?;
        // What it mounts goes with its namespace; else it leaves one behind, and the folder with it.
        let mut command = Command::new("unshare");
        command.arg("--mount").arg(daemon);
        command
            .stdin(Stdio::null())
            .stdout(said.try_clone()?)
            .stderr(said);
        for (flag, name) in [
            ("--data-root", "data"),
            ("--exec-root", "exec"),
            ("--pidfile", "pid"),
        ] {
            command.arg(flag).arg(path(name));
        }
        command.arg(format!("--host=unix://{}", path("socket").display()));
        // Every machine has vfs; an image here is one file.
        command.args([
            "--storage-driver=vfs",
            "--bridge=none",
            "--userland-proxy=false",
        ]);
        command.args([
            "--iptables=false",
            "--ip6tables=false",
            "--ip-forward=false",
            "--ip-masq=false",
        ]);
        let daemon = command.spawn().context("dockerd")?;
        let mut docker = Self { daemon, folder };
        patience::until_true("dockerd to answer", || {
            if let Some(status) = docker.daemon.try_wait()? {
                let said = std::fs::read_to_string(docker.folder.path().join("said"))?;
                let last = Vec::from_iter(said.lines().rev().take(5));
                bail!("dockerd ended with {status}: {}", last.join("; "));
            }
            let mut asked = docker.client()?;
            let asked = asked
                .arg("version")
                .stdout(Stdio::null())
                .stderr(Stdio::null());
            Ok(asked.status()?.success())
        })?;
        Ok(docker)
    }

    /// The words that reach it.
    ///
    /// # Errors
    ///
    /// Fails when there is no client.
    pub fn words(&self) -> Result<Vec<String>> {
        let client = program("docker").context("no docker")?;
        let host = self.host();
        Ok(vec![client.display().to_string(), "--host".into(), host])
    }

    /// For `DOCKER_HOST`.
    #[must_use]
    pub fn host(&self) -> String {
        format!("unix://{}", self.folder.path().join("socket").display())
    }

    fn client(&self) -> Result<Command> {
        let words = self.words()?;
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).stdin(Stdio::null());
        Ok(command)
    }

    /// Builds the image of this tree, called `name`.
    ///
    /// # Errors
    ///
    /// Fails with what the script said.
    pub fn build(&self, name: &str) -> Result<()> {
        let script = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../deploy/docker/build");
        let mut command = Command::new(script);
        command
            .arg(name)
            .env("DOCKER_HOST", self.host())
            .stdin(Stdio::null());
        let output = command.output().context("deploy/docker/build")?;
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8_lossy(&said);
        ensure!(output.status.success(), "deploy/docker/build: {said}");
        Ok(())
    }
}

impl Drop for Docker {
    fn drop(&mut self) {
        let _ = kill_process(Pid::from_child(&self.daemon), Signal::TERM);
        let begun = Instant::now();
        while begun.elapsed() < END {
            if !matches!(self.daemon.try_wait(), Ok(None)) {
                return;
            }
            thread::sleep(Duration::from_millis(20));
        }
        let _ = self.daemon.kill();
        let _ = self.daemon.wait();
    }
}
