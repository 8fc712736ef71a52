//! Kernel versions: which one runs, and which ones are known to be harmful to sockets in a sockmap.

use std::{fmt, fs, io, str::FromStr};

/// A release of the mainline or stable kernel, such as 6.12.34.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version {
    /// The first number.
    pub major: u16,
    /// The second number.
    pub minor: u16,
    /// The number of the stable release.
    pub patch: u16,
}

impl Version {
    /// Puts a version together.
    #[must_use]
    pub const fn new(major: u16, minor: u16, patch: u16) -> Self {
        Self {
            major,
            minor,
            patch,
        }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            major,
            minor,
            patch,
        } = self;
        match patch {
            0 => write!(f, "{major}.{minor}"),
            _ => write!(f, "{major}.{minor}.{patch}"),
        }
    }
}

/// A text that does not begin with a kernel version.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[error("{0:?} is no kernel version")]
pub struct NoVersion(String);

impl FromStr for Version {
    type Err = NoVersion;

    /// Reads `6.18.44-fc-v669`, `6.16-rc3` and `6.1.140-1` alike: what follows the numbers is somebody's own.
    fn from_str(text: &str) -> Result<Self, NoVersion> {
        let wrong = || NoVersion(text.to_owned());
        let end = text
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .unwrap_or(text.len());
        let mut numbers = text[..end].split('.').map(str::parse);
        let mut next = || numbers.next().and_then(Result::ok);
        let (major, minor) = (next().ok_or_else(wrong)?, next().ok_or_else(wrong)?);
        Ok(Self::new(major, minor, next().unwrap_or(0)))
    }
}

/// The verdict without a parser (`BPF_SK_SKB_VERDICT`) that the sockmap engine attaches came with this release.
pub const SOCKMAP_SINCE: Version = Version::new(5, 10, 0);

/// The mainline release with the fix of CVE-2025-38154.
const FIXED: Version = Version::new(6, 16, 0);

/// The stable releases with that fix; branches that are not here never got it.
const FIXED_STABLE: [Version; 5] = [
    Version::new(5, 15, 186),
    Version::new(6, 1, 142),
    Version::new(6, 6, 94),
    Version::new(6, 12, 34),
    Version::new(6, 15, 3),
];

/// The stable release that the running kernel is built from.
///
/// Ubuntu and Debian name theirs apart from uname(2)'s release, whose last number is their own.
///
/// # Errors
///
/// Fails when none of the texts that should name it does.
pub fn kernel_version() -> Result<Version, NoVersion> {
    let uname = rustix::system::uname();
    version_of(
        fs::read_to_string("/proc/version_signature"),
        &uname.version().to_string_lossy(),
        &uname.release().to_string_lossy(),
    )
}

fn version_of(
    ubuntu: io::Result<String>,
    build: &str,
    release: &str,
) -> Result<Version, NoVersion> {
    // "Ubuntu 6.8.0-60.63-generic 6.8.12"
    let ubuntu = ubuntu
        .ok()
        .and_then(|text| text.split_whitespace().nth(2)?.parse().ok());
    // "#1 SMP PREEMPT_DYNAMIC Debian 6.1.140-1 (2025-05-22)"
    let debian = || build.split_once("Debian ")?.1.parse().ok();
    match ubuntu.or_else(debian) {
        Some(version) => Ok(version),
        None => release.parse(),
    }
}

/// Why sockets should not be put in a sockmap on this kernel, if it is one known to harm them.
///
/// A distribution may have the fix in a kernel whose version does not tell; `--trust-kernel` is for those.
#[must_use]
#[doc(alias = "CVE-2025-38154")]
pub fn harmful(version: Version) -> Option<String> {
    let branch = |fixed: &&Version| (fixed.major, fixed.minor) == (version.major, version.minor);
    let first = FIXED_STABLE.iter().find(branch);
    if version >= FIXED || first.is_some_and(|first| version >= *first) {
        return None;
    }
    let known = FIXED_STABLE.map(|fixed| fixed.to_string()).join(", ");
    Some(format!(
        "Linux {version} has CVE-2025-38154, a use after free in the sockmap's backlog, fixed in {known} and {FIXED}: \
         run one of these, or give --trust-kernel if your distribution has put the fix into this one"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(text: &str) -> Version {
        text.parse().unwrap()
    }

    #[test]
    fn versions_are_read_with_whatever_follows() {
        assert_eq!(version("6.18.44-fc-v669"), Version::new(6, 18, 44));
        assert_eq!(version("6.16-rc3"), Version::new(6, 16, 0));
        assert_eq!(version("5.15.0"), Version::new(5, 15, 0));
        assert_eq!(version("6.1.140-1 (2025-05-22)"), Version::new(6, 1, 140));
        for text in ["", "6", "six.one", ".6.1", "6..1", "99999.1", "-6.1"] {
            assert!(text.parse::<Version>().is_err(), "{text}");
        }
    }

    #[test]
    fn distributions_name_the_stable_release_elsewhere() {
        let none = || Err(io::ErrorKind::NotFound.into());
        let ubuntu = Ok(String::from("Ubuntu 6.8.0-60.63-generic 6.8.12\n"));
        let of = |signature, build, release| version_of(signature, build, release).unwrap();
        assert_eq!(of(ubuntu, "#63", "6.8.0-60-generic"), version("6.8.12"));
        let debian = "#1 SMP PREEMPT_DYNAMIC Debian 6.1.140-1 (2025-05-22)";
        assert_eq!(of(none(), debian, "6.1.0-37-amd64"), version("6.1.140"));
        assert_eq!(of(none(), "#1 SMP", "6.18.44-fc"), version("6.18.44"));
        let odd = Ok(String::from("Ubuntu"));
        assert_eq!(of(odd, "#1 SMP", "6.18.44-fc"), version("6.18.44"));
    }

    #[test]
    fn kernels_without_the_fix_are_harmful() {
        let fixed =
            "5.15.186 5.15.200 6.1.142 6.6.94 6.12.34 6.12.99 6.15.3 6.16 6.16.1 6.18.44 7.2";
        for text in fixed.split(' ') {
            assert_eq!(harmful(version(text)), None, "{text}");
        }
        let harmed = "5.10 5.10.240 5.15.185 6.1.141 6.2.16 6.5.13 6.6.93 6.7.12 6.8.12 6.11.11 6.12 6.12.33 6.13.12 \
                      6.14.11 6.15.2";
        for text in harmed.split_whitespace() {
            let why = harmful(version(text)).expect(text);
            assert!(
                why.contains(text) && why.contains("--trust-kernel"),
                "{why}"
            );
        }
    }

    #[test]
    fn the_running_kernel_has_a_version() {
        assert!(kernel_version().unwrap() >= Version::new(4, 0, 0));
    }
}
