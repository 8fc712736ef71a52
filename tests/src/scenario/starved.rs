//! R16: no descriptors are left.

use std::{thread, time::Duration};

use anyhow::{Result, ensure};

use crate::{
    census::{self, Census},
    matrix::Stage,
    peer::{Peer, echo},
};

/// How many descriptors relay may have besides those that it begins with.
const SPARE: usize = 12;

const CLIENTS: usize = 30;

/// Of 2 seconds; a loop over accept(2) takes all of one processor.
const SPIN: Duration = Duration::from_millis(600);

/// More clients come than there are descriptors for; when some go, others are served again.
///
/// # Errors
///
/// Fails when relay spins, ends, or does not go on.
pub fn accept_outlives_a_lack_of_descriptors(stage: &Stage) -> Result<()> {
    let server = stage.listen()?.serve(|peer| {
        // Its client may be reset for want of a descriptor.
        let _ = echo(peer);
        Ok(())
    })?;
    let relay = stage.launch_ladder(server.address()).start()?;
    let open = Census::of(relay.process())?;
    let open = open.sockets + open.pipes + open.others;
    relay.limit_descriptors(u64::try_from(open + SPARE)?)?;
    let connect = |_| stage.connect(&relay);
    let clients = (0..CLIENTS).map(connect).collect::<Result<Vec<_>>>()?;
    thread::sleep(Duration::from_millis(500));
    let before = census::processor(relay.process())?;
    thread::sleep(Duration::from_secs(2));
    let used = census::processor(relay.process())? - before;
    ensure!(
        used < SPIN,
        "{used:?} of processor time in 2 s without descriptors"
    );
    drop(clients);
    // Those that waited in the queue are taken in and found to be gone; then there is room.
    crate::patience::until_true("a client to be served again", || {
        let client = stage.connect(&relay)?;
        Ok(served(&client).is_ok())
    })?;
    relay.finish_all()?;
    server.stop()
}

fn served(client: &Peer) -> Result<()> {
    client.send(b"still there?")?;
    ensure!(client.receive(12)? == b"still there?");
    client.finish()?;
    client.expect_end()
}
