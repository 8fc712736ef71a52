//! How offloaded connections end.

use std::{
    io::{ErrorKind, Read, Write},
    net::{Shutdown, TcpStream},
    time::Duration,
};

use super::{Rig, until};
use crate::{
    close,
    drain::Drained,
    engine::sockmap::selftest::{expect, expect_end, pattern},
    plan::Limits,
};

fn reset(stream: TcpStream) {
    close::arm(&stream);
    drop(stream);
}

fn expect_reset(stream: &mut TcpStream) {
    let error = stream.read_exact(&mut [0]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_half_close_leaves_the_other_direction_open() {
    let rig = Rig::new().await;
    let mut bench = rig.bench(Limits::default());
    bench.client.write_all(&pattern(0, 3000)).unwrap();
    bench.client.shutdown(Shutdown::Write).unwrap();
    expect(&mut bench.server, 0, 3000).unwrap();
    expect_end(&mut bench.server).unwrap();
    for round in 0..50 {
        bench.server.write_all(&pattern(round, 20_000)).unwrap();
        expect(&mut bench.client, round, 20_000).unwrap();
    }
    bench.server.shutdown(Shutdown::Write).unwrap();
    expect_end(&mut bench.client).unwrap();
    let record = rig.record(1);
    assert!(
        record.contains(r#""end":{"by":"client","how":"end"}"#),
        "{record}"
    );
    assert!(
        record.contains(r#""bytes_up":3000,"bytes_down":1000000"#),
        "{record}"
    );
    assert!(record.contains(r#""engine":"sockmap""#), "{record}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reset_is_passed_on_either_way() {
    let rig = Rig::new().await;
    let mut bench = rig.bench(Limits::default());
    bench.client.write_all(b"x").unwrap();
    bench.server.read_exact(&mut [0]).unwrap();
    reset(bench.client);
    expect_reset(&mut bench.server);
    assert!(
        rig.record(1)
            .contains(r#""end":{"by":"client","how":"reset"}"#)
    );

    let mut bench = rig.bench(Limits::default());
    reset(bench.server);
    expect_reset(&mut bench.client);
    assert!(
        rig.record(2)
            .contains(r#""end":{"by":"upstream","how":"reset"}"#)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reset_after_a_half_close_is_passed_on() {
    let rig = Rig::new().await;
    let mut bench = rig.bench(Limits::default());
    bench.client.shutdown(Shutdown::Write).unwrap();
    expect_end(&mut bench.server).unwrap();
    reset(bench.client);
    // The reset reaches a socket that has seen the FIN; the upstream is told by a reset too.
    until("reset", || {
        bench.server.write_all(b"x").is_err().then_some(())
    });
    let record = rig.record(1);
    assert!(
        record.contains(r#""by":"client","how":"reset""#),
        "{record}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_connection_ends_at_its_limit() {
    let rig = Rig::new().await;
    let limits = Limits {
        idle: Some(Duration::from_millis(300)),
        half_close: None,
        life: None,
    };
    let mut bench = rig.bench(limits);
    expect_reset(&mut bench.client);
    let record = rig.record(1);
    assert!(
        record.contains(r#""how":"idle","limit":"idle""#),
        "{record}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_half_closed_silent_connection_ends_at_its_own_limit() {
    let rig = Rig::new().await;
    let limits = Limits {
        idle: None,
        half_close: Some(Duration::from_millis(300)),
        life: None,
    };
    let mut bench = rig.bench(limits);
    bench.server.shutdown(Shutdown::Write).unwrap();
    expect_end(&mut bench.client).unwrap();
    expect_reset(&mut bench.server);
    assert!(rig.record(1).contains(r#""limit":"half-close""#));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_life_ends_whatever_moves() {
    let rig = Rig::new().await;
    let limits = Limits {
        life: Some(Duration::from_millis(500)),
        ..Limits::default()
    };
    let (mut calm, mut busy) = (rig.bench(limits), rig.bench(limits));
    while busy.client.write_all(&[0; 10]).is_ok() {
        std::thread::sleep(Duration::from_millis(5));
    }
    expect_reset(&mut calm.client);
    for count in [1, 2] {
        assert!(rig.record(count).contains(r#""how":"life""#));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn traffic_in_the_kernel_keeps_a_connection_from_being_idle() {
    let rig = Rig::new().await;
    let limits = Limits {
        idle: Some(Duration::from_secs(2)),
        half_close: None,
        life: None,
    };
    let mut bench = rig.bench(limits);
    for round in 0..80 {
        bench.client.write_all(&pattern(round, 10)).unwrap();
        expect(&mut bench.server, round, 10).unwrap();
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_cuts_what_outlives_it() {
    let rig = Rig::new().await;
    let (mut calm, mut attended) = (rig.bench(Limits::default()), rig.bench(Limits::default()));
    calm.client.write_all(b"x").unwrap();
    calm.server.read_exact(&mut [0]).unwrap();
    // Half-closed with the reader's buffers full, it is attended to until the end.
    attended.client.set_nonblocking(true).unwrap();
    while attended.client.write(&[0; 65536]).is_ok() {}
    let drained = rig
        .drain
        .finish(Duration::from_millis(50), std::future::pending())
        .await;
    assert_eq!(drained, Drained::Cut(2));
    expect_reset(&mut calm.client);
    assert!(rig.record(2).contains(r#""how":"drain""#));
    assert_eq!(rig.drain.count(), 0);
}
