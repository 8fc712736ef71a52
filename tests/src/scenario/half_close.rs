//! R7 and R8: one side has ended its direction, and the other goes on, or does not.

use std::{thread, time::Duration};

use anyhow::{Result, ensure};

use crate::{
    matrix::Stage,
    payload::Stream,
    peer::{Peer, both},
};

const REPLY: u64 = 100_000_000;

/// A request with its end, then 100 MB much later.
///
/// # Errors
///
/// Fails when the reply is not whole.
pub fn half_close_then_long_reply(stage: &Stage) -> Result<()> {
    let listener = stage.listen()?;
    let relay = stage.relay(listener.address())?;
    let ends = stage.join(&relay, &listener)?;
    ends.client.send(b"all of it, please")?;
    ends.client.finish()?;
    let upstream = || {
        ensure!(ends.upstream.receive(17)? == b"all of it, please");
        ends.upstream.expect_end()?;
        thread::sleep(Duration::from_millis(1500));
        ends.upstream.send_stream(&mut Stream::new(1), REPLY)?;
        ends.upstream.finish()
    };
    let client = || {
        ends.client.expect(&mut Stream::new(1), REPLY)?;
        ends.client.expect_end()
    };
    both(upstream, client)?;
    stage.finish(relay, 1)?[0]
        .ended("client", "end")?
        .moved_after_greeting(17, REPLY)?;
    Ok(())
}

/// One side has ended its direction and the other is silent: both are reset at the limit.
///
/// # Errors
///
/// Fails when the connection lives on, or ends otherwise.
pub fn half_closed_and_silent_is_ended(stage: &Stage) -> Result<()> {
    let listener = stage.listen()?;
    let launch = stage.launch(listener.address());
    let relay = launch.with(["--half-close-timeout", "1s"]).start()?;
    for side in ["client", "upstream"] {
        let ends = stage.join(&relay, &listener)?;
        let name = ends.client.local()?;
        let (ended, silent) = match side {
            "client" => (ends.client, ends.upstream),
            _ => (ends.upstream, ends.client),
        };
        ended.send(b"the end")?;
        ended.finish()?;
        silent.receive(b"the end".len())?;
        silent.expect_end()?;
        ended.expect_reset()?;
        let record = relay.record_of(&name)?;
        record.ended("relay", "idle")?;
        ensure!(
            record.end.limit.as_deref() == Some("half-close"),
            "{record:?}"
        );
        ensure!(record.duration_ms >= 1000, "too early: {record:?}");
        // Its own direction has ended, so only writing tells it of the reset.
        expect_refusal(&silent)?;
    }
    stage.finish(relay, 2)?;
    Ok(())
}

fn expect_refusal(peer: &Peer) -> Result<()> {
    crate::patience::until_true("the reset to be felt", || Ok(peer.send(b"?").is_err()))
}

/// One side has ended its direction and the other sends now and then: that is alive.
///
/// # Errors
///
/// Fails when it is ended.
pub fn half_closed_and_slow_lives(stage: &Stage) -> Result<()> {
    let listener = stage.listen()?;
    let launch = stage.launch(listener.address());
    let relay = launch.with(["--half-close-timeout", "4s"]).start()?;
    let ends = stage.join(&relay, &listener)?;
    ends.client.finish()?;
    ends.upstream.expect_end()?;
    let (mut sent, mut came) = (Stream::new(1), Stream::new(1));
    for _ in 0..12 {
        ends.upstream.send_stream(&mut sent, 1)?;
        ends.client.expect(&mut came, 1)?;
        thread::sleep(Duration::from_millis(500));
    }
    ends.upstream.finish()?;
    ends.client.expect_end()?;
    stage.finish(relay, 1)?[0]
        .ended("client", "end")?
        .moved_after_greeting(0, 12)?;
    Ok(())
}
