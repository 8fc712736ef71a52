//! R19: relay is killed in mid-transfer.

use std::{sync::mpsc, thread};

use anyhow::{Result, anyhow};

use crate::{matrix::Stage, payload::Stream};

/// SIGKILL while bytes go up, while they go down, and while none do.
///
/// # Errors
///
/// Fails when a peer sees a clean end of a truncated stream.
pub fn killed_in_mid_transfer(stage: &Stage) -> Result<()> {
    let listener = stage.listen()?;
    let relay = stage.relay(listener.address())?;
    let up = stage.join(&relay, &listener)?;
    let down = stage.join(&relay, &listener)?;
    let quiet = stage.join(&relay, &listener)?;
    let (under_way, wait) = mpsc::channel();
    thread::scope(|scope| {
        let transfers = [(&up.client, &up.upstream), (&down.upstream, &down.client)];
        let mut peers = Vec::new();
        for (from, to) in transfers {
            peers.push(scope.spawn(|| from.push_into_reset(&mut Stream::new(1))));
            let under_way = under_way.clone();
            peers.push(scope.spawn(move || {
                to.expect(&mut Stream::new(1), 4 << 20)?;
                under_way.send(())?;
                to.expect_reset()
            }));
        }
        drop(under_way);
        // A transfer that fails before it is under way drops its sender; the peers then say why.
        let running = wait.iter().take(transfers.len()).count();
        relay.kill()?;
        for peer in peers {
            peer.join().map_err(|_| anyhow!("a peer panicked"))??;
        }
        anyhow::ensure!(running == transfers.len(), "not under way");
        Ok(())
    })?;
    quiet.client.expect_reset()?;
    quiet.upstream.expect_reset()
}
