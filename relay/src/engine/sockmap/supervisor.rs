//! Waits for all connections that the kernel carries, in one task, and has those attended to that need it.

use std::{
    collections::HashMap,
    io,
    mem::MaybeUninit,
    os::fd::OwnedFd,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use rustix::event::{
    Timespec,
    epoll::{self, CreateFlags, EventData, EventFlags},
};
use tokio::{sync::Notify, time::sleep};

use super::{attend::attend, carried::Carried, kernel::Events};
use crate::{
    close::{How, Outcome},
    drain::Drain,
    pair::{Direction, Side},
    plan::Limits,
    sys::reactor,
};

/// How often limits are checked, at least and at most.
const SWEEP: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(30));

/// Hang-ups taken from epoll at once.
const HANGUPS: usize = 256;

/// The connections that nobody attends to, and the epoll that knows when one hangs up.
#[derive(Debug)]
pub(super) struct Supervisor {
    seats: Mutex<HashMap<u32, Seat>>,
    hangups: OwnedFd,
    drain: Drain,
    /// The shortest limit that any connection had so far, milliseconds.
    limit: AtomicU64,
    limited: Notify,
    /// Nobody watches any more.
    failed: AtomicBool,
}

/// Where a connection is.
#[derive(Debug)]
enum Seat {
    /// The kernel carries it.
    Calm(Box<Carried>),
    /// A task has it; `asked` when it was called for meanwhile.
    Away { asked: bool },
}

impl Supervisor {
    /// A supervisor without connections.
    pub(super) fn new(drain: &Drain) -> io::Result<Arc<Self>> {
        let hangups = epoll::create(CreateFlags::CLOEXEC)?;
        Ok(Arc::new(Self {
            seats: Mutex::default(),
            hangups,
            drain: drain.clone(),
            limit: AtomicU64::new(u64::MAX),
            limited: Notify::new(),
            failed: AtomicBool::new(false),
        }))
    }

    /// Begins to watch for hang-ups of a connection that is still being made; it is [`seat`](Self::seat)ed later.
    ///
    /// # Errors
    ///
    /// Fails with what epoll_ctl(2) said, and when nobody watches any more.
    pub(super) fn expect(&self, carried: &Carried) -> io::Result<()> {
        if self.failed.load(Ordering::Relaxed) {
            return Err(rustix::io::Errno::CANCELED.into());
        }
        self.note_limits(carried.connection.limits);
        self.seats()
            .insert(carried.pair(), Seat::Away { asked: false });
        for side in Side::BOTH {
            let (socket, data) = (
                carried.connection.pair.socket(side),
                EventData::new_u64(carried.pair().into()),
            );
            if let Err(errno) = epoll::add(&self.hangups, socket, data, interest(carried, side)) {
                self.seats().remove(&carried.pair());
                return Err(errno.into());
            }
        }
        Ok(())
    }

    /// Leaves a connection to the kernel, unless it has been called for since it was expected.
    pub(super) fn seat(self: &Arc<Self>, carried: Box<Carried>) {
        if let Err(called) = self.sit(carried) {
            tokio::spawn(self.clone().attend(called));
        }
    }

    /// Takes a connection in, or gives back one that was called for meanwhile.
    fn sit(&self, carried: Box<Carried>) -> Result<(), Box<Carried>> {
        let pair = carried.pair();
        let mut seats = self.seats();
        let seat = seats.entry(pair).or_insert(Seat::Away { asked: false });
        if matches!(seat, Seat::Away { asked: true }) {
            *seat = Seat::Away { asked: false };
            return Err(carried);
        }
        *seat = Seat::Calm(carried);
        drop(seats);
        // A cut or a failure that came in between has passed this seat by.
        let over = match (self.drain.is_cut(), self.failed.load(Ordering::Acquire)) {
            (true, _) => Some(How::Drain),
            (_, true) => Some(unwatched(&rustix::io::Errno::CANCELED.into())),
            _ => None,
        };
        if let Some(how) = over {
            self.end_all(|_| Some(Outcome::relay(how)), Some(pair));
        }
        Ok(())
    }

    /// Something happened to connection `pair`.
    pub(super) fn call(self: &Arc<Self>, pair: u32) {
        let mut seats = self.seats();
        let Some(seat) = seats.get_mut(&pair) else {
            return;
        };
        match std::mem::replace(seat, Seat::Away { asked: false }) {
            Seat::Calm(carried) => {
                drop(seats);
                tokio::spawn(self.clone().attend(carried));
            }
            Seat::Away { .. } => *seat = Seat::Away { asked: true },
        }
    }

    async fn attend(self: Arc<Self>, mut carried: Box<Carried>) {
        loop {
            let outcome = tokio::select! {
                biased;
                () = self.drain.cut() => Some(Outcome::relay(How::Drain)),
                outcome = attend(&carried) => outcome,
            };
            let outcome = outcome.or_else(|| self.rearm(&carried).err());
            if let Some(outcome) = outcome {
                // Before its end, which gives its slots to another.
                self.seats().remove(&carried.pair());
                return carried.end(outcome);
            }
            match self.sit(carried) {
                Ok(()) => return,
                Err(called) => carried = called,
            }
        }
    }

    /// Watches again for the hang-ups of a connection; what has happened meanwhile is reported at once.
    fn rearm(&self, carried: &Carried) -> Result<(), Outcome> {
        for side in Side::BOTH {
            let (socket, data) = (
                carried.connection.pair.socket(side),
                EventData::new_u64(carried.pair().into()),
            );
            epoll::modify(&self.hangups, socket, data, interest(carried, side))
                .map_err(|errno| Outcome::failed(side, "epoll_ctl", &errno.into()))?;
        }
        Ok(())
    }

    /// Serves the ring and the hang-ups until it is dropped.
    pub(super) async fn run(self: Arc<Self>, mut events: Events) {
        let registered = events
            .descriptor()
            .and_then(|ring| reactor::register(ring).map_err(|(_, error)| error));
        let hangups = self
            .hangups
            .try_clone()
            .and_then(|fd| reactor::register(fd).map_err(|(_, error)| error));
        let (ring, hangups) = match (registered, hangups) {
            (Ok(ring), Ok(hangups)) => (ring, hangups),
            (Err(error), _) | (_, Err(error)) => return self.fail(&error),
        };
        let mut cut = false;
        let mut due = Instant::now() + SWEEP.1;
        loop {
            let sweep = sleep(due.saturating_duration_since(Instant::now()));
            tokio::select! {
                ready = ring.readable() => {
                    let Ok(mut ready) = ready else { return };
                    while let Some(slot) = events.next() {
                        self.call(slot / 2);
                    }
                    ready.clear_ready();
                    events.log();
                }
                ready = hangups.readable() => {
                    let Ok(mut ready) = ready else { return };
                    match self.hung_up() {
                        Ok(HANGUPS..) => (),
                        Ok(_) => ready.clear_ready(),
                        Err(error) => return self.fail(&error),
                    }
                }
                () = sweep => {
                    self.sweep();
                    due = Instant::now() + self.interval();
                }
                () = self.limited.notified() => due = Instant::now() + self.interval(),
                () = self.drain.cut(), if !cut => {
                    cut = true;
                    self.end_all(|_| Some(Outcome::relay(How::Drain)), None);
                }
            }
        }
    }

    /// Calls for every connection that epoll reports; gives how many there were.
    fn hung_up(self: &Arc<Self>) -> io::Result<usize> {
        let mut buffer = [const { MaybeUninit::uninit() }; HANGUPS];
        let at_once = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let events = match epoll::wait(&self.hangups, &mut buffer, Some(&at_once)) {
            Ok((events, _)) => events,
            Err(rustix::io::Errno::INTR) => return Ok(HANGUPS),
            Err(errno) => return Err(errno.into()),
        };
        for event in events.iter() {
            self.call(u32::try_from(event.data.u64()).unwrap_or(u32::MAX));
        }
        Ok(events.len())
    }

    /// Ends what has been idle, or has lived, for too long.
    ///
    /// It also calls for what waits for relief: a question that the ring had no place for is asked by nobody again.
    fn sweep(self: &Arc<Self>) {
        let forgotten: Vec<u32> = self
            .seats()
            .iter()
            .filter(|(_, seat)| matches!(seat, Seat::Calm(carried) if carried.waits()))
            .map(|(pair, _)| *pair)
            .collect();
        for pair in forgotten {
            self.call(pair);
        }
        let now = Instant::now();
        let expired = |carried: &Carried| {
            carried.count();
            carried.expired(now)
        };
        self.end_all(expired, None);
    }

    /// Reads the flow records of all calm connections. Those that are attended to count for themselves, each half a second
    /// at most.
    ///
    /// The seats are let go after each [`HANGUPS`] of them: with many, this must not keep others from being attended to.
    pub(super) fn refresh(&self, held: bool) {
        let pairs = Vec::from_iter(self.seats().keys().copied());
        for some in pairs.chunks(HANGUPS) {
            let seats = self.seats();
            for pair in some {
                let Some(Seat::Calm(carried)) = seats.get(pair) else {
                    continue;
                };
                carried.count();
                if held {
                    carried.weigh();
                }
            }
        }
    }

    /// How long until the next sweep: a limit is kept within an eighth.
    fn interval(&self) -> Duration {
        let limit = Duration::from_millis(self.limit.load(Ordering::Relaxed));
        (limit / 8).clamp(SWEEP.0, SWEEP.1)
    }

    fn note_limits(&self, limits: Limits) {
        let shortest = [limits.idle, limits.half_close, limits.life];
        let Some(limit) = shortest.into_iter().flatten().min() else {
            return;
        };
        let limit = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX);
        if self.limit.fetch_min(limit, Ordering::Relaxed) > limit {
            self.limited.notify_one();
        }
    }

    /// Ends those calm connections (or the one calm connection) for which `outcome` has one.
    fn end_all(&self, mut outcome: impl FnMut(&Carried) -> Option<Outcome>, only: Option<u32>) {
        let mut over = Vec::new();
        let mut seats = self.seats();
        seats.retain(|pair, seat| {
            let Seat::Calm(carried) = seat else {
                return true;
            };
            if only.is_some_and(|only| only != *pair) {
                return true;
            }
            let Some(outcome) = outcome(carried) else {
                return true;
            };
            let taken = std::mem::replace(seat, Seat::Away { asked: false });
            if let Seat::Calm(carried) = taken {
                over.push((carried, outcome));
            }
            false
        });
        drop(seats);
        for (carried, outcome) in over {
            carried.end(outcome);
        }
    }

    /// Without a working poll set no connection can be served; what is there is reset rather than left to hang.
    fn fail(&self, error: &io::Error) {
        tracing::error!(%error, "the sockmap's supervisor cannot go on; its connections are reset, and new ones go one engine down");
        self.failed.store(true, Ordering::Release);
        self.end_all(|_| Some(Outcome::relay(unwatched(error))), None);
    }

    fn seats(&self) -> MutexGuard<'_, HashMap<u32, Seat>> {
        self.seats.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn unwatched(error: &io::Error) -> How {
    How::of("epoll_wait", error)
}

/// Errors and hang-ups are always reported; a FIN only as long as it has not been passed on.
fn interest(carried: &Carried, side: Side) -> EventFlags {
    let direction = match side {
        Side::Client => Direction::Up,
        Side::Upstream => Direction::Down,
    };
    match carried.has_ended(direction) {
        true => EventFlags::ONESHOT,
        false => EventFlags::ONESHOT | EventFlags::RDHUP,
    }
}
