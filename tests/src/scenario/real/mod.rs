//! Programs that people really run, one file each.

mod git;
mod iperf;
mod nginx;
mod postgres;
mod redis;
mod ssh;

use std::net::SocketAddr;

use anyhow::{Result, bail};

use crate::{matrix::Stage, peer::Address, relay::Relay};

pub use git::*;
pub use iperf::*;
pub use nginx::*;
pub use postgres::*;
pub use redis::*;
pub use ssh::*;

/// More than fits in all buffers and windows on the way.
const LARGE: usize = 100 << 20;

/// Where upstreams of a stage listen on `port`.
fn behind(stage: &Stage, port: u16) -> SocketAddr {
    SocketAddr::new(stage.net.upstream_ip, port)
}

/// relay in front of `upstream`, and where it listens.
fn relay(stage: &Stage, upstream: SocketAddr) -> Result<(Relay, SocketAddr)> {
    let relay = stage.relay(&Address::Ip(upstream))?;
    match relay.address() {
        &Address::Ip(front) => Ok((relay, front)),
        other => bail!("{other} is not an IP address"),
    }
}

/// Ends relay, and checks that the engine carried each connection that `count`s, of which there are `least`.
///
/// A program that is told to stop may leave connections that were never used.
fn finish(stage: &Stage, relay: Relay, least: usize) -> Result<()> {
    let records = relay.finish_all()?;
    let used = records.iter().filter(|record| record.bytes_down > 0);
    let mut count = 0;
    for record in used {
        record.carried_by(stage.engine)?;
        count += 1;
    }
    anyhow::ensure!(count >= least, "{count} of {least} connections");
    Ok(())
}
