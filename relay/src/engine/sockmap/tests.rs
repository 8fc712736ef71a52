//! The engine on this kernel: its self-test, and what it declines.

use super::*;

async fn started() -> (Sockmap, Drain) {
    let drain = Drain::new();
    let sockmap = Sockmap::start(false, &drain).await;
    (sockmap.unwrap(), drain)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_self_test_passes() {
    let (sockmap, _) = started().await;
    println!("{:?}", sockmap.selftest());
    assert!(sockmap.selftest().stalled > 0);
}
