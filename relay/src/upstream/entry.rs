//! One upstream as the plan has it, and the endpoints that it has now.

use std::{
    io,
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::sync::{Notify, watch};

use super::{
    counts::Counts,
    endpoint::{Endpoint, Place},
    names::Names,
};
use crate::plan::{Address, Target, Upstream};

/// Added to the rank of backups: above what any SRV record can say.
const BACKUP: u32 = 1 << 16;

/// How soon a name is asked for again, whatever its answer says of itself. After the longest time, an answer that is
/// still good comes from the resolver's own store, unless its files have changed.
const AGAIN: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// The longest pause after a question without an answer; the first is the shortest of [`AGAIN`], doubled each time.
const RETRY: Duration = Duration::from_secs(15);

/// How long DNS has to say that there is nothing at a name until its last addresses are given up: a record that is replaced
/// is often gone for a moment.
const GRACE: Duration = Duration::from_secs(30);

/// An upstream and its endpoints.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) upstream: Upstream,
    /// Of all addresses that it has or had.
    pub(super) counts: Arc<Counts>,
    known: watch::Sender<Known>,
    /// A client waits for the first address.
    wanted: Notify,
    grace: Duration,
}

/// What a name stands for, as far as is known.
#[derive(Clone, Debug, Default)]
struct Known {
    endpoints: Arc<[Arc<Endpoint>]>,
    /// Why the last question had no answer.
    fault: Option<Arc<io::Error>>,
    /// How many questions have been asked and answered, or not.
    asked: u64,
}

impl Entry {
    pub(super) fn new(upstream: Upstream) -> Self {
        let place = upstream.at.fixed().map(|at| Place::of(at, &upstream));
        let entry = Self {
            counts: Arc::default(),
            known: watch::Sender::default(),
            wanted: Notify::new(),
            grace: GRACE,
            upstream,
        };
        if let Some(place) = place {
            entry.is_at(vec![place]);
        }
        entry
    }

    /// Gives addresses up sooner.
    #[cfg(test)]
    pub(super) fn impatient(self, grace: Duration) -> Self {
        Self { grace, ..self }
    }

    /// Whether its addresses have to be asked for.
    pub(super) fn is_name(&self) -> bool {
        matches!(
            self.upstream.at,
            Target::Address(Address::Name(..)) | Target::Srv(_)
        )
    }

    /// Whether it stands for wherever a client wanted to go.
    pub(super) fn is_original(&self) -> bool {
        self.upstream.at == Target::Address(Address::Original)
    }

    pub(super) fn endpoints(&self) -> Arc<[Arc<Endpoint>]> {
        self.known.borrow().endpoints.clone()
    }

    /// Why its name could not be resolved the last time.
    pub(super) fn fault(&self) -> Option<Arc<io::Error>> {
        self.known.borrow().fault.clone()
    }

    /// Its endpoints, as soon as there are any, or why there are none.
    pub(super) async fn resolved(&self) -> Result<Arc<[Arc<Endpoint>]>, Arc<io::Error>> {
        let mut known = self.known.subscribe();
        let asked = known.borrow().asked;
        self.wanted.notify_one();
        let answered = |known: &Known| known.asked > asked || !known.endpoints.is_empty();
        let Ok(known) = known.wait_for(answered).await else {
            return Err(Arc::new(io::ErrorKind::NotFound.into()));
        };
        match &known.fault {
            Some(fault) if known.endpoints.is_empty() => Err(fault.clone()),
            _ => Ok(known.endpoints.clone()),
        }
    }

    /// Keeps up with what its name stands for, for ever. The last good answer stands while there is no other, unless DNS says
    /// for some time that there is nothing.
    pub(super) async fn follow(&self, route: &str, names: &Names) {
        let mut retry = AGAIN.0;
        let mut servers = names.servers();
        let (mut name, mut gone_since) = (None, None);
        loop {
            let pause;
            match names.places(&self.upstream).await {
                Ok(answer) => {
                    let good = answer.until.saturating_duration_since(Instant::now());
                    self.answered(answer.places, route);
                    (pause, retry) = (good.clamp(AGAIN.0, AGAIN.1), AGAIN.0);
                    (name, gone_since) = (answer.name, None);
                }
                Err(error) => {
                    self.unanswered(error, route);
                    let kept = !self.endpoints().is_empty();
                    if kept && names.is_gone(&self.upstream, name.as_ref()).await {
                        let since = *gone_since.get_or_insert_with(Instant::now);
                        if since.elapsed() >= self.grace {
                            self.give_up(route);
                        }
                    } else {
                        gone_since = None;
                    }
                    (pause, retry) = (retry, (retry * 2).min(RETRY));
                }
            }
            tokio::select! {
                () = tokio::time::sleep(pause) => (),
                () = self.wanted.notified(), if self.endpoints().is_empty() => (),
                Ok(()) = servers.changed() => retry = AGAIN.0,
            }
        }
    }

    /// There is nothing at its name any more. Connections to where it was go on.
    fn give_up(&self, route: &str) {
        tracing::warn!(route, upstream = %self.upstream, "DNS says that there is nothing at the name, and has for a while; its last addresses are given up");
        self.known
            .send_modify(|known| known.endpoints = Arc::default());
    }

    fn answered(&self, places: Vec<Place>, route: &str) {
        if self.fault().is_some() {
            tracing::info!(route, upstream = %self.upstream, "name resolves again");
        }
        let before = self.endpoints();
        if self.is_at(places) && !before.is_empty() {
            let now = Vec::from_iter(self.endpoints().iter().map(|one| one.place.at.to_string()));
            tracing::info!(route, upstream = %self.upstream, addresses = now.join(","), "name has other addresses");
        }
    }

    fn unanswered(&self, error: io::Error, route: &str) {
        if self.fault().is_none() {
            let kept = self.endpoints().len();
            tracing::warn!(route, upstream = %self.upstream, %error, kept, "name does not resolve; its last addresses are kept");
        }
        self.known.send_modify(|known| {
            known.fault = Some(Arc::new(error));
            known.asked += 1;
        });
    }

    /// Takes note of where it is now; says whether that has changed. An endpoint that is still there stays as it is.
    fn is_at(&self, places: Vec<Place>) -> bool {
        let before = self.endpoints();
        let mut endpoints: Vec<Arc<Endpoint>> = Vec::with_capacity(places.len());
        for mut place in places {
            if self.upstream.backup {
                place.rank += BACKUP;
            }
            if endpoints.iter().any(|one| one.place == place) {
                continue;
            }
            let same = before.iter().find(|one| one.place == place).cloned();
            endpoints
                .push(same.unwrap_or_else(|| Arc::new(Endpoint::new(place, self.counts.clone()))));
        }
        // Servers give the addresses in another order each time.
        let stays = |one: &Arc<Endpoint>| before.iter().any(|other| Arc::ptr_eq(one, other));
        let changed = endpoints.len() != before.len() || !endpoints.iter().all(stays);
        self.known.send_modify(|known| {
            if changed {
                known.endpoints = endpoints.into();
            }
            known.fault = None;
            known.asked += 1;
        });
        changed
    }
}
