//! R10: thousands of connections that come and go at the same time, with every kind of end.

use anyhow::{Context, Result, ensure};

use crate::{
    matrix::Stage,
    payload::Stream,
    peer::{Peer, many},
};

const SOME: u64 = 3_000;
const MANY: u64 = 10_000;

/// Bytes of one exchange, with the seed in front.
const BYTES: usize = 100;

/// 3,000 of them.
///
/// # Errors
///
/// Fails when an exchange does, or when something leaks.
pub fn thousands_come_and_go(stage: &Stage) -> Result<()> {
    come_and_go(stage, SOME)
}

/// 10,000 of them.
///
/// # Errors
///
/// Fails when an exchange does, or when something leaks.
pub fn ten_thousand_come_and_go(stage: &Stage) -> Result<()> {
    come_and_go(stage, MANY)
}

fn come_and_go(stage: &Stage, count: u64) -> Result<()> {
    let server = stage.listen()?.serve(serve)?;
    let relay = stage.relay(server.address())?;
    many(8, 8, |lane| {
        stage.net.client.enter(|| {
            (lane..count).step_by(8).try_for_each(|seed| {
                let peer = Peer::connect(relay.address())?;
                visit(&peer, seed).with_context(|| format!("seed {seed}, {:?}", peer.local()))
            })
        })
    })?;
    let records = relay.records(usize::try_from(count)?)?;
    let strange = records.iter().find(|one| one.end.how == "error");
    ensure!(strange.is_none(), "{strange:?}");
    stage.finish(relay, usize::try_from(count)?)?;
    server.stop()
}

/// The seed's last digit says who ends the connection, and how: both sides know.
fn serve(peer: Peer) -> Result<()> {
    let mut seed = [0; 8];
    seed.copy_from_slice(&peer.receive(8)?);
    let seed = u64::from_be_bytes(seed);
    peer.send_stream(&mut Stream::new(seed), BYTES as u64)?;
    match seed % 4 {
        0 => {
            peer.finish()?;
            peer.expect_end()
        }
        1 => {
            peer.receive(1)?;
            peer.reset()
        }
        2 => peer.expect_reset(),
        _ => {
            peer.expect_end()?;
            peer.finish()
        }
    }
}

fn visit(peer: &Peer, seed: u64) -> Result<()> {
    peer.send(&seed.to_be_bytes())?;
    peer.expect(&mut Stream::new(seed), BYTES as u64)?;
    match seed % 4 {
        0 => {
            peer.expect_end()?;
            peer.finish()
        }
        1 => {
            peer.send(b"!")?;
            peer.expect_reset()
        }
        2 => Ok(peer
            .as_socket()
            .set_linger(Some(std::time::Duration::ZERO))?),
        _ => {
            peer.finish()?;
            peer.expect_end()
        }
    }
}
