//! R23: the two sides are of different kinds.

use anyhow::Result;

use crate::{
    matrix::{Ends, Stage},
    needs::{self, Need},
    payload::Stream,
    peer::{Address, Listener, Peer, both},
    record::Engine,
};

const BYTES: u64 = 2 << 20;

/// IPv4 in front, IPv6 behind.
///
/// # Errors
///
/// Fails when a byte is wrong.
pub fn ipv4_to_ipv6(stage: &Stage) -> Result<()> {
    across(
        stage,
        &Address::parse("127.0.0.1:0")?,
        &Address::parse("[::1]:0")?,
    )
}

/// IPv6 in front, IPv4 behind.
///
/// # Errors
///
/// Fails when a byte is wrong.
pub fn ipv6_to_ipv4(stage: &Stage) -> Result<()> {
    across(
        stage,
        &Address::parse("[::1]:0")?,
        &Address::parse("127.0.0.1:0")?,
    )
}

/// IPv6 on both sides.
///
/// # Errors
///
/// Fails when a byte is wrong.
pub fn ipv6_to_ipv6(stage: &Stage) -> Result<()> {
    across(
        stage,
        &Address::parse("[::1]:0")?,
        &Address::parse("[::1]:0")?,
    )
}

/// A Unix socket in front.
///
/// # Errors
///
/// Fails when a byte is wrong.
pub fn unix_to_tcp(stage: &Stage) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let listen = Address::Unix(folder.path().join("front"));
    across(stage, &listen, &Address::parse("127.0.0.1:0")?)
}

/// A Unix socket behind.
///
/// # Errors
///
/// Fails when a byte is wrong.
pub fn tcp_to_unix(stage: &Stage) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let to = Address::Unix(folder.path().join("behind"));
    across(stage, &Address::parse("127.0.0.1:0")?, &to)
}

/// Unix sockets on both sides.
///
/// # Errors
///
/// Fails when a byte is wrong.
pub fn unix_to_unix(stage: &Stage) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = |name| Address::Unix(folder.path().join(name));
    across(stage, &path("front"), &path("behind"))
}

fn across(stage: &Stage, listen: &Address, to: &Address) -> Result<()> {
    let is_unix = |address: &Address| matches!(address, Address::Unix(_));
    if !is_unix(listen) && !is_unix(to) && !needs::met("families", &[Need::Ipv6])? {
        return Ok(());
    }
    let unix = is_unix(listen) || is_unix(to);
    let listener = Listener::bind(to)?;
    let engine = match (stage.engine, unix) {
        (Engine::Sockmap, true) => "auto",
        (engine, _) => engine.name(),
    };
    let launch = crate::relay::Launch::forward(listen, listener.address());
    let relay = launch.with(["--engine", engine]).start()?;
    for seed in 0..3 {
        let ends = Ends {
            client: Peer::connect(relay.address())?,
            upstream: listener.accept()?,
        };
        both(
            || exchange(&ends.client, seed, seed + 10),
            || exchange(&ends.upstream, seed + 10, seed),
        )?;
    }
    for record in relay.finish(3)? {
        record.moved(BYTES, BYTES)?;
        match (stage.engine, unix) {
            (Engine::Sockmap, true) => {
                record.why_not(Engine::Sockmap)?;
                record.carried_by(Engine::Splice)?;
            }
            (engine, _) => {
                record.carried_by(engine)?;
            }
        }
    }
    Ok(())
}

fn exchange(peer: &Peer, own: u64, theirs: u64) -> Result<()> {
    both(
        || {
            peer.send_stream(&mut Stream::new(own), BYTES)?;
            peer.finish()
        },
        || {
            peer.expect(&mut Stream::new(theirs), BYTES)?;
            peer.expect_end()
        },
    )
}
