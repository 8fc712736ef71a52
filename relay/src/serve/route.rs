//! One route from its clients to their records.

use std::{net::SocketAddr, sync::Arc};

use rustix::{io::Errno, net::getsockname};
use tokio::sync::watch;

use super::asked;
use crate::{
    accept::{Acceptor, Astray, Ours},
    close::{How, Outcome},
    connect::Opening,
    drain::{Drain, Live, Places, Room},
    engine::{Connection, Engines},
    greet::{self, Origin},
    pace::{Pace, Quotas},
    pair::{Pair, Peer, Socket},
    plan::{Address, Greet, Route},
    stats::{
        books::Books,
        record::Record,
        tally::{Entrance, Tally},
    },
    tune::{Refused, tune},
    upstream::{Dialled, Elsewhere, Names, Upstreams},
};

/// What all routes share.
#[derive(Clone)]
pub(super) struct Shared {
    pub(super) engines: Arc<Engines>,
    pub(super) books: Arc<Books>,
    pub(super) drain: Drain,
    /// Of all routes together.
    pub(super) places: Places,
    /// Within the limit of open files.
    pub(super) room: Room,
    /// Where relay itself is.
    pub(super) ours: Ours,
    pub(super) names: Names,
}

/// What every connection of a route needs.
pub(super) struct Stages {
    tally: Arc<Tally>,
    pub(super) route: Route,
    /// Of its connections, whichever listener they come to; a change of the route leaves them.
    pub(super) places: Places,
    pub(super) upstreams: Arc<Upstreams>,
    /// What its connections share of the bandwidth, in the same way.
    pub(super) quotas: Quotas,
    shared: Shared,
}

impl Stages {
    /// With `places` that connections of the route may already have taken, and `quotas` that they share already.
    pub(super) fn new(route: Route, places: Places, quotas: Quotas, shared: &Shared) -> Arc<Self> {
        places.set_limit(route.door.max_connections);
        Arc::new(Self {
            tally: shared.books.tally(&route.name),
            upstreams: Arc::new(Upstreams::start(&route, &shared.names)),
            quotas,
            route,
            places,
            shared: shared.clone(),
        })
    }

    fn record(&self, entrance: Arc<Entrance>, client: &Socket) -> Record {
        let (tally, books) = (self.tally.clone(), self.shared.books.clone());
        Record::open(tally, entrance, client.peer.clone(), books)
    }

    /// Sets what the route asks for on its side of the upstream. Whether the kernel would have it was tried at the start, so that
    /// a refusal is of the moment, and no reason to end a connection.
    fn tune(&self, upstream: &Socket) {
        if upstream.is_tcp()
            && let Err(refused) = tune(upstream, &self.route.tcp)
        {
            let Refused { setting, errno, .. } = refused;
            tracing::debug!(route = %self.route.name, setting, %errno, "an upstream's socket goes without an option");
        }
    }

    /// Where the client wanted to go, on a route to there.
    fn original(&self, client: &Socket, record: &Record) -> Result<Option<Address>, Outcome> {
        let (true, Peer::Ip(from)) = (self.route.to.is_original(), &client.peer) else {
            return Ok(None);
        };
        let transparent = self.route.door.transparent;
        let wanted = self.shared.ours.destination(client, *from, transparent);
        wanted
            .map(|wanted| Some(Address::Ip(wanted)))
            .map_err(|astray| self.refuse(client, record, astray))
    }

    /// Notes that `upstream` is a connection of relay's own. Only now is it known whether the client is one, too: where relay's
    /// connections are redirected to relay, they are accepted before they are known.
    fn not_itself(
        &self,
        client: &Socket,
        upstream: &Socket,
        record: &Record,
        live: &mut Live,
    ) -> Result<(), Outcome> {
        // A client whose own address relay has taken over is not relay.
        let borrowed = self.route.outgoing.transparent && is_at(upstream, &client.peer);
        if !borrowed && let Some(own) = self.shared.ours.dials(upstream) {
            live.keep(own);
        }
        match (&client.peer, &upstream.peer) {
            (Peer::Ip(from), Peer::Ip(to)) if self.shared.ours.is_dialled(*from) => {
                Err(self.refuse(client, record, Astray::Itself(*to)))
            }
            _ => Ok(()),
        }
    }

    fn refuse(&self, client: &Socket, record: &Record, why: Astray) -> Outcome {
        let (listen, client) = (record.card().entrance.listen(), &client.peer);
        tracing::warn!(route = %self.route.name, listen, %client, reason = %why, "a client has no original destination; it is reset");
        let errno = Errno::LOOP.raw_os_error();
        let call = "original destination";
        Outcome::relay(How::Error { errno, call })
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
    let Shared {
        drain,
        places,
        room,
        ..
    } = route.borrow().shared.clone();
    let listen = acceptor.address().to_string();
    let of = |stages: &Stages| (stages.places.clone(), stages.tally.entrance(&listen));
    let (mut own, mut entrance) = of(&route.borrow());
    let seen = route.clone();
    acceptor.on_trouble(move || seen.borrow().tally.accept_failed());
    loop {
        // A full backlog must not keep this thread from its other tasks.
        tokio::task::coop::consume_budget().await;
        let (client, taken, seat) = tokio::select! {
            biased;
            () = drain.stopped() => return,
            changed = route.changed() => match changed {
                Ok(()) => {
                    let stages = route.borrow_and_update();
                    (own, entrance) = of(&stages);
                    acceptor.renew(&stages.route.door, &stages.route.tcp);
                    continue;
                }
                Err(_) => return,
            },
            client = acceptor.accept([&own, &places], &room) => client,
        };
        let stages = route.borrow().clone();
        if stages.admits(&client) {
            let entrance = entrance.clone();
            tokio::spawn(carry(
                client,
                drain.live().at(taken).on(seat),
                entrance,
                stages,
            ));
        } else {
            // The client is armed: dropping it resets it.
            let mut record = stages.record(entrance.clone(), &client);
            record.end(Outcome::relay(How::Denied));
        }
    }
}

/// One connection, from its client to its engine. There is one such future per connection that its engine has not taken
/// over, so the dial, which is larger than what remains, gets a box of its own and gives it back.
async fn carry(client: Socket, mut live: Live, entrance: Arc<Entrance>, stages: Arc<Stages>) {
    let Stages {
        route,
        upstreams,
        shared: Shared { engines, drain, .. },
        ..
    } = &*stages;
    let mut record = stages.record(entrance, &client);
    let original = match stages.original(&client, &record) {
        Ok(original) => original,
        Err(outcome) => return record.end(outcome),
    };
    let (client, origin) = match greeted(client, &route.greet, drain).await {
        Ok(greeted) => greeted,
        Err(outcome) => return record.end(outcome),
    };
    if let Some(Origin { source, .. }) = origin {
        record.on_behalf_of(Peer::Ip(source));
    }
    // Where a header says who it is, the balance goes by that, and a transparent source.
    let from = origin.map_or(client.peer.clone(), |origin| Peer::Ip(origin.source));
    let opening = match route.greet.send {
        Some(version) => {
            let origin = origin.or_else(|| greet::seen(&client));
            Opening::new(greet::header(version, origin), route.tcp.fast_open)
        }
        None => Opening::default(),
    };
    let joined = match &route.greet.ask {
        Some(ask) => {
            let joining = asked::join(client, ask, &from, opening, upstreams, drain, &mut record);
            Box::pin(joining).await
        }
        None => {
            let original = original.as_ref().map(|to| Elsewhere { to, reach: None });
            let Dialled {
                client,
                peer,
                upstream,
            } = Box::pin(upstreams.dial(client, &from, original, opening, drain)).await;
            if let Some(peer) = peer {
                record.dialled(peer);
            }
            upstream.map(|(upstream, taken)| {
                record.taken(taken);
                (client, upstream)
            })
        }
    };
    match joined {
        Ok((client, upstream)) => {
            if original.is_some()
                && let Err(outcome) = stages.not_itself(&client, &upstream, &record, &mut live)
            {
                return record.end(outcome);
            }
            stages.tune(&upstream);
            let connection = Connection {
                pair: Pair { client, upstream },
                limits: route.limits,
                pace: Pace::new(&route.rates, &stages.quotas),
                record,
                live,
            };
            let engines = engines.clone();
            // A route that is gone has nothing checked on behalf of the connections that it leaves behind.
            drop(stages);
            engines.carry(Box::new(connection)).await;
        }
        // The client is armed: dropping it resets it.
        Err(outcome) => record.end(outcome),
    }
}

/// Whether the near end of `socket` has the address of `peer`.
fn is_at(socket: &Socket, peer: &Peer) -> bool {
    let near = getsockname(socket).ok();
    let near = near.and_then(|near| SocketAddr::try_from(near).ok());
    near.is_some_and(|near| *peer == Peer::Ip(near))
}

/// Hears what the client has to say before anything else.
async fn greeted(
    client: Socket,
    greet: &Greet,
    drain: &Drain,
) -> Result<(Socket, Option<Origin>), Outcome> {
    match &greet.accept {
        Some(accept) => Box::pin(greet::origin(client, accept, drain)).await,
        None => Ok((client, None)),
    }
}
