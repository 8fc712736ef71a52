//! A PROXY protocol header, which relay reads itself, and segments in which it is not alone.

use anyhow::{Result, ensure};
use relay_tests::{
    payload::Stream,
    rawtcp::{Bench, endpoint::Terms},
    relay::Relay,
};

use crate::telling::reply;

const HEADER: &[u8] = b"PROXY TCP4 192.0.2.1 192.0.2.2 7 8\r\n";
const LENGTH: usize = 60_000;

/// The header, then the bytes.
fn stream() -> Vec<u8> {
    let mut stream = HEADER.to_vec();
    stream.extend(Stream::new(1).take(LENGTH));
    stream
}

fn terms(number: usize) -> Terms {
    Terms {
        // Sequence numbers wrap within the header, and behind it.
        first: [u32::MAX - 20, u32::MAX - 5000, 7][number % 3],
        ..Terms::default()
    }
}

fn check(bench: &Bench, relay: Relay, connections: usize) -> Result<()> {
    for record in bench.stage.finish(relay, connections)? {
        ensure!(record.client == "192.0.2.1:7", "{record:?}");
        ensure!(record.bytes_up == LENGTH as u64, "{record:?}");
    }
    Ok(())
}

const ACCEPT: [&str; 3] = ["--accept-proxy", "--proxy-from", "10.77.0.0/24"];

/// What of the segment is header is read before the engine, and the rest left to it.
pub(crate) fn a_segment_of_header_and_bytes(bench: &Bench) -> Result<()> {
    let listener = bench.stage.listen()?;
    let relay = bench
        .stage
        .launch(listener.address())
        .with(ACCEPT)
        .start()?;
    let stream = stream();
    let first = [1, 10, 1000, 20_000, LENGTH];
    for (number, early) in first.into_iter().enumerate() {
        let mut client = bench.dial(&relay, terms(number))?;
        let split = HEADER.len() + early;
        client.data(0, &stream[..split])?;
        let upstream = listener.accept()?;
        let mut expected = Stream::new(1);
        upstream.expect(&mut expected, early as u64)?;
        client.data(split, &stream[split..])?;
        upstream.expect(&mut expected, (LENGTH - early) as u64)?;
        client.last(stream.len(), &[])?;
        upstream.expect_end()?;
        reply(&mut client, &upstream)?;
    }
    check(bench, relay, first.len())
}

/// What follows repeats the header, which was read by then, in whole or in part.
pub(crate) fn a_repeated_header(bench: &Bench) -> Result<()> {
    let listener = bench.stage.listen()?;
    let relay = bench
        .stage
        .launch(listener.address())
        .with(ACCEPT)
        .start()?;
    let stream = stream();
    let froms = [0, 1, HEADER.len() - 1, HEADER.len()];
    for (number, from) in froms.into_iter().enumerate() {
        let mut client = bench.dial(&relay, terms(number))?;
        for at in 0..HEADER.len() {
            client.data(at, &stream[at..=at])?;
        }
        // The header has been read when the upstream is dialled.
        let upstream = listener.accept()?;
        let mut expected = Stream::new(1);
        let mut end = HEADER.len();
        for fresh in [1, 500, 20_000] {
            client.data(from, &stream[from..end + fresh])?;
            client.wait_acked(end + fresh)?;
            upstream.expect(&mut expected, fresh as u64)?;
            end += fresh;
        }
        client.data(end, &stream[end..])?;
        let left = stream.len() - end;
        upstream.expect(&mut expected, left as u64)?;
        client.last(stream.len(), &[])?;
        upstream.expect_end()?;
        reply(&mut client, &upstream)?;
    }
    check(bench, relay, froms.len())
}
