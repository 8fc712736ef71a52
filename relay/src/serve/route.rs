//! One route from its clients to their records.

use std::sync::Arc;

use tokio::sync::watch;

use crate::{
    accept::Acceptor,
    connect::{self, Dialled},
    drain::{Drain, Live},
    engine::{Connection, Engines},
    pair::{Pair, Socket},
    plan::Route,
    stats::record::{Books, Record},
};

/// What all routes share.
#[derive(Clone)]
pub(super) struct Shared {
    pub(super) engines: Arc<Engines>,
    pub(super) books: Arc<Books>,
    pub(super) drain: Drain,
}

/// What every connection of a route needs.
pub(super) struct Stages {
    name: Arc<str>,
    pub(super) route: Route,
    shared: Shared,
}

impl Stages {
    pub(super) fn new(route: Route, shared: &Shared) -> Arc<Self> {
        Arc::new(Self {
            name: route.name.as_str().into(),
            route,
            shared: shared.clone(),
        })
    }
}

/// Accepts clients, each for the route as it is at that moment, until a stop or until nobody has a route for them any more.
pub(super) async fn accept(mut acceptor: Acceptor, mut route: watch::Receiver<Arc<Stages>>) {
    let drain = route.borrow().shared.drain.clone();
    loop {
        // A full backlog must not keep this thread from its other tasks.
        tokio::task::coop::consume_budget().await;
        let client = tokio::select! {
            biased;
            () = drain.stopped() => return,
            changed = route.changed() => match changed {
                Ok(()) => continue,
                Err(_) => return,
            },
            client = acceptor.accept() => client,
        };
        let stages = route.borrow().clone();
        tokio::spawn(carry(client, drain.live(), stages));
    }
}

/// One connection, from its client to its engine. There is one such future per connection that its engine has not taken
/// over, so the dial, which is larger than what remains, gets a box of its own and gives it back.
async fn carry(client: Socket, live: Live, stages: Arc<Stages>) {
    let Stages {
        name,
        route,
        shared: Shared {
            engines,
            books,
            drain,
        },
    } = &*stages;
    let mut record = Record::open(name.clone(), client.peer.clone(), books.clone());
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
            engines.carry(Box::new(connection)).await;
        }
        // The client is armed: dropping it resets it.
        Err(outcome) => record.end(outcome),
    }
}
