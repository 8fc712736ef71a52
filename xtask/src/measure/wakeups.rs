//! How often a ping-pong wakes relay, and whether it goes on while relay is stopped.

use anyhow::{Result, ensure};
use rustix::process::{Signal, kill_process};

use super::Kit;
use crate::load::{pingpong, proc};

/// Until the connection has settled.
const BEFORE: u64 = 1_000;
const COUNTED: u64 = 10_000;
const STOPPED: u64 = 1_000;

pub(super) fn measure(kit: &Kit) -> Result<()> {
    println!(
        "wakeups: voluntary context switches of relay over {COUNTED} round trips over loopback"
    );
    for engine in &kit.engines {
        let (upstream, forwarder) = kit.over_loopback(engine)?;
        let process = forwarder.process();
        let offloaded = engine == "sockmap";
        let (mut trips, mut counts) = (0, Vec::new());
        let mut stopped = Ok(());
        let rounds = BEFORE + COUNTED + if offloaded { STOPPED } else { 0 };
        let played = pingpong::play(forwarder.address, rounds, 1, || {
            trips += 1;
            if trips == BEFORE || trips == BEFORE + COUNTED {
                counts.push(proc::voluntary_switches(process));
            }
            if offloaded && trips == BEFORE + COUNTED {
                stopped = kill_process(process, Signal::STOP);
            }
            // The end of the connection is relay's to pass on.
            if offloaded && trips == rounds {
                stopped = stopped.and(kill_process(process, Signal::CONT));
            }
        });
        played?;
        stopped?;
        let counts: Vec<u64> = counts.into_iter().collect::<Result<_>>()?;
        let faults = upstream.faults();
        ensure!(faults.is_empty(), "{}", faults.join("; "));
        let switches = counts[1] - counts[0];
        match offloaded {
            true => println!(
                "{engine:8} {switches:>8}, and {STOPPED} more round trips while it was stopped (SIGSTOP)"
            ),
            false => println!("{engine:8} {switches:>8}"),
        }
    }
    Ok(())
}
