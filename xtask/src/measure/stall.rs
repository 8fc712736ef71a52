//! What is held for a connection whose reader has stopped reading while the sender pushes.

use std::{
    io::{ErrorKind, Read, Write},
    net::Shutdown,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};

use super::Kit;
use crate::load::{PATIENCE, bulk, proc, stream::CHUNK, upstream::Ask};

pub(super) fn measure(kit: &Kit) -> Result<()> {
    let millis = u64::try_from(kit.stall.as_millis()).unwrap_or(u64::MAX);
    println!(
        "stall: the reader stops for {:?} while the sender pushes; the most that was held, in KiB. TCP and kernel memory \
         are of the whole machine and hold the buffers of all four sockets",
        kit.stall
    );
    println!(
        "{:8} {:>10} {:>12} {:>12} {:>14}",
        "engine", "pushed", "relay's RSS", "TCP memory", "kernel memory"
    );
    for engine in &kit.engines {
        let (_upstream, forwarder) = kit.over_loopback(engine)?;
        let held = || -> Result<[u64; 3]> {
            let resident = proc::resident(forwarder.process())?;
            Ok([resident, proc::tcp_memory()?, proc::kernel_memory()?])
        };
        let before = held()?;
        let mut most = before;
        let mut sender = bulk::connect(forwarder.address)?;
        Ask::Stall { millis }.write(&mut sender)?;
        sender.set_write_timeout(Some(Duration::from_millis(100)))?;
        let chunk = vec![0; CHUNK];
        let (mut pushed, mut looked) = (0, Instant::now());
        // A little less than the reader waits, so that nothing is read while this looks.
        let deadline = Instant::now() + kit.stall.saturating_sub(Duration::from_millis(300));
        while Instant::now() < deadline {
            match sender.write(&chunk) {
                Ok(written) => pushed += written as u64,
                Err(error)
                    if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
                Err(error) => return Err(error).context("push"),
            }
            if looked.elapsed() > Duration::from_millis(50) {
                looked = Instant::now();
                for (most, now) in most.iter_mut().zip(held()?) {
                    *most = now.max(*most);
                }
            }
        }
        sender.set_write_timeout(Some(PATIENCE))?;
        sender.shutdown(Shutdown::Write)?;
        let mut arrived = [0; 8];
        sender
            .read_exact(&mut arrived)
            .context("how many bytes arrived")?;
        let arrived = u64::from_le_bytes(arrived);
        ensure!(
            arrived == pushed,
            "{engine}: {pushed} bytes pushed, {arrived} arrived"
        );
        let [resident, tcp, kernel] = [0, 1, 2].map(|at| (most[at] - before[at]) >> 10);
        println!(
            "{engine:8} {:>10} {resident:>12} {tcp:>12} {kernel:>14}",
            pushed >> 10
        );
    }
    println!("All that was pushed has arrived afterwards.");
    Ok(())
}
