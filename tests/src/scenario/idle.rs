//! R12: the idle limit, which counts bytes that only the kernel has seen.

use std::{thread, time::Duration};

use anyhow::{Result, ensure};

use crate::{matrix::Stage, payload::Stream};

/// A byte now and then, one way only, for longer than the limit.
///
/// # Errors
///
/// Fails when the connection is ended.
pub fn slow_traffic_is_not_idle(stage: &Stage) -> Result<()> {
    let listener = stage.listen()?;
    let launch = stage.launch(listener.address());
    let relay = launch.with(["--idle-timeout", "4s"]).start()?;
    let ends = stage.join(&relay, &listener)?;
    let (mut sent, mut came) = (Stream::new(1), Stream::new(1));
    for _ in 0..12 {
        ends.client.send_stream(&mut sent, 1)?;
        ends.upstream.expect(&mut came, 1)?;
        thread::sleep(Duration::from_millis(500));
    }
    ends.upstream.finish()?;
    ends.client.expect_end()?;
    ends.client.finish()?;
    ends.upstream.expect_end()?;
    stage.finish(relay, 1)?[0]
        .ended("upstream", "end")?
        .moved_after_greeting(12, 0)?;
    Ok(())
}

/// Some traffic, then none.
///
/// # Errors
///
/// Fails when the connection lives on, or ends otherwise than by a reset on both sides.
pub fn silence_is_ended(stage: &Stage) -> Result<()> {
    let listener = stage.listen()?;
    let launch = stage.launch(listener.address());
    let relay = launch.with(["--idle-timeout", "1s"]).start()?;
    let ends = stage.join(&relay, &listener)?;
    ends.client.send(b"anybody there?")?;
    ends.upstream.receive(14)?;
    ends.client.expect_reset()?;
    ends.upstream.expect_reset()?;
    let records = stage.finish(relay, 1)?;
    records[0]
        .ended("relay", "idle")?
        .moved_after_greeting(14, 0)?;
    ensure!(records[0].end.limit.as_deref() == Some("idle"));
    ensure!(records[0].duration_ms >= 1000, "too early: {records:?}");
    Ok(())
}
