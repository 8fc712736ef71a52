//! Pipes: where they come from, when they are held, and what happens without them.

use std::{
    io::Write,
    os::{
        fd::{AsFd, OwnedFd},
        unix::net::UnixStream,
    },
    sync::Arc,
};

use rustix::{
    io::Errno,
    net::{RecvFlags, recv},
};
use tokio::{io::AsyncWriteExt, net::TcpStream};

use super::{Pipe, Pool, Splice, pipe, pool};
use crate::{
    close::Outcome,
    decline::Why,
    drain::Room,
    engine::{
        copy::{Buffered, Copy},
        duplex::{
            Mover, Source, Taken,
            rig::{self, Rig, Under, pattern, read, read_all, until, within, write},
        },
        shelf::Shelf,
    },
    pair::{Direction, Side},
    plan::{EngineKind, Limits, Sizes},
};

/// An engine with so many pipes, and no more to be had.
fn with_pipes(pipes: usize) -> Arc<Splice> {
    let sizes = Sizes::default();
    let pool = Pool::new(|_| Err(Errno::MFILE), sizes.pipe, &Room::default());
    for _ in 0..pipes {
        pool.put(Pipe::new(sizes.pipe).unwrap());
    }
    Arc::new(Splice::with(pool, Sizes::default().buffer))
}

#[test]
fn the_trial_leaves_its_pipe_in_the_pool() {
    let splice = Splice::start(Sizes::default(), &Room::default()).unwrap();
    assert_eq!(splice.idle_pipes(), 1);
    assert_eq!(splice.pool.take().unwrap().held(), 0);
}

#[test]
fn a_pool_keeps_so_many_pipes_and_no_more() {
    let pool = Pool::new(Pipe::new, Sizes::default().pipe, &Room::default());
    let many: Vec<_> = (0..=pool::KEPT).map(|_| pool.take().unwrap()).collect();
    many.into_iter().for_each(|pipe| pool.put(pipe));
    assert_eq!(pool.lock().len(), pool::KEPT);
}

#[test]
fn a_pool_makes_no_more_pipes_than_there_is_room_for() {
    let room = Room::default();
    room.fit(4, 4);
    let pool = Pool::new(Pipe::new, Sizes::default().pipe, &room);
    let two = [pool.take().unwrap(), pool.take().unwrap()];
    assert_eq!(pool.take().unwrap_err(), Errno::MFILE);
    two.into_iter().for_each(|pipe| pool.put(pipe));
    // They are kept, and so are their descriptors.
    assert!(!room.try_pipe());
    assert_eq!(pool.take().unwrap().held(), 0);
}

#[test]
fn a_pipe_that_is_not_made_takes_no_room() {
    let room = Room::default();
    room.fit(2, 2);
    let pool = Pool::new(|_| Err(Errno::NFILE), Sizes::default().pipe, &room);
    assert_eq!(pool.take().unwrap_err(), Errno::NFILE);
    assert!(room.try_pipe());
}

#[test]
fn a_size_is_granted_or_halved() {
    let (_reader, writer) = rustix::pipe::pipe().unwrap();
    // Beyond what a pipe can ever have, so refused to root too.
    let size = pipe::resize(&writer, 1 << 40).unwrap();
    assert!(size >= 64 << 10, "{size}");
    let (_reader, writer) = rustix::pipe::pipe().unwrap();
    let has = rustix::pipe::fcntl_getpipe_size(&writer).unwrap();
    assert_eq!(pipe::resize(&writer, has).unwrap(), has);
    assert!(pipe::resize(&writer, 1).unwrap() < has);
}

#[test]
fn a_refusal_at_start_names_the_call_and_the_way_out() {
    let pool = Pool::new(
        |_| Err(Errno::PERM),
        Sizes::default().pipe,
        &Room::default(),
    );
    let text = super::way_out(&pool.trial().unwrap_err());
    assert!(text.starts_with("pipe2: "), "{text}");
    assert!(
        text.contains("seccomp") && text.contains("--engine copy"),
        "{text}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_connection_holds_no_pipe() {
    let splice = with_pipes(2);
    let mut rig = Rig::tcp(&Under::Splice(splice.clone()), Limits::default());
    for _ in 0..10 {
        write(&mut rig.client, b"ping").await;
        read(&mut rig.upstream, 4).await;
        write(&mut rig.upstream, b"pong").await;
        read(&mut rig.client, 4).await;
    }
    until(|| splice.idle_pipes() == 2).await;
    drop((rig.client, rig.upstream));
    let end = within(rig.run).await.unwrap();
    assert!(end.is_ok());
    assert_eq!(splice.idle_pipes(), 2);
}

#[test]
fn an_aborted_pipe_is_not_used_again() {
    let splice = with_pipes(1);
    let (mut near, far) = UnixStream::pair().unwrap();
    near.write_all(b"bytes of one connection").unwrap();
    let mut mover = splice.mover();
    let from = Source {
        fd: far.as_fd(),
        plain: false,
    };
    assert!(matches!(mover.take(from, usize::MAX), Taken::Bytes(23)));
    drop(mover);
    assert_eq!(splice.idle_pipes(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_pipe_the_connection_comes_back_whole() {
    let splice = with_pipes(0);
    let mut rig = Rig::tcp(&Under::Splice(splice), Limits::default());
    write(&mut rig.client, b"early").await;
    let declined = within(&mut rig.run).await.unwrap().unwrap_err();
    assert_eq!(declined.why, Why::Pipe(Errno::MFILE));
    let drain = rig.drain.clone();
    let copied = tokio::spawn(async move {
        Copy::new(Sizes::default().buffer)
            .run(declined.connection, None, &drain)
            .await;
    });
    rig.client.shutdown().await.unwrap();
    assert_eq!(read_all(&mut rig.upstream).await.unwrap(), b"early");
    drop(rig.upstream);
    within(copied).await.unwrap();
    let end = within(rig.ended.recv()).await.unwrap();
    assert_eq!(end.engine, Some(EngineKind::Copy));
    assert_eq!(end.outcome, Outcome::end(Side::Client));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pipe_missing_in_the_middle_loses_nothing() {
    let splice = with_pipes(1);
    let mut rig = Rig::tcp(&Under::Splice(splice.clone()), Limits::default());
    write(&mut rig.client, b"first").await;
    read(&mut rig.upstream, 5).await;
    until(|| splice.idle_pipes() == 1).await;
    drop(splice.pool.take().unwrap());
    let (up, down) = (pattern(1, 3 << 20), pattern(2, 3 << 20));
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
    assert_eq!(end.engine, Some(EngineKind::Copy));
    assert_eq!(end.declined, ["no_pipe"]);
    assert_eq!(rig.card.meter.moved(Direction::Up), 5 + (3 << 20));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_small_pipe_takes_many_tiny_segments() {
    let pool = Pool::new(Pipe::smallest, Sizes::default().pipe, &Room::default());
    let under = Under::Splice(Arc::new(Splice::with(pool, Sizes::default().buffer)));
    let mut rig = Rig::tcp(&under, Limits::default());
    let sent = pattern(3, 5000);
    for byte in sent.chunks(1) {
        write(&mut rig.client, byte).await;
    }
    rig.client.shutdown().await.unwrap();
    assert!(read_all(&mut rig.upstream).await.unwrap() == sent);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_socket_in_the_sockmap_is_left_to_copy() {
    let ((client, near), (upstream, far)) = (rig::tcp(), rig::tcp());
    let mut pair = rig::pair(near, far);
    pair.upstream.mapped = true;
    let under = Under::splice();
    let rig = Rig::over(&under, Limits::default(), (client, upstream), pair);
    let declined = within(rig.run).await.unwrap().unwrap_err();
    assert_eq!(declined.why, Why::Mapped);
    assert!(declined.connection.pair.upstream.mapped);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_that_leaves_room_has_emptied_a_plain_socket() {
    let (mut peer, near) = rig::tcp();
    let (splice, shelf) = (with_pipes(4), Shelf::new(Sizes::default().buffer));
    for plain in [true, false] {
        let fd = near.as_fd();
        let source = Source { fd, plain };
        // As much as was asked for says nothing of what is left.
        for (most, last) in [(usize::MAX, plain), (4, false)] {
            arrive(&mut peer, &near).await;
            let spliced = splice.mover().take(source, most);
            arrive(&mut peer, &near).await;
            let copied = Buffered::new(&shelf).take(source, most);
            let (spliced, copied) = match last {
                true => (
                    matches!(spliced, Taken::Last(4)),
                    matches!(copied, Taken::Last(4)),
                ),
                false => (
                    matches!(spliced, Taken::Bytes(4)),
                    matches!(copied, Taken::Bytes(4)),
                ),
            };
            assert!(spliced && copied, "{plain} {most}");
        }
    }
}

/// Four bytes, and all of them there.
async fn arrive(peer: &mut TcpStream, near: &OwnedFd) {
    write(peer, b"some").await;
    until(|| matches!(recv(near, &mut [0; 4], RecvFlags::PEEK), Ok((4, _)))).await;
}
