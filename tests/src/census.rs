//! Counts what a relay process holds: file descriptors by kind, entries in its BPF hash maps, memory, processor time.

use std::{fs, io::ErrorKind, path::Path, time::Duration};

use anyhow::{Context, Result, ensure};
use aya::maps::{HashMap, Map, MapData};
use rustix::pipe::fcntl_getpipe_size;
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

/// Descriptors of idle pipes that a pool may keep: two for each of 64.
const POOLED: usize = 2 * 64;

/// What a process holds at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Census {
    /// Sockets, of every family.
    pub sockets: usize,
    /// Ends of pipes.
    pub pipes: usize,
    /// All other descriptors.
    pub others: usize,
    /// Keys in BPF hash maps: sockets that the verdict program would find.
    pub entries: usize,
}

impl Census {
    /// Counts what `process` holds.
    ///
    /// # Errors
    ///
    /// Fails when the process is gone.
    pub fn of(process: Pid) -> Result<Self> {
        let mut census = Self {
            sockets: 0,
            pipes: 0,
            others: 0,
            entries: 0,
        };
        let folder = proc_of(process).join("fd");
        for fd in fs::read_dir(&folder).context("relay is gone")? {
            let fd = fd?;
            let target = match fs::read_link(fd.path()) {
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                other => other?,
            };
            let target = target.to_string_lossy();
            if target.starts_with("socket:") {
                census.sockets += 1;
            } else if target.starts_with("pipe:") {
                census.pipes += 1;
            } else {
                census.others += 1;
            }
            if target.ends_with("bpf-map") {
                let number = fd.file_name().to_string_lossy().parse()?;
                census.entries += entries(process, number)?;
            }
        }
        Ok(census)
    }

    /// Whether nothing is held beyond `baseline`, but for the pipes that a pool keeps.
    #[must_use]
    pub fn is_back_at(&self, baseline: &Self) -> bool {
        self.sockets <= baseline.sockets
            && self.others <= baseline.others
            && self.entries <= baseline.entries
            && self.pipes <= baseline.pipes + POOLED
    }
}

/// The sizes of the pipes that the process has made, in bytes; its standard streams are not its own.
///
/// # Errors
///
/// Fails when the process is gone.
pub fn pipe_sizes(process: Pid) -> Result<Vec<usize>> {
    let handle = pidfd_open(process, PidfdFlags::empty())?;
    let mut sizes = Vec::new();
    for fd in fs::read_dir(proc_of(process).join("fd"))? {
        let fd = fd?;
        let number: i32 = fd.file_name().to_string_lossy().parse()?;
        let target = fs::read_link(fd.path())?;
        if number > 2 && target.to_string_lossy().starts_with("pipe:") {
            let pipe = pidfd_getfd(&handle, number, PidfdGetfdFlags::empty())?;
            sizes.push(fcntl_getpipe_size(pipe)?);
        }
    }
    Ok(sizes)
}

/// The inode of the socket that listens on `port`, in the namespace of `process`.
///
/// # Errors
///
/// Fails when there is none.
pub fn listening(process: Pid, port: u16) -> Result<u64> {
    let sockets = fs::read_to_string(proc_of(process).join("net/tcp"))?;
    let port = format!(":{port:04X}");
    let mut rows = sockets.lines().map(|line| line.split_whitespace());
    // Columns 1 and 3 are the own address and the state, of which 0A is TCP_LISTEN; 9 is the inode.
    let row = rows.find(|row| {
        let local = row.clone().nth(1);
        local.is_some_and(|local| local.ends_with(&port)) && row.clone().nth(3) == Some("0A")
    });
    let inode = row.and_then(|mut row| row.nth(9));
    Ok(inode.context("nobody listens")?.parse()?)
}

/// The keys of one map; 0 unless it is a hash map from cookies.
fn entries(process: Pid, number: i32) -> Result<usize> {
    /// `BPF_MAP_TYPE_HASH`.
    const HASH: &str = "map_type:\t1";
    let about = proc_of(process).join("fdinfo").join(number.to_string());
    let about = fs::read_to_string(about)?;
    if !about.lines().any(|line| line == HASH) || !about.contains("key_size:\t8") {
        return Ok(0);
    }
    let process = pidfd_open(process, PidfdFlags::empty())?;
    let map = pidfd_getfd(process, number, PidfdGetfdFlags::empty())?;
    let map = MapData::from_fd(map).context("a BPF map")?;
    let map: HashMap<_, u64, u32> = Map::HashMap(map).try_into().context("a map of cookies")?;
    Ok(map.keys().filter(Result::is_ok).count())
}

/// Memory of the process that is in RAM, in bytes.
///
/// # Errors
///
/// Fails when the process is gone.
pub fn resident(process: Pid) -> Result<u64> {
    let status = fs::read_to_string(proc_of(process).join("status"))?;
    Ok(field(&status, "VmRSS:").context("no VmRSS")? * 1024)
}

/// How often the threads of the process have gone to sleep of their own accord.
///
/// # Errors
///
/// Fails when the process is gone.
pub fn sleeps(process: Pid) -> Result<u64> {
    let mut sum = 0;
    for thread in fs::read_dir(proc_of(process).join("task"))? {
        let status = fs::read_to_string(thread?.path().join("status"))?;
        sum += field(&status, "voluntary_ctxt_switches:").context("no switches")?;
    }
    Ok(sum)
}

/// Processor time that the process has used, its own and the kernel's on its behalf.
///
/// # Errors
///
/// Fails when the process is gone.
pub fn processor(process: Pid) -> Result<Duration> {
    let stat = fs::read_to_string(proc_of(process).join("stat"))?;
    let (_, after_name) = stat.rsplit_once(')').context("no name in stat")?;
    // utime and stime are fields 14 and 15 of proc(5); the state after the name is field 3.
    let fields: Vec<&str> = after_name.split_whitespace().collect();
    ensure!(fields.len() > 12, "stat is too short");
    let ticks: u64 = fields[11].parse::<u64>()? + fields[12].parse::<u64>()?;
    Ok(Duration::from_millis(
        ticks * 1000 / rustix::param::clock_ticks_per_second(),
    ))
}

fn field(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

fn proc_of(process: Pid) -> std::path::PathBuf {
    Path::new("/proc").join(process.as_raw_nonzero().to_string())
}
