//! Attends to a connection that needs userspace for a while: relief, half-closes, resets and limits.

use std::{
    os::fd::{AsFd, BorrowedFd},
    time::{Duration, Instant},
};

use relay_common::flow::OPEN;
use tokio::{
    io::{Interest, unix::AsyncFd},
    time::sleep,
};

use super::{
    carried::Carried,
    relief::{Lane, State, judge_bulk},
};
use crate::{
    close::Outcome,
    pair::{Direction, Side},
    sys::{reactor, tcp},
};

/// How often a busy connection is looked at, and how rarely one in which nothing moves.
const OFTEN: Duration = Duration::from_millis(10);
const RARELY: Duration = Duration::from_millis(500);

/// How long to wait for room in the poll set, and how often.
const SCARCE: (Duration, u32) = (Duration::from_millis(50), 200);

/// Works until the connection can be left to the kernel (`None`) or is over. Needs nobody's help: while it runs, the
/// sockets are in the poll set of the runtime.
pub(super) async fn attend(carried: &Carried) -> Option<Outcome> {
    if let Some(outcome) = carried.fault() {
        return Some(outcome);
    }
    let (client, upstream) =
        match tokio::try_join!(watch(carried, Side::Client), watch(carried, Side::Upstream)) {
            Ok(watched) => watched,
            Err(outcome) => return Some(outcome),
        };
    let states: [State; 2] = Default::default();
    let lane = |direction: Direction| {
        Lane::new(
            carried,
            direction,
            [&client, &upstream],
            &states[direction.index()],
        )
        .run()
    };
    let work = async { tokio::try_join!(lane(Direction::Up), lane(Direction::Down)) };
    tokio::select! {
        biased;
        outcome = error(carried, Side::Client, &client) => Some(outcome),
        outcome = error(carried, Side::Upstream, &upstream) => Some(outcome),
        done = work => match done {
            Err(outcome) => Some(outcome),
            Ok(_) => carried.finished(),
        },
        rested = look_now_and_then(carried, &states) => rested,
    }
}

/// Puts the socket of `side` in the poll set. The kernel's room for that may be used up (`fs.epoll.max_user_watches`) and is
/// given back by other connections as they end: a healthy one is worth the wait.
async fn watch(carried: &Carried, side: Side) -> Result<AsyncFd<BorrowedFd<'_>>, Outcome> {
    let mut tries = 0;
    loop {
        match reactor::watch(carried.connection.pair.socket(side).as_fd()) {
            Ok(watched) => return Ok(watched),
            Err(error)
                if tries < SCARCE.1
                    && matches!(error.raw_os_error(), Some(libc::ENOSPC | libc::ENOMEM)) =>
            {
                tries += 1;
                sleep(SCARCE.0).await;
            }
            Err(error) => return Err(Outcome::failed(side, "epoll_ctl", &error)),
        }
    }
}

/// Ends when the socket of `side` reports an error, also while nobody reads from it or writes to it.
async fn error(carried: &Carried, side: Side, socket: &AsyncFd<BorrowedFd<'_>>) -> Outcome {
    loop {
        match socket.ready(Interest::ERROR).await {
            Err(error) => return Outcome::failed(side, "epoll_ctl", &error),
            Ok(mut ready) => {
                if let Some(outcome) = carried.fault() {
                    return outcome;
                }
                ready.clear_ready();
            }
        }
    }
}

/// Ends when a limit is over, or when both directions have calmed down and the kernel has taken over again.
async fn look_now_and_then(carried: &Carried, states: &[State; 2]) -> Option<Outcome> {
    let mut pause = OFTEN;
    let mut last = Instant::now();
    loop {
        sleep(pause).await;
        let now = Instant::now();
        let milliseconds = u64::try_from(now.duration_since(last).as_millis()).unwrap_or(u64::MAX);
        last = now;
        let relieved = Direction::BOTH.map(|direction| {
            judge_bulk(carried, direction, &states[direction.index()], milliseconds)
        });
        let outcome = carried.expired(now).or_else(|| carried.fault());
        carried.count();
        carried.weigh();
        if outcome.is_some() || (states.iter().all(State::is_calm) && rest(carried)) {
            return outcome;
        }
        pause = if relieved == [0, 0] {
            (pause * 2).min(RARELY)
        } else {
            OFTEN
        };
    }
}

/// Leaves the connection to the kernel; false when something has come in between that needs relief.
///
/// The kicks take the sockets' locks: a verdict before them has been counted when `waiting` is read after them, and one
/// after them sees that its question is answered and asks again.
fn rest(carried: &Carried) -> bool {
    for direction in Direction::BOTH {
        let flow = carried.flow(direction);
        flow.set_gate(OPEN);
        flow.answer();
    }
    // A socket that cannot be kicked reports an error, which ends the connection.
    let kicked = Side::BOTH
        .iter()
        .all(|side| tcp::kick(carried.connection.pair.socket(*side)).is_ok());
    kicked && !carried.waits()
}
