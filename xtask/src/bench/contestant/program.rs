//! A contestant's processes: started in their place and group, found listening, and ended with this process at the latest.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Error, Result, bail};
use tempfile::TempDir;

use super::{Contestant, Site, Way};
use crate::{
    bench::{
        cgroup::Group,
        ends::Ends,
        lab::{Lab, Place},
    },
    host,
    load::{proc, socket::Address},
};

const PATIENCE: Duration = Duration::from_secs(15);

/// A contestant that runs, or the kernel that routes.
pub(in crate::bench) struct Program {
    pub(in crate::bench) contestant: Contestant,
    /// Where clients connect.
    pub(in crate::bench) address: Address,
    pub(in crate::bench) group: Group,
    pub(in crate::bench) place: Place,
    child: Option<Child>,
    directory: TempDir,
}

impl Program {
    /// Starts it at a place of its own, and waits until it listens.
    pub(in crate::bench) fn start(
        lab: &mut Lab,
        contestant: Contestant,
        program: &Path,
        ends: Ends,
        threads: usize,
    ) -> Result<Self> {
        let place = lab.place(ends)?;
        let group = Group::new(&contestant.name.replace([' ', '.'], "-"))?;
        let directory = tempfile::tempdir()?;
        if contestant.way == Way::Routed {
            return Ok(Self {
                contestant,
                address: lab.route(&place)?,
                group,
                place,
                child: None,
                directory,
            });
        }
        let site = Site {
            program,
            listen: place.listen(),
            to: place.to(),
            directory: directory.path(),
            threads,
        };
        let command = contestant.command(&site)?;
        let child = spawn(&command, &place, &group, directory.path())?;
        let mut started = Self {
            contestant,
            address: place.listen(),
            group,
            place,
            child: Some(child),
            directory,
        };
        started.wait_listening(lab)?;
        Ok(started)
    }

    /// Fails when it has ended, with the last that it said.
    pub(in crate::bench) fn check(&mut self) -> Result<()> {
        let Some(child) = &mut self.child else {
            return Ok(());
        };
        match child.try_wait()? {
            None => Ok(()),
            Some(status) => bail!("it has ended, {status}: {}", self.last_words()),
        }
    }

    /// The reason for `error` where it is that the contestant has ended, which may show a moment later.
    pub(in crate::bench) fn explain(&mut self, error: Error) -> Error {
        let deadline = Instant::now() + Duration::from_millis(500);
        while Instant::now() < deadline {
            if let Err(ended) = self.check() {
                return ended;
            }
            thread::sleep(Duration::from_millis(20));
        }
        error
    }

    fn wait_listening(&mut self, lab: &Lab) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        let address = self.address.clone();
        loop {
            let there = lab.as_client(|| Ok(address.connect()))?;
            match there {
                Ok(_) => return Ok(()),
                Err(error) if Instant::now() > deadline => {
                    bail!("it does not listen: {error:#}: {}", self.last_words());
                }
                Err(_) => self.check()?,
            }
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// What it has written, line by line.
    pub(in crate::bench) fn said(&self) -> Vec<String> {
        let said = fs::read(self.directory.path().join("said")).unwrap_or_default();
        let said = String::from_utf8_lossy(&said);
        said.lines().map(str::to_owned).collect()
    }

    fn last_words(&self) -> String {
        let mut said = self.said();
        let from = said.len().saturating_sub(3);
        said.split_off(from).join(" / ")
    }

    /// All of its processes.
    pub(in crate::bench) fn processes(&self) -> Result<Vec<u32>> {
        self.group.processes()
    }

    /// Its memory in bytes, shared pages by share.
    pub(in crate::bench) fn memory(&self) -> Result<u64> {
        let processes = self.processes()?.into_iter();
        processes.map(proc::proportional).sum()
    }

    /// How many descriptors it has.
    pub(in crate::bench) fn descriptors(&self) -> Result<u64> {
        let processes = self.processes()?.into_iter();
        processes.map(proc::descriptors).sum()
    }

    /// How often its threads went to sleep.
    pub(in crate::bench) fn switches(&self) -> Result<u64> {
        let processes = self.processes()?.into_iter();
        processes.map(proc::voluntary_switches).sum()
    }

    /// Ends it at once, and all that it has started.
    pub(in crate::bench) fn stop(mut self) -> Result<()> {
        self.kill();
        self.group.remove()
    }

    fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.kill();
    }
}

/// In a PID namespace of its own, so that nothing it starts outlives it, and it does not outlive this process.
fn spawn(command: &Command, place: &Place, group: &Group, directory: &Path) -> Result<Child> {
    let said = File::create(directory.join("said"))?;
    let mut outer = Command::new("nsenter");
    outer.arg(format!("--net={}", place.namespace.path()));
    outer.args(["setpriv", "--pdeathsig", "KILL", "sh", "-c"]);
    // Into the group first, so that all it does is counted.
    outer.arg("for door in $DOORS; do echo 0 >\"$door\" || exit 1; done; ulimit -n \"$(ulimit -Hn)\"; exec \"$@\"");
    outer.args(["sh", "unshare", "--pid", "--fork", "--kill-child=KILL"]);
    outer.arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        if let Some(value) = value {
            outer.env(name, value);
        }
    }
    let doors = group.doors();
    let doors = Vec::from_iter(doors.iter().map(|door| door.display().to_string()));
    outer.env("DOORS", doors.join(" "));
    outer.stdin(Stdio::null());
    outer.stdout(said.try_clone()?).stderr(said);
    outer
        .spawn()
        .with_context(|| format!("could not start {}", command.get_program().display()))
}

/// The program of this name, also where Debian keeps those of servers.
pub(in crate::bench) fn find(name: &str) -> Option<PathBuf> {
    let system = Path::new("/usr/sbin").join(name);
    host::which(name).or_else(|| system.is_file().then_some(system))
}
