//! Small messages to and fro over veth, beside the rival.

use std::time::Instant;

use anyhow::{Result, ensure};

use super::{Kit, lab::Lab, median};
use crate::load::{pingpong, proc};

/// Round trips in a round, over all connections.
const TRIPS: u64 = 48_000;

#[expect(clippy::cast_precision_loss, reason = "rates for people")]
pub(super) fn measure(kit: &Kit) -> Result<()> {
    let lab = Lab::new()?;
    let contenders = lab.contenders(kit)?;
    for connections in [1, 16] {
        println!(
            "ping-pong of {} bytes over veth, {connections} connections, medians of {} interleaved rounds of {TRIPS}",
            pingpong::MESSAGE,
            kit.rounds
        );
        let mut figures = vec![[const { Vec::new() }; 4]; contenders.len()];
        for _ in 0..kit.rounds {
            for ((_, forwarder), figures) in contenders.iter().zip(&mut figures) {
                let address = forwarder.address;
                let (busy, begun) = (proc::busy()?, Instant::now());
                let latency = lab
                    .as_client(|| pingpong::play_many(address, connections, TRIPS / connections))?;
                let took = begun.elapsed().as_secs_f64();
                let cpu = proc::busy()?.saturating_sub(busy).as_secs_f64();
                let micros = |quantile| latency.value_at_quantile(quantile) as f64 / 1000.0;
                let trips = latency.len() as f64;
                let round = [
                    trips / took / 1000.0,
                    micros(0.5),
                    micros(0.99),
                    cpu * 1e6 / trips,
                ];
                for (figures, figure) in figures.iter_mut().zip(round) {
                    figures.push(figure);
                }
            }
        }
        let faults = lab.upstream.faults();
        ensure!(faults.is_empty(), "{}", faults.join("; "));
        println!(
            "{:14} {:>8} {:>6} {:>8} {:>8} {:>16}",
            "", "k/s", "ratio", "p50 µs", "p99 µs", "CPU µs per trip"
        );
        let medians = figures
            .into_iter()
            .map(|figures| figures.map(|mut figure| median(&mut figure)));
        let medians = Vec::from_iter(medians);
        for ((name, _), [rate, p50, p99, cpu]) in contenders.iter().zip(&medians) {
            let ratio = rate / medians[0][0];
            println!("{name:14} {rate:8.1} {ratio:6.2} {p50:8.1} {p99:8.1} {cpu:16.1}");
        }
    }
    println!("CPU is of the whole machine, clients and upstream with it.");
    Ok(())
}
