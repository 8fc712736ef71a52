//! R15: a client that has said everything, and ended its direction, before relay has its upstream.

use anyhow::{Result, ensure};

use crate::{matrix::Stage, payload::Stream, peer::many, record::Engine};

const BYTES: u64 = 20_000;

/// Request and FIN are there before relay accepts. The best engine that can take such a connection does.
///
/// # Errors
///
/// Fails when the request or the reply is not whole.
pub fn fin_before_accept(stage: &Stage) -> Result<()> {
    let listener = stage.listen()?;
    let relay = stage.launch_ladder(listener.address()).start()?;
    for round in 0..5 {
        relay.pause()?;
        let client = stage.connect(&relay)?;
        client.send_stream(&mut Stream::new(round), BYTES)?;
        client.finish()?;
        relay.resume()?;
        let upstream = listener.accept()?;
        upstream.expect(&mut Stream::new(round), BYTES)?;
        upstream.expect_end()?;
        upstream.send_stream(&mut Stream::new(100), 2 * BYTES)?;
        upstream.finish()?;
        client.expect(&mut Stream::new(100), 2 * BYTES)?;
        client.expect_end()?;
    }
    for record in relay.finish(5)? {
        record.ended("client", "end")?.moved(BYTES, 2 * BYTES)?;
        match stage.engine {
            // The kernel takes no socket into the map whose peer has ended.
            Engine::Sockmap => {
                let why = record.why_not(Engine::Sockmap)?;
                ensure!(why.contains("ended its direction"), "{why}");
                ensure!(record.engine == Some(Engine::Splice), "{record:?}");
            }
            engine => {
                record.carried_by(engine)?;
            }
        }
    }
    Ok(())
}

/// Request and FIN race with every step of the start.
///
/// # Errors
///
/// Fails when a request or reply is not whole.
pub fn fin_at_every_moment_of_the_start(stage: &Stage) -> Result<()> {
    const CONNECTIONS: u64 = 300;
    let server = stage.listen()?.serve(|peer| {
        peer.expect(&mut Stream::new(1), BYTES)?;
        peer.expect_end()?;
        peer.send_stream(&mut Stream::new(2), BYTES)?;
        peer.finish()
    })?;
    let relay = stage.launch_ladder(server.address()).start()?;
    many(CONNECTIONS, 4, |number| {
        let client = stage.connect(&relay)?;
        client.send_stream(&mut Stream::new(1), BYTES)?;
        std::thread::sleep(std::time::Duration::from_micros(number % 50 * 20));
        client.finish()?;
        client.expect(&mut Stream::new(2), BYTES)?;
        client.expect_end()
    })?;
    server.stop()?;
    for record in relay.finish(usize::try_from(CONNECTIONS)?)? {
        record.moved(BYTES, BYTES)?;
        if record.carried_by(stage.engine).is_err() {
            ensure!(stage.engine == Engine::Sockmap, "{record:?}");
            record.why_not(Engine::Sockmap)?;
        }
    }
    Ok(())
}

/// The client has gone, with a reset, before relay accepts.
///
/// # Errors
///
/// Fails when relay does not go on.
pub fn gone_before_accept(stage: &Stage) -> Result<()> {
    let listener = stage.listen()?;
    let relay = stage.launch_ladder(listener.address()).start()?;
    relay.pause()?;
    for _ in 0..10 {
        let client = stage.connect(&relay)?;
        client.send(b"never mind")?;
        client.reset()?;
    }
    relay.resume()?;
    // Some of the ten may reach the upstream, some not; whoever comes afterwards does.
    let client = stage.connect(&relay)?;
    client.send_stream(&mut Stream::new(1), BYTES)?;
    client.finish()?;
    loop {
        let upstream = listener.accept()?;
        if upstream.expect(&mut Stream::new(1), BYTES).is_ok() {
            upstream.expect_end()?;
            break;
        }
    }
    client.expect_end()?;
    relay.record_of(&client.local()?)?.moved(BYTES, 0)?;
    relay.finish_all().map(drop)
}
