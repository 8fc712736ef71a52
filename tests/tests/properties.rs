//! Random talk on both sides: whatever the pieces, pauses and ends, every byte comes once and in order.

use std::{thread, time::Duration};

use anyhow::{Result, anyhow, ensure};
use proptest::{
    collection::vec,
    prelude::*,
    test_runner::{Config, TestRunner},
};
use relay_tests::{
    matrix::Stage,
    needs::{self, Need},
    payload::Stream,
    peer::{Peer, both},
    record::Engine,
    relay::Relay,
    topology::Wire,
};

const CASES: u32 = 200;

/// What one side does with the bytes that it sends and with those that it gets.
#[derive(Clone, Debug)]
struct Talk {
    /// Before its first byte, in microseconds.
    silence: u64,
    pieces: Vec<Piece>,
    reads: Vec<Read>,
    /// Whether it ends its own direction only when it has the other's end.
    last: bool,
}

#[derive(Clone, Debug)]
struct Piece {
    length: u16,
    /// After it, in microseconds.
    pause: u64,
}

#[derive(Clone, Debug)]
struct Read {
    most: u16,
    /// Before it, in microseconds.
    stall: u64,
}

/// Mostly nothing, sometimes a moment, seldom long enough for every buffer to fill.
fn pause() -> impl Strategy<Value = u64> {
    prop_oneof![12 => Just(0), 3 => 1..500_u64, 1 => 1_000..20_000_u64]
}

fn length() -> impl Strategy<Value = u16> {
    prop_oneof![3 => 1..4_u16, 3 => 1_u16..1_500, 2 => 1_u16..=u16::MAX]
}

fn talk() -> impl Strategy<Value = Talk> {
    let piece = (length(), pause()).prop_map(|(length, pause)| Piece { length, pause });
    let read = (length(), pause()).prop_map(|(most, stall)| Read { most, stall });
    (pause(), vec(piece, 0..24), vec(read, 1..24)).prop_map(|(silence, pieces, reads)| Talk {
        silence,
        pieces,
        reads,
        last: false,
    })
}

/// Both sides; at most one of them waits for the other's end.
fn talks() -> impl Strategy<Value = (Talk, Talk)> {
    (talk(), talk(), 0..4).prop_map(|(mut client, mut upstream, last)| {
        client.last = last == 1;
        upstream.last = last == 2;
        (client, upstream)
    })
}

fn rest(microseconds: u64) {
    if microseconds > 0 {
        thread::sleep(Duration::from_micros(microseconds));
    }
}

fn total(talk: &Talk) -> u64 {
    talk.pieces
        .iter()
        .map(|piece| u64::from(piece.length))
        .sum()
}

fn play(peer: &Peer, own: &Talk, seed: u64, theirs: (u64, u64)) -> Result<()> {
    let speak = || {
        rest(own.silence);
        let mut stream = Stream::new(seed);
        for piece in &own.pieces {
            peer.send_stream(&mut stream, piece.length.into())?;
            rest(piece.pause);
        }
        if own.last { Ok(()) } else { peer.finish() }
    };
    let listen = || {
        let (seed, length) = theirs;
        let mut stream = Stream::new(seed);
        let mut left = length;
        for read in own.reads.iter().cycle() {
            if left == 0 {
                break;
            }
            // Seldom more than a few hundred stalls, however small the reads are.
            let most = u64::from(read.most).max(length / 200).min(left);
            rest(read.stall);
            peer.expect(&mut stream, most)?;
            left -= most;
        }
        peer.expect_end()
    };
    both(speak, listen)?;
    if own.last { peer.finish() } else { Ok(()) }
}

fn every_byte_once_and_in_order(engine: Engine) -> Result<()> {
    let name = format!("properties::{engine}::every_byte_once_and_in_order");
    if !needs::met(&name, &[Need::Offered(engine)])? {
        return Ok(());
    }
    let net = Wire::Loopback.build()?;
    let stage = Stage { engine, net };
    let listener = stage.listen()?;
    // A side may have ended before the engine begins, which sockmap declines.
    let relay = stage.launch_ladder(listener.address()).start()?;
    let config = Config {
        cases: CASES,
        max_shrink_iters: 30,
        failure_persistence: None,
        ..Config::default()
    };
    let case = |(client, upstream): (Talk, Talk)| {
        let one = || -> Result<()> {
            let near = stage.connect(&relay)?;
            let far = listener.accept()?;
            let (up, down) = (total(&client), total(&upstream));
            both(
                || play(&near, &client, 1, (2, down)),
                || play(&far, &upstream, 2, (1, up)),
            )?;
            judge(&relay, &near.local()?, engine, (up, down))
        };
        one().map_err(|fault| TestCaseError::fail(format!("{fault:#}")))
    };
    TestRunner::new(config)
        .run(&talks(), case)
        .map_err(|failure| anyhow!("{failure}"))?;
    let records = relay.records(CASES as usize)?;
    // With auto, those that have moved in the middle of it.
    let (carrier, least) = match engine {
        Engine::Auto => (Engine::Sockmap, records.len() / 4),
        engine => (engine, records.len() / 2),
    };
    let carried = records.iter().filter(|one| one.engine == Some(carrier));
    let carried = carried.count();
    ensure!(carried > least, "{carrier} carried {carried} only");
    relay.finish_all().map(drop)
}

fn judge(relay: &Relay, client: &str, engine: Engine, moved: (u64, u64)) -> Result<()> {
    let record = relay.record_of(client)?;
    record.moved(moved.0, moved.1)?;
    ensure!(record.end.how == "end", "{record:?}");
    if record.carried_by(engine).is_err() {
        let why = record.why_not(engine)?;
        ensure!(why.contains("ended its direction"), "{record:?}");
    }
    Ok(())
}

mod sockmap {
    #[test]
    fn every_byte_once_and_in_order() -> anyhow::Result<()> {
        super::every_byte_once_and_in_order(super::Engine::Sockmap)
    }
}

mod splice {
    #[test]
    fn every_byte_once_and_in_order() -> anyhow::Result<()> {
        super::every_byte_once_and_in_order(super::Engine::Splice)
    }
}

mod copy {
    #[test]
    fn every_byte_once_and_in_order() -> anyhow::Result<()> {
        super::every_byte_once_and_in_order(super::Engine::Copy)
    }
}

mod auto {
    #[test]
    fn every_byte_once_and_in_order() -> anyhow::Result<()> {
        super::every_byte_once_and_in_order(super::Engine::Auto)
    }
}
