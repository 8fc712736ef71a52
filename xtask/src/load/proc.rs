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

/// The TCP memory of the calling thread's network namespace, in bytes; proc_net(5).
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
    fn a_field_is_found_by_its_name() {
        assert_eq!(field("a:\t1\nVmRSS:\t  2048 kB\n", "VmRSS:"), Some(2048));
    }
}
