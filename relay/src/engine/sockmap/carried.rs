//! A connection that the kernel carries: what the controller keeps of it, and how it ends.

use std::{
    io,
    os::fd::AsFd,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use relay_common::flow::{
    FAULT_NO_BEGINNING, FAULT_NO_PEER, FAULT_NOT_REDIRECTED, FAULT_NOT_TRIMMED,
};
use rustix::net::sockopt;

use super::{
    kernel::Kernel,
    ledger::{Entry, Ledger},
    slots::Lease,
};
use crate::{
    close::{How, Outcome},
    engine::Connection,
    pair::{Direction, Side},
    plan::EngineKind,
    sys::tcp,
};

/// What all connections of the engine share.
#[derive(Debug)]
pub(super) struct Base {
    pub(super) kernel: Kernel,
    pub(super) ledger: Ledger,
}

/// A connection whose sockets are both in the map.
#[derive(Debug)]
pub(super) struct Carried {
    // Fields are dropped in this order: the sockets close before their slots are given back.
    pub(super) connection: Box<Connection>,
    names: Names,
    lease: Lease,
    base: Arc<Base>,
    /// `tcp::written` of each socket before anything was given to it.
    written: [u64; 2],
    /// Bytes that other engines have moved before, in each direction.
    before: [u64; 2],
    ended: [AtomicBool; 2],
    first: OnceLock<Side>,
    activity: Mutex<(u64, Instant)>,
}

impl Carried {
    /// Takes over a connection at the moment that its sockets are in the map and its gates still closed.
    pub(super) fn new(
        connection: Box<Connection>,
        names: Names,
        lease: Lease,
        base: Arc<Base>,
        written: [u64; 2],
    ) -> Self {
        let meter = connection.record.meter();
        Self {
            before: Direction::BOTH.map(|direction| meter.moved(direction)),
            connection,
            names,
            lease,
            base,
            written,
            ended: Default::default(),
            first: OnceLock::new(),
            activity: Mutex::new((0, Instant::now())),
        }
    }

    /// From here on the kernel carries the connection.
    pub(super) fn begin(&mut self) {
        self.connection.record.carried_by(EngineKind::Sockmap);
    }

    /// Gives the connection back before its gates were opened. Its sockets stay in the map until they close.
    pub(super) fn leave(self) -> Box<Connection> {
        judge_unread(&self.connection, &Side::BOTH);
        let mut connection = self.connection;
        connection.pair.client.mapped = true;
        connection.pair.upstream.mapped = true;
        connection
    }

    /// The number of its pair of slots.
    pub(super) fn pair(&self) -> u32 {
        self.lease.pair()
    }

    /// The flow record of `direction`.
    pub(super) fn flow(&self, direction: Direction) -> Entry<'_> {
        self.base
            .ledger
            .entry(self.lease.slot(direction.from().index()))
    }

    /// Bytes that have been read from the source of `direction`, or judged by the program.
    pub(super) fn seen(&self, direction: Direction) -> u64 {
        let (source, flow) = (
            self.connection.pair.socket(direction.from()),
            self.flow(direction),
        );
        source.read + self.before[direction.index()] + flow.redirected() + flow.passed()
    }

    /// Whether bytes wait for relief in either direction.
    pub(super) fn waits(&self) -> bool {
        Direction::BOTH
            .iter()
            .any(|direction| self.flow(*direction).waiting() > 0)
    }

    /// Whether the FIN of `direction` has been passed on.
    pub(super) fn has_ended(&self, direction: Direction) -> bool {
        self.ended[direction.index()].load(Ordering::Relaxed)
    }

    /// Notes that the FIN of `direction` has been passed on.
    pub(super) fn note_end(&self, direction: Direction) {
        self.ended[direction.index()].store(true, Ordering::Relaxed);
        self.first.get_or_init(|| direction.from());
        // The half-close limit begins now.
        self.activity().1 = Instant::now();
    }

    /// The outcome, once both directions have come to their end.
    pub(super) fn finished(&self) -> Option<Outcome> {
        let over = Direction::BOTH
            .iter()
            .all(|direction| self.has_ended(*direction));
        self.first
            .get()
            .filter(|_| over)
            .map(|first| Outcome::end(*first))
    }

    /// Whether the target of `direction` has taken everything that was given to it, so that nothing is between.
    pub(super) fn settled(&self, direction: Direction) -> io::Result<bool> {
        let target = direction.to();
        let given = self.flow(direction).given();
        let written =
            tcp::written(self.connection.pair.socket(target))? - self.written[target.index()];
        Ok(written == given)
    }

    /// The error that a socket reports, or the fault that the program noted.
    pub(super) fn fault(&self) -> Option<Outcome> {
        for side in Side::BOTH {
            if let Ok(Err(errno)) = sockopt::socket_error(self.connection.pair.socket(side)) {
                return Some(Outcome::failed(side, "recv", &errno.into()));
            }
        }
        let faults = Direction::BOTH.map(|direction| self.flow(direction).faults());
        let call = failed_call(faults[0] | faults[1])?;
        tracing::error!(
            ?faults,
            call,
            "the verdict program could not keep a stream whole; it is reset"
        );
        Some(Outcome::relay(How::Error { errno: 0, call }))
    }

    /// The outcome when no byte has moved for as long as the limit in force allows, or when its life is over; to be asked now
    /// and then.
    pub(super) fn expired(&self, now: Instant) -> Option<Outcome> {
        let lived = now.duration_since(self.connection.record.begun());
        if self
            .connection
            .limits
            .life
            .is_some_and(|life| lived >= life)
        {
            return Some(Outcome::relay(How::Life));
        }
        let (limit, name) = self.limit()?;
        let moved = Direction::BOTH
            .map(|direction| self.flow(direction).given())
            .iter()
            .sum();
        let mut activity = self.activity();
        if moved != activity.0 {
            *activity = (moved, now);
        }
        let over = now.duration_since(activity.1) >= limit;
        over.then(|| Outcome::relay(How::Idle { limit: name }))
    }

    /// The limit in force and its name.
    pub(super) fn limit(&self) -> Option<(Duration, &'static str)> {
        let limits = self.connection.limits;
        match self.first.get() {
            None => limits.idle.map(|limit| (limit, "idle")),
            Some(_) => limits.half_close.map(|limit| (limit, "half-close")),
        }
    }

    /// Brings the byte counters up to date.
    pub(super) fn count(&self) {
        for direction in Direction::BOTH {
            self.connection.record.meter().raise(
                direction,
                self.before[direction.index()] + self.flow(direction).given(),
            );
        }
    }

    /// Notes what is between the sockets: bytes that wait for the controller, and redirected ones that the target has yet to
    /// take.
    pub(super) fn weigh(&self) {
        for direction in Direction::BOTH {
            let (flow, target) = (self.flow(direction), direction.to());
            let (given, waiting) = (flow.given(), flow.waiting());
            // A socket that cannot say is about to be reset.
            let Ok(written) = tcp::written(self.connection.pair.socket(target)) else {
                continue;
            };
            let taken = written.saturating_sub(self.written[target.index()]);
            let meter = self.connection.record.meter();
            meter.hold(direction, given.saturating_sub(taken) + waiting);
        }
    }

    fn activity(&self) -> MutexGuard<'_, (u64, Instant)> {
        self.activity.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the connection and gives its slots back.
    pub(super) fn end(self, outcome: Outcome) {
        self.count();
        for direction in Direction::BOTH {
            let flow = self.flow(direction);
            let (faults, trimmed) = (flow.faults() & !FAULT_NO_PEER, flow.trimmed());
            if faults != 0 || trimmed != 0 {
                tracing::debug!(
                    ?direction,
                    faults,
                    trimmed,
                    "a flow that was out of the ordinary"
                );
            }
        }
        let Self {
            connection,
            names,
            lease,
            ..
        } = self;
        connection.end(outcome);
        drop(names);
        drop(lease);
    }
}

/// Runs the program over what lies in sockets that stay in the map without a name: without a name it cannot cut off what
/// was read of a segment before.
pub(super) fn judge_unread(connection: &Connection, sides: &[Side]) {
    for side in sides {
        // It fails only on a socket that reports an error, and whoever reads from that hears of it.
        let _ = tcp::kick(connection.pair.socket(*side));
    }
}

/// The names under which the program knows two sockets; taken back when dropped.
#[derive(Debug)]
pub(super) struct Names {
    base: Arc<Base>,
    cookies: [u64; 2],
}

impl Names {
    /// Names the sockets of `connection` for the slots of `lease`.
    pub(super) fn give(
        base: &Arc<Base>,
        connection: &Connection,
        lease: &Lease,
    ) -> Result<Self, (Side, io::Error)> {
        let mut names = Self {
            base: base.clone(),
            cookies: [0; 2],
        };
        for side in Side::BOTH {
            let socket = connection.pair.socket(side).as_fd();
            let cookie = sockopt::socket_cookie(socket).map_err(|errno| (side, errno.into()))?;
            base.kernel
                .name(cookie, lease.slot(side.index()))
                .map_err(|error| (side, error))?;
            names.cookies[side.index()] = cookie;
        }
        Ok(names)
    }
}

impl Drop for Names {
    fn drop(&mut self) {
        for cookie in self.cookies.into_iter().filter(|cookie| *cookie != 0) {
            self.base.kernel.forget(cookie);
        }
    }
}

/// What failed in the program when a stream is no longer what its sender sent: the helper, or the field that it could not
/// read. `None` when `faults` are such that no byte was lost or repeated.
fn failed_call(faults: u32) -> Option<&'static str> {
    [
        (FAULT_NOT_TRIMMED, "bpf_skb_adjust_room"),
        (FAULT_NOT_REDIRECTED, "bpf_sk_redirect_map"),
        (FAULT_NO_BEGINNING, "copied_seq"),
    ]
    .into_iter()
    .find_map(|(fault, call)| (faults & fault != 0).then_some(call))
}
