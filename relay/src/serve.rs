//! From the plan to the last record: the only place that names every stage.

mod asked;
mod files;
mod listeners;
mod reload;
mod route;
mod succession;

use std::{
    io,
    sync::{Arc, Weak},
};

use tokio::signal::unix::{Signal, SignalKind, signal};

pub use self::{
    listeners::Changes,
    reload::{Control, Requests, Reread, control},
    succession::Estate,
};
use self::{
    listeners::{Listeners, Sources, open},
    reload::Reloads,
    route::Shared,
    succession::Succession,
};
use crate::{
    accept::{BindError, Ours, Passed, raise_open_files},
    connect::{self, Unfit},
    drain::{Drain, Drained, Places, Room},
    engine::{Engines, Unavailable},
    handover::{self, Heritage},
    notify,
    plan::{Plan, Route, RouteError},
    privileges::{self, Privileges},
    stats::books::{Books, Phase, Source},
    upstream::Names,
};

/// Why nothing could be served.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// A listener cannot be had.
    #[error(transparent)]
    Listen(#[from] BindError),
    /// The relay that runs does not hand over.
    #[error(transparent)]
    Handover(#[from] handover::Fault),
    /// A socket that was passed does not fit its route.
    #[error(transparent)]
    Route(#[from] RouteError),
    /// The engine asked for cannot be had.
    #[error(transparent)]
    Engine(#[from] Unavailable),
    /// What connections to upstreams are to have cannot be had.
    #[error("route {route}: {unfit}")]
    Outgoing {
        /// Of which route.
        route: String,
        /// What it is.
        unfit: Unfit,
    },
    /// Privileges are not given up.
    #[error(transparent)]
    Privileges(#[from] privileges::Fault),
    /// The runtime cannot watch listeners or signals.
    #[error("cannot watch listeners and signals")]
    Watch(#[from] io::Error),
}

/// The sockets that were there before, and those that can be handed on.
#[derive(Debug, Default)]
pub struct Sockets {
    /// What systemd has passed.
    pub passed: Passed,
    /// What the relay before had.
    pub heritage: Heritage,
    /// What the next one gets, besides the listeners.
    pub estate: Estate,
}

/// Serves `plan` until `stop` is asked, or another relay has taken over, then drains; another signal cuts the drain short.
/// Gives `privileges` up before the first client is served, so it must be polled by the main thread. SIGHUP and `requests`
/// have `reread` give a new plan.
///
/// # Errors
///
/// Fails when it cannot start, and not after that.
pub async fn run(
    plan: Plan,
    books: Arc<Books>,
    sockets: Sockets,
    privileges: &Privileges,
    mut requests: Requests,
    reread: Option<Reread>,
    mut stop: Stop,
) -> Result<Drained, Fault> {
    let mut hangup = signal(SignalKind::hangup())?;
    raise_open_files();
    let mut reloads = Reloads {
        reread,
        policy: plan.policy,
        drain: plan.drain,
    };
    let (drain, estate) = (Drain::new(), sockets.estate);
    let sources = Sources {
        passed: sockets.passed,
        heritage: sockets.heritage,
        choice: plan.policy.choice,
    };
    let begun = tokio::select! {
        biased;
        () = stop.asked() => None,
        begun = begin(plan, sources, &books, privileges, &drain) => Some(begun?),
    };
    let Some((mut listeners, engines)) = begun else {
        tracing::info!("stopped before clients were served");
        return Ok(Drained::Clean);
    };
    let handed_over = loop {
        let request = tokio::select! {
            biased;
            () = stop.asked() => break false,
            error = listeners.broken() => return Err(error.into()),
            heir = estate.heir() => {
                let all = listeners.sockets();
                match estate.hand_over(heir, all, &mut stop, &mut hangup, &mut requests).await {
                    Succession::Done => break true,
                    Succession::Failed => continue,
                    Succession::Stopped => break false,
                }
            }
            // The answer is in the log, where the sender of a signal looks.
            _ = hangup.recv() => None,
            request = requests.next() => Some(request),
        };
        // The file may be on a disk that hangs, and the name of a listener unknown for long.
        let answer = tokio::select! {
            biased;
            () = stop.asked() => break false,
            answer = reloads.reload(&mut listeners) => answer,
        };
        if let Some(request) = request {
            // Who asked may be gone.
            let _ = request.send(answer);
        }
    };
    books.enter(Phase::Draining);
    drain.stop();
    listeners.ended().await;
    // Who asks there from here on is to be answered by the one that took over.
    drop((requests, estate));
    let live = drain.count();
    tracing::info!(live, "stopping; no new connections");
    if !handed_over {
        // The service as a whole goes on otherwise.
        notify::stopping(&format!("connections to be ended: {live}"));
    }
    let drained = drain.finish(reloads.drain, stop.asked()).await;
    // Not before: the connections that live on are carried by them.
    drop(engines);
    if let Drained::Cut(connections) = drained {
        tracing::warn!(connections, "had to be reset to stop");
    }
    Ok(drained)
}

/// Opens listeners and starts engines, then takes clients: those of another relay not before all of that is done.
async fn begin(
    plan: Plan,
    mut sources: Sources,
    books: &Arc<Books>,
    privileges: &Privileges,
    drain: &Drain,
) -> Result<(Listeners, Arc<Engines>), Fault> {
    let outgoing = plan.routes.clone();
    sources.passed.warn_of_unused(&plan);
    let open = open(plan.routes, &mut sources).await?;
    // Clients wait in the backlog meanwhile: an engine's self-test must not compete with them.
    let room = Room::default();
    let engines = Arc::new(Engines::start(plan.policy, drain, &room).await?);
    privileges.shed()?;
    // With what is left, since that is what every connection will be made with.
    outgoing.iter().try_for_each(try_out)?;
    sources.heritage.confirm().await?;
    books.ask(Arc::downgrade(&engines) as Weak<dyn Source>);
    let shared = Shared {
        engines: engines.clone(),
        books: books.clone(),
        drain: drain.clone(),
        places: Places::new(plan.max_connections),
        room,
        ours: Ours::default(),
        names: Names::new(plan.dns),
    };
    files::fit(&shared, plan.policy.choice);
    let listeners = Listeners::start(open, sources, shared);
    let offered = engines.offered().map(|engine| engine.name());
    let offered = offered.collect::<Vec<_>>().join(",");
    tracing::info!(engines = offered.as_str(), "engines offered, best first");
    books.enter(Phase::Serving);
    notify::ready(&format!("engines {offered}"));
    Ok((listeners, engines))
}

/// Sees whether connections of `route` to its upstreams can have what they are to have.
fn try_out(route: &Route) -> Result<(), Fault> {
    connect::try_out(&route.outgoing).map_err(|unfit| Fault::Outgoing {
        route: route.name.clone(),
        unfit,
    })
}

/// The signals that stop: heard from the moment this is made.
#[derive(Debug)]
pub struct Stop {
    terminate: Signal,
    interrupt: Signal,
}

impl Stop {
    /// Hears them from here on. It takes a runtime.
    ///
    /// # Errors
    ///
    /// Fails when the runtime cannot watch signals.
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    /// Ends when one of them comes.
    pub async fn asked(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => (),
            _ = self.interrupt.recv() => (),
        }
    }
}
