//! A restart without a gap: a relay that starts takes the listening sockets of the one that runs.
//!
//! The one that runs offers them at a Unix socket of its owner's ([`Offers`]). The one that starts asks there first
//! ([`Heritage`]), opens what it was not given, starts its engines, and says when it is ready to accept; only then the
//! other one stops accepting, and drains. The sockets are the same ones, and so is what waits in their backlogs. If
//! either fails before that word, the other goes on as if nothing had happened.

mod heritage;
mod offers;
mod wire;

use serde::{Deserialize, Serialize};

use crate::accept::BindError;

pub use self::{
    heritage::Heritage,
    offers::{Heir, Offers, Socket},
};

/// What a listening socket is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Clients of a route.
    Route,
    /// The admin listener.
    Admin,
    /// The next handover.
    Handover,
}

/// Why nothing can be taken over.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// A socket cannot be used.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// The relay that runs is not reached or not understood.
    #[error("--handover {path}: {what}; {advice}")]
    Asking {
        /// Where it was asked.
        path: String,
        /// What is wrong.
        what: String,
        /// What would help.
        advice: &'static str,
    },
}

/// Whether a process of `uid` may give sockets to this one, or take them: one of the same user, or root.
fn may(uid: u32) -> bool {
    uid == 0 || uid == rustix::process::geteuid().as_raw()
}
