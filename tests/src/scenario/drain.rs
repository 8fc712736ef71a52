//! R24: relay is asked to stop while connections live.

use anyhow::{Result, ensure};
use rustix::process::Signal;

use crate::{
    matrix::Stage,
    patience,
    payload::Stream,
    peer::{Peer, both},
};

const BYTES: u64 = 1 << 20;

/// Connections go on after SIGTERM, nobody new is accepted, and the end is clean.
///
/// # Errors
///
/// Fails when a connection is cut.
pub fn drain_lets_connections_finish(stage: &Stage) -> Result<()> {
    let listener = stage.listen()?;
    let launch = stage.launch(listener.address());
    let mut relay = launch.with(["--drain-timeout", "1h"]).start()?;
    let ends = [
        stage.join(&relay, &listener)?,
        stage.join(&relay, &listener)?,
    ];
    // Whoever still gets in while relay stops finds no upstream.
    drop(listener);
    relay.signal(Signal::TERM)?;
    patience::until_true("relay to accept no more", || {
        let refused = || Peer::connect(relay.address()).map(drop);
        Ok(stage.net.client.enter(refused).is_err())
    })?;
    for pair in &ends {
        let (up, down) = (&mut Stream::new(1), &mut Stream::new(1));
        both(
            || pair.upstream.send_stream(up, BYTES),
            || pair.client.expect(down, BYTES),
        )?;
        pair.client.finish()?;
        pair.upstream.expect_end()?;
        pair.upstream.finish()?;
        pair.client.expect_end()?;
    }
    let code = relay.exit_code()?;
    ensure!(code == 0, "exit code {code} after a clean drain");
    for pair in &ends {
        let record = relay.record_of(&pair.client.local()?)?;
        record
            .ended("client", "end")?
            .moved_after_greeting(0, BYTES)?;
        record.carried_by(stage.engine)?;
    }
    Ok(())
}

/// A connection outlives the drain timeout.
///
/// # Errors
///
/// Fails when it ends otherwise than by a reset on both sides.
pub fn drain_resets_what_is_left(stage: &Stage) -> Result<()> {
    let listener = stage.listen()?;
    let launch = stage.launch(listener.address());
    let mut relay = launch.with(["--drain-timeout", "1s"]).start()?;
    let open = stage.join(&relay, &listener)?;
    let half = stage.join(&relay, &listener)?;
    half.client.finish()?;
    half.upstream.expect_end()?;
    relay.signal(Signal::INT)?;
    open.client.expect_reset()?;
    open.upstream.expect_reset()?;
    half.client.expect_reset()?;
    let code = relay.exit_code()?;
    ensure!(code == 1, "exit code {code} after connections were cut");
    for pair in [&open, &half] {
        let record = relay.record_of(&pair.client.local()?)?;
        record.ended("relay", "drain")?.moved_after_greeting(0, 0)?;
        record.carried_by(stage.engine)?;
    }
    Ok(())
}
