//! What this kernel can do, and whether this process may ask for it.

mod facts;
mod version;

use aya::maps::MapType;
use caps::{CapSet, Capability};

pub use facts::{Fact, facts};
pub use version::{NoVersion, SOCKMAP_SINCE, Version, harmful, kernel_version};

/// What a probe found out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It is there.
    Available,
    /// The kernel has not got it.
    Unsupported {
        /// The first mainline release that has.
        since: Version,
    },
    /// It could not be told; asking again may give another answer, so this one is not to be kept.
    Unknown(String),
}

/// Whether bpf(2) gives this process a sockmap.
#[must_use]
#[doc(alias = "BPF_MAP_TYPE_SOCKMAP")]
pub fn sockmap() -> Answer {
    if let Ok(version) = kernel_version()
        && version < SOCKMAP_SINCE
    {
        return Answer::Unsupported {
            since: SOCKMAP_SINCE,
        };
    }
    match aya::sys::is_map_supported(MapType::SockMap) {
        Ok(true) => Answer::Available,
        Ok(false) => Answer::Unsupported {
            since: SOCKMAP_SINCE,
        },
        Err(error) => Answer::Unknown(format!("{}: {}", error.call, error.io_error)),
    }
}

/// The capabilities that the sockmap engine needs to start, and this process lacks.
///
/// Empty as well when they cannot be read: then bpf(2) has the last word. CAP_SYS_ADMIN holds CAP_BPF and CAP_PERFMON,
/// which were split off it in Linux 5.8; CAP_NET_ADMIN was not part of it for maps of sockets before 6.9.
#[must_use]
pub fn missing_capabilities() -> Vec<&'static str> {
    let Ok(held) = caps::read(None, CapSet::Effective) else {
        return Vec::new();
    };
    let admin = held.contains(&Capability::CAP_SYS_ADMIN);
    [
        ("CAP_BPF", admin || held.contains(&Capability::CAP_BPF)),
        ("CAP_NET_ADMIN", held.contains(&Capability::CAP_NET_ADMIN)),
        (
            "CAP_PERFMON",
            admin || held.contains(&Capability::CAP_PERFMON),
        ),
    ]
    .into_iter()
    .filter_map(|(name, has)| (!has).then_some(name))
    .collect()
}

/// What is missing and what would help, for what [`missing_capabilities`] returned.
#[must_use]
pub fn needs(missing: &[&str]) -> String {
    format!(
        "needs {}: run as root or setcap cap_bpf,cap_net_admin,cap_perfmon+ep relay",
        missing.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_named_with_the_fix() {
        assert_eq!(
            needs(&["CAP_BPF", "CAP_PERFMON"]),
            "needs CAP_BPF, CAP_PERFMON: run as root or setcap cap_bpf,cap_net_admin,cap_perfmon+ep relay"
        );
    }

    #[test]
    fn a_probe_answers_whatever_the_privileges() {
        let (answer, missing) = (sockmap(), missing_capabilities());
        assert!(missing.len() <= 3);
        assert_ne!(answer, Answer::Unknown(String::new()));
    }
}
