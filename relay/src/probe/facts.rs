//! The facts about this host that decide what the engines can do, in the words of `relay check`.

use std::{fs, io, path::Path};

use rustix::process::{Resource, getrlimit};
use serde::Serialize;

use super::{Answer, SOCKMAP_SINCE, harmful, kernel_version, missing_capabilities, needs, sockmap};

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Fact {
    /// What it is; a constant name.
    pub name: &'static str,
    /// What was found.
    pub value: String,
    /// What is wrong with it and what would help; none when nothing is.
    pub fix: Option<String>,
}

impl Fact {
    fn new(name: &'static str, value: impl Into<String>, fix: Option<String>) -> Self {
        Self {
            name,
            value: value.into(),
            fix,
        }
    }
}

/// Looks at everything; nothing that cannot be read is an error.
#[must_use]
pub fn facts() -> Vec<Fact> {
    vec![
        kernel(),
        bpf(),
        btf(Path::new("/sys/kernel/btf/vmlinux")),
        capabilities(),
        setting("kernel.unprivileged_bpf_disabled", |_| None),
        lockdown(fs::read_to_string("/sys/kernel/security/lockdown")),
        setting("net.core.bpf_jit_enable", |value| {
            (value == "0").then_some(
                "the verdict is interpreted: sysctl net.core.bpf_jit_enable=1 makes it faster",
            )
        }),
        open_files(),
        setting("fs.pipe-max-size", |value| {
            below(
                value,
                1 << 16,
                "smaller pipes cost splice throughput: raise fs.pipe-max-size",
            )
        }),
        setting("fs.pipe-user-pages-soft", |value| {
            // 0 is no limit; pipe(7).
            match value {
                "0" => None,
                _ => below(
                    value,
                    1 << 14,
                    "few pipes can be large without CAP_SYS_RESOURCE: raise fs.pipe-user-pages-soft",
                ),
            }
        }),
    ]
}

fn kernel() -> Fact {
    const NAME: &str = "kernel";
    match kernel_version() {
        Ok(version) if version < SOCKMAP_SINCE => {
            let fix = format!("sockmap needs Linux {SOCKMAP_SINCE} or later");
            Fact::new(NAME, version.to_string(), Some(fix))
        }
        Ok(version) => Fact::new(NAME, version.to_string(), harmful(version)),
        Err(error) => Fact::new(NAME, "unknown", Some(error.to_string())),
    }
}

fn bpf() -> Fact {
    const NAME: &str = "bpf(2)";
    match sockmap() {
        Answer::Available => Fact::new(NAME, "usable", None),
        Answer::Unsupported { since } => {
            let fix = format!(
                "no sockmap: needs Linux {since} or later with CONFIG_BPF_SYSCALL and CONFIG_BPF_STREAM_PARSER"
            );
            Fact::new(NAME, "unsupported", Some(fix))
        }
        Answer::Unknown(error) => {
            let missing = missing_capabilities();
            let fix = match missing.is_empty() {
                true => {
                    format!("{error}: a seccomp profile or a security module may refuse the call")
                }
                false => format!("{error}: {}", needs(&missing)),
            };
            Fact::new(NAME, "refused", Some(fix))
        }
    }
}

fn btf(path: &Path) -> Fact {
    // Opening tells more than looking: a container may hide /sys.
    match fs::File::open(path) {
        Ok(_) => Fact::new("btf", path.display().to_string(), None),
        Err(error) => {
            let fix = format!(
                "{}: {error}: needs CONFIG_DEBUG_INFO_BTF and a mounted /sys",
                path.display()
            );
            Fact::new("btf", "missing", Some(fix))
        }
    }
}

fn capabilities() -> Fact {
    const NAME: &str = "capabilities";
    let missing = missing_capabilities();
    match missing.is_empty() {
        true => Fact::new(NAME, "CAP_BPF, CAP_NET_ADMIN, CAP_PERFMON", None),
        false => Fact::new(
            NAME,
            format!("without {}", missing.join(", ")),
            Some(needs(&missing)),
        ),
    }
}

fn lockdown(said: io::Result<String>) -> Fact {
    const NAME: &str = "lockdown";
    match said {
        // The mode in force is the one in brackets; kernel_lockdown(7).
        Ok(modes) => {
            let mode = modes.split(['[', ']']).nth(1).unwrap_or("unknown");
            let fix = "confidentiality mode keeps BPF programs from reading kernel memory, which sockmap needs";
            Fact::new(
                NAME,
                mode,
                (mode == "confidentiality").then(|| fix.to_owned()),
            )
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Fact::new(NAME, "none", None),
        Err(error) => Fact::new(NAME, format!("unknown: {error}"), None),
    }
}

fn open_files() -> Fact {
    /// 10,000 connections of two sockets each, and some room.
    const ENOUGH: u64 = 20_480;
    let limit = getrlimit(Resource::Nofile);
    let text = |limit: Option<u64>| {
        limit.map_or_else(|| String::from("unlimited"), |limit| limit.to_string())
    };
    let fix = limit
        .maximum
        .filter(|maximum| *maximum < ENOUGH)
        .map(|maximum| {
            format!(
                "at most {} connections at once: raise the hard limit (LimitNOFILE=, ulimit -Hn)",
                maximum / 2
            )
        });
    Fact::new(
        "open files",
        format!(
            "{}, raised to {} at start",
            text(limit.current),
            text(limit.maximum)
        ),
        fix,
    )
}

/// A sysctl(8) setting, read from /proc/sys.
fn setting(name: &'static str, judge: impl Fn(&str) -> Option<&'static str>) -> Fact {
    match fs::read_to_string(Path::new("/proc/sys").join(name.replace('.', "/"))) {
        Ok(value) => {
            let value = value.trim();
            Fact::new(name, value, judge(value).map(str::to_owned))
        }
        Err(error) => Fact::new(name, format!("unknown: {error}"), None),
    }
}

fn below(value: &str, least: u64, fix: &'static str) -> Option<&'static str> {
    value
        .parse::<u64>()
        .is_ok_and(|value| value < least)
        .then_some(fix)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fact_is_told_once() {
        let facts = facts();
        for (index, fact) in facts.iter().enumerate() {
            assert!(!fact.value.is_empty(), "{}", fact.name);
            assert!(facts[..index].iter().all(|other| other.name != fact.name));
        }
    }

    #[test]
    fn lockdown_is_the_mode_in_brackets() {
        let told = |text: &str| lockdown(Ok(text.to_owned()));
        assert_eq!(
            told("none [integrity] confidentiality\n").value,
            "integrity"
        );
        assert!(told("none [integrity] confidentiality\n").fix.is_none());
        assert!(told("none integrity [confidentiality]\n").fix.is_some());
        assert_eq!(told("").value, "unknown");
        assert_eq!(lockdown(Err(io::ErrorKind::NotFound.into())).value, "none");
    }

    #[test]
    fn what_is_missing_comes_with_a_fix() {
        let fact = btf(Path::new("/nonexistent/vmlinux"));
        assert!(
            fact.fix
                .is_some_and(|fix| fix.contains("/nonexistent/vmlinux: No such file"))
        );
        assert_eq!(setting("no.such_setting", |_| None).fix, None);
        assert_eq!(below("12", 13, "raise it"), Some("raise it"));
        assert_eq!(below("13", 13, "raise it"), None);
    }
}
