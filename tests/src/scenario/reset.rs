//! R9: a side that is reset, or never there; the other side must not take that for a clean end.

use anyhow::{Result, ensure};
use socket2::{Domain, Socket, Type};

use crate::{
    matrix::Stage,
    payload::Stream,
    peer::{Address, Listener, Peer, both},
};

/// How far a transfer is when it is cut.
const MIDDLE: u64 = 4 << 20;

/// The client resets while bytes go either way, and while none do.
///
/// # Errors
///
/// Fails when the upstream sees a clean end.
pub fn client_resets_in_mid_transfer(stage: &Stage) -> Result<()> {
    resets_in_mid_transfer(stage, "client")
}

/// The upstream resets while bytes go either way, and while none do.
///
/// # Errors
///
/// Fails when the client sees a clean end.
pub fn upstream_resets_in_mid_transfer(stage: &Stage) -> Result<()> {
    resets_in_mid_transfer(stage, "upstream")
}

fn resets_in_mid_transfer(stage: &Stage, side: &str) -> Result<()> {
    let listener = stage.listen()?;
    let relay = stage.relay(listener.address())?;
    let join = || -> Result<(Peer, Peer)> {
        let ends = stage.join(&relay, &listener)?;
        Ok(match side {
            "client" => (ends.client, ends.upstream),
            _ => (ends.upstream, ends.client),
        })
    };

    let (quitter, other) = join()?;
    quitter.reset()?;
    other.expect_reset()?;

    let (quitter, other) = join()?;
    let send = || {
        quitter.send_stream(&mut Stream::new(1), MIDDLE)?;
        quitter.reset()
    };
    both(send, || other.expect_reset())?;

    let (quitter, other) = join()?;
    let receive = || {
        quitter.expect(&mut Stream::new(2), MIDDLE)?;
        quitter.reset()
    };
    both(receive, || other.push_into_reset(&mut Stream::new(2)))?;

    for record in stage.finish(relay, 3)? {
        record.ended(side, "reset")?;
    }
    Ok(())
}

/// Nobody listens where relay dials.
///
/// # Errors
///
/// Fails when the client sees anything but a reset.
pub fn refused_upstream_is_a_reset(stage: &Stage) -> Result<()> {
    // Bound and not listening: nobody else gets the port, and dialling it is refused.
    let Address::Ip(at) = stage.net.at_upstream() else {
        anyhow::bail!("not an IP address");
    };
    let (_reserved, address) = stage.net.upstream.enter(|| {
        let socket = Socket::new(Domain::for_address(at), Type::STREAM, None)?;
        socket.bind(&at.into())?;
        let bound = socket.local_addr()?.as_socket();
        Ok((socket, bound))
    })?;
    let address = Address::Ip(anyhow::Context::context(address, "no address")?);
    let relay = stage.relay(&address)?;
    for _ in 0..10 {
        stage.connect(&relay)?.expect_reset()?;
    }
    for record in relay.finish(10)? {
        ensure!(record.engine.is_none(), "{record:?}");
        ensure!(record.end.how == "error", "{record:?}");
        ensure!(record.end.call.as_deref() == Some("connect"), "{record:?}");
        ensure!(record.end.errno == Some(libc::ECONNREFUSED), "{record:?}");
    }
    Ok(())
}

/// The upstream does not answer the dial.
///
/// # Errors
///
/// Fails when the client is left waiting, or sees anything but a reset.
pub fn silent_upstream_is_a_reset(stage: &Stage) -> Result<()> {
    let at = stage.net.at_upstream();
    let listener = stage
        .net
        .upstream
        .enter(|| Listener::bind_with(&at, 0, None))?;
    // Its queue has one place. With that taken the kernel drops every further SYN.
    let _queued = stage
        .net
        .relay
        .enter(|| Peer::connect(listener.address()))?;
    let launch = stage.launch(listener.address());
    let relay = launch.with(["--connect-timeout", "1s"]).start()?;
    stage.connect(&relay)?.expect_reset()?;
    let records = relay.finish(1)?;
    ensure!(records[0].end.how == "error", "{records:?}");
    ensure!(
        records[0].end.call.as_deref() == Some("connect"),
        "{records:?}"
    );
    ensure!(records[0].duration_ms >= 1000, "too early: {records:?}");
    Ok(())
}
