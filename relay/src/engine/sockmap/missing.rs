//! Why the sockmap is not offered: what is missing on the host, and what would help.

use std::io;

use crate::{engine::sockmap::offsets::NoOffsets, probe};

/// What keeps the sockmap engine from starting.
#[derive(Debug, thiserror::Error)]
pub(super) enum Missing {
    #[error(transparent)]
    Offsets(#[from] NoOffsets),
    #[error("{0}")]
    Version(String),
    #[error("{call} is refused: {error}; {}", advice(.error))]
    Refused {
        call: &'static str,
        error: io::Error,
    },
    #[error("{call} failed: {detail}")]
    Failed { call: &'static str, detail: String },
    #[error("the self-test failed: {0}")]
    SelfTest(String),
}

impl Missing {
    /// `call` failed with `error`, which is read to the end of its chain for an errno.
    pub(super) fn from_chain(
        call: &'static str,
        error: &(dyn std::error::Error + 'static),
    ) -> Self {
        let mut next = Some(error);
        let mut detail = Vec::new();
        while let Some(error) = next {
            if let Some(io) = error.downcast_ref::<io::Error>()
                && let Some(errno) = io.raw_os_error()
                && [libc::EPERM, libc::EACCES, libc::ENOSYS].contains(&errno)
            {
                return Self::Refused {
                    call,
                    error: io::Error::from_raw_os_error(errno),
                };
            }
            detail.push(error.to_string());
            next = error.source();
        }
        detail.dedup();
        Self::Failed {
            call,
            detail: detail.join(": "),
        }
    }
}

fn advice(error: &io::Error) -> String {
    if error.raw_os_error() == Some(libc::ENOSYS) {
        return String::from("a seccomp profile or the kernel has no bpf(2)");
    }
    match probe::missing_capabilities().as_slice() {
        [] => String::from(
            "the capabilities are there, so a seccomp profile, an LSM or kernel lockdown forbids it",
        ),
        missing => probe::needs(missing),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_errno_deep_in_a_chain_is_found() {
        #[derive(Debug, thiserror::Error)]
        #[error("outer")]
        struct Outer(#[source] io::Error);

        let of = |errno| Missing::from_chain("bpf(2)", &Outer(io::Error::from_raw_os_error(errno)));
        assert!(matches!(
            of(libc::EPERM),
            Missing::Refused { call: "bpf(2)", .. }
        ));
        assert!(matches!(of(libc::E2BIG), Missing::Failed { .. }));
    }
}
