//! Urgent bytes: relay carries them where they stand in the stream, as bytes like any other, whatever the engine. The mark
//! is not passed on.

use anyhow::Result;
use relay_tests::{
    payload::Stream,
    peer::both,
    rawtcp::{
        Bench,
        endpoint::{Endpoint, Say, Terms},
    },
};

use crate::telling::{check, reply};

pub(crate) fn an_urgent_byte_takes_no_others_along(bench: &Bench) -> Result<()> {
    carries(bench, &[5000], 10_000)
}

pub(crate) fn many_urgent_bytes_take_no_others_along(bench: &Bench) -> Result<()> {
    let places: Vec<usize> = (100..50_000).step_by(777).collect();
    carries(bench, &places, 50_000)
}

/// With the FIN behind it in the queue, an urgent byte must not look like the end.
pub(crate) fn urgent_byte_and_fin_before_accept(bench: &Bench) -> Result<()> {
    let listener = bench.stage.listen()?;
    // A socket with a FIN is not for every engine.
    let relay = bench.stage.launch_ladder(listener.address()).start()?;
    let bytes = Stream::new(1).take(10_000);
    relay.pause()?;
    let mut client = bench.dial(&relay, Terms::default())?;
    say(&mut client, &bytes, &[5000])?;
    client.last(bytes.len(), &[])?;
    client.wait_acked(bytes.len() + 1)?;
    relay.resume()?;
    let upstream = listener.accept()?;
    upstream.expect(&mut Stream::new(1), bytes.len() as u64)?;
    upstream.expect_end()?;
    reply(&mut client, &upstream)?;
    relay.finish(1)?[0]
        .ended("client", "end")?
        .moved(10_000, 1000)?;
    Ok(())
}

fn carries(bench: &Bench, places: &[usize], length: usize) -> Result<()> {
    let listener = bench.stage.listen()?;
    let relay = bench.stage.relay(listener.address())?;
    let bytes = Stream::new(1).take(length);
    let (mut client, upstream) = bench.join(&relay, &listener, Terms::default())?;
    let mut expected = Stream::new(1);
    client.data(0, &bytes[..10])?;
    upstream.expect(&mut expected, 10)?;
    let say_all = || {
        say(&mut client, &bytes, places)?;
        client.last(length, &[])?;
        client.wait_acked(length + 1)
    };
    both(say_all, || {
        upstream.expect(&mut expected, length as u64 - 10)
    })?;
    upstream.expect_end()?;
    reply(&mut client, &upstream)?;
    check(bench, relay, &[(client.local(), length as u64)])
}

/// Segments around each urgent byte, told of by the segment before it as well.
fn say(client: &mut Endpoint<'_>, bytes: &[u8], places: &[usize]) -> Result<()> {
    let mut at = 0;
    for place in places {
        client.say(Say {
            at: i64::try_from(at)?,
            bytes: &bytes[at..place - 10],
            urgent: Some(u16::try_from(place + 1 - at)?),
            ..Say::default()
        })?;
        client.say(Say {
            at: i64::try_from(place - 10)?,
            bytes: &bytes[place - 10..place + 10],
            urgent: Some(11),
            ..Say::default()
        })?;
        at = place + 10;
    }
    client.data(at, &bytes[at..])
}
