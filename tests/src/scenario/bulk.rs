//! A saturating stream each way at the same time: large segments, more in a pipe than its size, every byte checked.

use anyhow::Result;

use crate::{matrix::Stage, payload::Stream, peer::both};

const BYTES: u64 = 64 << 20;

/// Both directions at full speed; then both end.
///
/// # Errors
///
/// Fails when a byte is lost, repeated or moved.
pub fn bulk_both_ways(stage: &Stage) -> Result<()> {
    let listener = stage.listen()?;
    let relay = stage.relay(listener.address())?;
    let ends = stage.join(&relay, &listener)?;
    let up = both(
        || ends.client.send_stream(&mut Stream::new(1), BYTES),
        || ends.upstream.expect(&mut Stream::new(1), BYTES),
    );
    up?;
    both(
        || {
            both(
                || ends.client.send_stream(&mut Stream::new(2), BYTES),
                || ends.upstream.expect(&mut Stream::new(2), BYTES),
            )
        },
        || {
            both(
                || ends.upstream.send_stream(&mut Stream::new(3), BYTES),
                || ends.client.expect(&mut Stream::new(3), BYTES),
            )
        },
    )?;
    ends.client.finish()?;
    ends.upstream.expect_end()?;
    ends.upstream.finish()?;
    ends.client.expect_end()?;
    stage.finish(relay, 1)?[0]
        .ended("client", "end")?
        .moved_after_greeting(2 * BYTES, BYTES)?;
    Ok(())
}
