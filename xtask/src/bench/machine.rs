//! The machine that a run was made on, as far as it matters to the figures.

use std::{fs, process::Command};

use serde::{Deserialize, Serialize};

use crate::host;

/// Facts in the words of the system itself.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Machine {
    pub(super) name: String,
    pub(super) kernel: String,
    pub(super) cpu: String,
    pub(super) cpus: usize,
    /// Timer interrupts a second; the kernel's backlog worker waits for one.
    pub(super) hz: Option<u64>,
    pub(super) memory_kib: Option<u64>,
    pub(super) tcp_rmem: String,
    pub(super) tcp_wmem: String,
    pub(super) congestion: String,
    /// Segmentation and receive offload of a veth as it is made here.
    pub(super) offload: String,
    pub(super) load: String,
}

impl Machine {
    /// This one, as it is now.
    pub(super) fn here() -> Self {
        let read = |path: &str| {
            let text = fs::read_to_string(path).unwrap_or_default();
            text.split_whitespace().collect::<Vec<_>>().join(" ")
        };
        let field = |path: &str, name: &str| {
            let text = fs::read_to_string(path).unwrap_or_default();
            let line = text.lines().find(|line| line.starts_with(name))?;
            line.split_once(':')
                .map(|(_, value)| value.trim().to_owned())
        };
        let memory = field("/proc/meminfo", "MemTotal");
        Self {
            name: read("/proc/sys/kernel/hostname"),
            kernel: read("/proc/sys/kernel/osrelease"),
            cpu: field("/proc/cpuinfo", "model name").unwrap_or_default(),
            cpus: std::thread::available_parallelism().map_or(1, Into::into),
            hz: hz(),
            memory_kib: memory.and_then(|kib| kib.split(' ').next()?.parse().ok()),
            tcp_rmem: read("/proc/sys/net/ipv4/tcp_rmem"),
            tcp_wmem: read("/proc/sys/net/ipv4/tcp_wmem"),
            congestion: read("/proc/sys/net/ipv4/tcp_congestion_control"),
            offload: offload().unwrap_or_else(|| "unknown: no ethtool".into()),
            load: read("/proc/loadavg"),
        }
    }
}

fn hz() -> Option<u64> {
    let config = host::output(Command::new("zcat").arg("/proc/config.gz")).ok();
    let config = config.or_else(|| {
        let release = fs::read_to_string("/proc/sys/kernel/osrelease").ok()?;
        fs::read_to_string(format!("/boot/config-{}", release.trim())).ok()
    })?;
    let line = config
        .lines()
        .find_map(|line| line.strip_prefix("CONFIG_HZ="));
    line?.trim().parse().ok()
}

fn offload() -> Option<String> {
    let script = "ip link add rb0 type veth peer name rb1 && ethtool -k rb0";
    let told = host::output(Command::new("unshare").args(["--net", "sh", "-c", script])).ok()?;
    let wanted = [
        "tcp-segmentation-offload",
        "generic-segmentation-offload",
        "generic-receive-offload",
    ];
    let lines = told
        .lines()
        .filter(|line| wanted.iter().any(|name| line.starts_with(name)));
    Some(Vec::from_iter(lines).join(", "))
}
