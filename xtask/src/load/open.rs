//! Requests at a fixed rate. Each is due at a time of its own, and its latency counts from then, so that a stall costs all
//! that should have been asked meanwhile.

use std::{
    io::Read,
    net::Shutdown,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow};

use super::{pingpong::Latency, socket::Address, stream::Stream, talk, upstream::Ask};

const SIZE: usize = 64;

/// A request that is due this long after the end is not asked any more, however far behind its connection is.
const GRACE: Duration = Duration::from_secs(1);

/// What is offered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    /// Requests a second, all connections together.
    pub(crate) rate: u64,
    pub(crate) connections: u64,
    pub(crate) time: Duration,
}

/// The latencies of all requests that were answered, in nanoseconds, and how long that took.
pub(crate) fn play(address: &Address, load: Load) -> Result<(Latency, Duration)> {
    let mut all = talk::latency()?;
    // Time to connect all.
    let begin = Instant::now() + Duration::from_millis(300);
    thread::scope(|scope| {
        let one = |number| move || one(address, load, begin, number);
        let players = (0..load.connections).map(|number| scope.spawn(one(number)));
        for player in Vec::from_iter(players) {
            all += player.join().map_err(|_| anyhow!("a client panicked"))??;
        }
        Ok((all, begin.elapsed()))
    })
}

fn one(address: &Address, load: Load, begin: Instant, number: u64) -> Result<Latency> {
    let mut latency = talk::latency()?;
    let mut server = address.connect()?;
    let ask = Ask::Talk {
        size: SIZE as u64,
        seed: number,
    };
    ask.write(&mut server)?;
    let (mut sent, mut back) = (Stream::new(number), Stream::new(!number));
    let mut answer = [0; SIZE];
    // The connections take turns.
    let gap = Duration::from_secs(1).mul_f64(1.0 / rate(load.rate));
    let end = begin + load.time;
    for turn in 0.. {
        let position = u32::try_from(turn * load.connections + number)?;
        let due = begin + gap * position;
        let now = Instant::now();
        if due >= end || now > end + GRACE {
            break;
        }
        if let Some(early) = due.checked_duration_since(now) {
            thread::sleep(early);
        }
        sent.write(&mut server, SIZE as u64, |_| ())
            .context("send")?;
        server.read_exact(&mut answer).context("receive")?;
        back.expect(&answer)?;
        let took = u64::try_from(due.elapsed().as_nanos()).unwrap_or(u64::MAX);
        latency.record(took).context("a histogram")?;
    }
    server.shutdown(Shutdown::Write)?;
    Ok(latency)
}

#[expect(clippy::cast_precision_loss, reason = "a rate of requests")]
fn rate(rate: u64) -> f64 {
    rate as f64
}
