//! The ladder: the one place where the engine of a connection is chosen.

pub mod copy;
mod duplex;
mod shelf;
pub mod sockmap;
pub mod splice;

use std::{num::NonZeroU32, sync::Arc};

use crate::{
    close::{self, How, Outcome},
    decline::Why,
    drain::{Drain, Live, Room},
    pace::Pace,
    pair::Pair,
    plan::{Choice, EngineKind, Limits, Policy},
    stats::{books::Source, record::Record},
};

/// A client and its upstream, ready to be carried, with all that goes with them.
///
/// It travels boxed: ladder, engines and supervisor hand over a pointer.
#[derive(Debug)]
pub struct Connection {
    /// The sockets, nonblocking, armed to reset ([`close::arm_both`]), with urgent bytes in the stream (`SO_OOBINLINE`) and
    /// nothing read that is not in [`crate::pair::Socket::read`].
    pub pair: Pair,
    /// When it is ended for want of traffic.
    pub limits: Limits,
    /// How fast its bytes may move, where there is a limit.
    pub pace: Option<Box<Pace>>,
    /// Written when the connection is dropped.
    pub record: Record,
    /// Keeps the drain waiting.
    pub live: Live,
}

impl Connection {
    /// Ends the connection: an orderly end closes both sockets in order, anything else resets both.
    pub fn end(mut self: Box<Self>, outcome: Outcome) {
        self.record.end(outcome);
        match outcome.how {
            How::End => close::release(self.pair),
            _ => close::reset(self.pair),
        }
    }
}

/// A connection that an engine gave back as it was, and the reason.
#[derive(Debug)]
pub struct Declined {
    /// The connection, with no byte moved.
    pub connection: Box<Connection>,
    /// Why the engine did not take it.
    pub why: Why,
}

/// A forced engine that this host has not got.
#[derive(Debug, thiserror::Error)]
#[error("--engine {engine} cannot be had: {why}")]
pub struct Unavailable {
    /// The engine asked for.
    pub engine: EngineKind,
    /// What is missing, and what would help.
    pub why: Arc<str>,
}

/// The engines of this process.
#[derive(Debug)]
pub struct Engines {
    choice: Choice,
    sockmap: Result<sockmap::Sockmap, Arc<str>>,
    splice: Result<splice::Splice, Arc<str>>,
    copy: copy::Copy,
    offload_after: Option<NonZeroU32>,
    drain: Drain,
}

impl Engines {
    /// Brings up every engine that `policy` allows and the host offers, whose pipes are of `room`. It must run on the runtime
    /// that is to carry.
    ///
    /// # Errors
    ///
    /// Fails when the one engine that `policy` allows is not to be had.
    pub async fn start(policy: Policy, drain: &Drain, room: &Room) -> Result<Self, Unavailable> {
        let choice = policy.choice;
        let sockmap = match choice.allows(EngineKind::Sockmap) {
            true => sockmap::Sockmap::start(policy.trust_kernel, drain).await,
            false => Err(unwanted()),
        };
        let splice = match choice.allows(EngineKind::Splice) {
            true => splice::Splice::start(policy.sizes, room),
            false => Err(unwanted()),
        };
        for (engine, failed) in [
            (EngineKind::Sockmap, sockmap.as_ref().err()),
            (EngineKind::Splice, splice.as_ref().err()),
        ] {
            let Some(why) = failed else { continue };
            if choice == Choice::Only(engine) {
                return Err(Unavailable {
                    engine,
                    why: why.clone(),
                });
            }
            if choice == Choice::Auto {
                tracing::warn!(%engine, reason = %why, "engine not offered; connections go one engine down");
            }
        }
        Ok(Self {
            choice,
            sockmap,
            splice,
            copy: copy::Copy::new(policy.sizes.buffer),
            offload_after: policy.offload_after,
            drain: drain.clone(),
        })
    }

    /// The engines that carry connections here, best first.
    pub fn offered(&self) -> impl Iterator<Item = EngineKind> {
        EngineKind::ALL.into_iter().filter(|engine| match engine {
            EngineKind::Sockmap => self.sockmap.is_ok(),
            EngineKind::Splice => self.splice.is_ok(),
            EngineKind::Copy => self.choice.allows(EngineKind::Copy),
        })
    }

    /// Carries `connection` with the best engine that takes it, and moves it to a better one when it has earned that.
    /// Returns when no task is needed for it any more: at its end, or as soon as the kernel carries it.
    pub async fn carry(&self, mut connection: Box<Connection>) {
        let mut ripe = self.ripe(&connection);
        loop {
            if ripe.is_none() && self.choice.allows(EngineKind::Sockmap) {
                match self.offload(connection) {
                    None => return,
                    Some(declined) => connection = declined,
                }
            }
            match self.move_bytes(connection, ripe.take()).await {
                None => return,
                Some(grown) => connection = grown,
            }
        }
    }

    /// When a connection is to enter the map; none for at once, and for what has no better engine than the one it is given.
    ///
    /// To enter costs a dozen system calls, which short connections never earn back, and bulk goes faster through a pipe.
    fn ripe(&self, connection: &Connection) -> Option<NonZeroU32> {
        let Pair { client, upstream } = &connection.pair;
        let may = self.choice == Choice::Auto
            && self.sockmap.is_ok()
            && connection.pace.is_none()
            && client.is_tcp()
            && upstream.is_tcp();
        self.offload_after.filter(|_| may)
    }

    /// Leaves `connection` to the kernel, unless that is not to be.
    fn offload(&self, connection: Box<Connection>) -> Option<Box<Connection>> {
        let given = match &self.sockmap {
            Ok(sockmap) => sockmap.take(connection),
            Err(why) => Err(Declined {
                connection,
                why: Why::NotOffered(why.clone()),
            }),
        };
        let declined = given.err()?;
        Some(self.downgrade(EngineKind::Sockmap, declined))
    }

    /// Moves its bytes from here, to its end or until it is ripe.
    async fn move_bytes(
        &self,
        mut connection: Box<Connection>,
        ripe: Option<NonZeroU32>,
    ) -> Option<Box<Connection>> {
        if self.choice.allows(EngineKind::Splice) {
            let given = match &self.splice {
                Ok(splice) => splice.run(connection, ripe, &self.drain).await,
                Err(why) => Err(Declined {
                    connection,
                    why: Why::NotOffered(why.clone()),
                }),
            };
            match given {
                Ok(left) => return left,
                Err(declined) => connection = self.downgrade(EngineKind::Splice, declined),
            }
        }
        if self.choice.allows(EngineKind::Copy) {
            return self.copy.run(connection, ripe, &self.drain).await;
        }
        connection.end(Outcome::relay(How::Error {
            errno: 0,
            call: "engine",
        }));
        None
    }

    fn downgrade(&self, engine: EngineKind, declined: Declined) -> Box<Connection> {
        let Declined {
            mut connection,
            why,
        } = declined;
        connection.record.declined(engine, why);
        connection
    }
}

impl Source for Engines {
    /// Splice and copy keep their meters up to date as they go.
    fn refresh(&self, held: bool) {
        if let Ok(sockmap) = &self.sockmap {
            sockmap.refresh(held);
        }
    }

    fn offers(&self) -> Vec<(EngineKind, Result<(), Arc<str>>)> {
        let missing = |engine| match engine {
            EngineKind::Sockmap => self.sockmap.as_ref().err().cloned(),
            EngineKind::Splice => self.splice.as_ref().err().cloned(),
            EngineKind::Copy if self.choice.allows(engine) => None,
            EngineKind::Copy => Some(unwanted()),
        };
        let offer = |engine| (engine, missing(engine).map_or(Ok(()), Err));
        EngineKind::ALL.into_iter().map(offer).collect()
    }
}

fn unwanted() -> Arc<str> {
    Arc::from("--engine asks for another")
}
