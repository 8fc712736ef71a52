//! The upstreams of a route: which one a client gets, who is tried when it fails, and what is known of each.

mod balance;
mod check;
mod counts;
mod endpoint;
mod entry;
mod names;
mod race;
mod snapshot;

use std::{
    io,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures_util::{StreamExt, stream::FuturesUnordered};
use tokio::task::JoinSet;

pub use self::names::Names;
use self::{
    balance::Balancer,
    endpoint::{Endpoint, Place},
    entry::Entry,
    race::Race,
};
use crate::{
    close::Outcome,
    connect::{self, Failed, Near, Opening},
    drain::Drain,
    pair::{Peer, Socket},
    plan::{Address, Outgoing, Pool, Reach, Route, Upstream},
    stats::gauge::Raised,
};

/// The upstreams of one route. Dropping it ends what it does in the background; connections go on.
#[derive(Debug)]
pub struct Upstreams {
    route: Arc<str>,
    entries: Vec<Arc<Entry>>,
    pool: Pool,
    outgoing: Arc<Outgoing>,
    limit: Duration,
    names: Names,
    balancer: Balancer,
    /// Held while one is left out, so that the last two do not go at once.
    ejecting: Mutex<()>,
    /// A client could not be connected for its address, and that was told.
    told: AtomicBool,
    /// Ended with it.
    _background: JoinSet<()>,
}

/// Where a client is to be connected to, where the route does not say.
#[derive(Clone, Copy, Debug)]
pub struct Elsewhere<'a> {
    /// There.
    pub to: &'a Address,
    /// What it has to be among, whatever name it has; none for anywhere.
    pub reach: Option<&'a Reach>,
}

/// What came of a dial.
#[derive(Debug)]
pub struct Dialled {
    /// The client, as it was given.
    pub client: Socket,
    /// Who was dialled last; nobody where no name could be resolved.
    pub peer: Option<Peer>,
    /// The upstream: nonblocking, armed to reset; or how the connection ends without it. It counts as
    /// live for as long as the second value is kept.
    pub upstream: Result<(Socket, Raised), Outcome>,
}

impl Upstreams {
    /// Those of `route`. Names begin to be resolved, so this takes a runtime.
    #[must_use]
    pub fn start(route: &Route, names: &Names) -> Self {
        let name: Arc<str> = route.name.as_str().into();
        let entries = route.to.0.iter().cloned().map(Entry::new).map(Arc::new);
        let entries = Vec::from_iter(entries);
        let outgoing = Arc::new(route.outgoing.clone());
        let mut background = JoinSet::new();
        for entry in entries.iter().filter(|entry| entry.is_name()) {
            let (entry, name, names) = (entry.clone(), name.clone(), names.clone());
            background.spawn(async move { entry.follow(&name, &names).await });
        }
        if let Some(check) = route.pool.check {
            background.spawn(check::watch(
                entries.clone(),
                check,
                Near::own(outgoing.clone()),
                name.clone(),
            ));
        }
        Self {
            route: name,
            entries,
            pool: route.pool,
            outgoing,
            limit: route.connect,
            names: names.clone(),
            balancer: Balancer::new(route.pool.balance),
            ejecting: Mutex::default(),
            told: AtomicBool::new(false),
            _background: background,
        }
    }

    /// Connects an upstream for `client`, who came from `from`: the one that the balance says, and others when it fails,
    /// until the route's connect timeout is over. Where the client itself says where to, that is `to`. Each that is tried
    /// hears `opening` first.
    ///
    /// It ends early when the client resets or hangs up, and when live connections are to be cut.
    pub async fn dial(
        &self,
        client: Socket,
        from: &Peer,
        to: Option<Elsewhere<'_>>,
        opening: Opening,
        drain: &Drain,
    ) -> Dialled {
        let mut race = Race::new(self, from, to, opening);
        let (client, upstream) = connect::while_waited_for(client, drain, race.run()).await;
        Dialled {
            client,
            peer: race.tried.map(|endpoint| endpoint.place.at.clone()),
            upstream,
        }
    }

    /// All endpoints, as soon as there is one.
    async fn endpoints(&self) -> Result<Vec<Arc<Endpoint>>, Arc<io::Error>> {
        let known = self.known();
        if !known.is_empty() {
            return Ok(known);
        }
        let mut asked =
            FuturesUnordered::from_iter(self.entries.iter().map(|entry| entry.resolved()));
        let mut fault = Arc::new(io::ErrorKind::NotFound.into());
        while let Some(answer) = asked.next().await {
            match answer {
                Ok(_) => return Ok(self.known()),
                Err(error) => fault = error,
            }
        }
        Err(fault)
    }

    /// All endpoints of an address that is no upstream of the route.
    async fn elsewhere(&self, to: &Address) -> Result<Vec<Arc<Endpoint>>, Arc<io::Error>> {
        let upstream = Upstream::from(to.clone());
        if let Some(at) = upstream.at.fixed() {
            return Ok(vec![Arc::new(Endpoint::new(
                Place::of(at, &upstream),
                Arc::default(),
            ))]);
        }
        let places = self.names.places(&upstream).await?.places;
        Ok(places
            .into_iter()
            .map(|place| Endpoint::new(place, Arc::default()))
            .map(Arc::new)
            .collect())
    }

    fn known(&self) -> Vec<Arc<Endpoint>> {
        let known = self.entries.iter().map(|entry| entry.endpoints());
        known.flat_map(|endpoints| endpoints.to_vec()).collect()
    }

    /// An attempt failed. After too many the endpoint is left out for a while, unless no other is left.
    fn failed(&self, endpoint: &Arc<Endpoint>, failed: Failed) {
        endpoint.failed(&failed.errno.into());
        if failed.is_own() {
            return;
        }
        let row = endpoint.blamed();
        let Some(eject) = self.pool.eject.filter(|eject| row >= eject.after) else {
            return;
        };
        let _ejecting = self.ejecting.lock().unwrap_or_else(PoisonError::into_inner);
        let other =
            |other: &Arc<Endpoint>| !Arc::ptr_eq(other, endpoint) && other.is_usable(&self.route);
        if endpoint.is_usable(&self.route) && self.known().iter().any(other) {
            endpoint.eject(eject.period, &failed.errno.into(), &self.route);
        }
    }

    /// There is no address from which any upstream can be connected to for `client`.
    fn unreachable(&self, client: &Peer) {
        if !self.told.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                route = &*self.route,
                %client,
                "no upstream has an address of the family that source or transparent-source asks for; such clients are reset"
            );
        }
    }
}

#[cfg(test)]
mod tests;
