//! The listeners that run, and how a plan changes them.

use std::{
    collections::{HashMap, VecDeque},
    fmt,
    future::pending,
    io,
    net::SocketAddr,
    num::NonZeroU32,
    sync::Arc,
};

use tokio::{sync::watch, task::JoinSet};

use super::{
    Fault,
    route::{Shared, Stages, accept},
    try_out,
};
use crate::{
    accept::{self, Acceptor, Listener, Own, Passed},
    drain::Places,
    handover::{self, Heritage, Role},
    pace::Quotas,
    plan::{Address, Choice, Listen, Route},
    stats::tally::{self, Listening},
};

/// Where listeners come from, besides the addresses themselves, and what they have to be good for.
pub(super) struct Sources {
    /// What systemd has passed.
    pub(super) passed: Passed,
    /// What the relay before had; nothing is left of it after the start.
    pub(super) heritage: Heritage,
    /// The engines that carry.
    pub(super) choice: Choice,
}

/// A route whose listeners are open: clients may connect, and wait.
#[derive(Debug)]
pub(super) struct Open {
    route: Route,
    doors: Vec<Opened>,
}

/// What stands for one of a route's listeners as the plan has it: a socket, or several.
#[derive(Debug)]
struct Opened {
    listen: Listen,
    acceptors: Vec<Acceptor>,
    /// From the relay before, with the options that they had there.
    inherited: bool,
}

/// Opens the listeners of all routes, in order.
///
/// # Errors
///
/// Fails at the first one that cannot be had or watched.
pub(super) async fn open(routes: Vec<Route>, sources: &mut Sources) -> Result<Vec<Open>, Fault> {
    let mut open = Vec::with_capacity(routes.len());
    for route in routes {
        let mut doors = Vec::with_capacity(route.listen.len());
        for listen in &route.listen {
            doors.push(open_one(listen, &route, sources).await?);
        }
        open.push(Open { route, doors });
    }
    Ok(open)
}

async fn open_one(listen: &Listen, route: &Route, sources: &mut Sources) -> Result<Opened, Fault> {
    let Sources {
        passed,
        heritage,
        choice,
    } = sources;
    let Route { door, tcp, .. } = route;
    let mut listeners = heritage.take(Role::Route, &listen.to_string(), door, tcp)?;
    let inherited = !listeners.is_empty();
    if !inherited {
        listeners = accept::listen(listen, door, tcp, passed).await?;
    }
    let is_unix = |listener: &Listener| matches!(listener.address(), Address::Unix(_));
    if listeners.iter().any(is_unix) {
        route.bears_unix(listen, *choice)?;
    }
    let acceptors = listeners.into_iter().map(Listener::open);
    let acceptors = acceptors.collect::<io::Result<Vec<_>>>()?;
    Ok(Opened {
        listen: listen.clone(),
        acceptors,
        inherited,
    })
}

/// The listeners that accept clients.
pub(super) struct Listeners {
    shared: Shared,
    sources: Sources,
    running: Vec<Running>,
    tasks: JoinSet<()>,
}

/// A listener that accepts clients until this is dropped.
struct Running {
    /// As the plan has it, port 0 included.
    listen: Listen,
    stages: watch::Sender<Arc<Stages>>,
    spots: Vec<Spot>,
    /// All of its sockets: there may be several at one spot.
    sockets: Vec<handover::Socket>,
}

/// Where such a listener is.
struct Spot {
    /// As it was bound.
    address: Address,
    /// Shows it to whoever looks.
    listening: Listening,
    _own: Option<Own>,
}

/// What a plan has changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Listeners that were opened.
    pub opened: usize,
    /// Listeners that were closed; their connections go on.
    pub closed: usize,
    /// Routes with other settings, of whose listeners some were kept.
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

/// What a plan makes of one route: which running listeners it keeps, and those that it adds.
struct Step {
    route: Route,
    keep: Vec<usize>,
    add: Vec<Opened>,
}

impl Listeners {
    /// Begins to accept on `open`. What systemd has passed can be asked for later, too.
    pub(super) fn start(open: Vec<Open>, sources: Sources, shared: Shared) -> Self {
        let mut listeners = Self {
            shared,
            sources,
            running: Vec::new(),
            tasks: JoinSet::new(),
        };
        for Open { route, doors } in open {
            let stages = listeners.stages(route);
            for opened in doors {
                listeners.add(opened, &stages);
            }
        }
        listeners
    }

    /// For a route that takes nobody's place.
    fn stages(&self, route: Route) -> Arc<Stages> {
        let quotas = Quotas::new(&route.rates);
        Stages::new(route, Places::default(), quotas, &self.shared)
    }

    fn add(&mut self, opened: Opened, stages: &Arc<Stages>) {
        let Opened {
            listen,
            acceptors,
            inherited,
        } = opened;
        let (sender, seen) = watch::channel(stages.clone());
        let mut spots: Vec<Spot> = Vec::new();
        let mut sockets = Vec::new();
        for acceptor in acceptors {
            if inherited {
                acceptor.renew(&stages.route.door, &stages.route.tcp);
            }
            sockets.push(handover::Socket {
                role: Role::Route,
                listen: listen.to_string(),
                held: acceptor.held().clone(),
                passed: acceptor.is_passed(),
            });
            let address = acceptor.address().clone();
            if spots.iter().all(|spot| spot.address != address) {
                spots.push(self.spot(address, stages));
            }
            self.tasks.spawn(accept(acceptor, seen.clone()));
        }
        self.running.push(Running {
            listen,
            stages: sender,
            spots,
            sockets,
        });
    }

    fn spot(&self, address: Address, stages: &Stages) -> Spot {
        let route = &stages.route;
        tracing::info!(route = %route.name, listen = %address, to = %route.to, "listening");
        Spot {
            listening: self.show(&address, stages),
            _own: match address {
                Address::Ip(at) => Some(self.shared.ours.listens(at)),
                Address::Name(..) | Address::Unix(_) | Address::Original => None,
            },
            address,
        }
    }

    fn show(&self, address: &Address, stages: &Stages) -> Listening {
        let (route, upstreams) = (&stages.route, stages.upstreams.clone());
        let listener = tally::Listener {
            listen: address.to_string(),
            to: route.to.to_string(),
        };
        let tally = self.shared.books.tally(&route.name);
        tally.listening(listener, upstreams)
    }

    /// Serves `routes` from here on. A listener that is still wanted keeps its socket, whichever route wants it, and no
    /// connection that is under way is touched.
    ///
    /// # Errors
    ///
    /// Fails when a listener cannot be had; nothing has changed then.
    pub(super) async fn apply(&mut self, routes: Vec<Route>) -> Result<Changes, Fault> {
        let mut free: HashMap<Listen, VecDeque<usize>> = HashMap::new();
        for (at, one) in self.running.iter().enumerate() {
            free.entry(one.listen.clone()).or_default().push_back(at);
        }
        let mut steps = Vec::with_capacity(routes.len());
        for route in routes {
            let same = |at: &usize| self.running[*at].stages.borrow().route == route;
            let first = route.listen.first().and_then(|listen| free.get(listen));
            if !first.and_then(VecDeque::front).is_some_and(same) {
                try_out(&route)?;
            }
            let (mut keep, mut add) = (Vec::new(), Vec::new());
            for listen in &route.listen {
                match free.get_mut(listen).and_then(VecDeque::pop_front) {
                    Some(at) => keep.push(at),
                    None => add.push(open_one(listen, &route, &mut self.sources).await?),
                }
            }
            steps.push(Step { route, keep, add });
        }
        Ok(self.carry_out(steps))
    }

    fn carry_out(&mut self, steps: Vec<Step>) -> Changes {
        let mut changes = Changes::default();
        let running = std::mem::take(&mut self.running).into_iter();
        let mut running = Vec::from_iter(running.map(Some));
        // Whose connections are counted there already.
        let mut places: Vec<Places> = Vec::new();
        for Step { route, keep, add } in steps {
            let kept = keep.iter().filter_map(|at| running.get_mut(*at)?.take());
            let mut kept = Vec::from_iter(kept);
            let before = kept.first().map(|one| one.stages.borrow().clone());
            let stages = match before {
                Some(before) if before.route == route => {
                    changes.kept += 1;
                    before
                }
                Some(before) => {
                    tracing::info!(route = %route.name, listen = route.listens(), to = %route.to, "route changed");
                    changes.changed += 1;
                    let taken = places.iter().any(|places| places.are(&before.places));
                    let (places, quotas) = match taken {
                        true => (Places::default(), Quotas::new(&route.rates)),
                        false => (before.places.clone(), before.quotas.renewed(&route.rates)),
                    };
                    Stages::new(route, places, quotas, &self.shared)
                }
                None => self.stages(route),
            };
            places.push(stages.places.clone());
            for one in &mut kept {
                if Arc::ptr_eq(&one.stages.borrow(), &stages) {
                    continue;
                }
                for spot in &mut one.spots {
                    spot.listening = self.show(&spot.address, &stages);
                }
                one.stages.send_replace(stages.clone());
            }
            self.running.append(&mut kept);
            changes.opened += add.len();
            for opened in add {
                self.add(opened, &stages);
            }
        }
        for closed in running.into_iter().flatten() {
            tracing::info!(listen = %closed.listen, "listener closed; its connections go on");
            changes.closed += 1;
        }
        changes
    }

    /// All sockets, to be handed over.
    pub(super) fn sockets(&self) -> Vec<handover::Socket> {
        let all = self.running.iter().flat_map(|one| &one.sockets);
        all.cloned().collect()
    }

    /// From here on there may be so many connections at once.
    pub(super) fn limit(&self, most: Option<NonZeroU32>) {
        self.shared.places.set_limit(most);
    }

    /// From here on these name servers are asked.
    pub(super) fn ask(&self, servers: Vec<SocketAddr>) {
        self.shared.names.ask(servers);
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
