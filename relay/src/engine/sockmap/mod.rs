//! The sockmap engine: the kernel redirects segments between sockets, and wakes nobody.

mod attend;
mod carried;
mod enter;
mod half_close;
mod kernel;
mod ledger;
mod missing;
mod offsets;
mod relief;
mod selftest;
mod slots;
mod supervisor;

use std::sync::Arc;

use rustix::process::{Resource, getrlimit};
use tokio::task::JoinHandle;

pub use self::selftest::SelfTest;
use self::{
    carried::Base, kernel::Kernel, missing::Missing, offsets::Offsets, slots::Slots,
    supervisor::Supervisor,
};
use crate::{
    decline::Why,
    drain::Drain,
    engine::{Connection, Declined},
    pair::Pair,
    probe,
};

/// Most connections in the map, and fewest to make room for.
const PAIRS: (u32, u32) = (1024, 65_536);

/// The loaded program, its maps, and the task that watches them.
#[derive(Debug)]
pub struct Sockmap {
    base: Arc<Base>,
    slots: Arc<Slots>,
    supervisor: Arc<Supervisor>,
    watching: JoinHandle<()>,
    selftest: SelfTest,
}

impl Sockmap {
    /// Loads the program and puts it to the test on loopback connections of its own. It must run on the runtime that is
    /// to carry connections, with privileges that may be dropped afterwards.
    ///
    /// Minimum kernel version: 5.10; versions known to be harmful are refused unless `trust_kernel`.
    ///
    /// # Errors
    ///
    /// Says what is missing and what would help.
    pub async fn start(trust_kernel: bool, drain: &Drain) -> Result<Self, Arc<str>> {
        let started = Self::try_start(trust_kernel, drain).await;
        started.map_err(|missing| Arc::from(missing.to_string()))
    }

    async fn try_start(trust_kernel: bool, drain: &Drain) -> Result<Self, Missing> {
        if !trust_kernel
            && let Ok(version) = probe::kernel_version()
            && let Some(reason) = probe::harmful(version)
        {
            return Err(Missing::Version(reason));
        }
        let offsets = Offsets::read()?;
        let pairs = room();
        let (kernel, events, ledger) = Kernel::load(pairs, &offsets)?;
        let supervisor = Supervisor::new(drain).map_err(|error| Missing::Refused {
            call: "epoll_create",
            error,
        })?;
        let mut sockmap = Self {
            base: Arc::new(Base { kernel, ledger }),
            slots: Slots::new(pairs),
            watching: tokio::spawn(supervisor.clone().run(events)),
            supervisor,
            selftest: SelfTest::default(),
        };
        sockmap.selftest = selftest::run(&sockmap).await.map_err(Missing::SelfTest)?;
        tracing::info!(took = ?sockmap.selftest.took, pairs, "sockmap is offered: its self-test passed");
        Ok(sockmap)
    }

    /// What the self-test saw.
    #[must_use]
    pub fn selftest(&self) -> &SelfTest {
        &self.selftest
    }

    /// Brings the meters of the connections that the kernel carries up to date; see [`crate::stats::books::Source`].
    pub fn refresh(&self, held: bool) {
        self.supervisor.refresh(held);
    }

    /// Takes over `connection`; from then on the kernel carries it, and it ends by itself.
    ///
    /// # Errors
    ///
    /// Gives the connection back, with no byte moved, and the reason.
    pub fn take(&self, mut connection: Box<Connection>) -> Result<(), Declined> {
        // Every verdict would wake whoever watches.
        let Pair { client, upstream } = connection.pair;
        connection.pair = Pair {
            client: client.unwatched(),
            upstream: upstream.unwatched(),
        };
        let mut carried = Box::new(enter::enter(&self.base, &self.slots, connection)?);
        if let Err(error) = self.supervisor.expect(&carried) {
            let errno = rustix::io::Errno::from_io_error(&error).unwrap_or(rustix::io::Errno::IO);
            let why = Why::Insert {
                side: crate::pair::Side::Client,
                errno,
            };
            return Err(Declined {
                connection: carried.leave(),
                why,
            });
        }
        carried.begin();
        enter::open(&carried);
        // What came between the insert and the opening was passed, and nobody asked for its relief.
        if carried.waits() {
            self.supervisor.call(carried.pair());
        }
        self.supervisor.seat(carried);
        Ok(())
    }
}

impl Drop for Sockmap {
    fn drop(&mut self) {
        self.watching.abort();
    }
}

/// A connection takes two descriptors.
fn room() -> u32 {
    let most = getrlimit(Resource::Nofile)
        .current
        .map_or(PAIRS.1, |limit| u32::try_from(limit / 2).unwrap_or(PAIRS.1));
    most.clamp(PAIRS.0, PAIRS.1)
}

#[cfg(test)]
mod tests;
