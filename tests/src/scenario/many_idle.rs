//! Thousands of connections that are open and silent.

use anyhow::{Result, ensure};

use crate::{
    census::{self, Census},
    matrix::Stage,
    peer::Peer,
    record::Engine,
};

/// Each takes two descriptors of relay and two of the test; 20,000 is a common hard limit.
const CONNECTIONS: usize = 9_000;

/// Nobody pays for silence: no pipes, and little memory.
///
/// # Errors
///
/// Fails when a connection holds a pipe, or too much memory.
pub fn silence_costs_little(stage: &Stage) -> Result<()> {
    let listener = stage.listen()?;
    let relay = stage.relay(listener.address())?;
    let first = stage.join(&relay, &listener)?;
    let before = census::resident(relay.process())?;
    let (mut clients, mut upstreams) = (Vec::new(), Vec::new());
    for _ in 0..CONNECTIONS {
        clients.push(stage.net.client.enter(|| Peer::connect(relay.address()))?);
        upstreams.push(listener.accept()?);
    }
    for (client, upstream) in clients.iter().zip(&upstreams) {
        client.send(b"hello")?;
        upstream.receive(5)?;
    }
    let grown = census::resident(relay.process())?.saturating_sub(before);
    let each = grown / CONNECTIONS as u64;
    let census = Census::of(relay.process())?;
    eprintln!(
        "{}: {each} bytes for each idle connection, {census:?}",
        stage.engine
    );
    ensure!(
        census.pipes <= relay.baseline()?.pipes + 128,
        "silent connections hold pipes: {census:?}"
    );
    let limit = match stage.engine {
        Engine::Sockmap => 2 << 10,
        _ => 4 << 10,
    };
    ensure!(each <= limit, "{each} bytes for each, not {limit}");
    drop((clients, upstreams, first));
    stage.finish(relay, CONNECTIONS + 1)?;
    Ok(())
}
