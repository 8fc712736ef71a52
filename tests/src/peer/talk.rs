//! What two peers say to each other by way of relay.

use std::net::SocketAddr;

use anyhow::{Context, Result, ensure};

use super::{Listener, Peer, both};
use crate::payload::Stream;

/// So many bytes from the client and its end, then as many from the upstream and its end.
///
/// # Errors
///
/// Fails when one of them does not arrive, or something else does.
pub fn exchange(client: &Peer, upstream: &Peer, bytes: u64) -> Result<()> {
    go_on(client, upstream, 0, bytes)
}

/// Like [`exchange`], when `early` bytes of the client's are under way already.
///
/// # Errors
///
/// Fails when a byte or an end does not arrive, or something else does.
pub fn go_on(client: &Peer, upstream: &Peer, early: u64, bytes: u64) -> Result<()> {
    let mut sent = Stream::new(1);
    let _ = sent.take(usize::try_from(early)?);
    both(
        || {
            client.send_stream(&mut sent, bytes - early)?;
            client.finish()
        },
        || upstream.expect(&mut Stream::new(1), bytes),
    )?;
    upstream.expect_end()?;
    both(
        || {
            upstream.send_stream(&mut Stream::new(2), bytes)?;
            upstream.finish()
        },
        || client.expect(&mut Stream::new(2), bytes),
    )?;
    client.expect_end()
}

/// A few bytes each way between `client` and whoever of `to` gets it, and whom that one saw.
///
/// # Errors
///
/// Fails when something else comes.
pub fn converse(client: &Peer, to: &Listener) -> Result<SocketAddr> {
    let upstream = to.accept()?;
    client.send(b"hello")?;
    ensure!(upstream.receive(5)? == b"hello");
    let seen = upstream.as_socket().peer_addr()?.as_socket();
    upstream.send(b"and back")?;
    ensure!(client.receive(8)? == b"and back");
    client.finish()?;
    upstream.expect_end()?;
    upstream.finish()?;
    client.expect_end()?;
    seen.context("not an IP client")
}
