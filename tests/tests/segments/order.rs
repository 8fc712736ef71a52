//! Segments out of order: holes, and overlaps in the queue behind a hole.

use anyhow::Result;
use relay_tests::rawtcp::{Bench, endpoint::Endpoint};

use crate::telling::{Story, tell, tell_to_the_end};

pub(crate) fn holes_filled_later(bench: &Bench) -> Result<()> {
    tell(bench, &[backwards, hole_after_hole, overlaps_behind_a_hole])
}

fn backwards(client: &mut Endpoint<'_>, bytes: &[u8], from: usize) -> Result<usize> {
    for begin in (from..from + 30_000).step_by(100).rev() {
        client.data(begin, &bytes[begin..begin + 100])?;
    }
    Ok(from + 30_000)
}

fn hole_after_hole(client: &mut Endpoint<'_>, bytes: &[u8], from: usize) -> Result<usize> {
    let said = |parity: usize| (from..from + 50_000).step_by(500).skip(parity).step_by(2);
    for begin in said(1).chain(said(0)) {
        client.data(begin, &bytes[begin..begin + 500])?;
    }
    Ok(from + 50_000)
}

fn overlaps_behind_a_hole(client: &mut Endpoint<'_>, bytes: &[u8], from: usize) -> Result<usize> {
    let segments = [
        (1000, 2000),
        (3000, 4000),
        (1500, 3500),
        (1500, 3600),
        (900, 4100),
        (4050, 5000),
        (20_000, 29_000),
        (10_000, 30_000),
        (25_000, 40_000),
        (0, 1100),
        (4000, 10_001),
    ];
    for (begin, end) in segments {
        client.data(from + begin, &bytes[from + begin..from + end])?;
    }
    Ok(from + 40_000)
}

/// The FIN comes first, then what was said before it.
pub(crate) fn fin_before_its_bytes(bench: &Bench) -> Result<()> {
    let bare: Story = |client, bytes, from| {
        client.last(from + 3000, &[])?;
        client.data(from + 1000, &bytes[from + 1000..from + 3000])?;
        client.last(from + 3000, &[])?;
        client.data(from, &bytes[from..from + 1000])?;
        Ok(from + 3000)
    };
    let with_bytes: Story = |client, bytes, from| {
        client.last(from + 2500, &bytes[from + 2500..from + 3000])?;
        client.last(from + 500, &bytes[from + 500..from + 3000])?;
        client.data(from, &bytes[from..from + 2000])?;
        Ok(from + 3000)
    };
    tell_to_the_end(bench, &[bare, with_bytes])
}

/// A FIN on top of what has been received, and repeated by itself.
pub(crate) fn fin_with_repeated_bytes(bench: &Bench) -> Result<()> {
    let nothing_new: Story = |client, bytes, from| {
        client.data(from, &bytes[from..from + 1000])?;
        client.wait_acked(from + 1000)?;
        client.last(from, &bytes[from..from + 1000])?;
        client.last(from + 999, &bytes[from + 999..from + 1000])?;
        client.last(from + 1000, &[])?;
        Ok(from + 1000)
    };
    let something_new: Story = |client, bytes, from| {
        client.data(from, &bytes[from..from + 9000])?;
        client.wait_acked(from + 9000)?;
        client.last(from + 10, &bytes[from + 10..from + 9001])?;
        client.last(from, &bytes[from..from + 9001])?;
        Ok(from + 9001)
    };
    tell_to_the_end(bench, &[nothing_new, something_new])
}
