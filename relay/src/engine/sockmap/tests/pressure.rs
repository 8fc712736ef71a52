//! Streams that outrun their reader, in one direction and in both.

use std::{
    io::{ErrorKind, Write},
    net::{Shutdown, TcpStream},
    thread,
    time::{Duration, Instant},
};

use super::{PATIENCE, Rig};
use crate::{
    engine::sockmap::selftest::{Bench, expect, expect_end, pattern},
    plan::Limits,
};

const CHUNK: usize = 64 * 1024;

fn push(mut to: TcpStream, chunks: usize) {
    let chunk = pattern(0, CHUNK);
    for _ in 0..chunks {
        to.write_all(&chunk).unwrap();
    }
    to.shutdown(Shutdown::Write).unwrap();
}

fn pull(mut from: TcpStream, chunks: usize) {
    for _ in 0..chunks {
        expect(&mut from, 0, CHUNK).unwrap();
    }
    expect_end(&mut from).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn bulk_both_ways_arrives_whole() {
    let rig = Rig::new().await;
    let bench = rig.bench(Limits::default());
    let [client, server] = [&bench.client, &bench.server].map(|stream| stream.try_clone().unwrap());
    let workers = [
        thread::spawn(move || push(client, 1500)),
        thread::spawn(move || push(server, 1500)),
        thread::spawn(move || pull(bench.client, 1500)),
        thread::spawn(move || pull(bench.server, 1500)),
    ];
    let failed = workers.map(|worker| worker.join().is_err());
    let record = rig.record(1);
    let bytes = 1500 * CHUNK;
    let all = format!(r#""bytes_up":{bytes},"bytes_down":{bytes}"#);
    assert!(failed == [false; 4] && record.contains(&all), "{record}");
}

/// A client that sends and never reads what comes back: its segments are passed, and must not queue, charged to nobody,
/// behind what was redirected to it and cannot be sent. 743 MB of kernel memory were taken that way.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_never_reads_cannot_push_for_ever() {
    let rig = Rig::new().await;
    let bench = rig.bench(Limits::default());
    let mut echo = bench.server.try_clone().unwrap();
    thread::spawn(move || {
        let mut back = bench.server;
        // Ends when the connection does.
        let _ = std::io::copy(&mut echo, &mut back);
    });
    let pushed = push_until_stopped(bench.client, 100);
    let most = 2 * 2 * (4 + 32) * 1024 * 1024;
    assert!(
        pushed < most,
        "{pushed} bytes were taken from a client that reads nothing"
    );
}

/// A refused large segment leaves credit behind, with which small ones were redirected into a full send buffer: there they
/// stood until the client read, and what it sent queued behind them, charged to nobody and going nowhere.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_uploads_before_it_reads_is_heard() {
    let rig = Rig::new().await;
    // Somewhere between these the buffers are full just as the small messages begin.
    for large in (4..=100).step_by(8) {
        upload_before_reading(rig.bench(Limits::default()), large);
    }
}

fn upload_before_reading(bench: Bench, large: usize) {
    const SMALL: usize = 10_000;
    bench.server.set_nodelay(true).unwrap();
    let mut replies = bench.server.try_clone().unwrap();
    let replying = thread::spawn(move || {
        for _ in 0..large {
            replies.write_all(&pattern(0, CHUNK)).unwrap();
        }
        for _ in 0..SMALL {
            replies.write_all(&pattern(0, 1024)).unwrap();
        }
        replies.shutdown(Shutdown::Write).unwrap();
    });
    thread::sleep(Duration::from_millis(100));
    let mut client = bench.client;
    let upload = client.try_clone().unwrap();
    let uploading = thread::spawn(move || push(upload, 100));
    // Nothing is read by the client until all of its upload has arrived.
    pull(bench.server, 100);
    uploading.join().unwrap();
    for _ in 0..large {
        expect(&mut client, 0, CHUNK).unwrap();
    }
    for _ in 0..SMALL {
        expect(&mut client, 0, 1024).unwrap();
    }
    expect_end(&mut client).unwrap();
    replying.join().unwrap();
}

/// The same with messages of a byte, which cost a packet each in the target's send buffer.
#[tokio::test(flavor = "multi_thread")]
async fn tiny_messages_to_a_stalled_reader_are_bounded_and_arrive() {
    let rig = Rig::new().await;
    let mut bench = rig.bench(Limits::default());
    let sender = bench.client.try_clone().unwrap();
    let pushed = push_until_stopped(sender, 1);
    bench.client.shutdown(Shutdown::Write).unwrap();
    assert!(pushed < 64 * 1024 * 1024, "{pushed}");
    let mut read = 0;
    while read < pushed {
        let next = (pushed - read).min(CHUNK);
        expect(&mut bench.server, read % CHUNK, next).unwrap();
        read += next;
    }
    expect_end(&mut bench.server).unwrap();
}

/// Pushes messages until nothing more is taken for a while; gives the bytes that were.
fn push_until_stopped(mut to: TcpStream, message: usize) -> usize {
    to.set_nodelay(true).unwrap();
    to.set_nonblocking(true).unwrap();
    let chunk = pattern(0, CHUNK);
    let (begun, mut last, mut pushed) = (Instant::now(), Instant::now(), 0);
    while last.elapsed() < Duration::from_millis(500) && begun.elapsed() < PATIENCE / 12 {
        let at = pushed % CHUNK;
        match to.write(&chunk[at..(at + message).min(CHUNK)]) {
            Ok(written) => (pushed, last) = (pushed + written, Instant::now()),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                thread::sleep(Duration::from_millis(1));
            }
            Err(error) => panic!("{error}"),
        }
    }
    to.set_nonblocking(false).unwrap();
    pushed
}
