//! R4: the tail of a response, which must not wait for more to come.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use crate::{matrix::Stage, payload::Stream, peer::both};

/// Not a multiple of any segment, page or pipe.
const RESPONSE: u64 = 40_007;

const ROUNDS: usize = 200;

/// A tail held back waits some 200 ms each time; half of that is far more than a round takes.
const STALL: Duration = Duration::from_millis(100);

/// Requests and responses in turn; most of the responses must come whole without a stall.
///
/// # Errors
///
/// Fails when the median response stalls.
pub fn no_stall_at_the_tail_of_a_response(stage: &Stage) -> Result<()> {
    let listener = stage.listen()?;
    let relay = stage.relay(listener.address())?;
    let ends = stage.join(&relay, &listener)?;
    let mut took = Vec::new();
    let client = || {
        let mut response = Stream::new(1);
        for _ in 0..ROUNDS {
            let begun = Instant::now();
            ends.client.send(b"again, please")?;
            ends.client.expect(&mut response, RESPONSE)?;
            took.push(begun.elapsed());
        }
        ends.client.finish()
    };
    let upstream = || {
        let mut response = Stream::new(1);
        for _ in 0..ROUNDS {
            ends.upstream.receive(b"again, please".len())?;
            ends.upstream.send_stream(&mut response, RESPONSE)?;
        }
        ends.upstream.expect_end()?;
        ends.upstream.finish()
    };
    both(client, upstream)?;
    ends.client.expect_end()?;
    took.sort();
    let median = took[ROUNDS / 2];
    ensure!(median < STALL, "the median response took {median:?}");
    stage.finish(relay, 1)?;
    Ok(())
}
