//! Messages, each answered before the next is sent, for as long as asked for, on many connections at once.

use std::{
    io::{Read, Write},
    net::Shutdown,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow, ensure};

use super::{pingpong::Latency, socket::Address, stream::Stream, upstream::Ask};

/// What there is to talk about, and for how long.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Talk {
    pub(crate) connections: u64,
    /// Bytes of a message and of its answer.
    pub(crate) size: usize,
    /// Before anything counts: connections are made and engines chosen.
    pub(crate) warmup: Duration,
    pub(crate) time: Duration,
}

/// The round trips of all connections together, in nanoseconds; those of the warm-up are left out.
pub(crate) fn play(address: &Address, talk: Talk) -> Result<Latency> {
    let mut all = latency()?;
    thread::scope(|scope| {
        let players =
            (0..talk.connections).map(|seed| scope.spawn(move || one(address, talk, seed)));
        for player in Vec::from_iter(players) {
            all += player.join().map_err(|_| anyhow!("a client panicked"))??;
        }
        Ok(all)
    })
}

/// An empty account of round trips.
pub(crate) fn latency() -> Result<Latency> {
    Latency::new(3).context("a histogram")
}

fn one(address: &Address, talk: Talk, seed: u64) -> Result<Latency> {
    let mut latency = latency()?;
    let mut server = address.connect()?;
    let size = talk.size as u64;
    Ask::Talk { size, seed }.write(&mut server)?;
    let (mut sent, mut back) = (Stream::new(seed), Stream::new(!seed));
    let mut answer = vec![0; talk.size];
    let begun = Instant::now();
    let (counted, end) = (begun + talk.warmup, begun + talk.warmup + talk.time);
    loop {
        let asked = Instant::now();
        // One at least: who was stalled for all of the time is slow, and not to be left out.
        if asked >= end && !latency.is_empty() {
            break;
        }
        sent.write(&mut server, size, |_| ()).context("send")?;
        server.read_exact(&mut answer).context("receive")?;
        if asked >= counted {
            let took = u64::try_from(asked.elapsed().as_nanos()).unwrap_or(u64::MAX);
            latency.record(took).context("a histogram")?;
        }
        back.expect(&answer)?;
    }
    server.shutdown(Shutdown::Write)?;
    let left = server.read(&mut answer).context("the end")?;
    ensure!(left == 0, "{left} bytes after the last answer");
    Ok(latency)
}

/// The upstream's part.
pub(super) fn answer(client: &mut (impl Read + Write), size: usize, seed: u64) -> Result<()> {
    let (mut sent, mut back) = (Stream::new(seed), Stream::new(!seed));
    let mut message = vec![0; size];
    loop {
        let got = client.read(&mut message).context("receive")?;
        if got == 0 {
            return Ok(());
        }
        client
            .read_exact(&mut message[got..])
            .context("the rest of a message")?;
        sent.expect(&message)?;
        back.write(client, size as u64, |_| ()).context("answer")?;
    }
}
