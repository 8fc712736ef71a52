//! R21: one byte there and back, on many connections; and then nothing at all.

use std::{
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};

use crate::{census, matrix::Stage, peer::echo};

const CONNECTIONS: usize = 64;
const BATCHES: usize = 50;
const ROUNDS: usize = 300;

/// Some kernels retry after a tick, which is 4 ms at 250 Hz. Steps of that kind meet every round trip, a busy machine
/// only some: the fastest tenth tells.
const STEP: Duration = Duration::from_millis(2);

/// Of 3 seconds; a spin takes all of one processor.
const IDLE: Duration = Duration::from_millis(300);

/// 64 connections at once, then one alone, then silence.
///
/// # Errors
///
/// Fails when round trips come in steps, or when relay is busy with nothing.
pub fn ping_pong_without_steps_or_spin(stage: &Stage) -> Result<()> {
    let server = stage.listen()?.serve(echo)?;
    let relay = stage.relay(server.address())?;
    let connect = |_| stage.connect(&relay);
    let clients = (0..CONNECTIONS).map(connect).collect::<Result<Vec<_>>>()?;
    for batch in 0..BATCHES {
        let byte = |index: usize| [(batch * 7 + index) as u8];
        for (index, client) in clients.iter().enumerate() {
            client.send(&byte(index))?;
        }
        for (index, client) in clients.iter().enumerate() {
            ensure!(client.receive(1)? == byte(index), "another's byte");
        }
    }
    let mut took = Vec::with_capacity(ROUNDS);
    for round in 0..ROUNDS {
        let begun = Instant::now();
        clients[0].send(&[round as u8])?;
        ensure!(clients[0].receive(1)? == [round as u8], "another byte");
        took.push(begun.elapsed());
    }
    took.sort();
    let fast = took[ROUNDS / 10];
    ensure!(
        fast < STEP,
        "nine of ten round trips took more than {fast:?}"
    );

    let before = census::processor(relay.process())?;
    thread::sleep(Duration::from_secs(3));
    let used = census::processor(relay.process())? - before;
    ensure!(used < IDLE, "{used:?} of processor time in 3 s of silence");
    for client in clients {
        client.finish()?;
        client.expect_end()?;
    }
    server.stop()?;
    stage.finish(relay, CONNECTIONS)?;
    Ok(())
}
