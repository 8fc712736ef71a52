//! What the kernel counts: CPU time, context switches, memory.

use std::{fs, time::Duration};

use anyhow::{Context, Result};

/// The CPU time that the whole machine has spent since it started, waiting left out.
///
/// Of the whole machine, because what a forwarder has the kernel do in softirqs and workers is in nobody's account.
pub(crate) fn busy() -> Result<Duration> {
    let stat = fs::read_to_string("/proc/stat").context("/proc/stat")?;
    let ticks = busy_ticks(&stat).context("/proc/stat has no line for all CPUs")?;
    let millis = ticks * 1000 / rustix::param::clock_ticks_per_second().max(1);
    Ok(Duration::from_millis(millis))
}

/// user, nice, system, idle, iowait, irq, softirq, steal; proc_stat(5).
fn busy_ticks(stat: &str) -> Option<u64> {
    let line = stat.lines().next()?.strip_prefix("cpu ")?;
    let ticks = line.split_whitespace().map(str::parse);
    let ticks: Vec<u64> = ticks.collect::<Result<_, _>>().ok()?;
    let waiting = [3, 4, 7];
    let busy = ticks
        .iter()
        .take(8)
        .enumerate()
        .filter(|(at, _)| !waiting.contains(at));
    Some(busy.map(|(_, ticks)| ticks).sum())
}

/// How often the threads of `process` went to sleep of their own will.
pub(crate) fn voluntary_switches(process: u32) -> Result<u64> {
    let tasks = format!("/proc/{process}/task");
    let mut switches = 0;
    for task in fs::read_dir(&tasks).with_context(|| tasks.clone())? {
        let status = fs::read_to_string(task?.path().join("status"))?;
        switches += field(&status, "voluntary_ctxt_switches:").context("no context switches")?;
    }
    Ok(switches)
}

/// Memory of `process` in bytes, where a page that others have too counts by its share; proc_pid_smaps(5).
pub(crate) fn proportional(process: u32) -> Result<u64> {
    let path = format!("/proc/{process}/smaps_rollup");
    let told = fs::read_to_string(&path).context(path)?;
    Ok(field(&told, "Pss:").context("no Pss")? * 1024)
}

/// How many descriptors `process` has.
pub(crate) fn descriptors(process: u32) -> Result<u64> {
    let path = format!("/proc/{process}/fd");
    Ok(fs::read_dir(&path).context(path)?.count() as u64)
}

/// Memory in use by slabs and by whole pages that the kernel allocated for itself, in bytes.
///
/// Everything free, mapped or cached is left out; what remains is mostly socket buffers and their like.
pub(crate) fn kernel_memory() -> Result<u64> {
    let info = fs::read_to_string("/proc/meminfo").context("/proc/meminfo")?;
    let of = |name: &str| field(&info, name).unwrap_or(0);
    let total = of("MemTotal:");
    let other = [
        "MemFree:",
        "Buffers:",
        "Cached:",
        "AnonPages:",
        "PageTables:",
        "KernelStack:",
    ];
    Ok(total.saturating_sub(other.into_iter().map(of).sum()) * 1024)
}

/// Has the kernel give back slabs that have nothing in them, where it lets itself be asked.
///
/// It keeps some for the next to come, who would then seem to need no memory.
pub(crate) fn shrink_slabs() {
    let Ok(caches) = fs::read_dir("/sys/kernel/slab") else {
        return;
    };
    for cache in caches.flatten() {
        let _ = fs::write(cache.path().join("shrink"), "1");
    }
}

/// Caches of the kernel that sockets, their descriptors, wait queues, buffers, and what else hangs on them come from.
const OF_SOCKETS: &[&str] = &[
    "TCP",
    "UNIX",
    "request_sock",
    "tw_sock",
    "sock_inode_cache",
    "skbuff_",
    "filp",
    "dentry",
    "eventpoll_",
    "lsm_",
    "kmalloc-",
];

/// Memory of all sockets of the machine, in bytes: the slabs and the buffers, without what files and processes need.
pub(crate) fn sockets_memory() -> Result<u64> {
    let table = fs::read_to_string("/proc/slabinfo").context("/proc/slabinfo")?;
    let slabs: u64 = table.lines().filter_map(objects_of_sockets).sum();
    Ok(slabs + tcp_memory()?)
}

/// A name, objects in use, all objects, bytes of each; slabinfo(5).
fn objects_of_sockets(line: &str) -> Option<u64> {
    let mut words = line.split_whitespace();
    let name = words.next()?;
    if !OF_SOCKETS.iter().any(|of| name.starts_with(of)) {
        return None;
    }
    let used: u64 = words.next()?.parse().ok()?;
    let each: u64 = words.nth(1)?.parse().ok()?;
    Some(used * each)
}

/// The memory of all TCP sockets of the machine, in bytes; proc_net(5).
pub(crate) fn tcp_memory() -> Result<u64> {
    let stat = fs::read_to_string("/proc/thread-self/net/sockstat").context("sockstat")?;
    let line = stat
        .lines()
        .find(|line| line.starts_with("TCP:"))
        .context("no TCP")?;
    let words = Vec::from_iter(line.split_whitespace());
    let pages = words
        .windows(2)
        .find(|pair| pair[0] == "mem")
        .context("no mem")?[1];
    Ok(pages.parse::<u64>()? * rustix::param::page_size() as u64)
}

fn field(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_is_not_work() {
        let stat = "cpu  10 1 20 1000 500 3 4 200 0 0\ncpu0 1 1 1\n";
        assert_eq!(busy_ticks(stat), Some(38));
    }

    #[test]
    fn slabs_of_sockets_are_told_from_others() {
        let table = "slabinfo - version: 2.1\n# name <active_objs> <num_objs> <objsize>\n\
            ext4_inode_cache 100 200 1000 : x\nTCP 3 13 2368 13 8 : tunables 0\nkmalloc-256 2 32 256 16\n";
        let bytes = Vec::from_iter(table.lines().filter_map(objects_of_sockets));
        assert_eq!(bytes, [3 * 2368, 512]);
    }

    #[test]
    fn a_field_is_found_by_its_name() {
        assert_eq!(field("a:\t1\nVmRSS:\t  2048 kB\n", "VmRSS:"), Some(2048));
    }
}
