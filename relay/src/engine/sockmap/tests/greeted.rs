//! Sockets from which something was read, and to which something was written, before they enter the map.

use std::{
    io::{Read, Write},
    net::Shutdown,
    os::fd::{AsFd, OwnedFd},
};

use rustix::net::{RecvFlags, SendFlags, recv, send};

use super::{PATIENCE, Rig, until};
use crate::{
    close,
    engine::{
        Connection,
        copy::Copy,
        sockmap::selftest::{Bench, expect, expect_end, pattern},
    },
    pair::Side,
    plan::{Limits, Sizes},
    sys::tcp,
};

/// What is said before the engine, bytes.
const GREETING: usize = 300;

fn offer(rig: &Rig) -> (Bench, Box<Connection>) {
    let (bench, connection) =
        Bench::with(Limits::default(), rig.books.clone(), &rig.drain).unwrap();
    for stream in [&bench.client, &bench.server] {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
    }
    (bench, connection)
}

/// Reads the greeting of `side` and nothing else.
fn read(connection: &mut Connection, side: Side) {
    let socket = match side {
        Side::Client => &mut connection.pair.client,
        Side::Upstream => &mut connection.pair.upstream,
    };
    let mut left = GREETING;
    until("greeting", || {
        let mut buffer = vec![0; left];
        if let Ok((_, read)) = recv(&*socket, &mut buffer[..], RecvFlags::DONTWAIT) {
            left -= read;
        }
        (left == 0).then_some(())
    });
    socket.read = GREETING as u64;
}

fn write(socket: impl AsFd) {
    let said = send(&socket, &pattern(7, GREETING), SendFlags::NOSIGNAL).unwrap();
    assert_eq!(said, GREETING);
}

fn arrived(connection: &Connection, side: Side, bytes: usize) {
    until("bytes", || {
        let info = tcp::info(connection.pair.socket(side)).unwrap();
        (info.bytes_received >= bytes as u64).then_some(())
    });
}

/// Carries what comes with and behind a greeting, both ways, to the end.
fn carried(rig: &Rig, mut bench: Bench, connection: Box<Connection>, early: usize, count: usize) {
    rig.sockmap.take(connection).unwrap();
    expect(&mut bench.server, 0, early).unwrap();
    bench.server.write_all(&pattern(9, 100_000)).unwrap();
    expect(&mut bench.client, 9, 100_000).unwrap();
    bench.client.write_all(&pattern(3, 200_000)).unwrap();
    bench.client.shutdown(Shutdown::Write).unwrap();
    expect(&mut bench.server, 3, 200_000).unwrap();
    expect_end(&mut bench.server).unwrap();
    bench.server.shutdown(Shutdown::Write).unwrap();
    expect_end(&mut bench.client).unwrap();
    let record = rig.record(count);
    let moved = format!(r#""bytes_up":{},"bytes_down":100000"#, early + 200_000);
    assert!(record.contains(&moved), "{record}");
    assert!(record.contains(r#""how":"end""#), "{record}");
}

/// The program gets the whole segment, of which the greeting was read.
#[tokio::test(flavor = "multi_thread")]
async fn a_segment_read_in_part_is_carried_from_there() {
    let rig = Rig::new().await;
    for (count, early) in [0, 1, 100, 4096, 30_000, 60_000].into_iter().enumerate() {
        let (mut bench, mut connection) = offer(&rig);
        let mut said = pattern(7, GREETING);
        said.extend(pattern(0, early));
        bench.client.write_all(&said).unwrap();
        arrived(&connection, Side::Client, said.len());
        read(&mut connection, Side::Client);
        carried(&rig, bench, connection, early, count + 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_greeting_of_single_bytes_is_not_carried() {
    let rig = Rig::new().await;
    let (mut bench, mut connection) = offer(&rig);
    bench.client.set_nodelay(true).unwrap();
    let mut said = pattern(7, GREETING);
    said.extend(pattern(0, 50));
    for byte in &said {
        bench.client.write_all(std::slice::from_ref(byte)).unwrap();
    }
    read(&mut connection, Side::Client);
    carried(&rig, bench, connection, 50, 1);
}

/// The upstream's answer to a greeting of ours, read in part.
#[tokio::test(flavor = "multi_thread")]
async fn both_sides_may_have_been_read_and_written() {
    let rig = Rig::new().await;
    for count in 1..=50 {
        let (mut bench, mut connection) = offer(&rig);
        write(&connection.pair.client);
        bench.client.write_all(&pattern(7, GREETING)).unwrap();
        bench.server.write_all(&pattern(7, GREETING)).unwrap();
        read(&mut connection, Side::Client);
        read(&mut connection, Side::Upstream);
        // Right before the map: its acknowledgement comes when it may.
        write(&connection.pair.upstream);
        rig.sockmap.take(connection).unwrap();
        expect(&mut bench.client, 7, GREETING).unwrap();
        expect(&mut bench.server, 7, GREETING).unwrap();
        bench.client.write_all(b"up").unwrap();
        bench.client.shutdown(Shutdown::Write).unwrap();
        bench.server.write_all(b"down").unwrap();
        bench.server.shutdown(Shutdown::Write).unwrap();
        let mut came = (Vec::new(), Vec::new());
        bench.server.read_to_end(&mut came.0).unwrap();
        bench.client.read_to_end(&mut came.1).unwrap();
        assert_eq!(came, (b"up".to_vec(), b"down".to_vec()));
        assert!(rig.record(count).contains(r#""bytes_up":2,"bytes_down":4"#));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reset_behind_a_greeting_is_no_end() {
    let rig = Rig::new().await;
    let (mut bench, mut connection) = offer(&rig);
    bench.client.write_all(&pattern(7, GREETING)).unwrap();
    read(&mut connection, Side::Client);
    rig.sockmap.take(connection).unwrap();
    close::arm(&bench.client);
    drop(bench.client);
    assert!(bench.server.read_exact(&mut [0]).is_err());
    assert!(rig.record(1).contains(r#""by":"client","how":"reset""#));
}

/// When the other socket is refused, this one stays in the map, and copy reads what the program passes.
#[tokio::test(flavor = "multi_thread")]
async fn a_half_entered_connection_keeps_its_greeting_to_itself() {
    let (ours, other) = (Rig::new().await, Rig::new().await);
    let (mut bench, mut connection) = offer(&ours);
    let mut said = pattern(7, GREETING);
    said.extend(pattern(0, 20_000));
    bench.client.write_all(&said).unwrap();
    arrived(&connection, Side::Client, said.len());
    read(&mut connection, Side::Client);
    let upstream: OwnedFd = connection
        .pair
        .upstream
        .as_fd()
        .try_clone_to_owned()
        .unwrap();
    other
        .sockmap
        .base
        .kernel
        .insert(1000, upstream.as_fd())
        .unwrap();
    drop(upstream);
    let mut declined = ours.sockmap.take(connection).unwrap_err().connection;
    assert!(declined.pair.client.mapped);
    declined.pair.upstream.mapped = true;
    let drain = ours.drain.clone();
    let copy = Copy::new(Sizes::default().buffer);
    let carrying = tokio::spawn(async move { copy.run(declined, None, &drain).await });
    expect(&mut bench.server, 0, 20_000).unwrap();
    bench.client.write_all(&pattern(1, 100_000)).unwrap();
    bench.client.shutdown(Shutdown::Write).unwrap();
    expect(&mut bench.server, 1, 100_000).unwrap();
    expect_end(&mut bench.server).unwrap();
    bench.server.shutdown(Shutdown::Write).unwrap();
    expect_end(&mut bench.client).unwrap();
    carrying.await.unwrap();
}
