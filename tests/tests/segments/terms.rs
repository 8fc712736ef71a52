//! What the handshake agrees on.

use anyhow::{Result, ensure};
use relay_tests::{
    payload::Stream,
    peer::both,
    rawtcp::{
        Bench,
        endpoint::{Endpoint, Terms},
    },
};

use crate::telling::record_of;

/// A client with a tiny largest segment downloads a lot.
pub(crate) fn tiny_segments_to_the_client(bench: &Bench) -> Result<()> {
    download(
        bench,
        &[(88, 500_000), (536, 2_000_000)].map(|(mss, length)| {
            let terms = Terms {
                mss: Some(mss),
                ..Terms::default()
            };
            (terms, length)
        }),
    )
}

/// Neither scale nor stamps nor SACK, all of them, and no option at all.
pub(crate) fn with_and_without_options(bench: &Bench) -> Result<()> {
    let bare = Terms {
        mss: None,
        scale: None,
        window: 65535,
        ..Terms::default()
    };
    let full = Terms {
        mss: Some(1460),
        sack: true,
        stamps: true,
        ..Terms::default()
    };
    let stamps = Terms {
        stamps: true,
        scale: None,
        window: 30_000,
        ..Terms::default()
    };
    download(
        bench,
        &[(bare, 300_000), (full, 1_000_000), (stamps, 300_000)],
    )
}

fn download(bench: &Bench, all: &[(Terms, u64)]) -> Result<()> {
    let listener = bench.stage.listen()?;
    let relay = bench.stage.relay(listener.address())?;
    let mut lengths = Vec::new();
    for &(terms, length) in all {
        let (mut client, upstream) = bench.join(&relay, &listener, terms)?;
        client.data(0, b"get")?;
        ensure!(upstream.receive(3)? == b"get", "not the request");
        let send = || {
            upstream.send_stream(&mut Stream::new(2), length)?;
            upstream.finish()
        };
        let mut expected = Stream::new(2);
        both(send, || client.wait("the download", Endpoint::has_ended))?;
        expected.check(client.take())?;
        ensure!(
            expected.at() == length,
            "{} of {length} bytes",
            expected.at()
        );
        client.last(3, &[])?;
        upstream.expect_end()?;
        lengths.push((client.local(), length));
    }
    let records = bench.stage.finish(relay, all.len())?;
    for (client, length) in lengths {
        let record = record_of(&records, &client)?;
        record.ended("upstream", "end")?.moved(3, length)?;
    }
    Ok(())
}
