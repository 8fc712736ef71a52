//! A control group for a contestant: its CPU time, all processes that it starts included, and a quota. Version 1 or 2,
//! whichever is mounted.

use std::{
    fs, io, iter,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};

/// A quota is counted anew after this long, microseconds; the kernel's default.
const PERIOD: u64 = 100_000;

const ROOT: &str = "/sys/fs/cgroup";

const PREFIX: &str = "relay-bench-";

/// Removes the groups of runs that were killed; what was in them has ended with them.
pub(super) fn sweep() {
    let mounted = fs::read_dir(ROOT).into_iter().flatten().flatten();
    let parents = iter::once(PathBuf::from(ROOT)).chain(mounted.map(|entry| entry.path()));
    for group in parents.flat_map(|parent| fs::read_dir(parent).into_iter().flatten().flatten()) {
        let name = group.file_name();
        let of = name.to_str().and_then(|name| name.strip_prefix(PREFIX));
        let run = of.and_then(|of| of.split('-').next());
        if run.is_some_and(|run| !Path::new("/proc").join(run).exists()) {
            let _ = fs::remove_dir(group.path());
        }
    }
}

/// A group that is removed when dropped; its processes must have ended.
pub(super) struct Group {
    /// Where the group's processes are written; two in version 1, where the controllers are mounted apart.
    directories: Vec<PathBuf>,
    version: Version,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

impl Group {
    pub(super) fn new(name: &str) -> Result<Self> {
        let root = Path::new(ROOT);
        let (version, parents) = if root.join("cgroup.controllers").exists() {
            // Where it is delegated already, this changes nothing.
            let _ = fs::write(root.join("cgroup.subtree_control"), "+cpu");
            (Version::Two, vec![root.to_owned()])
        } else {
            let parents = ["cpu", "cpuacct"].map(|controller| root.join(controller));
            (Version::One, parents.to_vec())
        };
        let name = format!("{PREFIX}{}-{name}", std::process::id());
        let mut group = Self {
            directories: Vec::new(),
            version,
        };
        for parent in parents {
            let directory = parent.join(&name);
            match fs::create_dir(&directory) {
                Ok(()) => group.directories.push(directory),
                // Both controllers are often one mount with two names.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => (),
                Err(error) => {
                    return Err(error).with_context(|| format!("{}", directory.display()));
                }
            }
        }
        Ok(group)
    }

    /// The files to which a process writes 0 to enter.
    pub(super) fn doors(&self) -> Vec<PathBuf> {
        let door = |directory: &PathBuf| directory.join("cgroup.procs");
        self.directories.iter().map(door).collect()
    }

    /// The processes that are in it.
    pub(super) fn processes(&self) -> Result<Vec<u32>> {
        let listed = self.read("cgroup.procs")?;
        let numbers = listed.lines().map(str::parse);
        Ok(numbers.collect::<Result<_, _>>()?)
    }

    /// Lets the group have so much of one CPU, in percent.
    pub(super) fn limit(&self, percent: u64) -> Result<()> {
        let quota = PERIOD * percent / 100;
        match self.version {
            Version::Two => self.write("cpu.max", &format!("{quota} {PERIOD}")),
            Version::One => {
                self.write("cpu.cfs_period_us", &PERIOD.to_string())?;
                self.write("cpu.cfs_quota_us", &quota.to_string())
            }
        }
    }

    /// CPU time of all that ever ran in the group.
    pub(super) fn used(&self) -> Result<Duration> {
        match self.version {
            Version::Two => {
                let stat = self.read("cpu.stat")?;
                let micros = stat
                    .lines()
                    .find_map(|line| line.strip_prefix("usage_usec "));
                Ok(Duration::from_micros(
                    micros.context("no usage_usec")?.trim().parse()?,
                ))
            }
            Version::One => {
                let nanos = self.read("cpuacct.usage")?;
                Ok(Duration::from_nanos(nanos.trim().parse()?))
            }
        }
    }

    fn find(&self, file: &str) -> Result<PathBuf> {
        let files = self
            .directories
            .iter()
            .map(|directory| directory.join(file));
        let found = { files }.find(|path| path.exists());
        found.with_context(|| format!("the control group has no {file}"))
    }

    fn read(&self, file: &str) -> Result<String> {
        let path = self.find(file)?;
        fs::read_to_string(&path).with_context(|| path.display().to_string())
    }

    fn write(&self, file: &str, value: &str) -> Result<()> {
        let path = self.find(file)?;
        fs::write(&path, value).with_context(|| path.display().to_string())
    }

    /// Waits until its processes have ended, and removes it.
    pub(super) fn remove(&mut self) -> Result<()> {
        let deadline = Instant::now() + Duration::from_secs(10);
        while let Some(directory) = self.directories.last() {
            match fs::remove_dir(directory) {
                Ok(()) => {
                    self.directories.pop();
                }
                Err(error) if Instant::now() > deadline => {
                    bail!("{}: {error}", directory.display());
                }
                Err(_) => thread::sleep(Duration::from_millis(10)),
            }
        }
        Ok(())
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // A group that is left behind holds nothing; the next run has a name of its own.
        let _ = self.remove();
    }
}
