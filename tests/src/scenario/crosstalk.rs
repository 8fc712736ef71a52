//! R22: a thousand connections at the same time, each with bytes of its own.

use anyhow::{Result, anyhow, ensure};

use crate::{
    matrix::Stage,
    payload::Stream,
    peer::{Peer, many},
};

const CONNECTIONS: u64 = 1000;
const ROUNDS: u64 = 3;
const BYTES: u64 = 5_003;

/// Everybody speaks in turns and all are open at once.
///
/// # Errors
///
/// Fails when somebody gets another's bytes.
pub fn a_thousand_patterns(stage: &Stage) -> Result<()> {
    let server = stage.listen()?.serve(|peer| {
        let mut seed = [0; 8];
        seed.copy_from_slice(&peer.receive(8)?);
        let seed = u64::from_be_bytes(seed);
        let (mut theirs, mut own) = (Stream::new(seed), Stream::new(!seed));
        for _ in 0..ROUNDS {
            peer.expect(&mut theirs, BYTES)?;
            peer.send_stream(&mut own, BYTES)?;
        }
        peer.expect_end()?;
        peer.finish()
    })?;
    let relay = stage.relay(server.address())?;
    let clients = stage.net.client.enter(|| {
        let connect = |_| Peer::connect(relay.address());
        (0..CONNECTIONS).map(connect).collect::<Result<Vec<_>>>()
    })?;
    let one_of = |seed: u64| {
        let client = clients.get(usize::try_from(seed)?);
        client.ok_or_else(|| anyhow!("no such client"))
    };
    many(CONNECTIONS, 4, |seed| {
        one_of(seed)?.send(&seed.to_be_bytes())
    })?;
    for round in 0..ROUNDS {
        // All requests of a round are under way before the first answer is read.
        many(CONNECTIONS, 4, |seed| {
            let mut own = Stream::new(seed);
            let _ = own.take(usize::try_from(round * BYTES)?);
            one_of(seed)?.send_stream(&mut own, BYTES)
        })?;
        many(CONNECTIONS, 4, |seed| {
            let mut theirs = Stream::new(!seed);
            let _ = theirs.take(usize::try_from(round * BYTES)?);
            one_of(seed)?.expect(&mut theirs, BYTES)
        })?;
    }
    many(CONNECTIONS, 4, |seed| {
        one_of(seed)?.finish()?;
        one_of(seed)?.expect_end()
    })?;
    server.stop()?;
    drop(clients);
    for record in stage.finish(relay, usize::try_from(CONNECTIONS)?)? {
        record.moved(8 + ROUNDS * BYTES, ROUNDS * BYTES)?;
        ensure!(record.end.how == "end", "{record:?}");
    }
    Ok(())
}
