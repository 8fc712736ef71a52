//! What auto makes of a connection: where it begins, when it moves, and that it moves whole.

use anyhow::{Context, Result, ensure};
use relay_tests::{
    needs::{self, Need},
    payload::Stream,
    peer::{Address, Listener, Peer, both},
    record::{Engine, Record},
    relay::{Launch, Relay},
};

const WORD: &[u8] = b"a word";

struct Bench {
    relay: Relay,
    client: Peer,
    upstream: Peer,
}

impl Bench {
    fn start(name: &str, arguments: &[&str]) -> Result<Option<Self>> {
        if !needs::met(name, &[Need::Offered(Engine::Sockmap)])? {
            return Ok(None);
        }
        let anywhere = Address::parse("127.0.0.1:0")?;
        let listener = Listener::bind(&anywhere)?;
        let launch = Launch::forward(&anywhere, listener.address()).with(arguments.iter().copied());
        let relay = launch.start()?;
        let client = Peer::connect(relay.address())?;
        let upstream = listener.accept()?;
        Ok(Some(Self {
            relay,
            client,
            upstream,
        }))
    }

    fn talk(&self, rounds: u32) -> Result<()> {
        for _ in 0..rounds {
            self.client.send(WORD)?;
            ensure!(self.upstream.receive(WORD.len())? == WORD);
            self.upstream.send(WORD)?;
            ensure!(self.client.receive(WORD.len())? == WORD);
        }
        Ok(())
    }

    fn bulk(&self, bytes: u64) -> Result<()> {
        let way = |from: &Peer, to: &Peer, seed| {
            both(
                || from.send_stream(&mut Stream::new(seed), bytes),
                || to.expect(&mut Stream::new(seed), bytes),
            )
        };
        both(
            || way(&self.client, &self.upstream, 1),
            || way(&self.upstream, &self.client, 2),
        )
    }

    /// Ends it, and checks how many bytes went each way.
    fn finish(self, bytes: u64) -> Result<Record> {
        self.client.finish()?;
        self.upstream.expect_end()?;
        self.upstream.finish()?;
        self.client.expect_end()?;
        let record = self.relay.finish(1)?.pop().context("no record")?;
        record.ended("client", "end")?.moved(bytes, bytes)?;
        Ok(record)
    }
}

fn words(rounds: u32) -> u64 {
    u64::from(rounds) * WORD.len() as u64
}

/// So many round trips and then the end, which `engine` has carried without another's having declined.
fn talk_ends_with(name: &str, arguments: &[&str], rounds: u32, engine: Engine) -> Result<()> {
    let Some(bench) = Bench::start(name, arguments)? else {
        return Ok(());
    };
    bench.talk(rounds)?;
    let record = bench.finish(words(rounds))?;
    record.carried_by(engine)?;
    ensure!(record.declined.is_empty(), "{record:?}");
    Ok(())
}

#[test]
fn few_words_stay_with_splice() -> Result<()> {
    talk_ends_with("policy::few_words_stay_with_splice", &[], 3, Engine::Splice)
}

#[test]
fn a_talk_moves_into_the_map() -> Result<()> {
    talk_ends_with(
        "policy::a_talk_moves_into_the_map",
        &[],
        10,
        Engine::Sockmap,
    )
}

#[test]
fn at_once_needs_no_talk() -> Result<()> {
    let at_once = ["--offload-after", "0"];
    talk_ends_with(
        "policy::at_once_needs_no_talk",
        &at_once,
        1,
        Engine::Sockmap,
    )
}

/// While a target is full, its source tells of many bytes only. In the map, the program would not be told of a word.
#[test]
fn a_talk_after_a_stall_moves_too() -> Result<()> {
    let name = "policy::a_talk_after_a_stall_moves_too";
    let Some(bench) = Bench::start(name, &[])? else {
        return Ok(());
    };
    let pushed = bench.client.stuff(&mut Stream::new(1))?;
    bench.upstream.expect(&mut Stream::new(1), pushed)?;
    bench.talk(20)?;
    both(
        || bench.upstream.send_stream(&mut Stream::new(2), pushed),
        || bench.client.expect(&mut Stream::new(2), pushed),
    )?;
    bench
        .finish(pushed + words(20))?
        .carried_by(Engine::Sockmap)?;
    Ok(())
}

#[test]
fn bulk_stays_with_splice() -> Result<()> {
    const BYTES: u64 = 50 << 20;
    let Some(bench) = Bench::start("policy::bulk_stays_with_splice", &[])? else {
        return Ok(());
    };
    bench.talk(1)?;
    bench.bulk(BYTES)?;
    bench.finish(BYTES + words(1))?.carried_by(Engine::Splice)?;
    Ok(())
}

#[test]
fn bulk_after_a_talk_arrives_whole() -> Result<()> {
    const BYTES: u64 = 50 << 20;
    let Some(bench) = Bench::start("policy::bulk_after_a_talk_arrives_whole", &[])? else {
        return Ok(());
    };
    bench.talk(10)?;
    bench.bulk(BYTES)?;
    bench.talk(10)?;
    let record = bench.finish(BYTES + words(20))?;
    record.carried_by(Engine::Sockmap)?;
    Ok(())
}

#[test]
fn a_stream_of_small_pieces_moves_too() -> Result<()> {
    let name = "policy::a_stream_of_small_pieces_moves_too";
    let Some(bench) = Bench::start(name, &["--offload-after", "2"])? else {
        return Ok(());
    };
    const PIECES: u32 = 50;
    for _ in 0..PIECES {
        bench.upstream.send(WORD)?;
        ensure!(bench.client.receive(WORD.len())? == WORD);
    }
    bench.client.send(&WORD.repeat(PIECES as usize))?;
    bench.upstream.receive(WORD.len() * PIECES as usize)?;
    bench.finish(words(PIECES))?.carried_by(Engine::Sockmap)?;
    Ok(())
}
