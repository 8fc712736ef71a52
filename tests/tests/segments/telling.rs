//! How a case is told: a client made by hand says segments, and an ordinary upstream checks what comes of them.

use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};
use relay_tests::{
    payload::Stream,
    peer::{Peer, both},
    rawtcp::{
        Bench,
        endpoint::{Endpoint, Terms},
    },
    record::Record,
    relay::Relay,
};

/// More than any story says.
const LENGTH: usize = 512 << 10;

/// What the upstream answers with.
const REPLY: usize = 1000;

/// Bytes that go before a story, so that the engine has the connection when it begins.
const AHEAD: usize = 10;

/// Says bytes of the stream, from the given offset on, in whatever way; gives how far it has come.
pub(crate) type Story = fn(&mut Endpoint<'_>, &[u8], usize) -> Result<usize>;

/// Tells each of `stories` twice: from the first byte on, and to a connection that is being carried.
pub(crate) fn tell(bench: &Bench, stories: &[Story]) -> Result<()> {
    tell_after(bench, &[0, AHEAD], stories)
}

/// Tells each of `stories`, which say a FIN themselves, to a connection that is being carried: a socket with a FIN is not
/// for every engine.
pub(crate) fn tell_to_the_end(bench: &Bench, stories: &[Story]) -> Result<()> {
    tell_after(bench, &[AHEAD], stories)
}

fn tell_after(bench: &Bench, aheads: &[usize], stories: &[Story]) -> Result<()> {
    let listener = bench.stage.listen()?;
    let relay = bench.stage.relay(listener.address())?;
    let bytes = Stream::new(1).take(LENGTH);
    let mut lengths = Vec::new();
    for (number, story) in stories.iter().enumerate() {
        for &ahead in aheads {
            let terms = Terms {
                // Sequence numbers wrap in the middle of some.
                first: [u32::MAX - 1500, 7][lengths.len() % 2],
                ..Terms::default()
            };
            let (mut client, upstream) = bench.join(&relay, &listener, terms)?;
            let told = told(&mut client, &upstream, &bytes, ahead, *story);
            let length = told.with_context(|| format!("story {number} after {ahead} bytes"))?;
            lengths.push((client.local(), length as u64));
        }
    }
    check(bench, relay, &lengths)
}

fn told(
    client: &mut Endpoint<'_>,
    upstream: &Peer,
    bytes: &[u8],
    ahead: usize,
    story: Story,
) -> Result<usize> {
    let mut expected = Stream::new(1);
    client.data(0, &bytes[..ahead])?;
    upstream.expect(&mut expected, ahead as u64)?;
    client.wait_acked(ahead)?;
    let mut length = 0;
    let carried = AtomicBool::new(ahead > 0);
    let say = || {
        length = story(client, bytes, ahead)?;
        let carried = |_: &Endpoint<'_>| carried.load(Ordering::Relaxed);
        client.wait("the first byte to arrive", carried)?;
        client.last(length, &[])?;
        client.wait_acked(length + 1)
    };
    let listen = || {
        let mut came = vec![0; 64 << 10];
        loop {
            match upstream.read(&mut came)? {
                0 => return Ok(()),
                count => expected.check(&came[..count])?,
            }
            carried.store(true, Ordering::Relaxed);
        }
    };
    both(say, listen)?;
    anyhow::ensure!(
        expected.at() == length as u64,
        "the end after {} of {length} bytes",
        expected.at()
    );
    reply(client, upstream)?;
    Ok(length)
}

/// The upstream answers and ends; the client gets all of it.
pub(crate) fn reply(client: &mut Endpoint<'_>, upstream: &Peer) -> Result<()> {
    upstream.send_stream(&mut Stream::new(2), REPLY as u64)?;
    upstream.finish()?;
    client.wait("the upstream's FIN", Endpoint::has_ended)?;
    let mut expected = Stream::new(2);
    expected.check(client.take())?;
    anyhow::ensure!(expected.at() == REPLY as u64, "not the whole reply");
    Ok(())
}

/// Ends relay and checks the records of clients that have sent so many bytes and got the reply.
pub(crate) fn check(bench: &Bench, relay: Relay, lengths: &[(String, u64)]) -> Result<()> {
    let records = bench.stage.finish(relay, lengths.len())?;
    for (client, length) in lengths {
        record_of(&records, client)?
            .ended("client", "end")?
            .moved(*length, REPLY as u64)?;
    }
    Ok(())
}

/// The record of the connection from `client`.
pub(crate) fn record_of<'a>(records: &'a [Record], client: &str) -> Result<&'a Record> {
    let record = records.iter().find(|record| record.client == client);
    record.with_context(|| format!("no record of {client}"))
}
