//! Segments that come while somebody has the socket: the kernel makes one of them before anybody looks.

use std::{
    fs,
    os::fd::{AsFd, OwnedFd},
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use anyhow::{Context, Result, ensure};
use relay_tests::{
    payload::Stream,
    peer::Listener,
    rawtcp::{Bench, endpoint::Terms},
    relay::Relay,
};
use rustix::{
    net::{RecvFlags, getpeername, recv},
    process::{PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open},
};

use crate::telling::{check, reply};

/// What goes ahead, and is left lying with relay: as much as takes some time to be looked through.
const AHEAD: usize = 8 << 20;
/// What the kernel calls a segment that was added to one that waits for whoever has the socket.
const MERGED: &str = "TCPBacklogCoalesce";

/// Two pieces of memory each, of which a buffer has places for 17.
const SEGMENT: usize = 64_000;
/// Segments of bytes that were said before.
const AGAIN: usize = 5;
/// In some rounds nobody has the socket, or not long enough.
const ROUNDS: usize = 300;
/// So many rounds in which all became one are enough.
const WHOLE: u32 = 3;

/// Of 327,415 bytes that were one segment, 261,932 were old: more than the verdict would cut off, and a healthy connection
/// was reset.
pub(crate) fn repeats_become_one_segment(bench: &Bench) -> Result<()> {
    let place = &bench.stage.net.relay;
    place.sysctl("net/ipv4/tcp_rmem", "4096 33554432 33554432")?;
    place.sysctl("net/ipv4/tcp_wmem", "4096 131072 131072")?;
    let upstream = &bench.stage.net.upstream;
    let address = bench.stage.net.at_upstream();
    let listener = upstream.enter(|| Listener::bind_with(&address, 16, Some(64 << 10)))?;
    let relay = bench.stage.relay(listener.address())?;
    let bytes = Stream::new(1).take(AHEAD + ROUNDS * SEGMENT);
    let (mut client, upstream) = bench.join(&relay, &listener, Terms::default())?;
    let mut expected = Stream::new(1);
    client.data(0, &bytes[..10])?;
    upstream.expect(&mut expected, 10)?;

    let mut at = 10;
    while at < AHEAD {
        let end = (at + SEGMENT).min(AHEAD);
        client.wait("room", |client| client.limit() >= end as u64)?;
        client.data(at, &bytes[at..end])?;
        at = end;
    }
    client.wait_acked(AHEAD)?;
    let socket = socket_of(&relay, &client.local())?;
    let mut before = place.counted(MERGED)?;
    let mut whole = 0;
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| look_through(&socket, &done));
        let mut said = || {
            while at < bytes.len() && whole < WHOLE {
                let end = at + SEGMENT;
                for begin in (at - AGAIN * SEGMENT..end).step_by(SEGMENT) {
                    client.data(begin, &bytes[begin..begin + SEGMENT])?;
                }
                client.wait_acked(end)?;
                at = end;
                let now = place.counted(MERGED)?;
                whole += u32::from(now - before == AGAIN as u64);
                before = now;
            }
            anyhow::Ok(())
        };
        let said = said();
        done.store(true, Ordering::Relaxed);
        said
    })?;
    drop(socket);
    ensure!(whole > 0, "no repeats became one segment");
    let length = at as u64;
    upstream.expect(&mut expected, length - 10)?;
    client.last(at, &[])?;
    upstream.expect_end()?;
    reply(&mut client, &upstream)?;
    check(bench, relay, &[(client.local(), length)])
}

/// relay's socket for the client with this address.
fn socket_of(relay: &Relay, client: &str) -> Result<OwnedFd> {
    let process = relay.process();
    let pidfd = pidfd_open(process, PidfdFlags::empty())?;
    let numbers = fs::read_dir(format!("/proc/{}/fd", process.as_raw_pid()))?;
    for number in numbers {
        let number = number?.file_name().to_string_lossy().parse()?;
        let Ok(fd) = pidfd_getfd(&pidfd, number, PidfdGetfdFlags::empty()) else {
            continue;
        };
        let far = getpeername(&fd).ok().flatten();
        let far = far.and_then(|far| std::net::SocketAddr::try_from(far).ok());
        if far.is_some_and(|far| far.to_string() == client) {
            return Ok(fd);
        }
    }
    None.with_context(|| format!("relay has no socket for {client}"))
}

/// Has the socket nearly all of the time, and takes nothing out.
fn look_through(socket: &OwnedFd, done: &AtomicBool) {
    let mut seen = vec![0; 16 << 20];
    while !done.load(Ordering::Relaxed) {
        // There is nothing to be seen where relay has room for all of it.
        let _ = recv(
            socket.as_fd(),
            &mut seen[..],
            RecvFlags::PEEK | RecvFlags::DONTWAIT,
        );
    }
}
