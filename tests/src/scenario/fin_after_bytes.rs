//! R6: the end of a stream that arrives while bytes are still on their way to a slow reader.

use std::{thread, time::Duration};

use anyhow::{Result, ensure};

use crate::{
    matrix::{GREETING, Stage},
    payload::Stream,
    peer::{Peer, both},
};

/// More than all buffers on the way hold together, so that the end comes while relay has its hands full.
const BYTES: u64 = 12 << 20;

/// Little enough to be in buffers altogether when its sender is gone.
const SMALL: u64 = 200_000;

/// FIN behind megabytes, towards a slow reader, then an answer; from either side.
///
/// # Errors
///
/// Fails when a byte or the end is lost.
pub fn fin_behind_bytes_for_a_slow_reader(stage: &Stage) -> Result<()> {
    let listener = stage.listen()?;
    let relay = stage.relay(listener.address())?;
    let ends = stage.join(&relay, &listener)?;
    one_after_the_other(&ends.client, &ends.upstream)?;
    let client = ends.client.local()?;
    relay
        .record_of(&client)?
        .ended("client", "end")?
        .moved_after_greeting(BYTES, SMALL)?;
    let ends = stage.join(&relay, &listener)?;
    one_after_the_other(&ends.upstream, &ends.client)?;
    let client = ends.client.local()?;
    relay
        .record_of(&client)?
        .ended("upstream", "end")?
        .moved_after_greeting(SMALL, BYTES)?;
    stage.finish(relay, 2)?;
    Ok(())
}

fn one_after_the_other(first: &Peer, second: &Peer) -> Result<()> {
    let send = || {
        first.send_stream(&mut Stream::new(1), BYTES)?;
        first.finish()?;
        first.expect(&mut Stream::new(2), SMALL)?;
        first.expect_end()
    };
    let receive = || {
        thread::sleep(Duration::from_millis(700));
        read_slowly(second, &mut Stream::new(1), BYTES)?;
        second.expect_end()?;
        second.send_stream(&mut Stream::new(2), SMALL)?;
        second.finish()
    };
    both(send, receive)
}

/// The sender closes its socket altogether while the reader has not begun.
///
/// # Errors
///
/// Fails when a byte is lost, or a reset comes in place of the end.
pub fn closed_behind_bytes_for_a_late_reader(stage: &Stage) -> Result<()> {
    let listener = stage.listen()?;
    let relay = stage.relay(listener.address())?;
    for round in 0..10 {
        let ends = stage.join(&relay, &listener)?;
        let (sender, reader) = match round % 2 {
            0 => (ends.client, ends.upstream),
            _ => (ends.upstream, ends.client),
        };
        sender.send_stream(&mut Stream::new(round), SMALL)?;
        drop(sender);
        thread::sleep(Duration::from_millis(50 * (round % 3)));
        reader.expect(&mut Stream::new(round), SMALL)?;
        reader.expect_end()?;
        reader.finish()?;
    }
    for record in stage.finish(relay, 10)? {
        let moved = record.bytes_up + record.bytes_down;
        ensure!(moved == SMALL + 2 * GREETING, "{record:?}");
    }
    Ok(())
}

fn read_slowly(peer: &Peer, stream: &mut Stream, length: u64) -> Result<()> {
    let mut left = length;
    while left > 0 {
        let piece = left.min(48 << 10);
        peer.expect(stream, piece)?;
        left -= piece;
        thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}
