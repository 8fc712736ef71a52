//! Runs a scenario under an engine on a wire, and makes one test of each combination.

use anyhow::{Result, ensure};

use crate::{
    needs::{self, Need},
    peer::{Address, Listener, Peer},
    record::{Engine, Record},
    relay::{Launch, Relay},
    topology::{Topology, Wire},
};

/// One place in the matrix, with everything a scenario needs to play.
#[derive(Debug)]
pub struct Stage {
    /// The engine that has to carry.
    pub engine: Engine,
    /// Who lives where.
    pub net: Topology,
}

/// Something that can happen to a connection.
pub type Scenario = fn(&Stage) -> Result<()>;

/// Plays `scenario` under `engine` on `wire`, or skips it.
///
/// # Errors
///
/// Fails when the scenario does.
pub fn play(name: &str, engine: Engine, wire: Wire, scenario: Scenario) -> Result<()> {
    let needs = [&[Need::Offered(engine)], wire.needs()].concat();
    if !needs::met(name, &needs)? {
        return Ok(());
    }
    let net = wire.build()?;
    scenario(&Stage { engine, net })
}

const HELLO: &[u8] = b"hello";

/// What [`Stage::join`] sends each way.
pub const GREETING: u64 = HELLO.len() as u64;

/// Both ends of a connection through relay.
#[derive(Debug)]
pub struct Ends {
    /// Who connected to relay.
    pub client: Peer,
    /// Who relay connected to.
    pub upstream: Peer,
}

impl Stage {
    /// An upstream that accepts by hand.
    ///
    /// # Errors
    ///
    /// Fails when no port is to be had.
    pub fn listen(&self) -> Result<Listener> {
        let at = self.net.at_upstream();
        self.net.upstream.enter(|| Listener::bind(&at))
    }

    /// relay in front of `to`, not started yet, with the engine forced.
    #[must_use]
    pub fn launch(&self, to: &Address) -> Launch {
        let launch = self.launch_any(to).with(["--engine", self.engine.name()]);
        match self.engine {
            // The greeting of `join` makes it move: whatever the scenario does comes upon that.
            Engine::Auto => launch.with(["--offload-after", "2"]),
            _ => launch,
        }
    }

    /// relay in front of `to`, not started yet, with the whole ladder below the engine.
    ///
    /// Only for sockmap is that more than the engine: it may decline, and the next one then has to carry.
    #[must_use]
    pub fn launch_ladder(&self, to: &Address) -> Launch {
        match self.engine {
            Engine::Sockmap => {
                let launch = self.launch_any(to).with(["--engine", "auto"]);
                launch.with(["--offload-after", "0"])
            }
            _ => self.launch(to),
        }
    }

    fn launch_any(&self, to: &Address) -> Launch {
        Launch::forward(&self.net.at_relay(), to).at(&self.net.relay)
    }

    /// relay in front of `to`, with the engine forced.
    ///
    /// # Errors
    ///
    /// Fails when it does not start.
    pub fn relay(&self, to: &Address) -> Result<Relay> {
        self.launch(to).start()
    }

    /// A client.
    ///
    /// # Errors
    ///
    /// Fails when relay does not accept.
    pub fn connect(&self, relay: &Relay) -> Result<Peer> {
        self.net.client.enter(|| Peer::connect(relay.address()))
    }

    /// A client and its upstream that have greeted each other: the engine has the connection, and [`GREETING`] bytes have
    /// gone each way. Nobody else may be connecting at the same time.
    ///
    /// # Errors
    ///
    /// Fails when one of the two does not come.
    pub fn join(&self, relay: &Relay, listener: &Listener) -> Result<Ends> {
        let client = self.connect(relay)?;
        let upstream = listener.accept()?;
        client.send(HELLO)?;
        ensure!(upstream.receive(HELLO.len())? == HELLO, "not the greeting");
        upstream.send(HELLO)?;
        ensure!(client.receive(HELLO.len())? == HELLO, "not the greeting");
        Ok(Ends { client, upstream })
    }

    /// Ends relay after `connections` connections, each carried by the engine, and checks that nothing has leaked.
    ///
    /// # Errors
    ///
    /// Fails when another engine carried one, and as [`Relay::finish`] does.
    pub fn finish(&self, relay: Relay, connections: usize) -> Result<Vec<Record>> {
        let records = relay.finish(connections)?;
        for record in &records {
            record.carried_by(self.engine)?;
        }
        Ok(records)
    }
}

/// Makes a test of every scenario under every engine, named `engine::scenario`.
///
/// Those after `sockmap only` are about what only that engine promises. Attributes in brackets in front go to each test.
#[macro_export]
macro_rules! matrix {
    (@ [$($attribute:tt)*] $engine:ident $wire:ident $scenario:ident) => {
        $($attribute)*
        #[test]
        fn $scenario() -> ::anyhow::Result<()> {
            $crate::matrix::play(
                concat!(module_path!(), "::", stringify!($scenario)),
                $crate::record::Engine::$engine,
                $crate::topology::Wire::$wire,
                $crate::scenario::$scenario,
            )
        }
    };
    ($wire:ident: $($rest:tt)+) => {
        $crate::matrix! { [] $wire: $($rest)+ }
    };
    (
        $attributes:tt $wire:ident: $($scenario:ident),+ $(,)?
        $(; sockmap only: $($sockmap:ident),+ $(,)?)?
    ) => {
        mod sockmap {
            $( $crate::matrix!(@ $attributes Sockmap $wire $scenario); )+
            $( $( $crate::matrix!(@ $attributes Sockmap $wire $sockmap); )+ )?
        }
        mod splice {
            $( $crate::matrix!(@ $attributes Splice $wire $scenario); )+
        }
        mod copy {
            $( $crate::matrix!(@ $attributes Copy $wire $scenario); )+
        }
        mod auto {
            $( $crate::matrix!(@ $attributes Auto $wire $scenario); )+
        }
    };
}
