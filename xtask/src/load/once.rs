//! Connect, one request, its answer, close: on a few threads, again and again.

use std::{
    io::{Read, Write},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow, ensure};

use super::{pingpong::Latency, socket::Address, talk, upstream::Ask};

/// Bytes of a request and of its answer.
const MESSAGE: usize = 64;

/// Whole connections, connect and close included, in nanoseconds.
pub(crate) fn play(address: &Address, threads: u64, time: Duration) -> Result<Latency> {
    let mut all = talk::latency()?;
    thread::scope(|scope| {
        let players = (0..threads).map(|_| scope.spawn(move || one_after_another(address, time)));
        for player in Vec::from_iter(players) {
            all += player.join().map_err(|_| anyhow!("a client panicked"))??;
        }
        Ok(all)
    })
}

fn one_after_another(address: &Address, time: Duration) -> Result<Latency> {
    let mut latency = talk::latency()?;
    let begun = Instant::now();
    for number in 0.. {
        let connected = Instant::now();
        if number > 0 && connected.duration_since(begun) >= time {
            break;
        }
        one(address, number).with_context(|| format!("connection {number}"))?;
        let took = u64::try_from(connected.elapsed().as_nanos()).unwrap_or(u64::MAX);
        latency.record(took).context("a histogram")?;
    }
    Ok(latency)
}

fn one(address: &Address, number: u64) -> Result<()> {
    let mut server = address.connect()?;
    let mut request = Vec::with_capacity(Ask::LENGTH + MESSAGE);
    Ask::Once.write(&mut request)?;
    let message = message(number);
    request.extend_from_slice(&message);
    server.write_all(&request).context("send")?;
    let mut answer = Vec::with_capacity(MESSAGE);
    server.read_to_end(&mut answer).context("receive")?;
    ensure!(answer == message.map(|byte| !byte), "a wrong answer");
    Ok(())
}

fn message(number: u64) -> [u8; MESSAGE] {
    let mut message = [0x5a; MESSAGE];
    message[..8].copy_from_slice(&number.to_le_bytes());
    message
}

/// The upstream's part.
pub(super) fn answer(client: &mut (impl Read + Write)) -> Result<()> {
    let mut message = [0; MESSAGE];
    client.read_exact(&mut message).context("receive")?;
    let answer = message.map(|byte| !byte);
    client.write_all(&answer).context("answer")
}
