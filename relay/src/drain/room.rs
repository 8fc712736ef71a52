//! Descriptors within the limit of open files: connections and pipes share them, and a connection has its own from the start.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// Descriptors of a connection: its two sockets.
const PAIR: usize = 2;

/// Descriptors of a pipe.
const PIPE: usize = 2;

/// What may be open at once. Clones are the same room.
#[derive(Clone, Debug, Default)]
pub struct Room(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    state: Mutex<State>,
    freed: Notify,
}

#[derive(Debug, Default)]
struct State {
    /// None is room for all.
    size: Option<Size>,
    pairs: usize,
    pipes: usize,
}

#[derive(Clone, Copy, Debug)]
struct Size {
    /// Descriptors in all.
    all: usize,
    /// Of these, what connections leave to pipes.
    pipes: usize,
}

/// Descriptors for both sockets of a connection, until it is dropped.
#[derive(Debug)]
pub struct Seat(Arc<Inner>);

impl Room {
    /// From here on there are `all` descriptors, of which connections leave so many to `pipes`.
    pub fn fit(&self, all: usize, pipes: usize) {
        self.0.lock().size = Some(Size { all, pipes });
        self.0.freed.notify_waiters();
    }

    /// How many connections there can be at most, where that is known.
    #[must_use]
    pub fn seats(&self) -> Option<usize> {
        let size = self.0.lock().size?;
        Some(size.all.saturating_sub(size.pipes) / PAIR)
    }

    /// Descriptors for a connection, if there are any. The first one always has them.
    #[must_use]
    pub fn try_seat(&self) -> Option<Seat> {
        let mut state = self.0.lock();
        let fits = state.size.is_none_or(|size| {
            let pairs = (state.pairs + 1).saturating_mul(PAIR);
            let pipes = state.pipes.saturating_mul(PIPE).max(size.pipes);
            state.pairs == 0 || pairs.saturating_add(pipes) <= size.all
        });
        state.pairs += usize::from(fits);
        drop(state);
        fits.then(|| Seat(self.0.clone()))
    }

    /// Descriptors for a connection, as soon as there are some.
    pub async fn seat(&self) -> Seat {
        loop {
            let mut freed = std::pin::pin!(self.0.freed.notified());
            // From here on also what is given back before the wait is heard of.
            freed.as_mut().enable();
            if let Some(seat) = self.try_seat() {
                return seat;
            }
            freed.await;
        }
    }

    /// Notes that a pipe is to be made, if there are descriptors for one.
    #[must_use]
    pub fn try_pipe(&self) -> bool {
        let mut state = self.0.lock();
        let fits = state.size.is_none_or(|size| {
            let pairs = state.pairs.saturating_mul(PAIR);
            let pipes = (state.pipes + 1).saturating_mul(PIPE);
            pairs.saturating_add(pipes) <= size.all
        });
        state.pipes += usize::from(fits);
        fits
    }

    /// Notes that such a pipe is closed, or could not be made.
    pub fn pipe_closed(&self) {
        let mut state = self.0.lock();
        state.pipes = state.pipes.saturating_sub(1);
        drop(state);
        self.0.freed.notify_one();
    }
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.pairs = state.pairs.saturating_sub(1);
        drop(state);
        self.0.freed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    fn seats(room: &Room) -> Vec<Seat> {
        std::iter::from_fn(|| room.try_seat()).take(1000).collect()
    }

    #[test]
    fn without_a_limit_there_is_room_for_all() {
        let room = Room::default();
        assert_eq!((seats(&room).len(), room.seats()), (1000, None));
        assert!(room.try_pipe());
    }

    #[test]
    fn connections_leave_some_to_pipes_and_pipes_all_to_connections() {
        let room = Room::default();
        room.fit(20, 4);
        assert_eq!(room.seats(), Some(8));
        let mut all = seats(&room);
        assert_eq!(all.len(), 8);
        assert!(room.try_pipe() && room.try_pipe());
        assert!(!room.try_pipe(), "all is taken");
        all.truncate(7);
        // What nobody sits on may be a pipe, and then nobody else sits there.
        assert!(room.try_pipe());
        assert!(room.try_seat().is_none());
        room.pipe_closed();
        assert!(room.try_seat().is_some());
    }

    #[test]
    fn the_first_connection_is_worth_a_try() {
        let room = Room::default();
        room.fit(0, 0);
        let one = room.try_seat().unwrap();
        assert!(room.try_seat().is_none() && !room.try_pipe());
        drop(one);
        assert!(room.try_seat().is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_has_the_next_seat() {
        let room = Room::default();
        room.fit(2, 0);
        let one = room.try_seat().unwrap();
        let waiting = tokio::spawn({
            let room = room.clone();
            async move { room.seat().await }
        });
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        drop(one);
        let _seat = waiting.await.unwrap();
        let more = timeout(Duration::from_secs(1), room.seat()).await;
        assert!(more.is_err());
    }
}
