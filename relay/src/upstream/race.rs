//! Dialling one endpoint after another until one accepts, inside one deadline.

use std::{future::Future, io, sync::Arc, time::Duration};

use futures_util::{StreamExt, future::OptionFuture, stream::FuturesUnordered};
use rustix::io::Errno;
use tokio::time::{Instant, sleep, timeout_at};

use super::{Elsewhere, Upstreams, endpoint::Endpoint};
use crate::{
    close::Outcome,
    connect::{Failed, Near, Opening, attempt},
    greet,
    pair::{Peer, Side, Socket},
    stats::gauge::Raised,
};

/// How long an attempt is ahead of one to the same host in the other family: the Connection Attempt Delay of RFC 8305.
const AHEAD: Duration = Duration::from_millis(250);

/// A name that a client says may have any number of addresses, and does not need more than these.
const MOST_TRIED: usize = 8;

/// What an attempt came to.
type Attempted = (Arc<Endpoint>, Raised, Result<Socket, Failed>);

/// The dial for one client.
pub(super) struct Race<'a> {
    upstreams: &'a Upstreams,
    client: &'a Peer,
    to: Option<Elsewhere<'a>>,
    near: Near,
    opening: Opening,
    deadline: Instant,
    untried: Vec<Arc<Endpoint>>,
    /// The last one that was tried.
    pub(super) tried: Option<Arc<Endpoint>>,
}

impl<'a> Race<'a> {
    pub(super) fn new(
        upstreams: &'a Upstreams,
        client: &'a Peer,
        to: Option<Elsewhere<'a>>,
        opening: Opening,
    ) -> Self {
        let now = Instant::now();
        Self {
            upstreams,
            client,
            to,
            near: Near::of(upstreams.outgoing.clone(), client),
            opening,
            deadline: now.checked_add(upstreams.limit).unwrap_or_else(|| far(now)),
            untried: Vec::new(),
            tried: None,
        }
    }

    pub(super) async fn run(&mut self) -> Result<(Socket, Raised), Outcome> {
        let failed = |call, error: &io::Error| Outcome::failed(Side::Upstream, call, error);
        let resolving = async {
            match self.to {
                None => self.upstreams.endpoints().await,
                Some(Elsewhere { to, .. }) => self.upstreams.elsewhere(to).await,
            }
        };
        let resolved = timeout_at(self.deadline, resolving).await;
        self.untried = match resolved {
            Ok(Ok(endpoints)) => endpoints,
            Ok(Err(error)) => return Err(failed("resolve", &error)),
            Err(_) => return Err(failed("resolve", &Errno::TIMEDOUT.into())),
        };
        self.leave_out()?;
        let mut running = FuturesUnordered::new();
        let mut fault = Failed::from(Errno::TIMEDOUT);
        loop {
            if running.is_empty() {
                match self.next() {
                    Some(next) => running.push(self.attempt(next)),
                    None => return Err(fault.outcome()),
                }
            }
            let partner = self.partner();
            let ahead = OptionFuture::from(partner.is_some().then(|| sleep(AHEAD)));
            tokio::select! {
                biased;
                Some((endpoint, live, attempted)) = running.next() => match attempted {
                    Ok(socket) => {
                        endpoint.succeeded();
                        self.tried = Some(endpoint);
                        return Ok((socket, live));
                    }
                    Err(failed) => {
                        self.upstreams.failed(&endpoint, failed);
                        fault = failed;
                    }
                },
                Some(()) = ahead => if let Some(partner) = partner {
                    let partner = self.untried.swap_remove(partner);
                    running.push(self.attempt(partner));
                },
            }
        }
    }

    /// Leaves out where this client may not go, by what its name means and not by the name: one that anybody can have point to
    /// this host would be a way in. And those that cannot be reached from where it is to come from.
    fn leave_out(&mut self) -> Result<(), Outcome> {
        if let Some(Elsewhere {
            reach: Some(reach), ..
        }) = self.to
        {
            let admits = |at: &Peer| matches!(at, Peer::Ip(at) if reach.admits(*at));
            self.untried.retain(|one| admits(&one.place.at));
            self.untried.truncate(MOST_TRIED);
            if self.untried.is_empty() {
                return Err(greet::out_of_reach());
            }
        }
        self.untried.retain(|one| self.near.reaches(&one.place.at));
        if self.untried.is_empty() {
            self.upstreams.unreachable(self.client);
            return Err(Failed::from(Errno::AFNOSUPPORT).outcome());
        }
        Ok(())
    }

    fn attempt(&mut self, endpoint: Arc<Endpoint>) -> impl Future<Output = Attempted> + use<> {
        self.tried = Some(endpoint.clone());
        let left = self.deadline.saturating_duration_since(Instant::now());
        // An equal share for each, so that a dead one leaves some for the others.
        let others = u32::try_from(self.untried.len()).unwrap_or(u32::MAX);
        let share = left / others.saturating_add(1);
        let limit = self
            .upstreams
            .pool
            .attempt
            .map_or(share, |limit| limit.min(left));
        let live = endpoint.dial();
        let (near, opening) = (self.near.clone(), self.opening.clone());
        async move {
            let attempted = attempt(&endpoint.place.at, &near, &opening, limit).await;
            (endpoint, live, attempted)
        }
    }

    /// The next one to try: while there are usable ones, of the lowest rank among them, and then even those that are left
    /// out, since nobody else is there. None when time is up.
    fn next(&mut self) -> Option<Arc<Endpoint>> {
        if self.tried.is_some() && Instant::now() >= self.deadline {
            return None;
        }
        let chosen = match self.partner() {
            Some(partner) => partner,
            None => {
                let route = &*self.upstreams.route;
                let among = best(&self.untried, |one| one.is_usable(route));
                let chosen = self.upstreams.balancer.choose(&among, self.client)?;
                let same = |one: &Arc<Endpoint>| Arc::ptr_eq(one, chosen);
                self.untried.iter().position(same)?
            }
        };
        Some(self.untried.swap_remove(chosen))
    }

    /// An untried address of the host that was tried last, in the other family.
    fn partner(&self) -> Option<usize> {
        let tried = self.tried.as_ref()?;
        let route = &*self.upstreams.route;
        let pairs = |one: &Arc<Endpoint>| one.pairs_with(tried) && one.is_usable(route);
        self.untried.iter().position(pairs)
    }
}

/// Those to choose from: the usable ones of the lowest rank, and of a host that has both families only IPv6.
fn best(untried: &[Arc<Endpoint>], usable: impl Fn(&Endpoint) -> bool) -> Vec<&Arc<Endpoint>> {
    let mut among = Vec::from_iter(untried.iter().filter(|one| usable(one)));
    if among.is_empty() {
        among.extend(untried);
    }
    let Some(rank) = among.iter().map(|one| one.place.rank).min() else {
        return among;
    };
    among.retain(|one| one.place.rank == rank);
    let second = |one: &Endpoint| {
        let has_v6 = |other: &&Arc<Endpoint>| other.is_v6() && other.pairs_with(one);
        !one.is_v6() && among.iter().any(has_v6)
    };
    among.iter().copied().filter(|one| !second(one)).collect()
}

/// A deadline that nobody lives to see, for limits that no clock can hold.
fn far(now: Instant) -> Instant {
    now + Duration::from_secs(30 * 365 * 24 * 3600)
}
