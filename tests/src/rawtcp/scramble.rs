//! A stream cut at random into segments that overlap, arrive out of order, twice or not at all.

use std::time::Duration;

use anyhow::Result;
use rand::{RngExt, seq::SliceRandom};
use rand_pcg::Pcg64Mcg;

use super::endpoint::Endpoint;

/// How a stream is cut.
#[derive(Clone, Copy, Debug)]
pub struct Cuts {
    /// The most new bytes in a segment.
    pub fresh: usize,
    /// The most bytes that a segment repeats before them.
    pub again: usize,
    /// So many segments are made before one looks at what came of them.
    pub burst: usize,
    /// One of so many segments gets lost.
    pub lost: u32,
}

/// The largest payload of one packet, with time stamps.
const LARGEST: usize = 65535 - 20 - 32;

/// How long to wait for an acknowledgement before all is sent again.
const SILENCE: Duration = Duration::from_millis(5);

/// Sends all of `bytes`, which begin at the own stream's beginning, until they are acknowledged, then the FIN; a FIN comes
/// with some of the segments before as well.
///
/// # Errors
///
/// Fails when the other side does not take them.
pub fn send(end: &mut Endpoint<'_>, bytes: &[u8], cuts: Cuts, random: &mut Pcg64Mcg) -> Result<()> {
    let total = bytes.len() as u64;
    end.until(
        "the stream and its FIN to be acknowledged",
        |end| end.acked() > total || end.is_reset(),
        |end| round(end, bytes, cuts, random),
    )
}

fn round(end: &mut Endpoint<'_>, bytes: &[u8], cuts: Cuts, random: &mut Pcg64Mcg) -> Result<()> {
    // While rounds make progress, there is no need to go back to the waiting of the caller.
    loop {
        let before = end.acked();
        let from = usize::try_from(before)?.min(bytes.len());
        let to = usize::try_from(end.limit())?.clamp(from, bytes.len());
        for (begin, until) in segments(from, to, cuts, random) {
            if cuts.lost > 0 && random.random_ratio(1, cuts.lost) {
                continue;
            }
            if until == bytes.len() && random.random_ratio(1, 2) {
                end.last(begin, &bytes[begin..until])?;
            } else {
                end.data(begin, &bytes[begin..until])?;
            }
        }
        if from == bytes.len() {
            let again = random.random_range(0..=cuts.again.min(from));
            end.last(from - again, &bytes[from - again..])?;
        } else if from == to {
            // The window is closed. One byte beyond it keeps the other side from forgetting to say when it opens.
            end.data(from, &bytes[from..=from])?;
        }
        end.hear(SILENCE)?;
        if end.acked() == before || end.acked() > bytes.len() as u64 {
            return Ok(());
        }
    }
}

/// Segments that cover what is between `from` and `to`, or the beginning of it, in random order.
fn segments(from: usize, to: usize, cuts: Cuts, random: &mut Pcg64Mcg) -> Vec<(usize, usize)> {
    let mut segments = Vec::new();
    let mut at = from;
    while at < to && segments.len() < cuts.burst {
        let until = (at + random.random_range(1..=cuts.fresh)).min(to);
        let room = LARGEST - (until - at);
        let again = random.random_range(0..=cuts.again.min(at).min(room));
        segments.push((at - again, until));
        if random.random_ratio(1, 8) {
            segments.push((at - again, until));
        }
        at = until;
    }
    // Half of the bursts are in order: overlap without holes takes another way through the receiver.
    if random.random_ratio(1, 2) {
        segments.shuffle(random);
    }
    segments
}
