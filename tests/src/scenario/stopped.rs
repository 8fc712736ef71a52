//! R25: what the sockmap engine carries needs the process no more.

use anyhow::{Result, ensure};

use crate::{
    census,
    matrix::{Ends, Stage},
    payload::Stream,
    peer::both,
};

const ROUNDS: u64 = 1_000;

/// Wake-ups over 10,000 round trips: none is needed, and the runtime's own are few.
const SLEEPS: u64 = 50;

/// SIGSTOP of relay; 1,000 round trips; SIGCONT.
///
/// # Errors
///
/// Fails when the connection stands still.
pub fn goes_on_while_relay_is_stopped(stage: &Stage) -> Result<()> {
    let listener = stage.listen()?;
    let relay = stage.relay(listener.address())?;
    let ends = stage.join(&relay, &listener)?;
    round_trips(&ends, 10)?;
    relay.pause()?;
    round_trips(&ends, ROUNDS)?;
    relay.resume()?;
    round_trips(&ends, 10)?;
    let bytes = (ROUNDS + 20) * MESSAGE;
    end(&ends)?;
    stage.finish(relay, 1)?[0]
        .ended("client", "end")?
        .moved_after_greeting(bytes, bytes)?;
    Ok(())
}

/// 10,000 round trips do not wake the process.
///
/// # Errors
///
/// Fails when they do.
pub fn round_trips_wake_nobody(stage: &Stage) -> Result<()> {
    let listener = stage.listen()?;
    let relay = stage.relay(listener.address())?;
    let ends = stage.join(&relay, &listener)?;
    round_trips(&ends, 100)?;
    let before = census::sleeps(relay.process())?;
    round_trips(&ends, 10 * ROUNDS)?;
    let slept = census::sleeps(relay.process())? - before;
    ensure!(slept < SLEEPS, "relay was woken {slept} times");
    end(&ends)?;
    stage.finish(relay, 1)?;
    Ok(())
}

const MESSAGE: u64 = 64;

fn round_trips(ends: &Ends, count: u64) -> Result<()> {
    both(
        || {
            let (mut own, mut theirs) = (Stream::new(1), Stream::new(2));
            for _ in 0..count {
                ends.client.send_stream(&mut own, MESSAGE)?;
                ends.client.expect(&mut theirs, MESSAGE)?;
            }
            Ok(())
        },
        || {
            let (mut theirs, mut own) = (Stream::new(1), Stream::new(2));
            for _ in 0..count {
                ends.upstream.expect(&mut theirs, MESSAGE)?;
                ends.upstream.send_stream(&mut own, MESSAGE)?;
            }
            Ok(())
        },
    )
}

fn end(ends: &Ends) -> Result<()> {
    ends.client.finish()?;
    ends.upstream.expect_end()?;
    ends.upstream.finish()?;
    ends.client.expect_end()
}
