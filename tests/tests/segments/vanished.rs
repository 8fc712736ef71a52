//! A peer that is there no more.

use std::{thread, time::Duration};

use anyhow::{Result, ensure};
use relay_tests::{
    census,
    payload::Stream,
    rawtcp::{Bench, endpoint::Terms},
};

/// The client says nothing any more while there is much for it, and was in the middle of something itself.
pub(crate) fn client_vanishes(bench: &Bench) -> Result<()> {
    let listener = bench.stage.listen()?;
    let relay = bench.stage.relay(listener.address())?;
    let (mut client, upstream) = bench.join(&relay, &listener, Terms::default())?;
    client.data(0, b"hello")?;
    ensure!(upstream.receive(5)? == b"hello", "not the greeting");
    client.wait_acked(5)?;
    client.data(100, b"behind a hole")?;
    client.vanish();
    // More than anybody takes: what cannot be sent stays with the upstream.
    upstream.as_socket().set_nonblocking(true)?;
    let mut stream = Stream::new(2);
    let _ = upstream.send_stream(&mut stream, 64 << 20);
    thread::sleep(Duration::from_millis(500));

    let before = census::processor(relay.process())?;
    thread::sleep(Duration::from_secs(3));
    let used = census::processor(relay.process())? - before;
    // Spinning would be 3 s, or as much of it as a loaded machine gives.
    ensure!(
        used < Duration::from_millis(500),
        "{used:?} of processor time for nothing"
    );

    client.reset(5)?;
    for record in bench.stage.finish(relay, 1)? {
        record.ended("client", "reset")?;
    }
    Ok(())
}
