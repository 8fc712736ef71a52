//! What `run` and `bench` share: seeded bytes, an upstream, clients, a relay process, and what the kernel counts.

pub(crate) mod bulk;
pub(crate) mod flow;
pub(crate) mod forwarder;
mod idle;
pub(crate) mod once;
pub(crate) mod open;
pub(crate) mod pingpong;
pub(crate) mod proc;
pub(crate) mod socket;
pub(crate) mod stream;
pub(crate) mod talk;
pub(crate) mod upstream;

use std::time::Duration;

/// No single read or write on loopback or veth takes longer, however loaded the machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
