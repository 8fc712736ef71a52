//! R20: a peer that would rather speak multipath TCP.

use anyhow::Result;

use crate::{
    matrix::Stage,
    needs::{self, Need},
    payload::Stream,
    peer::{Peer, both},
};

const BYTES: u64 = 3 << 20;

/// The client asks for MPTCP, and is served.
///
/// # Errors
///
/// Fails when a byte is wrong.
pub fn mptcp_client(stage: &Stage) -> Result<()> {
    if !needs::met("mptcp_client", &[Need::Mptcp])? {
        return Ok(());
    }
    let listener = stage.listen()?;
    let relay = stage.relay(listener.address())?;
    let connect = || Peer::connect_mptcp(relay.address());
    let client = stage.net.client.enter(connect)?;
    let upstream = listener.accept()?;
    both(
        || {
            client.send_stream(&mut Stream::new(1), BYTES)?;
            client.finish()
        },
        || {
            upstream.expect(&mut Stream::new(1), BYTES)?;
            upstream.expect_end()
        },
    )?;
    both(
        || {
            upstream.send_stream(&mut Stream::new(2), BYTES)?;
            upstream.finish()
        },
        || {
            client.expect(&mut Stream::new(2), BYTES)?;
            client.expect_end()
        },
    )?;
    stage.finish(relay, 1)?[0]
        .ended("client", "end")?
        .moved(BYTES, BYTES)?;
    Ok(())
}
