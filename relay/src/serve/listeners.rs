//! The listeners that run, and how a plan changes them.

use std::{fmt, future::pending, io, num::NonZeroU32, sync::Arc};

use tokio::{sync::watch, task::JoinSet};

use super::{
    Fault,
    route::{Shared, Stages, accept},
    try_out,
};
use crate::{
    accept::{Acceptor, Own, bind},
    plan::{Address, Route},
    stats::tally::{Listener, Listening},
};

/// A route whose listener is open: clients may connect, and wait.
#[derive(Debug)]
pub(super) struct Open {
    address: Address,
    acceptor: Acceptor,
    route: Route,
}

/// Opens the listeners of all routes, in order.
///
/// # Errors
///
/// Fails at the first one that cannot be had or watched.
pub(super) async fn open(routes: Vec<Route>) -> Result<Vec<Open>, Fault> {
    let mut open = Vec::with_capacity(routes.len());
    for route in routes {
        open.push(open_one(route).await?);
    }
    Ok(open)
}

async fn open_one(route: Route) -> Result<Open, Fault> {
    let listener = bind(&route.listen, &route.door, &route.tcp).await?;
    Ok(Open {
        address: listener.address().clone(),
        acceptor: listener.open()?,
        route,
    })
}

/// The listeners that accept clients.
pub(super) struct Listeners {
    shared: Shared,
    running: Vec<Running>,
    tasks: JoinSet<()>,
}

/// A listener that accepts clients until this is dropped.
struct Running {
    /// As the plan has it, port 0 included.
    listen: Address,
    /// As it was bound.
    address: Address,
    stages: watch::Sender<Arc<Stages>>,
    _own: Option<Own>,
    /// Shows it to whoever looks.
    listening: Listening,
}

/// What a plan has changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Listeners that were opened.
    pub opened: usize,
    /// Listeners that were closed; their connections go on.
    pub closed: usize,
    /// Routes with other settings on a listener that was kept.
    pub changed: usize,
    /// Routes as they were.
    pub kept: usize,
}

impl fmt::Display for Changes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "listeners opened {}, closed {}; routes changed {}, kept {}",
            self.opened, self.closed, self.changed, self.kept
        )
    }
}

/// What a plan makes of one route.
enum Step {
    /// It has a listener already: which.
    Keep(usize, Box<Route>),
    Add(Box<Open>),
}

impl Listeners {
    /// Begins to accept on `open`.
    pub(super) fn start(open: Vec<Open>, shared: Shared) -> Self {
        let mut listeners = Self {
            shared,
            running: Vec::new(),
            tasks: JoinSet::new(),
        };
        for open in open {
            listeners.add(open);
        }
        listeners
    }

    fn add(&mut self, open: Open) {
        let Open {
            address,
            acceptor,
            route,
        } = open;
        tracing::info!(route = %route.name, listen = %address, to = %route.to, "listening");
        let listen = route.listen.clone();
        let listening = self.show(&address, &route);
        let (stages, seen) = watch::channel(Stages::new(route, &self.shared));
        self.tasks.spawn(accept(acceptor, seen));
        let own = match address {
            Address::Ip(at) => Some(self.shared.ours.listens(at)),
            Address::Name(..) | Address::Unix(_) | Address::Original => None,
        };
        self.running.push(Running {
            listen,
            address,
            stages,
            listening,
            _own: own,
        });
    }

    fn show(&self, address: &Address, route: &Route) -> Listening {
        self.shared.books.tally(&route.name).listening(Listener {
            listen: address.to_string(),
            to: route.to.to_string(),
        })
    }

    /// Serves `routes` from here on. A listener that is still wanted keeps its socket, and no connection that is under way
    /// is touched.
    ///
    /// # Errors
    ///
    /// Fails when a listener cannot be had; nothing has changed then.
    pub(super) async fn apply(&mut self, routes: Vec<Route>) -> Result<Changes, Fault> {
        let mut kept = vec![false; self.running.len()];
        let mut steps = Vec::with_capacity(routes.len());
        for route in routes {
            let mut running = self.running.iter().zip(&kept);
            let found = running.position(|(one, kept)| !kept && one.listen == route.listen);
            let is_as_it_was = |at: usize| self.running[at].stages.borrow().route == route;
            if !found.is_some_and(is_as_it_was) {
                try_out(&route)?;
            }
            steps.push(match found {
                Some(at) => {
                    kept[at] = true;
                    Step::Keep(at, Box::new(route))
                }
                None => Step::Add(Box::new(open_one(route).await?)),
            });
        }
        Ok(self.carry_out(steps))
    }

    fn carry_out(&mut self, steps: Vec<Step>) -> Changes {
        let mut changes = Changes::default();
        let running = std::mem::take(&mut self.running).into_iter();
        let mut running = Vec::from_iter(running.map(Some));
        for step in steps {
            match step {
                Step::Add(open) => {
                    self.add(*open);
                    changes.opened += 1;
                }
                Step::Keep(at, route) => {
                    let Some(mut one) = running[at].take() else {
                        continue;
                    };
                    if one.stages.borrow().route == *route {
                        changes.kept += 1;
                    } else {
                        tracing::info!(route = %route.name, listen = %route.listen, to = %route.to, "route changed");
                        one.listening = self.show(&one.address, &route);
                        one.stages.send_replace(Stages::new(*route, &self.shared));
                        changes.changed += 1;
                    }
                    self.running.push(one);
                }
            }
        }
        for closed in running.into_iter().flatten() {
            tracing::info!(listen = %closed.listen, "listener closed; its connections go on");
            changes.closed += 1;
        }
        changes
    }

    /// From here on there may be so many connections at once.
    pub(super) fn limit(&self, most: Option<NonZeroU32>) {
        self.shared.places.set_limit(most);
    }

    /// Ends when one of the listeners has panicked: a fault of relay's own, which must not look like an end.
    pub(super) async fn broken(&mut self) -> io::Error {
        loop {
            match self.tasks.join_next().await {
                Some(Ok(())) => (),
                Some(Err(panicked)) => return io::Error::other(panicked),
                None => return pending().await,
            }
        }
    }

    /// Waits until no listener is left, after a stop.
    pub(super) async fn ended(mut self) {
        while self.tasks.join_next().await.is_some() {}
    }
}
