//! How a connection ended, the one table from errno to its meaning, and the two ways to close a socket.

use std::{fmt, io, os::fd::AsFd};

use rustix::io::Errno;
use rustix::net::sockopt;
use serde::Serialize;

use crate::pair::{Pair, Side};

/// Who ended a connection, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Outcome {
    /// Whose doing it was.
    pub by: By,
    /// What was done.
    #[serde(flatten)]
    pub how: How,
}

impl Outcome {
    /// Both directions came to their end; `first` sent its FIN first.
    #[must_use]
    pub fn end(first: Side) -> Self {
        Self {
            by: first.into(),
            how: How::End,
        }
    }

    /// `side` failed with `error` in `call`.
    #[must_use]
    pub fn failed(side: Side, call: &'static str, error: &io::Error) -> Self {
        Self {
            by: side.into(),
            how: How::of(call, error),
        }
    }

    /// relay itself ended the connection.
    #[must_use]
    pub fn relay(how: How) -> Self {
        Self { by: By::Relay, how }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} by {}", self.how, self.by)
    }
}

/// Whose doing an end was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum By {
    /// The client.
    Client,
    /// The upstream.
    Upstream,
    /// relay.
    Relay,
}

impl From<Side> for By {
    fn from(side: Side) -> Self {
        match side {
            Side::Client => Self::Client,
            Side::Upstream => Self::Upstream,
        }
    }
}

impl fmt::Display for By {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Client => "client",
            Self::Upstream => "upstream",
            Self::Relay => "relay",
        })
    }
}

/// The manner of an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "how", rename_all = "lowercase")]
pub enum How {
    /// Both directions ended with a FIN.
    End,
    /// A peer reset the connection, and so the other one was reset.
    Reset,
    /// No byte moved for as long as the limit allows.
    Idle {
        /// Which limit it was: `idle` or `half-close`.
        limit: &'static str,
    },
    /// It has lasted as long as a connection of its route may.
    Life,
    /// The route does not take clients with this address.
    Denied,
    /// It was still alive when the drain timeout was over.
    Drain,
    /// The client did not say what has to come before the bytes.
    Greeting {
        /// What was wrong: `untrusted`, `malformed`, `unauthorized`, `command`, `destination`, `late` or `ended`.
        reason: &'static str,
    },
    /// Something failed.
    Error {
        /// The system's number for it; 0 where relay itself saw the fault.
        errno: i32,
        /// The call that failed.
        call: &'static str,
    },
}

impl How {
    /// A short, constant name for counters: `how` of the record, and for a greeting its reason.
    #[must_use]
    pub fn label(&self) -> &'static str {
        match self {
            Self::End => "end",
            Self::Reset => "reset",
            Self::Idle { .. } => "idle",
            Self::Drain => "drain",
            Self::Denied => "denied",
            Self::Life => "life",
            Self::Greeting { reason } => reason,
            Self::Error { .. } => "error",
        }
    }

    /// The call that failed, if one did.
    #[must_use]
    pub fn call(&self) -> Option<&'static str> {
        match self {
            Self::Error { call, .. } => Some(call),
            _ => None,
        }
    }

    /// The one table from what a system call said to what it means for the connection.
    #[must_use]
    pub fn of(call: &'static str, error: &io::Error) -> Self {
        let errno = error.raw_os_error().unwrap_or(0);
        // None is relay's own fault or the resolver's, which have no number.
        match Errno::from_io_error(error) {
            Some(Errno::CONNRESET | Errno::PIPE | Errno::CONNABORTED | Errno::NOTCONN)
                if call != "connect" =>
            {
                Self::Reset
            }
            _ => Self::Error { errno, call },
        }
    }
}

impl fmt::Display for How {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::End => f.write_str("end"),
            Self::Reset => f.write_str("reset"),
            Self::Idle { limit } => write!(f, "{limit} timeout"),
            Self::Life => f.write_str("max-life"),
            Self::Denied => f.write_str("denied"),
            Self::Drain => f.write_str("drain"),
            Self::Greeting { reason } => write!(f, "greeting {reason}"),
            Self::Error { errno: 0, call } => write!(f, "error in {call}"),
            Self::Error { errno, call } => {
                write!(
                    f,
                    "error in {call}: {}",
                    io::Error::from_raw_os_error(*errno)
                )
            }
        }
    }
}

/// Makes whatever closes this socket a reset (`SO_LINGER {1, 0}`): also the kernel, when the process is killed.
///
/// A Unix socket has no reset; it is closed either way.
pub fn arm(socket: impl AsFd) {
    // A socket that refuses the option is dead already, and closing it says so.
    let _ = sockopt::set_socket_linger(socket, Some(std::time::Duration::ZERO));
}

/// Makes closing this socket orderly again: the kernel goes on delivering what is queued, then the FIN.
pub fn disarm(socket: impl AsFd) {
    let _ = sockopt::set_socket_linger(socket, None);
}

/// Arms both sockets, so that peers of a killed relay see a reset and not a clean end of half a stream.
pub fn arm_both(pair: &Pair) {
    arm(&pair.client);
    arm(&pair.upstream);
}

/// Closes both sockets in order; every byte and FIN that was written still goes out.
pub fn release(pair: Pair) {
    disarm(&pair.client);
    disarm(&pair.upstream);
    drop(pair);
}

/// Resets both peers.
pub fn reset(pair: Pair) {
    arm_both(&pair);
    drop(pair);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reset_is_a_goodbye_and_a_timeout_a_fault() {
        let of = |errno: Errno| How::of("recv", &errno.into());
        assert_eq!(of(Errno::CONNRESET), How::Reset);
        assert_eq!(of(Errno::PIPE), How::Reset);
        let errno = Errno::TIMEDOUT.raw_os_error();
        assert_eq!(
            of(Errno::TIMEDOUT),
            How::Error {
                errno,
                call: "recv"
            }
        );
    }

    #[test]
    fn a_refused_dial_is_an_error() {
        let how = How::of("connect", &Errno::CONNRESET.into());
        assert!(matches!(
            how,
            How::Error {
                call: "connect",
                ..
            }
        ));
    }

    #[test]
    fn an_error_without_a_number_is_a_fault_of_number_0() {
        let how = How::of("resolve", &io::Error::other("no such name"));
        assert_eq!(
            how,
            How::Error {
                errno: 0,
                call: "resolve"
            }
        );
    }

    #[test]
    fn json_names_who_and_how() {
        let json = |outcome: Outcome| serde_json::to_string(&outcome).unwrap();
        assert_eq!(
            json(Outcome::end(Side::Client)),
            r#"{"by":"client","how":"end"}"#
        );
        let idle = Outcome::relay(How::Idle {
            limit: "half-close",
        });
        assert_eq!(
            json(idle),
            r#"{"by":"relay","how":"idle","limit":"half-close"}"#
        );
    }
}
