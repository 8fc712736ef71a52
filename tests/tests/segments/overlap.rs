//! Segments that repeat what was received before: TCP leaves it to whoever reads to skip that.

use std::{thread, time::Duration};

use anyhow::{Context, Result, ensure};
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use relay_tests::{
    patience,
    payload::Stream,
    peer::{Listener, Peer, both},
    rawtcp::{
        Bench,
        endpoint::{Endpoint, Terms},
        scramble::{self, Cuts},
    },
};

use crate::telling::{check, record_of, reply, tell};

/// Segments of an ordinary network.
const SMALL: Cuts = Cuts {
    fresh: 1460,
    again: 3000,
    burst: 24,
    lost: 24,
};

/// The largest segments, and far more repeated than the 4095 bytes that a verdict can cut off at once.
const LARGE: Cuts = Cuts {
    fresh: 20_000,
    again: 60_000,
    burst: 12,
    lost: 24,
};

pub(crate) fn a_repeated_head(bench: &Bench) -> Result<()> {
    let acknowledged = |client: &mut Endpoint<'_>, bytes: &[u8], from: usize| {
        for (begin, end) in REPEATED {
            client.data(from + begin, &bytes[from + begin..from + end])?;
            client.wait_acked(from + end)?;
        }
        Ok(from + 2001)
    };
    let at_once = |client: &mut Endpoint<'_>, bytes: &[u8], from: usize| {
        for (begin, end) in REPEATED {
            client.data(from + begin, &bytes[from + begin..from + end])?;
        }
        Ok(from + 2001)
    };
    tell(bench, &[acknowledged, at_once])
}

/// Each repeats something; some have nothing new.
const REPEATED: [(usize, usize); 6] = [
    (0, 1000),
    (500, 1500),
    (0, 2000),
    (1999, 2000),
    (0, 1),
    (0, 2001),
];

/// What is repeated need not be what was received; the receiver has to keep to the first.
pub(crate) fn a_repeated_head_of_garbage(bench: &Bench) -> Result<()> {
    let story = |client: &mut Endpoint<'_>, bytes: &[u8], from: usize| {
        client.data(from, &bytes[from..from + 9000])?;
        for fresh in [1, 2, 100, 4095, 4096] {
            let at = client
                .acked()
                .try_into()
                .unwrap_or(usize::MAX)
                .max(from + 9000);
            client.wait_acked(at)?;
            let mut lie = bytes[from..at + fresh].to_vec();
            lie[..at - from].fill(0xee);
            client.data(from, &lie)?;
            client.wait_acked(at + fresh)?;
        }
        Ok(from + 9000 + 1 + 2 + 100 + 4095 + 4096)
    };
    tell(bench, &[story])
}

pub(crate) fn large_overlaps(bench: &Bench) -> Result<()> {
    tell(
        bench,
        &[
            |client, bytes, from| overlaps_of(client, bytes, from, 1),
            |client, bytes, from| overlaps_of(client, bytes, from, 5000),
        ],
    )
}

fn overlaps_of(
    client: &mut Endpoint<'_>,
    bytes: &[u8],
    from: usize,
    fresh: usize,
) -> Result<usize> {
    let mut at = from;
    for overlap in [4094, 4095, 4096, 8190, 8191, 30_000, 59_999] {
        for (begin, end) in [(at, at + overlap), (at, at + overlap + fresh)] {
            client.wait("room", |client| client.limit() >= end as u64)?;
            client.data(begin, &bytes[begin..end])?;
            client.wait_acked(end)?;
        }
        at += overlap + fresh;
    }
    Ok(at)
}

/// Everything that a client may have said before relay accepts it lies in its queue as it came.
pub(crate) fn overlaps_before_accept(bench: &Bench) -> Result<()> {
    let listener = bench.stage.listen()?;
    let relay = bench.stage.relay(listener.address())?;
    let bytes = Stream::new(1).take(40_000);
    relay.pause()?;
    let mut client = bench.dial(&relay, Terms::default())?;
    for (begin, end) in REPEATED {
        client.data(begin, &bytes[begin..end])?;
    }
    for (begin, end) in [
        (1500, 10_000),
        (12_000, 20_000),
        (11_000, 40_000),
        (2, 12_500),
    ] {
        client.data(begin, &bytes[begin..end])?;
    }
    client.wait_acked(40_000)?;
    relay.resume()?;
    let upstream = listener.accept()?;
    upstream.expect(&mut Stream::new(1), 40_000)?;
    client.last(39_000, &bytes[39_000..])?;
    upstream.expect_end()?;
    reply(&mut client, &upstream)?;
    check(bench, relay, &[(client.local(), 40_000)])
}

pub(crate) fn random_small_cuts(bench: &Bench) -> Result<()> {
    from_client(bench, SMALL, 20, 100_000)
}

pub(crate) fn random_large_cuts(bench: &Bench) -> Result<()> {
    from_client(bench, LARGE, 6, 1_500_000)
}

fn from_client(bench: &Bench, cuts: Cuts, connections: u64, most: usize) -> Result<()> {
    let listener = bench.stage.listen()?;
    let relay = bench.stage.relay(listener.address())?;
    let mut lengths = Vec::new();
    for seed in 0..connections {
        let mut random = Pcg64Mcg::seed_from_u64(seed);
        let bytes = Stream::new(seed).take(random.random_range(1..=most));
        let terms = terms(&mut random, bytes.len());
        let (mut client, upstream) = bench.join(&relay, &listener, terms)?;
        let mut expected = Stream::new(seed);
        // A socket with a FIN is not for every engine: that comes when the connection is being carried.
        client.data(0, &bytes[..1])?;
        upstream.expect(&mut expected, 1)?;
        let read = || expect_all(&upstream, &mut expected, bytes.len());
        both(
            || scramble::send(&mut client, &bytes, cuts, &mut random),
            read,
        )
        .with_context(|| format!("seed {seed}: {} bytes, {client:?}", bytes.len()))?;
        reply(&mut client, &upstream)?;
        lengths.push((client.local(), bytes.len() as u64));
    }
    check(bench, relay, &lengths)
}

/// Sequence numbers wrap somewhere in the stream; options vary.
fn terms(random: &mut Pcg64Mcg, length: usize) -> Terms {
    let ahead = random.random_range(0..=length);
    Terms {
        first: 0_u32.wrapping_sub(ahead as u32),
        sack: random.random(),
        stamps: random.random(),
        ..Terms::default()
    }
}

fn expect_all(peer: &Peer, stream: &mut Stream, length: usize) -> Result<()> {
    let left = length as u64 - stream.at();
    peer.expect(stream, left)?;
    peer.expect_end()
}

pub(crate) fn random_cuts_from_upstream(bench: &Bench) -> Result<()> {
    let relay = bench.relay_to_test()?;
    let mut lengths = Vec::new();
    for seed in 0..12 {
        let cuts = if seed % 2 == 0 { SMALL } else { LARGE };
        let mut random = Pcg64Mcg::seed_from_u64(seed);
        let bytes = Stream::new(seed).take(random.random_range(1..=200_000));
        let terms = terms(&mut random, bytes.len());
        let (client, mut upstream) = bench.serve(&relay, terms)?;
        let mut expected = Stream::new(seed);
        upstream.data(0, &bytes[..1])?;
        client.expect(&mut expected, 1)?;
        let read = || expect_all(&client, &mut expected, bytes.len());
        both(
            || scramble::send(&mut upstream, &bytes, cuts, &mut random),
            read,
        )
        .with_context(|| format!("seed {seed}: {} bytes, {upstream:?}", bytes.len()))?;
        client.send_stream(&mut Stream::new(2), 1000)?;
        client.finish()?;
        upstream.wait("the client's FIN", Endpoint::has_ended)?;
        Stream::new(2).check(upstream.take())?;
        ensure!(upstream.came() == 1000, "{upstream:?}");
        lengths.push((client.local()?, bytes.len() as u64));
    }
    let records = bench.stage.finish(relay, lengths.len())?;
    for (client, length) in lengths {
        let record = record_of(&records, &client)?;
        record.ended("upstream", "end")?.moved(1000, length)?;
    }
    Ok(())
}

/// The upstream reads only when nothing goes any more, so relay's buffers are full of overlaps.
pub(crate) fn random_cuts_to_a_late_reader(bench: &Bench) -> Result<()> {
    let relay_place = &bench.stage.net.relay;
    relay_place.sysctl("net/ipv4/tcp_rmem", "4096 131072 1048576")?;
    relay_place.sysctl("net/ipv4/tcp_wmem", "4096 131072 1048576")?;
    let listener = bench
        .stage
        .net
        .upstream
        .enter(|| Listener::bind_with(&bench.stage.net.at_upstream(), 16, Some(64 << 10)))?;
    let relay = bench.stage.relay(listener.address())?;
    let mut lengths = Vec::new();
    for (seed, cuts) in [(1, SMALL), (2, LARGE)] {
        let mut random = Pcg64Mcg::seed_from_u64(seed);
        let bytes = Stream::new(seed).take(5_000_000);
        let terms = terms(&mut random, bytes.len());
        let (mut client, upstream) = bench.join(&relay, &listener, terms)?;
        let read = || {
            // relay has nothing more to give when this stands still; when it goes on later that is as good a test.
            let mut last = 0;
            patience::until_true("a queue that stands still", || {
                thread::sleep(Duration::from_millis(100));
                let queued = rustix::io::ioctl_fionread(upstream.as_socket())?;
                Ok(queued > 0 && std::mem::replace(&mut last, queued) == queued)
            })?;
            expect_all(&upstream, &mut Stream::new(seed), bytes.len())
        };
        both(
            || scramble::send(&mut client, &bytes, cuts, &mut random),
            read,
        )
        .with_context(|| format!("seed {seed}: {client:?}"))?;
        reply(&mut client, &upstream)?;
        lengths.push((client.local(), bytes.len() as u64));
    }
    check(bench, relay, &lengths)
}
