//! One route from its clients to their records.

use std::sync::Arc;

use tokio::sync::watch;

use crate::{
    accept::Acceptor,
    close::{How, Outcome},
    connect::{self, Dialled},
    drain::{Drain, Live, Places},
    engine::{Connection, Engines},
    pair::{Pair, Peer, Socket},
    plan::Route,
    stats::record::{Books, Record},
};

/// What all routes share.
#[derive(Clone)]
pub(super) struct Shared {
    pub(super) engines: Arc<Engines>,
    pub(super) books: Arc<Books>,
    pub(super) drain: Drain,
    /// Of all routes together.
    pub(super) places: Places,
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

    fn record(&self, client: &Socket) -> Record {
        let (name, books) = (self.name.clone(), self.shared.books.clone());
        Record::open(name, client.peer.clone(), books)
    }

    fn admits(&self, client: &Socket) -> bool {
        match &client.peer {
            Peer::Ip(from) => self.route.door.admits(from.ip()),
            Peer::Unix(_) => true,
        }
    }
}

/// Accepts clients, each for the route as it is at that moment, until a stop or until nobody has a route for them any more.
pub(super) async fn accept(mut acceptor: Acceptor, mut route: watch::Receiver<Arc<Stages>>) {
    let Shared { drain, places, .. } = route.borrow().shared.clone();
    let own = Places::new(route.borrow().route.door.max_connections);
    loop {
        // A full backlog must not keep this thread from its other tasks.
        tokio::task::coop::consume_budget().await;
        let (client, taken) = tokio::select! {
            biased;
            () = drain.stopped() => return,
            changed = route.changed() => match changed {
                Ok(()) => {
                    let door = &route.borrow_and_update().route.door;
                    own.set_limit(door.max_connections);
                    acceptor.renew(door);
                    continue;
                }
                Err(_) => return,
            },
            client = acceptor.accept([&own, &places]) => client,
        };
        let stages = route.borrow().clone();
        if stages.admits(&client) {
            tokio::spawn(carry(client, drain.live().at(taken), stages));
        } else {
            // The client is armed: dropping it resets it.
            stages.record(&client).end(Outcome::relay(How::Denied));
        }
    }
}

/// One connection, from its client to its engine. There is one such future per connection that its engine has not taken
/// over, so the dial, which is larger than what remains, gets a box of its own and gives it back.
async fn carry(client: Socket, live: Live, stages: Arc<Stages>) {
    let Stages {
        route,
        shared: Shared { engines, drain, .. },
        ..
    } = &*stages;
    let mut record = stages.record(&client);
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
