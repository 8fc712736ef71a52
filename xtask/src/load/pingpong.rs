//! Small messages, each answered before the next is sent.

use std::{
    io::{Read, Write},
    net::Shutdown,
    time::Instant,
};

use anyhow::{Context, Result};
use hdrhistogram::Histogram;

use super::{socket::Address, stream::Stream, upstream::Ask};

/// Bytes of a message and of its answer.
pub(crate) const MESSAGE: usize = 64;

/// Round trips in nanoseconds.
pub(crate) type Latency = Histogram<u64>;

/// `rounds` round trips to the upstream behind `address`, `between` being called after each.
pub(crate) fn play(
    address: &Address,
    rounds: u64,
    seed: u64,
    mut between: impl FnMut(),
) -> Result<Latency> {
    let mut latency = Latency::new(3).context("a histogram")?;
    let mut server = address.connect()?;
    Ask::PingPong { rounds, seed }.write(&mut server)?;
    let (mut sent, mut back) = (Stream::new(seed), Stream::new(!seed));
    let mut message = [0; MESSAGE];
    for round in 0..rounds {
        let begun = Instant::now();
        sent.write(&mut server, MESSAGE as u64, |_| ())
            .with_context(|| format!("send message {round}"))?;
        server
            .read_exact(&mut message)
            .with_context(|| format!("receive answer {round}"))?;
        let took = u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
        latency.record(took).context("a histogram")?;
        back.expect(&message)
            .with_context(|| format!("answer {round}"))?;
        between();
    }
    server.shutdown(Shutdown::Write)?;
    // The other side's end.
    let left = server.read(&mut message).context("the end")?;
    anyhow::ensure!(left == 0, "{left} bytes after the last answer");
    Ok(latency)
}

/// The upstream's part.
pub(super) fn answer(client: &mut (impl Read + Write), rounds: u64, seed: u64) -> Result<()> {
    let (mut sent, mut back) = (Stream::new(seed), Stream::new(!seed));
    let mut message = [0; MESSAGE];
    for round in 0..rounds {
        client
            .read_exact(&mut message)
            .with_context(|| format!("receive message {round}"))?;
        sent.expect(&message)
            .with_context(|| format!("message {round}"))?;
        back.write(client, MESSAGE as u64, |_| ())
            .with_context(|| format!("send answer {round}"))?;
    }
    let left = client.read(&mut message).context("the end")?;
    anyhow::ensure!(left == 0, "{left} bytes after the last message");
    Ok(())
}
