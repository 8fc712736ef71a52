//! R14: bytes that arrive before, between and after the steps by which an engine takes a connection.

use std::{
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;

use crate::{
    matrix::Stage,
    payload::Stream,
    peer::{Peer, both, many},
};

const CONNECTIONS: u64 = 400;
const LANES: u64 = 4;

/// Both sides begin to speak at random moments in the first milliseconds, in pieces of random sizes.
///
/// # Errors
///
/// Fails when a byte is lost, repeated or late, and when one of the connections hangs.
pub fn bytes_at_every_moment_of_the_start(stage: &Stage) -> Result<()> {
    let server = stage.listen()?.serve(|peer| speak(&peer, 1, 2))?;
    let relay = stage.relay(server.address())?;
    many(CONNECTIONS, LANES, |_| speak(&stage.connect(&relay)?, 2, 1))?;
    server.stop()?;
    stage.finish(relay, usize::try_from(CONNECTIONS)?)?;
    Ok(())
}

const SPOKEN: u64 = 6;

fn speak(peer: &Peer, own: u64, theirs: u64) -> Result<()> {
    let mut random = Pcg64Mcg::seed_from_u64(rand::random());
    let talk = || {
        let mut stream = Stream::new(own);
        for _ in 0..SPOKEN {
            // Mostly at once, else within the time that accepting, dialling and entering take.
            if random.random_bool(0.5) {
                thread::sleep(Duration::from_micros(random.random_range(0..2000)));
            }
            let length: u16 = random.random_range(1..3000);
            peer.send(&length.to_be_bytes())?;
            peer.send_stream(&mut stream, length.into())?;
        }
        Ok(())
    };
    let listen = || {
        let mut stream = Stream::new(theirs);
        for _ in 0..SPOKEN {
            let length = peer.receive(2)?;
            peer.expect(
                &mut stream,
                u16::from_be_bytes([length[0], length[1]]).into(),
            )?;
        }
        Ok(())
    };
    both(talk, listen)?;
    // Only now: a FIN before the start is another story.
    peer.finish()?;
    peer.expect_end()
}

/// One side says one word at some moment of the start and then waits for the answer: nothing comes later that could
/// carry the word along.
///
/// # Errors
///
/// Fails when a word is left lying until more comes.
pub fn one_word_at_every_moment_of_the_start(stage: &Stage) -> Result<()> {
    const CONNECTIONS: u64 = 2_000;
    let server = stage.listen()?.serve(|peer| {
        let answer = peer.receive(WORD.len())?;
        peer.send(&answer)?;
        peer.expect_end()?;
        peer.finish()
    })?;
    let relay = stage.relay(server.address())?;
    many(CONNECTIONS, LANES, |number| {
        let client = stage.connect(&relay)?;
        // Entering takes some tens of microseconds, a few hundred after the connect.
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_micros(number % 400 * 2) {
            std::hint::spin_loop();
        }
        client.send(WORD)?;
        ensure!(client.receive(WORD.len())? == WORD, "another word");
        client.finish()?;
        client.expect_end()
    })?;
    server.stop()?;
    stage.finish(relay, usize::try_from(CONNECTIONS)?)?;
    Ok(())
}

const WORD: &[u8] = b"anybody?";

/// The client has spoken before relay even accepts, and says no more until it is answered.
///
/// # Errors
///
/// Fails when the first bytes are not carried until more come.
pub fn bytes_before_accept(stage: &Stage) -> Result<()> {
    let listener = stage.listen()?;
    let relay = stage.relay(listener.address())?;
    for round in 0..5 {
        relay.pause()?;
        let client = stage.connect(&relay)?;
        let mut sent = Stream::new(round);
        client.send_stream(&mut sent, 30_000)?;
        relay.resume()?;
        let upstream = listener.accept()?;
        let mut came = Stream::new(round);
        upstream.expect(&mut came, 30_000)?;
        upstream.send(b"welcome")?;
        ensure!(client.receive(7)? == b"welcome");
        client.send_stream(&mut sent, 1)?;
        upstream.expect(&mut came, 1)?;
        client.finish()?;
        upstream.expect_end()?;
        upstream.finish()?;
        client.expect_end()?;
    }
    for record in stage.finish(relay, 5)? {
        record.moved(30_001, 7)?;
    }
    Ok(())
}
