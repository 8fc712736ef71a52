//! One route from listener to record: accept, connect, pair, engine. The only file that names every stage.

use std::{future::pending, io, sync::Arc};

use tokio::signal::unix::{SignalKind, signal};

use crate::{
    accept::{Acceptor, BindError, Listener, bind, raise_open_files},
    connect::{self, Dialled},
    drain::{Drain, Drained, Live},
    engine::{Connection, Engines, Unavailable},
    pair::{Pair, Socket},
    plan::{Plan, Route},
    stats::record::{Books, Record},
};

/// Why nothing could be served.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// A listener cannot be had.
    #[error(transparent)]
    Listen(#[from] BindError),
    /// The engine asked for cannot be had.
    #[error(transparent)]
    Engine(#[from] Unavailable),
    /// The runtime cannot watch listeners or signals.
    #[error("cannot watch listeners and signals")]
    Watch(#[from] io::Error),
}

/// Serves `plan` until SIGTERM or SIGINT, then drains; another signal cuts the drain short.
///
/// # Errors
///
/// Fails when it cannot start, and not after that.
pub async fn run(plan: Plan, books: Arc<Books>) -> Result<Drained, Fault> {
    let (mut terminate, mut interrupt) = (
        signal(SignalKind::terminate())?,
        signal(SignalKind::interrupt())?,
    );
    let mut signalled = async || {
        tokio::select! {
            _ = terminate.recv() => (),
            _ = interrupt.recv() => (),
        }
    };
    raise_open_files();
    let drain = Drain::new();
    let open = open(plan.routes).await?;
    // Clients wait in the backlog meanwhile: an engine's self-test must not compete with them.
    let engines = Arc::new(Engines::start(plan.policy, &drain).await?);
    let stop = async {
        signalled().await;
        drain.stop();
        // It is `serve` that has to come to its end.
        pending::<()>().await;
    };
    tokio::select! {
        served = serve(open, engines.clone(), books, &drain) => served?,
        () = stop => (),
    }
    tracing::info!(live = drain.count(), "stopping; no new connections");
    let drained = drain.finish(plan.drain, signalled()).await;
    // Not before: the connections that live on are carried by them.
    drop(engines);
    if let Drained::Cut(connections) = drained {
        tracing::warn!(connections, "had to be reset to stop");
    }
    Ok(drained)
}

/// A route whose listener is open.
#[derive(Debug)]
pub struct Open {
    /// The listener.
    pub listener: Listener,
    /// What to do with its clients.
    pub route: Route,
}

/// Opens the listeners of all routes, in order; clients may connect from here on, and wait.
///
/// # Errors
///
/// Fails at the first one that cannot be had.
pub async fn open(routes: Vec<Route>) -> Result<Vec<Open>, BindError> {
    let mut open = Vec::with_capacity(routes.len());
    for route in routes {
        let listener = bind(&route.listen).await?;
        open.push(Open { listener, route });
    }
    Ok(open)
}

/// Accepts clients on every route and carries each, until `drain` says stop; then the listeners are closed and it
/// returns, while the connections go on.
///
/// # Errors
///
/// Fails when a listener cannot be watched.
pub async fn serve(
    open: Vec<Open>,
    engines: Arc<Engines>,
    books: Arc<Books>,
    drain: &Drain,
) -> io::Result<()> {
    let mut listening = tokio::task::JoinSet::new();
    for Open { listener, route } in open {
        tracing::info!(route = %route.name, listen = %listener.address(), to = %route.to, "listening");
        let stages = Stages {
            name: route.name.as_str().into(),
            route,
            engines: engines.clone(),
            books: books.clone(),
            drain: drain.clone(),
        };
        listening.spawn(accept(listener.open()?, Arc::new(stages)));
    }
    let offered = engines.offered().map(|engine| engine.name());
    let offered = offered.collect::<Vec<_>>().join(",");
    tracing::info!(engines = offered, "engines offered, best first");
    // A listener that panicked is a fault of relay's own, which must not look like an end.
    while let Some(ended) = listening.join_next().await {
        ended.map_err(io::Error::other)?;
    }
    Ok(())
}

/// What every connection of a route needs.
struct Stages {
    name: Arc<str>,
    route: Route,
    engines: Arc<Engines>,
    books: Arc<Books>,
    drain: Drain,
}

async fn accept(mut acceptor: Acceptor, stages: Arc<Stages>) {
    loop {
        // A full backlog must not keep this thread from its other tasks.
        tokio::task::coop::consume_budget().await;
        let client = tokio::select! {
            biased;
            () = stages.drain.stopped() => return,
            client = acceptor.accept() => client,
        };
        let live = stages.drain.live();
        tokio::spawn(carry(client, live, stages.clone()));
    }
}

/// One connection, from its client to its engine. There is one such future per connection that its engine has not taken
/// over, so the dial, which is larger than what remains, gets a box of its own and gives it back.
async fn carry(client: Socket, live: Live, stages: Arc<Stages>) {
    let Stages { route, drain, .. } = &*stages;
    let mut record = Record::open(
        stages.name.clone(),
        client.peer.clone(),
        stages.books.clone(),
    );
    let Dialled {
        client: fd,
        peer,
        upstream,
    } = Box::pin(connect::dial(client.fd, &route.to, route.connect, drain)).await;
    if let Some(peer) = peer {
        record.dialled(peer);
    }
    let client = Socket::new(fd, client.peer);
    match upstream {
        Ok(upstream) => {
            let connection = Connection {
                pair: Pair { client, upstream },
                limits: route.limits,
                record,
                live,
            };
            stages.engines.carry(Box::new(connection)).await;
        }
        // The client is armed: dropping it resets it.
        Err(outcome) => record.end(outcome),
    }
}
