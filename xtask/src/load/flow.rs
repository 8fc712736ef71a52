//! Seeded bytes for as long as asked for, one way, on one connection: what a rate is measured with.

use std::{
    io::{Read, Write},
    net::Shutdown,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};

use super::{
    socket::Address,
    stream::{CHUNK, Stream, UNCHECKED},
    upstream::Ask,
};

/// Bytes, and how long they took from the first write to the last read.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Moved {
    pub(crate) bytes: u64,
    pub(crate) took: Duration,
}

impl Moved {
    /// In gigabits a second.
    #[expect(clippy::cast_precision_loss, reason = "a rate for people")]
    pub(crate) fn gigabits(self) -> f64 {
        self.bytes as f64 * 8.0 / self.took.as_secs_f64().max(1e-9) / 1e9
    }
}

/// Sends for `time` to the upstream behind `address`, until all has arrived there.
pub(crate) fn up(address: &Address, time: Duration, seed: u64, write: usize) -> Result<Moved> {
    let mut server = address.connect()?;
    Ask::Sink { seed }.write(&mut server)?;
    let begun = Instant::now();
    let sent = send_for(&mut server, time, seed, write)?;
    server.shutdown(Shutdown::Write)?;
    let mut arrived = [0; 8];
    server
        .read_exact(&mut arrived)
        .context("how many bytes arrived")?;
    let took = begun.elapsed();
    let bytes = u64::from_le_bytes(arrived);
    ensure!(bytes == sent, "{sent} bytes sent, {bytes} arrived");
    Ok(Moved { bytes, took })
}

/// Has the upstream behind `address` send for `time`, and takes all of it.
pub(crate) fn down(address: &Address, time: Duration, seed: u64) -> Result<Moved> {
    let mut server = address.connect()?;
    let millis = u64::try_from(time.as_millis())?;
    let begun = Instant::now();
    Ask::Pour { millis, seed }.write(&mut server)?;
    let bytes = take_all(&mut server, !seed)?;
    Ok(Moved {
        bytes,
        took: begun.elapsed(),
    })
}

/// The upstream's part of [`up`].
pub(super) fn sink(client: &mut (impl Read + Write), seed: u64) -> Result<()> {
    let taken = take_all(client, seed)?;
    client.write_all(&taken.to_le_bytes()).context("the count")
}

/// The upstream's part of [`down`].
pub(super) fn pour(client: &mut impl Write, time: Duration, seed: u64) -> Result<()> {
    send_for(client, time, !seed, CHUNK).map(drop)
}

/// Sends in writes of `write` bytes; those of a stream that is compared are of a chunk at most.
fn send_for(to: &mut impl Write, time: Duration, seed: u64, write: usize) -> Result<u64> {
    let mut stream = Stream::new(seed);
    let mut same = Vec::new();
    if !is_checked(seed) {
        stream.write(&mut same, write as u64, |_| ())?;
    }
    let begun = Instant::now();
    let mut sent = 0;
    // One at least, however busy the machine.
    while sent == 0 || begun.elapsed() < time {
        match is_checked(seed) {
            true => stream.write(to, write as u64, |_| ()),
            false => to.write_all(&same),
        }
        .context("send")?;
        sent += write as u64;
    }
    Ok(sent)
}

fn is_checked(seed: u64) -> bool {
    seed != UNCHECKED && seed != !UNCHECKED
}

fn take_all(from: &mut impl Read, seed: u64) -> Result<u64> {
    let mut stream = Stream::new(seed);
    let checked = is_checked(seed);
    let mut buffer = vec![0; 4 * CHUNK];
    let mut taken = 0;
    loop {
        let read = match from.read(&mut buffer) {
            Ok(0) => return Ok(taken),
            Ok(read) => read,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error).with_context(|| format!("after {taken} bytes")),
        };
        if checked {
            stream.expect(&buffer[..read])?;
        }
        taken += read as u64;
    }
}
