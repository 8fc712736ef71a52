//! What can happen to a connection, under both engines.

use std::{io::ErrorKind, time::Duration};

use rustix::net::{SendFlags, send};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use super::rig::{Rig, Under, pattern, read, read_all, reset, stuff, until, within, write};
use crate::{
    close::{How, Outcome},
    pair::{Direction, Side},
    plan::Limits,
};

macro_rules! under_both {
    ($($test:ident,)*) => {
        mod splice {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $test() {
                super::$test(super::Under::splice()).await;
            })*
        }
        mod copy {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $test() {
                super::$test(super::Under::copy()).await;
            })*
        }
    };
}

under_both! {
    a_half_close_is_passed_on_and_the_reply_still_comes,
    the_upstream_may_end_first,
    unix_sockets_are_carried,
    bytes_go_both_ways_at_once,
    many_tiny_segments_wait_for_a_slow_reader,
    a_word_after_a_stall_is_passed_on,
    a_reset_is_passed_on,
    a_reset_is_noticed_while_the_other_side_does_not_read,
    a_reset_is_noticed_after_a_half_close,
    a_peer_that_takes_no_more_is_a_reset_of_its_own,
    a_life_ends_whatever_moves,
    an_idle_connection_is_ended,
    a_half_closed_connection_has_a_limit_of_its_own,
    a_drain_cuts,
    an_urgent_byte_stays_in_the_stream,
    an_urgent_byte_before_the_fin_is_not_the_end,
}

const MIB: usize = 1 << 20;

fn free() -> Limits {
    Limits::default()
}

async fn a_half_close_is_passed_on_and_the_reply_still_comes(under: Under) {
    let mut rig = Rig::tcp(&under, free());
    write(&mut rig.client, b"request").await;
    rig.client.shutdown().await.unwrap();
    assert_eq!(read_all(&mut rig.upstream).await.unwrap(), b"request");
    let reply = pattern(1, 4 * MIB);
    let (mut client, mut upstream) = (rig.client, rig.upstream);
    let expected = reply.clone();
    let sender = tokio::spawn(async move {
        write(&mut upstream, &reply).await;
        upstream.shutdown().await.unwrap();
    });
    assert!(read_all(&mut client).await.unwrap() == expected);
    sender.await.unwrap();
    let end = within(rig.ended.recv()).await.unwrap();
    assert_eq!(end.outcome, Outcome::end(Side::Client));
    assert_eq!(end.bytes, [7, 4 * MIB as u64]);
}

async fn the_upstream_may_end_first(under: Under) {
    let mut rig = Rig::tcp(&under, free());
    write(&mut rig.upstream, b"banner").await;
    rig.upstream.shutdown().await.unwrap();
    assert_eq!(read_all(&mut rig.client).await.unwrap(), b"banner");
    write(&mut rig.client, b"bye").await;
    rig.client.shutdown().await.unwrap();
    assert_eq!(read_all(&mut rig.upstream).await.unwrap(), b"bye");
    let end = rig.end().await;
    assert_eq!(end.outcome, Outcome::end(Side::Upstream));
    assert_eq!(end.bytes, [3, 6]);
}

async fn unix_sockets_are_carried(under: Under) {
    let mut rig = Rig::unix(&under);
    let (up, down) = (pattern(2, MIB), pattern(3, MIB));
    let (mut client, mut upstream) = (rig.client, rig.upstream);
    let (sent, reply) = (up.clone(), down.clone());
    let far = tokio::spawn(async move {
        assert!(read_all(&mut upstream).await.unwrap() == sent);
        write(&mut upstream, &reply).await;
    });
    write(&mut client, &up).await;
    client.shutdown().await.unwrap();
    assert!(read_all(&mut client).await.unwrap() == down);
    far.await.unwrap();
    let end = within(rig.ended.recv()).await.unwrap();
    assert_eq!(end.outcome, Outcome::end(Side::Client));
    assert_eq!(end.bytes, [MIB as u64; 2]);
}

async fn bytes_go_both_ways_at_once(under: Under) {
    let mut rig = Rig::tcp(&under, free());
    let (up, down) = (pattern(4, 16 * MIB), pattern(5, 16 * MIB));
    let exchange = |stream: TcpStream, sent: Vec<u8>, expected: Vec<u8>| {
        tokio::spawn(async move {
            let (mut from, mut to) = stream.into_split();
            let sender = tokio::spawn(async move { write(&mut to, &sent).await });
            assert!(read_all(&mut from).await.unwrap() == expected);
            sender.await.unwrap();
        })
    };
    let client = exchange(rig.client, up.clone(), down.clone());
    let upstream = exchange(rig.upstream, down, up);
    client.await.unwrap();
    upstream.await.unwrap();
    let end = within(rig.ended.recv()).await.unwrap();
    assert_eq!(end.outcome.how, How::End);
    assert_eq!(end.bytes, [16 * MIB as u64; 2]);
}

async fn many_tiny_segments_wait_for_a_slow_reader(under: Under) {
    let mut rig = Rig::tcp(&under, free());
    let sent = pattern(6, 20_000);
    for byte in sent.chunks(1) {
        write(&mut rig.client, byte).await;
    }
    rig.client.shutdown().await.unwrap();
    assert!(read_all(&mut rig.upstream).await.unwrap() == sent);
}

/// While the target was full, the source was to tell of many bytes only.
async fn a_word_after_a_stall_is_passed_on(under: Under) {
    let mut rig = Rig::tcp(&under, free());
    for _ in 0..3 {
        let pushed = stuff(&mut rig.client).await;
        read(&mut rig.upstream, pushed).await;
        write(&mut rig.client, b"ask").await;
        assert_eq!(read(&mut rig.upstream, 3).await, b"ask");
        write(&mut rig.upstream, b"answer").await;
        assert_eq!(read(&mut rig.client, 6).await, b"answer");
    }
    rig.client.shutdown().await.unwrap();
    assert!(read_all(&mut rig.upstream).await.unwrap().is_empty());
}

async fn a_reset_is_passed_on(under: Under) {
    for by in Side::BOTH {
        let mut rig = Rig::tcp(&under, free());
        write(&mut rig.client, b"a").await;
        read(&mut rig.upstream, 1).await;
        let end = reset_by(by, &mut rig).await;
        assert_eq!(end.outcome, reset_of(by));
        assert_eq!(end.bytes, [1, 0]);
    }
}

async fn a_reset_is_noticed_while_the_other_side_does_not_read(under: Under) {
    for by in Side::BOTH {
        let mut rig = Rig::tcp(&under, free());
        let pushed = stuff(&mut rig.client).await;
        until(|| rig.card.meter.moved(Direction::Up) > 0).await;
        let end = reset_by(by, &mut rig).await;
        assert_eq!(end.outcome, reset_of(by));
        assert!(end.bytes[0] > 0 && end.bytes[0] <= pushed as u64);
    }
}

async fn a_reset_is_noticed_after_a_half_close(under: Under) {
    for (ended, by) in [
        (Side::Client, Side::Client),
        (Side::Client, Side::Upstream),
        (Side::Upstream, Side::Client),
        (Side::Upstream, Side::Upstream),
    ] {
        let mut rig = Rig::tcp(&under, free());
        let (from, to) = match ended {
            Side::Client => (&mut rig.client, &mut rig.upstream),
            Side::Upstream => (&mut rig.upstream, &mut rig.client),
        };
        write(from, b"request").await;
        from.shutdown().await.unwrap();
        assert_eq!(read_all(to).await.unwrap(), b"request");
        let (gone, left) = match by {
            Side::Client => (rig.client, rig.upstream),
            Side::Upstream => (rig.upstream, rig.client),
        };
        reset(gone);
        let end = within(rig.ended.recv()).await.unwrap();
        assert_eq!(end.outcome, reset_of(by), "{ended} ended, {by} reset");
        within(left.ready(tokio::io::Interest::ERROR))
            .await
            .unwrap();
        assert!(
            left.take_error().unwrap().is_some(),
            "{ended} ended, {by} reset"
        );
    }
}

/// A peer that closes with bytes unread, or is written to after it closed, answers with a reset.
async fn a_peer_that_takes_no_more_is_a_reset_of_its_own(under: Under) {
    let mut rig = Rig::tcp(&under, free());
    write(&mut rig.client, b"a").await;
    read(&mut rig.upstream, 1).await;
    drop(rig.upstream);
    assert_eq!(read_all(&mut rig.client).await.unwrap(), b"");
    // The first byte makes the closed peer answer; how many more are taken until then is up to the machine.
    while rig.client.write_all(b"b").await.is_ok() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let end = within(rig.ended.recv()).await.unwrap();
    assert_eq!(end.outcome, reset_of(Side::Upstream));
}

async fn an_idle_connection_is_ended(under: Under) {
    let idle = Duration::from_millis(300);
    let limits = Limits {
        idle: Some(idle),
        half_close: None,
        life: None,
    };
    let begun = std::time::Instant::now();
    let mut rig = Rig::tcp(&under, limits);
    let end = rig.end().await;
    assert!(begun.elapsed() >= idle);
    assert_eq!(end.outcome, Outcome::relay(How::Idle { limit: "idle" }));
    assert_reset(&mut rig.client).await;
    assert_reset(&mut rig.upstream).await;
}

async fn a_life_ends_whatever_moves(under: Under) {
    let life = Duration::from_millis(300);
    let limits = Limits {
        life: Some(life),
        ..Limits::default()
    };
    let begun = std::time::Instant::now();
    let mut rig = Rig::tcp(&under, limits);
    while rig.client.write_all(b"more").await.is_ok() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let end = within(rig.ended.recv()).await.unwrap();
    assert!(begun.elapsed() >= life);
    assert_eq!(end.outcome, Outcome::relay(How::Life));
    assert_reset(&mut rig.upstream).await;
}

async fn a_half_closed_connection_has_a_limit_of_its_own(under: Under) {
    let limits = Limits {
        idle: Some(Duration::from_secs(3600)),
        half_close: Some(Duration::from_millis(200)),
        life: None,
    };
    let mut rig = Rig::tcp(&under, limits);
    rig.client.shutdown().await.unwrap();
    let end = rig.end().await;
    let limit = "half-close";
    assert_eq!(end.outcome, Outcome::relay(How::Idle { limit }));
    assert_reset(&mut rig.client).await;
}

async fn a_drain_cuts(under: Under) {
    let mut rig = Rig::tcp(&under, free());
    write(&mut rig.client, b"a").await;
    read(&mut rig.upstream, 1).await;
    let now = std::future::ready(());
    rig.drain.finish(Duration::ZERO, now).await;
    let end = rig.end().await;
    assert_eq!(end.outcome, Outcome::relay(How::Drain));
    assert_eq!(end.bytes, [1, 0]);
    assert_reset(&mut rig.client).await;
    assert_reset(&mut rig.upstream).await;
    rig.run.await.unwrap().unwrap();
    assert_eq!(rig.card.meter.moved(Direction::Up), 1);
}

async fn an_urgent_byte_stays_in_the_stream(under: Under) {
    let mut rig = Rig::tcp(&under, free());
    write(&mut rig.client, b"before").await;
    send(&rig.client, b"!", SendFlags::OOB).unwrap();
    write(&mut rig.client, b"after").await;
    assert_eq!(read(&mut rig.upstream, 12).await, b"before!after");
    drop(rig.client);
    assert_eq!(read_all(&mut rig.upstream).await.unwrap(), b"");
}

async fn an_urgent_byte_before_the_fin_is_not_the_end(under: Under) {
    let ((mut client, near), (upstream, far)) = (super::rig::tcp(), super::rig::tcp());
    write(&mut client, b"before").await;
    send(&client, b"!", SendFlags::OOB).unwrap();
    write(&mut client, b"after").await;
    client.shutdown().await.unwrap();
    let pair = super::rig::pair(near, far);
    let mut rig = Rig::over(&under, free(), (client, upstream), pair);
    assert_eq!(read_all(&mut rig.upstream).await.unwrap(), b"before!after");
}

/// What a socket in the sockmap says of its bytes and FIN is checked against the kernel's count.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn copy_believes_the_end_of_a_mapped_socket_when_nothing_is_missing() {
    let ((client, near), (upstream, far)) = (super::rig::tcp(), super::rig::tcp());
    let mut pair = super::rig::pair(near, far);
    (pair.client.mapped, pair.upstream.mapped) = (true, true);
    let mut rig = Rig::over(&Under::copy(), free(), (client, upstream), pair);
    write(&mut rig.client, b"request").await;
    rig.client.shutdown().await.unwrap();
    assert_eq!(read_all(&mut rig.upstream).await.unwrap(), b"request");
    drop(rig.upstream);
    let end = within(rig.ended.recv()).await.unwrap();
    assert_eq!(end.outcome, Outcome::end(Side::Client));
}

fn reset_of(side: Side) -> Outcome {
    Outcome {
        by: side.into(),
        how: How::Reset,
    }
}

/// Resets the connection at one side, and sees the reset arrive at the other.
async fn reset_by(by: Side, rig: &mut Rig) -> super::rig::End {
    let spare = || super::rig::tcp().0;
    let (gone, left) = match by {
        Side::Client => (
            std::mem::replace(&mut rig.client, spare()),
            &mut rig.upstream,
        ),
        Side::Upstream => (
            std::mem::replace(&mut rig.upstream, spare()),
            &mut rig.client,
        ),
    };
    reset(gone);
    assert_reset(left).await;
    rig.end().await
}

/// Reads what there is, to a reset.
async fn assert_reset(stream: &mut TcpStream) {
    let mut rest = Vec::new();
    let error = within(stream.read_to_end(&mut rest)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
}
