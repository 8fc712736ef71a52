//! What is said to an upstream before anything of the client's: with the SYN, where that may be, and else right behind it.

use std::{net::SocketAddr, os::fd::AsFd, sync::Arc};

use rustix::{
    io::Errno,
    net::{SendFlags, send},
};

use super::Failed;
use crate::sys::tcp;

/// A few bytes, or none.
#[derive(Clone, Debug, Default)]
pub struct Opening {
    bytes: Arc<[u8]>,
    with_syn: bool,
}

impl Opening {
    /// Says `bytes`, and has them go with the SYN if `with_syn`: the upstream hears them a round trip earlier, and may answer as
    /// much earlier, where its own system takes data with a SYN.
    #[must_use]
    pub fn new(bytes: Vec<u8>, with_syn: bool) -> Self {
        let bytes = bytes.into();
        Self { bytes, with_syn }
    }

    /// Begins to connect `fd` to `at` with it. Gives how many of its bytes are said by that, if the kernel does so; otherwise
    /// nothing has happened, or the connection is on its way without them.
    pub(super) fn connect(&self, fd: impl AsFd, at: SocketAddr) -> Result<usize, Errno> {
        if !self.with_syn || self.bytes.is_empty() {
            return Ok(0);
        }
        match tcp::connect_with(fd, at, &self.bytes) {
            // Without the upstream's cookie only that is asked for; without bit 1 of net.ipv4.tcp_fastopen not even that.
            Err(Errno::INPROGRESS | Errno::OPNOTSUPP) => Ok(0),
            said => said,
        }
    }

    /// Says the bytes behind the first `said`. The socket is new, so that they fit in its send buffer.
    pub(super) fn say(&self, fd: impl AsFd, said: usize) -> Result<(), Failed> {
        let left = self.bytes.get(said..).unwrap_or_default();
        if left.is_empty() {
            return Ok(());
        }
        let failed = |errno| Failed {
            call: "send",
            errno,
        };
        loop {
            match send(&fd, left, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(said) if said == left.len() => return Ok(()),
                Ok(_) => return Err(failed(Errno::NOBUFS)),
                Err(Errno::INTR) => (),
                Err(errno) => return Err(failed(errno)),
            }
        }
    }
}
