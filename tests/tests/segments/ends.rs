//! Resets: the other side must never take one for a clean end.

use std::sync::atomic::AtomicBool;

use anyhow::{Context, Result, bail};
use relay_tests::{
    payload::Stream,
    rawtcp::{Bench, endpoint::Terms},
};

use crate::telling::record_of;

/// A reset when all before it has arrived.
pub(crate) fn a_reset_in_mid_stream(bench: &Bench) -> Result<()> {
    let listener = bench.stage.listen()?;
    let relay = bench.stage.relay(listener.address())?;
    let bytes = Stream::new(1).take(10_000);
    let lengths = [1, 100, 10_000];
    let mut clients = Vec::new();
    for length in lengths {
        let (mut client, upstream) = bench.join(&relay, &listener, Terms::default())?;
        client.data(0, &bytes[..length])?;
        upstream.expect(&mut Stream::new(1), length as u64)?;
        client.wait_acked(length)?;
        client.reset(length)?;
        upstream.expect_reset()?;
        clients.push(client.local());
    }
    let records = bench.stage.finish(relay, lengths.len())?;
    for (client, length) in clients.iter().zip(lengths) {
        let record = record_of(&records, client)?;
        record.ended("client", "reset")?.moved(length as u64, 0)?;
    }
    Ok(())
}

/// A reset right behind bytes, at once and behind a hole; and one while relay has bytes for the client.
pub(crate) fn a_reset_behind_bytes(bench: &Bench) -> Result<()> {
    let listener = bench.stage.listen()?;
    let relay = bench.stage.relay(listener.address())?;
    let bytes = Stream::new(1).take(50_000);

    let (mut client, upstream) = bench.join(&relay, &listener, Terms::default())?;
    client.data(0, &bytes[..10])?;
    upstream.expect(&mut Stream::new(1), 10)?;
    client.data(10, &bytes[10..])?;
    client.reset(bytes.len())?;
    upstream.expect_reset()?;

    let (mut client, upstream) = bench.join(&relay, &listener, Terms::default())?;
    client.data(0, &bytes[..10])?;
    upstream.expect(&mut Stream::new(1), 10)?;
    client.data(20, &bytes[20..])?;
    client.reset(10)?;
    upstream.expect_reset()?;

    let terms = Terms {
        window: 1000,
        scale: None,
        ..Terms::default()
    };
    let (mut client, upstream) = bench.join(&relay, &listener, terms)?;
    client.data(0, &bytes[..10])?;
    upstream.expect(&mut Stream::new(1), 10)?;
    upstream.send_stream(&mut Stream::new(2), 50_000)?;
    client.wait("bytes", |client| client.came() > 0)?;
    client.reset(10)?;
    upstream.push_into_reset(&mut Stream::new(2))?;

    for record in bench.stage.finish(relay, 3)? {
        record.ended("client", "reset")?;
    }
    Ok(())
}

/// The client has ended its direction and then resets: the upstream, which goes on, must see that.
pub(crate) fn a_reset_behind_the_fin(bench: &Bench) -> Result<()> {
    let listener = bench.stage.listen()?;
    let relay = bench.stage.relay(listener.address())?;
    let bytes = Stream::new(1).take(5000);
    let (mut client, upstream) = bench.join(&relay, &listener, Terms::default())?;
    let mut expected = Stream::new(1);
    client.data(0, &bytes[..100])?;
    upstream.expect(&mut expected, 100)?;
    client.last(100, &bytes[100..])?;
    upstream.expect(&mut expected, 4900)?;
    upstream.expect_end()?;
    client.wait_acked(5001)?;
    client.reset(5001)?;
    let pushed = upstream.send_until(&mut Stream::new(2), &AtomicBool::new(false));
    match pushed.map_err(|error| error.raw_os_error()) {
        // After a FIN the kernel says EPIPE to a writer whom a reset has met.
        Err(Some(libc::ECONNRESET | libc::EPIPE)) => (),
        Err(errno) => bail!("instead of a reset: {errno:?}"),
        Ok(()) => bail!("it stopped sending"),
    }
    let records = bench.stage.finish(relay, 1)?;
    let record = records.first().context("no record")?;
    record
        .ended("client", "reset")?
        .moved(5000, record.bytes_down)?;
    Ok(())
}
