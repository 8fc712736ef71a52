//! Bytes at the first possible moment, while relay is not done with the connection.

use anyhow::{Result, ensure};
use relay_tests::{
    payload::Stream,
    rawtcp::{
        Bench,
        endpoint::{Endpoint, Terms},
    },
};

use crate::telling::{check, reply};

/// The segment that completes the handshake has bytes, and others follow at once.
pub(crate) fn bytes_with_the_handshake(bench: &Bench) -> Result<()> {
    let listener = bench.stage.listen()?;
    let relay = bench.stage.relay(listener.address())?;
    let bytes = Stream::new(1).take(30_000);
    let mut lengths = Vec::new();
    for step in [30_000, 10_000, 1000, 100, 7000, 3000] {
        let mut client = bench.dial(&relay, Terms::default())?;
        for begin in (0..bytes.len()).step_by(step) {
            // Each but the first repeats the end of the one before.
            let again = begin.min(50);
            client.data(
                begin - again,
                &bytes[begin - again..bytes.len().min(begin + step)],
            )?;
        }
        let upstream = listener.accept()?;
        upstream.expect(&mut Stream::new(1), bytes.len() as u64)?;
        client.last(bytes.len(), &[])?;
        upstream.expect_end()?;
        reply(&mut client, &upstream)?;
        lengths.push((client.local(), bytes.len() as u64));
    }
    check(bench, relay, &lengths)
}

/// The upstream speaks right behind its SYN-ACK.
pub(crate) fn bytes_with_the_syn_ack(bench: &Bench) -> Result<()> {
    let relay = bench.relay_to_test()?;
    let bytes = Stream::new(1).take(30_000);
    for step in [30_000, 10_000, 1000, 100, 7000, 3000] {
        let (client, mut upstream) = bench.serve(&relay, Terms::default())?;
        for begin in (0..bytes.len()).step_by(step) {
            let again = begin.min(50);
            upstream.data(
                begin - again,
                &bytes[begin - again..bytes.len().min(begin + step)],
            )?;
        }
        client.expect(&mut Stream::new(1), bytes.len() as u64)?;
        upstream.last(bytes.len(), &[])?;
        client.expect_end()?;
        client.send(b"thanks")?;
        client.finish()?;
        upstream.wait("the client's FIN", Endpoint::has_ended)?;
        ensure!(upstream.take() == b"thanks", "{upstream:?}");
    }
    for record in bench.stage.finish(relay, 6)? {
        record.ended("upstream", "end")?.moved(6, 30_000)?;
    }
    Ok(())
}
