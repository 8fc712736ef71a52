//! As many seeded bytes as asked for, one way and then the other.

use std::{
    io::{self, Read, Write},
    mem::MaybeUninit,
    net::Shutdown,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};

use super::{
    socket::Address,
    stream::{CHUNK, Stream, UNCHECKED},
    upstream::Ask,
};

/// How long each way took.
pub(crate) struct Times {
    pub(crate) up: Duration,
    pub(crate) down: Duration,
}

/// Sends `bytes` to the upstream behind `address`, ends that direction, and takes as many back.
pub(crate) fn both_ways(
    address: &Address,
    bytes: u64,
    seed: u64,
    mut progress: impl FnMut(u64),
) -> Result<Times> {
    let mut server = address.connect()?;
    Ask::Bulk { bytes, seed }.write(&mut server)?;
    let begun = Instant::now();
    send(&mut server, bytes, seed, &mut progress)?;
    server.shutdown(Shutdown::Write).context("shutdown")?;
    // The upstream answers when it has seen the end: the first byte back ends the way up.
    server
        .peek(&mut [MaybeUninit::uninit()])
        .context("the answer")?;
    let up = begun.elapsed();
    let begun = Instant::now();
    take(&mut server, bytes, !seed, &mut progress)?;
    Ok(Times {
        up,
        down: begun.elapsed(),
    })
}

/// Sends the first `bytes` of the stream from `seed`.
pub(crate) fn send(
    to: &mut impl Write,
    bytes: u64,
    seed: u64,
    progress: impl FnMut(u64),
) -> Result<()> {
    let mut stream = Stream::new(seed);
    stream.write(to, bytes, progress).context("send")
}

/// Takes the first `bytes` of the stream from `seed` and then the end, and checks all of it.
pub(crate) fn take(
    from: &mut impl Read,
    bytes: u64,
    seed: u64,
    mut progress: impl FnMut(u64),
) -> Result<()> {
    let mut stream = Stream::new(seed);
    let mut buffer = vec![0; 4 * CHUNK];
    let checked = seed != UNCHECKED && seed != !UNCHECKED;
    let mut taken = 0;
    loop {
        let read = match from.read(&mut buffer) {
            Ok(0) => break,
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => {
                return Err(error)
                    .with_context(|| format!("receive, after {taken} of {bytes} bytes"));
            }
        };
        if checked {
            stream.expect(&buffer[..read])?;
        }
        taken += read as u64;
        if taken > bytes {
            bail!("more than {bytes} bytes");
        }
        progress(read as u64);
    }
    ensure!(
        taken == bytes,
        "{taken} bytes and then the end; expected {bytes}"
    );
    Ok(())
}
