//! R1: thousands of one-byte segments, which fill the slots of a pipe long before its bytes.

use std::{thread, time::Duration};

use anyhow::Result;

use crate::{
    matrix::Stage,
    payload::Stream,
    peer::{Peer, both},
};

/// Many times the 16 slots of a pipe, and more than one socket buffer takes as single segments.
const BYTES: u64 = 20_000;

/// One byte per write towards a reader that only comes later, each way.
///
/// # Errors
///
/// Fails when it hangs or a byte is wrong.
pub fn tiny_segments_to_a_late_reader(stage: &Stage) -> Result<()> {
    let listener = stage.listen()?;
    let relay = stage.relay(listener.address())?;
    let ends = stage.join(&relay, &listener)?;
    trickle(&ends.client, &ends.upstream, 1)?;
    trickle(&ends.upstream, &ends.client, 2)?;
    ends.client.finish()?;
    ends.upstream.expect_end()?;
    ends.upstream.finish()?;
    ends.client.expect_end()?;
    stage.finish(relay, 1)?[0].moved_after_greeting(BYTES, BYTES)?;
    Ok(())
}

fn trickle(from: &Peer, to: &Peer, seed: u64) -> Result<()> {
    let send = || {
        let mut stream = Stream::new(seed);
        (0..BYTES).try_for_each(|_| from.send(&stream.take(1)))
    };
    let receive = || {
        thread::sleep(Duration::from_millis(500));
        to.expect(&mut Stream::new(seed), BYTES)
    };
    both(send, receive)
}
