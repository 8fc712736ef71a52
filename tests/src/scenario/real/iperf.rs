//! iperf3, both ways at once.

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;
use serde_json::Value;

use super::{behind, finish, relay};
use crate::{
    matrix::Stage,
    peers::{self, Service, program, run},
};

/// Four streams each way, besides the connection on which iperf3 speaks of them.
///
/// # Errors
///
/// Fails when a direction stands still.
pub fn iperf3_both_ways(stage: &Stage) -> Result<()> {
    if !peers::met("iperf3_both_ways", &["iperf3"])? {
        return Ok(());
    }
    let upstream = behind(stage, 5201);
    let _iperf = Service::start(
        &stage.net.upstream,
        "iperf3",
        |iperf| {
            iperf.args(["--server", "--port", &upstream.port().to_string()]);
            Ok(())
        },
        upstream,
        Signal::TERM,
    )?;
    let (relay, front) = relay(stage, upstream)?;
    let mut iperf = program("iperf3")?;
    iperf.args(["--client", &front.ip().to_string()]);
    iperf.args(["--port", &front.port().to_string()]);
    iperf.args(["--parallel", "4", "--time", "1", "--bidir", "--json"]);
    let said = run(&stage.net.client, &mut iperf)?;
    let said: Value = serde_json::from_str(&said)?;
    for way in ["sum_received", "sum_received_bidir_reverse"] {
        let bytes = said["end"][way]["bytes"].as_u64();
        ensure!(bytes.context(way)? > 1 << 20, "{said}");
    }
    finish(stage, relay, 5)
}
