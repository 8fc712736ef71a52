//! One stream over veth, beside the rival.

use anyhow::{Result, ensure};

use super::{Kit, lab::Lab, median};
use crate::load::{bulk, stream::UNCHECKED};

/// Each way; some seconds for each of the contenders.
const BYTES: u64 = 2 << 30;

#[expect(clippy::cast_precision_loss, reason = "rates for people")]
pub(super) fn measure(kit: &Kit) -> Result<()> {
    let lab = Lab::new()?;
    let contenders = lab.contenders(kit)?;
    println!(
        "bulk: one stream over veth, {} GiB up and then down, medians of {} interleaved rounds; bytes are not compared \
         here, which would be most of the work (`cargo xtask run` does)",
        BYTES >> 30,
        kit.rounds
    );
    let mut rates = vec![[Vec::new(), Vec::new()]; contenders.len()];
    for _ in 0..kit.rounds {
        for ((_, forwarder), rates) in contenders.iter().zip(&mut rates) {
            let address = forwarder.address;
            let times = lab.as_client(|| bulk::both_ways(address, BYTES, UNCHECKED, |_| ()))?;
            for (rates, took) in rates.iter_mut().zip([times.up, times.down]) {
                rates.push(BYTES as f64 * 8.0 / 1e9 / took.as_secs_f64());
            }
        }
    }
    let faults = lab.upstream.faults();
    ensure!(faults.is_empty(), "{}", faults.join("; "));
    println!(
        "{:14} {:>8} {:>6} {:>10} {:>6}",
        "", "Gb/s up", "ratio", "Gb/s down", "ratio"
    );
    let medians = rates
        .into_iter()
        .map(|rates| rates.map(|mut rates| median(&mut rates)));
    let medians = Vec::from_iter(medians);
    for ((name, _), [up, down]) in contenders.iter().zip(&medians) {
        let [rival_up, rival_down] = medians[0];
        println!(
            "{name:14} {up:8.1} {:6.2} {down:10.1} {:6.2}",
            up / rival_up,
            down / rival_down
        );
    }
    Ok(())
}
