//! Why an engine did not take a connection: the typed reasons, counted and logged once each.

use rustix::io::Errno;

use crate::pair::Side;

/// Why an engine gave a connection back, untouched.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum Why {
    /// The host has not got it; the text says what is missing and what would help.
    #[error("not offered on this host: {0}")]
    NotOffered(std::sync::Arc<str>),
    /// sockmap: a Unix socket.
    #[error("the {0} is a Unix socket, and sockmap forwards TCP only")]
    NotTcp(Side),
    /// sockmap: the peer had sent its FIN before the socket could enter the map (EOPNOTSUPP).
    #[error("the {0} had ended its direction before the socket entered the map")]
    Finished(Side),
    /// sockmap: the socket has an upper-layer protocol, kTLS for one (EINVAL).
    #[error("the {0}'s socket has an upper-layer protocol (kTLS)")]
    Ulp(Side),
    /// sockmap: somebody else's sockmap has the socket (EBUSY).
    #[error("the {0}'s socket is in a sockmap of somebody else")]
    Busy(Side),
    /// sockmap: multipath TCP.
    #[error("the {0} speaks MPTCP")]
    Mptcp(Side),
    /// sockmap: every slot is taken.
    #[error("the sockmap is full")]
    Full,
    /// sockmap: entering the map failed in another way.
    #[error("the {side}'s socket could not enter the map: {errno}")]
    Insert {
        /// Whose socket.
        side: Side,
        /// What the kernel said.
        errno: Errno,
    },
    /// sockmap: a bandwidth limit holds, and the program makes nobody wait.
    #[error("it has a bandwidth limit, which the kernel does not keep for it")]
    Paced,
    /// splice: one of the sockets is in the sockmap, out of which no socket is taken alive.
    #[error("a socket is in the sockmap, where splice cannot read")]
    Mapped,
    /// splice: no pipe was to be had.
    #[error("no pipe: {0}")]
    Pipe(Errno),
    /// splice: the kernel, or a seccomp profile, refuses the call.
    #[error("splice(2) is refused: {0}")]
    Refused(Errno),
}

impl Why {
    /// A short, constant name for counters.
    #[must_use]
    pub fn label(&self) -> &'static str {
        match self {
            Self::NotOffered(_) => "not_offered",
            Self::NotTcp(_) => "not_tcp",
            Self::Finished(_) => "peer_finished",
            Self::Ulp(_) => "ulp",
            Self::Busy(_) => "busy",
            Self::Mptcp(_) => "mptcp",
            Self::Full => "map_full",
            Self::Insert { .. } => "insert_failed",
            Self::Paced => "paced",
            Self::Mapped => "mapped",
            Self::Pipe(_) => "no_pipe",
            Self::Refused(_) => "refused",
        }
    }
}
