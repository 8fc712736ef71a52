//! The limits on a connection: without traffic, and in all.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

use tokio::time::{Instant, Sleep, sleep_until};

use crate::{close::How, plan::Limits};

/// Watches how long a connection has not moved a byte, and how long it has been. Costs nothing where there is no limit.
pub(super) struct Idle {
    limits: Limits,
    half_closed: bool,
    last: Instant,
    /// Set no later than the limit, and put off only when it fires: traffic does not touch the timer.
    alarm: Option<Pin<Box<Sleep>>>,
    /// The end of its life.
    life: Option<Pin<Box<Sleep>>>,
}

impl Idle {
    /// For a connection that has begun at `begun`.
    pub(super) fn new(limits: Limits, begun: Instant) -> Self {
        // A limit beyond what the clock can count is none.
        let end = limits.life.and_then(|life| begun.checked_add(life));
        Self {
            limits,
            half_closed: false,
            last: Instant::now(),
            alarm: None,
            life: end.map(|end| Box::pin(sleep_until(end))),
        }
    }

    /// Bytes were moved.
    pub(super) fn touch(&mut self) {
        if self.limit().0.is_some() {
            self.last = Instant::now();
        }
    }

    /// A direction has ended: from now on the other limit holds.
    pub(super) fn half_close(&mut self) {
        self.half_closed = true;
        self.last = Instant::now();
        self.alarm = None;
    }

    /// Ends with the limit that was reached.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<How> {
        if let Some(life) = &mut self.life
            && life.as_mut().poll(cx).is_ready()
        {
            return Poll::Ready(How::Life);
        }
        let (limit, name) = self.limit();
        let Some(due) = limit.and_then(|limit| self.last.checked_add(limit)) else {
            return Poll::Pending;
        };
        let alarm = self.alarm.get_or_insert_with(|| Box::pin(sleep_until(due)));
        loop {
            ready!(alarm.as_mut().poll(cx));
            if Instant::now() >= due {
                return Poll::Ready(How::Idle { limit: name });
            }
            alarm.as_mut().reset(due);
        }
    }

    fn limit(&self) -> (Option<std::time::Duration>, &'static str) {
        match self.half_closed {
            false => (self.limits.idle, "idle"),
            true => (self.limits.half_close, "half-close"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{future::poll_fn, time::Duration};

    use tokio::time::{advance, timeout};

    use super::*;

    const LIMITS: Limits = Limits {
        idle: Some(Duration::from_secs(60)),
        half_close: Some(Duration::from_secs(10)),
        life: None,
    };

    fn idle(limits: Limits) -> Idle {
        Idle::new(limits, Instant::now())
    }

    async fn reached(idle: &mut Idle) -> How {
        poll_fn(|cx| idle.poll(cx)).await
    }

    fn by(limit: &'static str) -> How {
        How::Idle { limit }
    }

    async fn lives(idle: &mut Idle, seconds: u64) -> bool {
        timeout(Duration::from_secs(seconds), reached(idle))
            .await
            .is_err()
    }

    #[tokio::test(start_paused = true)]
    async fn traffic_puts_the_end_off_by_the_whole_limit() {
        let mut idle = idle(LIMITS);
        for _ in 0..10 {
            assert!(lives(&mut idle, 59).await);
            idle.touch();
        }
        let begun = Instant::now();
        assert_eq!(reached(&mut idle).await, by("idle"));
        let took = begun.elapsed().as_secs();
        assert!((60..62).contains(&took), "{took} s");
    }

    #[tokio::test(start_paused = true)]
    async fn a_half_close_brings_its_own_limit_which_traffic_puts_off_too() {
        let mut idle = idle(LIMITS);
        assert!(lives(&mut idle, 30).await);
        idle.half_close();
        for _ in 0..10 {
            assert!(lives(&mut idle, 9).await);
            idle.touch();
        }
        let begun = Instant::now();
        assert_eq!(reached(&mut idle).await, by("half-close"));
        let took = begun.elapsed().as_secs();
        assert!((10..12).contains(&took), "{took} s");
    }

    #[tokio::test(start_paused = true)]
    async fn without_a_limit_there_is_no_timer() {
        for limit in [None, Some(Duration::MAX)] {
            let mut idle = idle(Limits {
                idle: limit,
                half_close: None,
                life: limit,
            });
            advance(Duration::from_secs(1 << 30)).await;
            assert!(lives(&mut idle, 1).await);
            assert!(idle.alarm.is_none() && idle.life.is_none());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn traffic_does_not_put_off_the_end_of_a_life() {
        let life = Some(Duration::from_secs(100));
        let mut idle = idle(Limits { life, ..LIMITS });
        for _ in 0..3 {
            assert!(lives(&mut idle, 30).await);
            idle.touch();
        }
        assert!(lives(&mut idle, 9).await);
        assert_eq!(reached(&mut idle).await, How::Life);
    }
}
