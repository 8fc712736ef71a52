//! What the engine does not take, and that it comes back whole.

use std::{
    io::{Read, Write},
    net::Shutdown,
    os::{fd::OwnedFd, unix::net::UnixStream},
    sync::Arc,
};

use super::{Rig, until};
use crate::{
    decline::Why,
    engine::{
        copy::Copy,
        sockmap::selftest::{Bench, expect, expect_end, pattern},
    },
    pair::{Peer, Side, Socket},
    plan::{Limits, Sizes},
};

fn offer(rig: &Rig) -> (Bench, Box<crate::engine::Connection>) {
    Bench::with(Limits::default(), rig.books.clone(), &rig.drain).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_peer_that_has_ended_is_for_the_next_engine() {
    let rig = Rig::new().await;
    let (bench, connection) = offer(&rig);
    bench.client.shutdown(Shutdown::Write).unwrap();
    // The FIN crosses loopback at once, but not before the call returns.
    until("FIN", || {
        crate::sys::tcp::info(&connection.pair.client)
            .unwrap()
            .is_read_closed()
            .then_some(())
    });
    assert_eq!(
        rig.sockmap.take(connection).unwrap_err().why,
        Why::Finished(Side::Client)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_unix_socket_is_for_the_next_engine() {
    let rig = Rig::new().await;
    let (_bench, mut connection) = offer(&rig);
    let (near, _far) = UnixStream::pair().unwrap();
    connection.pair.upstream = Socket::new(
        OwnedFd::from(near),
        Peer::Unix(Arc::from(std::path::Path::new("/x"))),
    );
    assert_eq!(
        rig.sockmap.take(connection).unwrap_err().why,
        Why::NotTcp(Side::Upstream)
    );
}

/// A socket that is in another sockmap is refused; when the first socket is in ours by then, it stays there until it
/// closes, and copy reads it, as splice cannot.
#[tokio::test(flavor = "multi_thread")]
async fn a_half_entered_connection_is_carried_by_copy() {
    let (ours, other) = (Rig::new().await, Rig::new().await);
    let (mut bench, connection) = offer(&ours);
    other
        .sockmap
        .base
        .kernel
        .insert(1000, std::os::fd::AsFd::as_fd(&connection.pair.upstream))
        .unwrap();
    let declined = ours.sockmap.take(connection).unwrap_err();
    assert_eq!(declined.why, Why::Busy(Side::Upstream));
    assert!(declined.connection.pair.client.mapped);

    let drain = ours.drain.clone();
    let mut carried = declined.connection;
    carried.pair.upstream.mapped = true;
    let copy = Copy::new(Sizes::default().buffer);
    let carrying = tokio::spawn(async move { copy.run(carried, None, &drain).await });
    // Others go on using the map meanwhile, also the slot that the socket is still in.
    for _ in 0..5 {
        let mut next = ours.bench(Limits::default());
        next.client.write_all(b"ok").unwrap();
        next.server.read_exact(&mut [0; 2]).unwrap();
    }
    bench.client.write_all(&pattern(0, 100_000)).unwrap();
    bench.client.shutdown(Shutdown::Write).unwrap();
    expect(&mut bench.server, 0, 100_000).unwrap();
    expect_end(&mut bench.server).unwrap();
    bench.server.write_all(&pattern(9, 100_000)).unwrap();
    bench.server.shutdown(Shutdown::Write).unwrap();
    expect(&mut bench.client, 9, 100_000).unwrap();
    expect_end(&mut bench.client).unwrap();
    carrying.await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn slots_and_names_come_back() {
    let rig = Rig::new().await;
    for round in 1..=300 {
        let mut bench = rig.bench(Limits::default());
        bench.client.write_all(b"x").unwrap();
        bench.server.read_exact(&mut [0]).unwrap();
        drop(bench);
        rig.record(round);
    }
    until("end of all names", || {
        (rig.sockmap.base.kernel.names() == 0).then_some(())
    });
    // Sequential connections use few slots: nothing grows.
    assert!(
        rig.sockmap.slots.touched() < 20,
        "{}",
        rig.sockmap.slots.touched()
    );
}
