//! Segments that only ask whether the other side is there.

use anyhow::Result;
use relay_tests::rawtcp::{
    Bench,
    endpoint::{Endpoint, Say},
};

use crate::telling::{Story, tell};

/// Keepalive and window probes say a byte that was received before, or none; they must be answered and add nothing.
pub(crate) fn a_probe_adds_no_bytes(bench: &Bench) -> Result<()> {
    let story: Story = |client, bytes, from| {
        let mut at = from;
        for length in [0, 1, 700, 5000] {
            client.data(at, &bytes[at..at + length])?;
            at += length;
            client.wait_acked(at)?;
            for garbage in [&b""[..], b"\xee"] {
                probe(client, at, garbage)?;
            }
        }
        Ok(at)
    };
    tell(bench, &[story])
}

fn probe(client: &mut Endpoint<'_>, at: usize, garbage: &[u8]) -> Result<()> {
    let probe = Say {
        at: i64::try_from(at)? - 1,
        bytes: garbage,
        ..Say::default()
    };
    client.say(probe)?;
    let before = client.segments();
    // The kernel answers one only now and then.
    client.until(
        "an answer to a probe",
        |client| client.segments() > before,
        |client| client.say(probe),
    )
}
