//! R11: a reader that stops reading while the sender pushes on.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use anyhow::{Result, ensure};

use crate::{
    census,
    matrix::Stage,
    netns::Place,
    payload::Stream,
    peer::{Listener, Peer, both},
};

/// What relay may hold for the connection besides the two sockets' own buffers.
const BUDGET: u64 = 4 << 20;

/// The most that each buffer of relay's sockets grows to here.
const BUFFER: u64 = 1 << 20;

/// The peers' buffers, as asked for; the kernel doubles that.
const PEER: usize = 128 << 10;

/// The reader stands still for 3 seconds.
///
/// # Errors
///
/// Fails when more is held than the budget and the buffers, and when a byte is wrong afterwards.
pub fn stalled_reader_holds_little(stage: &Stage) -> Result<()> {
    stalls_for(stage, Duration::from_secs(3))
}

/// The reader stands still for a minute.
///
/// # Errors
///
/// Fails when more is held than the budget and the buffers, and when a byte is wrong afterwards.
pub fn stalled_reader_holds_little_for_a_minute(stage: &Stage) -> Result<()> {
    stalls_for(stage, Duration::from_secs(60))
}

fn stalls_for(stage: &Stage, stall: Duration) -> Result<()> {
    if let Place::Inside(_) = stage.net.relay {
        let sizes = format!("4096 131072 {BUFFER}");
        stage.net.relay.sysctl("net/ipv4/tcp_rmem", &sizes)?;
        stage.net.relay.sysctl("net/ipv4/tcp_wmem", &sizes)?;
    }
    let at = stage.net.at_upstream();
    let bind = || Listener::bind_with(&at, 16, Some(PEER));
    let listener = stage.net.upstream.enter(bind)?;
    let relay = stage.relay(listener.address())?;
    let connect = || Peer::connect_buffered(relay.address(), PEER);
    let client = stage.net.client.enter(connect)?;
    let upstream = listener.accept()?;
    let before = census::resident(relay.process())?;

    let stop = AtomicBool::new(false);
    let mut sent = Stream::new(1);
    let push = || {
        client.send_until(&mut sent, &stop)?;
        client.finish()
    };
    let judge = || {
        thread::sleep(stall);
        let grown = census::resident(relay.process())?.saturating_sub(before);
        stop.store(true, Ordering::Relaxed);
        // Whatever was sent is in a buffer now, since nobody has read; reading it all tells how much it was.
        let mut came = Stream::new(1);
        let mut buffer = vec![0; 64 << 10];
        loop {
            match upstream.read(&mut buffer)? {
                0 => break,
                count => came.check(&buffer[..count])?,
            }
        }
        let (held, chunk) = (came.at(), buffer.len() as u64);
        let limit = BUDGET + 4 * BUFFER + 4 * PEER as u64 + chunk;
        ensure!(held <= limit, "{held} bytes were on their way, not {limit}");
        ensure!(grown <= BUDGET, "the process has grown by {grown} bytes");
        upstream.finish()
    };
    both(push, judge)?;
    client.expect_end()?;
    stage.finish(relay, 1)?[0]
        .ended("client", "end")?
        .moved(sent.at(), 0)?;
    Ok(())
}
