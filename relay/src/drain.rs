//! Stopping: no new connections, time for the live ones, then an end by force.

mod places;
mod room;

use std::{any::Any, future::Future, time::Duration};

use tokio::time::timeout;
use tokio_util::{
    sync::CancellationToken,
    task::{TaskTracker, task_tracker::TaskTrackerToken},
};

pub use self::{
    places::{Place, Places},
    room::{Room, Seat},
};

/// How long connections that are being cut get to close their sockets; they only have to be polled once.
const CUTTING: Duration = Duration::from_secs(5);

/// The switch that all listeners and engines watch. Clones are the same switch.
#[derive(Clone, Debug, Default)]
pub struct Drain {
    stop: CancellationToken,
    cut: CancellationToken,
    live: TaskTracker,
}

/// A connection counts as live for as long as it holds this.
#[derive(Debug)]
pub struct Live {
    _token: TaskTrackerToken,
    places: Option<[Place; 2]>,
    seat: Option<Seat>,
    kept: Option<Box<dyn Any + Send + Sync>>,
}

impl Live {
    /// It also keeps these places taken: its route's, and one in all.
    #[must_use]
    pub fn at(mut self, places: [Place; 2]) -> Self {
        self.places = Some(places);
        self
    }

    /// It also keeps its descriptors counted.
    #[must_use]
    pub fn on(mut self, seat: Seat) -> Self {
        self.seat = Some(seat);
        self
    }

    /// It also keeps this, until the connection has ended.
    pub fn keep(&mut self, what: impl Any + Send + Sync) {
        self.kept = Some(Box::new(what));
    }
}

/// How a drain went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drained {
    /// Every connection came to its own end.
    Clean,
    /// This many were reset.
    Cut(usize),
}

impl Drain {
    /// A switch that nobody has pressed.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Counts a connection until the value is dropped.
    #[must_use]
    pub fn live(&self) -> Live {
        Live {
            _token: self.live.token(),
            places: None,
            seat: None,
            kept: None,
        }
    }

    /// How many connections are live.
    #[must_use]
    pub fn count(&self) -> usize {
        self.live.len()
    }

    /// Tells listeners to accept no more.
    pub fn stop(&self) {
        self.stop.cancel();
    }

    /// Ends when listeners are to accept no more.
    pub async fn stopped(&self) {
        self.stop.cancelled().await;
    }

    /// Ends when live connections are to be reset.
    pub async fn cut(&self) {
        self.cut.cancelled().await;
    }

    /// Whether live connections are to be reset.
    #[must_use]
    pub fn is_cut(&self) -> bool {
        self.cut.is_cancelled()
    }

    /// Stops, waits until all connections have ended, and resets those left after `limit` or when `hurry` ends.
    pub async fn finish(&self, limit: Duration, hurry: impl Future<Output = ()>) -> Drained {
        self.stop();
        self.live.close();
        let enough = async {
            tokio::select! {
                () = tokio::time::sleep(limit) => (),
                () = hurry => (),
            }
        };
        tokio::select! {
            biased;
            () = self.live.wait() => return Drained::Clean,
            () = enough => (),
        }
        let left = self.count();
        self.cut.cancel();
        // What does not end now is ended by the process's exit, which resets it (close::arm).
        let _ = timeout(CUTTING, self.live.wait()).await;
        Drained::Cut(left)
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use super::*;

    #[tokio::test]
    async fn without_connections_a_drain_is_clean_at_once() {
        let drained = Drain::new()
            .finish(Duration::from_secs(60), pending())
            .await;
        assert_eq!(drained, Drained::Clean);
    }

    #[tokio::test]
    async fn a_connection_that_outlives_the_limit_is_cut() {
        let drain = Drain::new();
        let live = drain.live();
        let connection = tokio::spawn({
            let drain = drain.clone();
            async move {
                drain.cut().await;
                drop(live);
            }
        });
        assert_eq!(
            drain.finish(Duration::ZERO, pending()).await,
            Drained::Cut(1)
        );
        connection.await.unwrap();
        assert_eq!(drain.count(), 0);
    }

    #[tokio::test]
    async fn hurry_ends_the_wait() {
        let drain = Drain::new();
        let connection = drain.live();
        let cut = tokio::spawn({
            let drain = drain.clone();
            async move {
                drain.cut().await;
                drop(connection);
            }
        });
        let hour = Duration::from_secs(3600);
        assert_eq!(drain.finish(hour, async {}).await, Drained::Cut(1));
        cut.await.unwrap();
    }
}
