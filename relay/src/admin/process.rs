//! The metrics that every process under Prometheus has, from /proc.

use std::{fmt, fs, os::unix::fs::MetadataExt};

use procfs::{
    WithCurrentSystemInfo,
    process::{LimitValue, Process},
};
use prometheus_client::registry::Unit;

use super::page::Page;

/// Writes those that can be had; /proc may be hidden.
pub(super) fn encode(page: &mut Page<'_>) -> fmt::Result {
    let Ok(process) = Process::myself() else {
        return Ok(());
    };
    if let Ok(stat) = process.stat() {
        let ticks = procfs::ticks_per_second() as f64;
        let processor = (stat.utime + stat.stime) as f64 / ticks;
        let help = "Processor time, the kernel's on behalf of the process included";
        page.counter("process_cpu", help, Some(&Unit::Seconds), processor)?;
        let resident = stat.rss_bytes().get();
        let help = "Memory in RAM";
        page.gauge(
            "process_resident_memory",
            help,
            Some(&Unit::Bytes),
            resident,
        )?;
        if let Ok(boot) = procfs::boot_time_secs() {
            let started = boot as f64 + stat.starttime as f64 / ticks;
            let help = "When the process began, since the epoch";
            page.gauge("process_start_time", help, Some(&Unit::Seconds), started)?;
        }
        let help = "Threads";
        page.gauge("process_threads", help, None, stat.num_threads)?;
    }
    if let Some(open) = open_files() {
        page.gauge("process_open_fds", "Open file descriptors", None, open)?;
    }
    if let Ok(limits) = process.limits()
        && let LimitValue::Value(most) = limits.max_open_files.soft_limit
    {
        let help = "How many descriptors may be open";
        page.gauge("process_max_fds", help, None, most)?;
    }
    Ok(())
}

/// Since Linux 6.2 the size of the directory is their number; before that they are counted.
fn open_files() -> Option<u64> {
    match fs::metadata("/proc/self/fd").ok()?.size() {
        0 => u64::try_from(fs::read_dir("/proc/self/fd").ok()?.count()).ok(),
        open => Some(open),
    }
}
