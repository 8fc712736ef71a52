//! One direction of a connection: from its first byte to the FIN that is passed on.

use std::{
    future::Future,
    os::fd::AsFd,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use rustix::{
    io::Errno,
    net::{Shutdown, shutdown},
};
use tokio::time::{Sleep, sleep};

use super::{Fault, Mover, Source, Taken, end::End};
use crate::{
    decline::Why,
    pace::Pacer,
    pair::{Direction, Side},
    plan::EngineKind,
    stats::meter::Meter,
    sys::tcp,
};

/// A direction and what moves its bytes.
pub(super) struct Lane<M> {
    mover: M,
    waits: Waits,
    over: bool,
    /// The source tells of bytes only when there are many: nobody wants them yet, and each that it told of would wake a thread.
    hushed: bool,
    late: Option<Late>,
    pacer: Option<Box<Pacer>>,
}

/// What has to happen before a lane can go on.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Waits {
    /// Nothing that a socket would tell: its limit, perhaps.
    Nothing,
    /// The source must become readable.
    Source,
    /// The target must become writable.
    Target,
}

/// What a step came to.
pub(super) enum Step<R> {
    /// The target has taken so many bytes; 0 when some were taken from the source only. There may be more to do.
    Moved(usize),
    /// A socket has to wake the lane first.
    Waits,
    /// The FIN was passed on.
    Over,
    /// The mover refused, and nothing was taken.
    Refused(R),
    /// A socket failed.
    Failed(Side, Fault),
}

impl<M: Mover> Lane<M> {
    pub(super) fn new(mover: M, pacer: Option<Box<Pacer>>) -> Self {
        Self {
            mover,
            waits: Waits::Nothing,
            over: false,
            hushed: false,
            late: None,
            pacer,
        }
    }

    /// Takes once if nothing is held, then gives once.
    pub(super) fn step(
        &mut self,
        cx: &mut Context<'_>,
        direction: Direction,
        (source, target): (&End, &End),
        meter: &Meter,
    ) -> Step<M::Refusal> {
        self.waits = Waits::Nothing;
        if self.over {
            return Step::Waits;
        }
        let step = match self.is_empty() {
            true => self.take(cx, direction, (source, target), meter),
            false => Poll::Ready(Step::Moved(0)),
        };
        match step {
            Poll::Ready(Step::Moved(_)) => (),
            Poll::Ready(step) => return step,
            Poll::Pending => return Step::Waits,
        }
        let step = self.give(cx, direction, target, meter);
        if matches!(step, Step::Waits) && !self.hushed {
            self.hushed = source.hush();
        }
        step
    }

    fn take(
        &mut self,
        cx: &mut Context<'_>,
        direction: Direction,
        (source, target): (&End, &End),
        meter: &Meter,
    ) -> Poll<Step<M::Refusal>> {
        if let Some(late) = &mut self.late {
            ready!(late.again.as_mut().poll(cx));
        }
        let failed = |fault| Poll::Ready(Step::Failed(direction.from(), fault));
        loop {
            self.waits = Waits::Source;
            let mut guard = match source.poll.poll_read_ready(cx) {
                Poll::Ready(Ok(guard)) => guard,
                Poll::Ready(Err(_)) => return failed(GONE),
                Poll::Pending => {
                    if std::mem::take(&mut self.hushed) {
                        source.unhush();
                    }
                    return Poll::Pending;
                }
            };
            self.waits = Waits::Nothing;
            let from = Source {
                fd: source.as_fd(),
                plain: source.is_plain(),
            };
            let taken = match &mut self.pacer {
                None => self.mover.take(from, usize::MAX),
                Some(pacer) => {
                    let most = ready!(pacer.poll(cx));
                    let taken = self.mover.take(from, most);
                    pacer.took(match taken {
                        Taken::Bytes(bytes) | Taken::Last(bytes) => bytes,
                        _ => 0,
                    });
                    taken
                }
            };
            match taken {
                Taken::Bytes(_) => {
                    self.late = None;
                    return Poll::Ready(Step::Moved(0));
                }
                // Only in these two is the socket known to be empty: clearing its readiness after anything else would lose a wake.
                Taken::Last(_) => {
                    self.late = None;
                    guard.clear_ready();
                    return Poll::Ready(Step::Moved(0));
                }
                Taken::Dry => guard.clear_ready(),
                Taken::End if source.mapped && misses_bytes(source, meter.moved(direction)) => {
                    let late = self.late.get_or_insert_with(Late::new);
                    if let Err(fault) = late.put_off() {
                        return failed(fault);
                    }
                    ready!(late.again.as_mut().poll(cx));
                }
                Taken::End => return Poll::Ready(self.finish(direction, target)),
                Taken::Refused(refusal) => return Poll::Ready(Step::Refused(refusal)),
                Taken::Failed(fault) => return failed(fault),
            }
        }
    }

    fn give(
        &mut self,
        cx: &mut Context<'_>,
        direction: Direction,
        target: &End,
        meter: &Meter,
    ) -> Step<M::Refusal> {
        loop {
            self.waits = Waits::Target;
            let mut guard = match target.poll.poll_write_ready(cx) {
                Poll::Ready(Ok(guard)) => guard,
                Poll::Ready(Err(_)) => return Step::Failed(direction.to(), GONE),
                Poll::Pending => {
                    meter.hold(direction, self.mover.held() as u64);
                    return Step::Waits;
                }
            };
            self.waits = Waits::Nothing;
            match self.mover.give(target.as_fd()) {
                Ok(bytes) => {
                    meter.add(direction, bytes as u64);
                    meter.hold(direction, self.mover.held() as u64);
                    return Step::Moved(bytes);
                }
                Err(fault) if fault.errno == Errno::AGAIN => guard.clear_ready(),
                Err(fault) => return Step::Failed(direction.to(), fault),
            }
        }
    }

    /// Passes the FIN on: the source has ended and, since it is asked only when nothing is held, all is given.
    fn finish(&mut self, direction: Direction, target: &End) -> Step<M::Refusal> {
        self.over = true;
        self.late = None;
        match shutdown(target, Shutdown::Write) {
            Ok(()) => Step::Over,
            Err(errno) => {
                let call = "shutdown";
                Step::Failed(direction.to(), Fault { call, errno })
            }
        }
    }

    /// Gives back what an empty lane does not need.
    pub(super) fn rest(&mut self) {
        if self.is_empty() {
            self.mover.rest();
        }
    }

    pub(super) fn settle(&mut self, refusal: &M::Refusal) -> (EngineKind, Why) {
        self.mover.settle(refusal)
    }

    pub(super) fn is_over(&self) -> bool {
        self.over
    }

    pub(super) fn is_empty(&self) -> bool {
        self.mover.held() == 0
    }

    /// Whether it waits for its limit, and for nothing else.
    pub(super) fn is_paced(&self) -> bool {
        self.pacer.as_ref().is_some_and(|pacer| pacer.is_waiting())
    }

    pub(super) fn awaits_source(&self) -> bool {
        self.waits == Waits::Source
    }

    pub(super) fn awaits_target(&self) -> bool {
        self.waits == Waits::Target
    }
}

/// tokio says this of a socket when the runtime is shut down; the process goes away.
const GONE: Fault = Fault {
    call: "poll",
    errno: Errno::CANCELED,
};

/// Whether recv(2) has said "end" on a socket in the sockmap before it gave all bytes.
///
/// What the program passes is appended to a queue of its own by a kernel worker when the receive buffer is over its
/// limit. recv(2) looks at that queue and at the FIN, not at what the worker still has. The kernel counts the FIN as a
/// byte. A socket that cannot say is believed.
fn misses_bytes(source: &End, taken: u64) -> bool {
    tcp::info(source).is_ok_and(|info| info.bytes_received > source.read + taken + 1)
}

/// The wait for bytes that [`misses_bytes`] found missing. The kernel announces them to nobody once the FIN is there.
struct Late {
    again: Pin<Box<Sleep>>,
    tries: u32,
}

impl Late {
    /// The worker tries again after a jiffy, which is 1 to 10 ms.
    const PAUSE: Duration = Duration::from_millis(2);
    /// After these 2 s the bytes are taken for lost, and the end for no clean one.
    const TRIES: u32 = 1000;

    fn new() -> Self {
        Self {
            again: Box::pin(sleep(Self::PAUSE)),
            tries: 0,
        }
    }

    fn put_off(&mut self) -> Result<(), Fault> {
        self.tries += 1;
        if self.tries > Self::TRIES {
            let (call, errno) = ("recv", Errno::IO);
            return Err(Fault { call, errno });
        }
        let next = tokio::time::Instant::now() + Self::PAUSE;
        self.again.as_mut().reset(next);
        Ok(())
    }
}
