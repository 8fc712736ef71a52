//! Drives both directions of a connection in one future, whatever moves the bytes: readiness, endings, limits, drain.

mod end;
mod idle;
mod lane;
#[cfg(test)]
mod paced;
#[cfg(test)]
mod props;
#[cfg(test)]
pub(super) mod rig;
mod talk;
#[cfg(test)]
mod tests;

use std::{
    future::{Future, poll_fn},
    num::NonZeroU32,
    os::fd::BorrowedFd,
    pin::pin,
    task::{Context, Poll},
};

use rustix::io::Errno;

use self::{
    end::End,
    idle::Idle,
    lane::{Lane, Step},
    talk::Talk,
};
use crate::{
    close::{How, Outcome},
    decline::Why,
    drain::Drain,
    engine::Connection,
    pace::Pace,
    pair::{Direction, Side},
    plan::{EngineKind, Limits},
    stats::record::Record,
};

/// After this many bytes the future yields, so that one busy connection starves no other on its thread.
///
/// Four milliseconds at 15 Gb/s. A yield wakes another thread of the runtime, which finds nothing to do: at half of this
/// the wakes cost a bulk stream 2 % of its rate. Exchanges of a few bytes are bounded by tokio's cooperative budget, which every look at a
/// socket's readiness draws on.
const PER_POLL: usize = 8 << 20;

/// Moves the bytes of one direction: takes them from one socket, holds them, gives them to the other.
///
/// The driver asks for more only when nothing is held. So a socket that gives nothing is empty, whatever the vessel's
/// size, and a socket that takes nothing is full: the two meanings of EAGAIN in splice(2) cannot be mixed up.
pub(super) trait Mover {
    /// Why this way of moving may be unavailable when it is first needed.
    type Refusal;

    /// Takes what the source has, as far as there is room, and at most this many bytes, which is never 0.
    fn take(&mut self, source: Source<'_>, most: usize) -> Taken<Self::Refusal>;

    /// Gives the target what it has room for.
    ///
    /// # Errors
    ///
    /// Fails with what the call said; `EAGAIN` means that the target is full.
    fn give(&mut self, target: BorrowedFd<'_>) -> Result<usize, Fault>;

    /// Bytes taken and not given yet.
    fn held(&self) -> usize;

    /// Gives back whatever is not needed while nothing is held. Called whenever the connection goes to sleep.
    fn rest(&mut self);

    /// A refusal came too late to give the connection back: from here on, moves by other means, those of the engine that
    /// is returned.
    fn settle(&mut self, refusal: &Self::Refusal) -> (EngineKind, Why);
}

/// Where bytes come from.
#[derive(Clone, Copy)]
pub(super) struct Source<'a> {
    pub(super) fd: BorrowedFd<'a>,
    /// A read of it stops only where there is no more; see [`end::End::is_plain`].
    pub(super) plain: bool,
}

/// What became of an attempt to take bytes.
pub(super) enum Taken<R> {
    /// This many bytes are held now; never 0.
    Bytes(usize),
    /// The same, and the source has no more for now.
    Last(usize),
    /// The source has none for now.
    Dry,
    /// The source has sent its FIN, and every byte before it was taken.
    End,
    /// The means to move are not to be had; nothing was taken.
    Refused(R),
    /// The source failed.
    Failed(Fault),
}

/// Why a connection is given back.
pub(super) enum Left<R> {
    /// A mover refused, and no byte was moved.
    Refused(R),
    /// It has talked enough to be worth a better engine, and nothing is on the way.
    Ripe,
}

/// A call that failed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fault {
    /// The call.
    pub(super) call: &'static str,
    /// What it said.
    pub(super) errno: Errno,
}

impl Fault {
    fn on(self, side: Side) -> Outcome {
        Outcome::failed(side, self.call, &self.errno.into())
    }
}

/// Carries `connection` to its end, or until it has made so many turns (`ripe`), with a mover out of `mover` for each direction.
///
/// What an async function is given it keeps a second time while it runs: hence a maker of movers, and limits where a
/// timer would do. An idle connection is this future, two registered sockets and nothing else.
///
/// # Errors
///
/// Gives the connection back when a mover refused before there was anything to lose, and when it is ripe: then every byte
/// that was taken is given, and both directions are open.
pub(super) async fn run<M: Mover>(
    connection: Box<Connection>,
    engine: EngineKind,
    ripe: Option<NonZeroU32>,
    mover: &impl Fn() -> M,
    drain: &Drain,
) -> Result<(), (Box<Connection>, Left<M::Refusal>)> {
    let Connection {
        pair,
        limits,
        pace,
        mut record,
        live,
    } = *connection;
    let rebuilt = |pair, pace, record| {
        Box::new(Connection {
            pair,
            limits,
            pace,
            record,
            live,
        })
    };
    let ends = match end::open(pair) {
        Ok(ends) => ends,
        Err(failed) => {
            let (pair, error) = *failed;
            let how = How::of("epoll_ctl", &error);
            rebuilt(pair, pace, record).end(Outcome::relay(how));
            return Ok(());
        }
    };
    record.carried_by(engine);
    let terms = (limits, pace.as_deref(), ripe);
    let stopped = drive(&ends, &mut record, engine, terms, mover, drain).await;
    let connection = rebuilt(end::release(ends), pace, record);
    match stopped {
        Stopped::Over(outcome) => {
            connection.end(outcome);
            Ok(())
        }
        Stopped::Left(left) => Err((connection, left)),
    }
}

/// Why the driver has stopped.
enum Stopped<R> {
    /// The connection is over.
    Over(Outcome),
    /// It is somebody else's.
    Left(Left<R>),
}

async fn drive<M: Mover>(
    ends: &[End; 2],
    record: &mut Record,
    engine: EngineKind,
    (limits, pace, ripe): (Limits, Option<&Pace>, Option<NonZeroU32>),
    mover: &impl Fn() -> M,
    drain: &Drain,
) -> Stopped<M::Refusal> {
    let mut duplex = Duplex {
        ends,
        lanes: Direction::BOTH
            .map(|direction| Lane::new(mover(), pace.and_then(|pace| pace.pacer(direction)))),
        record,
        engine,
        talk: Talk::new(ripe),
        first: None,
    };
    let mut idle = Idle::new(limits, duplex.record.begun().into());
    let mut cut = pin!(drain.cut());
    let mut died = [pin!(ends[0].died()), pin!(ends[1].died())];
    poll_fn(|cx| {
        if cut.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Stopped::Over(Outcome::relay(How::Drain)));
        }
        if let Poll::Ready(stopped) = duplex.poll(cx, &mut idle) {
            return Poll::Ready(stopped);
        }
        for side in Side::BOTH {
            if duplex.hears(side) {
                continue;
            }
            if let Poll::Ready(error) = died[side.index()].as_mut().poll(cx) {
                let outcome = Outcome::failed(side, "poll", &error);
                return Poll::Ready(Stopped::Over(outcome));
            }
        }
        idle.poll(cx).map(|how| Stopped::Over(Outcome::relay(how)))
    })
    .await
}

struct Duplex<'a, M> {
    /// In the order of [`Side::BOTH`].
    ends: &'a [End; 2],
    /// In the order of [`Direction::BOTH`].
    lanes: [Lane<M>; 2],
    record: &'a mut Record,
    /// What the movers are of.
    engine: EngineKind,
    talk: Talk,
    /// Whose FIN came first.
    first: Option<Side>,
}

impl<M: Mover> Duplex<'_, M> {
    /// Moves what can be moved, the directions in turn, until both wait for a socket or enough is done for one poll.
    fn poll(&mut self, cx: &mut Context<'_>, idle: &mut Idle) -> Poll<Stopped<M::Refusal>> {
        let mut moved = 0;
        loop {
            let mut waiting = true;
            for direction in Direction::BOTH {
                let step = self.step(cx, direction);
                waiting &= matches!(step, Step::Waits);
                match step {
                    Step::Waits => (),
                    Step::Moved(bytes) => {
                        moved += bytes;
                        self.talk.moved(direction, bytes);
                    }
                    Step::Over => {
                        self.first.get_or_insert(direction.from());
                        idle.half_close();
                    }
                    Step::Refused(refusal) if self.is_untouched() => {
                        return Poll::Ready(Stopped::Left(Left::Refused(refusal)));
                    }
                    Step::Refused(refusal) => self.settle(&refusal),
                    Step::Failed(side, fault) => {
                        return Poll::Ready(Stopped::Over(fault.on(side)));
                    }
                }
            }
            if let Some(first) = self.first
                && self.lanes.iter().all(Lane::is_over)
            {
                return Poll::Ready(Stopped::Over(Outcome::end(first)));
            }
            if waiting {
                if self.is_ripe() {
                    return Poll::Ready(Stopped::Left(Left::Ripe));
                }
                break;
            }
            if moved >= PER_POLL {
                cx.waker().wake_by_ref();
                break;
            }
        }
        // A direction that its limit holds up is not idle.
        if moved > 0 || self.lanes.iter().any(Lane::is_paced) {
            idle.touch();
        }
        self.lanes.iter_mut().for_each(Lane::rest);
        Poll::Pending
    }

    fn step(&mut self, cx: &mut Context<'_>, direction: Direction) -> Step<M::Refusal> {
        let source = &self.ends[direction.from().index()];
        let target = &self.ends[direction.to().index()];
        let meter = self.record.meter();
        self.lanes[direction.index()].step(cx, direction, (source, target), meter)
    }

    /// Whether it has talked enough, and nothing is between its sockets: to be asked when both directions wait.
    fn is_ripe(&self) -> bool {
        self.talk.is_ripe()
            && self.first.is_none()
            && self
                .lanes
                .iter()
                .all(|lane| lane.awaits_source() && lane.is_empty())
    }

    fn is_untouched(&self) -> bool {
        let meter = self.record.meter();
        let silent = |direction| meter.moved(direction) == 0;
        self.first.is_none()
            && self.lanes.iter().all(Lane::is_empty)
            && Direction::BOTH.into_iter().all(silent)
    }

    /// Both directions settle: what one could not have, the other would soon miss as well.
    fn settle(&mut self, refusal: &M::Refusal) {
        let [up, down] = &mut self.lanes;
        up.settle(refusal);
        let (engine, why) = down.settle(refusal);
        self.record.declined(self.engine, why);
        self.record.carried_by(engine);
    }

    /// Whether a direction waits for the socket at `side`, and so would be woken by its death.
    fn hears(&self, side: Side) -> bool {
        Direction::BOTH.into_iter().any(|direction| {
            let lane = &self.lanes[direction.index()];
            (direction.from() == side && lane.awaits_source())
                || (direction.to() == side && lane.awaits_target())
        })
    }
}
