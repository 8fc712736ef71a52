//! Connections with a bandwidth limit, under both engines: never faster than it, and otherwise like any other.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::{io::AsyncReadExt, io::AsyncWriteExt, net::TcpStream};

use super::rig::{self, Rig, Under, pattern, read_all, reset, stuff, until, within, write};
use crate::{
    close::{How, Outcome},
    drain::Room,
    engine::splice::Splice,
    pace::{Pace, Quotas},
    pair::{Direction, Side},
    plan::{Limits, Rate, Rates, Sizes},
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
    bytes_come_no_faster_than_the_limit_and_all_of_them,
    the_other_direction_is_as_fast_as_ever,
    two_connections_share_what_their_route_has,
    waiting_for_the_limit_is_not_idle,
    a_drain_cuts_what_waits_for_its_limit,
    a_reset_is_passed_on_while_bytes_wait,
}

const RATE: u64 = 2 << 20;
/// A tenth of a second's worth.
const BURST: u64 = RATE / 10;

fn each(direction: Direction, bytes: u64) -> Rates {
    let mut rates = Rates::default();
    rates.connection[direction.index()] = Rate::new(bytes);
    rates
}

fn rig(under: &Under, limits: Limits, rates: &Rates) -> Rig {
    let pace = Pace::new(rates, &Quotas::new(rates));
    Rig::paced(under, limits, pace)
}

/// Reads to the end, and sees to it at every step that no more has come than may have by then.
async fn read_all_paced(stream: &mut TcpStream, begun: Instant) -> Vec<u8> {
    let mut all = Vec::new();
    let mut some = vec![0; 64 << 10];
    loop {
        let bytes = within(stream.read(&mut some)).await.unwrap();
        if bytes == 0 {
            return all;
        }
        all.extend_from_slice(&some[..bytes]);
        let earned = begun.elapsed().as_secs_f64() * RATE as f64;
        let most = earned as u64 + BURST;
        assert!(all.len() as u64 <= most, "{} of {most}", all.len());
    }
}

async fn bytes_come_no_faster_than_the_limit_and_all_of_them(under: Under) {
    for direction in Direction::BOTH {
        let begun = Instant::now();
        let Rig {
            client,
            upstream,
            mut ended,
            ..
        } = rig(&under, Limits::default(), &each(direction, RATE));
        let (mut from, mut to) = match direction {
            Direction::Up => (client, upstream),
            Direction::Down => (upstream, client),
        };
        let sent = pattern(1, RATE as usize);
        let expected = sent.clone();
        let sender = tokio::spawn(async move {
            write(&mut from, &sent).await;
            from.shutdown().await.unwrap();
            // The half-close came behind the bytes, and the other direction lives on.
            assert_eq!(read_all(&mut from).await.unwrap(), b"thanks");
        });
        assert!(read_all_paced(&mut to, begun).await == expected);
        write(&mut to, b"thanks").await;
        drop(to);
        sender.await.unwrap();
        let end = within(ended.recv()).await.unwrap();
        assert_eq!(end.outcome.how, How::End);
        assert_eq!(end.bytes[direction.index()], RATE);
    }
}

async fn the_other_direction_is_as_fast_as_ever(under: Under) {
    let mut rig = rig(&under, Limits::default(), &each(Direction::Up, Rate::LEAST));
    stuff(&mut rig.client).await;
    let sent = pattern(2, 8 << 20);
    let (mut client, mut upstream) = (rig.client, rig.upstream);
    let expected = sent.clone();
    // It takes hours at the limit of the other one.
    let sender = tokio::spawn(async move {
        write(&mut upstream, &sent).await;
        upstream
    });
    assert!(rig::read(&mut client, expected.len()).await == expected);
    sender.await.unwrap();
}

async fn two_connections_share_what_their_route_has(under: Under) {
    let mut rates = Rates::default();
    rates.route[Direction::Up.index()] = Rate::new(RATE);
    let quotas = Quotas::new(&rates);
    let begun = Instant::now();
    let rigs = [(); 2].map(|()| Rig::paced(&under, Limits::default(), Pace::new(&rates, &quotas)));
    let cards = [0, 1].map(|at: usize| rigs[at].card.clone());
    let moved = || cards.each_ref().map(|card| card.meter.moved(Direction::Up));
    let drains = rigs.map(|rig| {
        let Rig {
            mut client,
            mut upstream,
            drain,
            ..
        } = rig;
        tokio::spawn(async move {
            let some = [7; 16 << 10];
            while client.write_all(&some).await.is_ok() {}
        });
        tokio::spawn(async move {
            let mut some = vec![0; 64 << 10];
            while matches!(upstream.read(&mut some).await, Ok(1..)) {}
        });
        drain
    });
    until(|| moved().iter().sum::<u64>() >= 2 * RATE).await;
    let shares = moved();
    let earned = begun.elapsed().as_secs_f64() * RATE as f64;
    let sum = shares.iter().sum::<u64>();
    assert!(sum <= earned as u64 + BURST, "{shares:?}");
    assert!(shares.iter().all(|share| share * 4 >= sum), "{shares:?}");
    for drain in drains {
        drain.finish(Duration::ZERO, std::future::ready(())).await;
    }
}

async fn waiting_for_the_limit_is_not_idle(under: Under) {
    let limits = Limits {
        idle: Some(Duration::from_millis(200)),
        ..Limits::default()
    };
    let ((mut client, near), (upstream, far)) = (rig::tcp(), rig::tcp());
    // Turns come a second apart, and a bucket is full at the beginning.
    let sent = pattern(3, 6 << 10);
    write(&mut client, &sent).await;
    client.shutdown().await.unwrap();
    let rates = each(Direction::Up, Rate::LEAST);
    let pace = Pace::new(&rates, &Quotas::default());
    let pair = rig::pair(near, far);
    let mut rig = Rig::with(&under, limits, pace, (client, upstream), pair);
    assert!(read_all(&mut rig.upstream).await.unwrap() == sent);
    drop(rig.upstream);
    assert_eq!(
        within(rig.ended.recv()).await.unwrap().outcome,
        Outcome::end(Side::Client)
    );
}

async fn a_drain_cuts_what_waits_for_its_limit(under: Under) {
    let mut rig = rig(&under, Limits::default(), &each(Direction::Up, Rate::LEAST));
    stuff(&mut rig.client).await;
    rig.drain
        .finish(Duration::ZERO, std::future::ready(()))
        .await;
    assert_eq!(rig.end().await.outcome, Outcome::relay(How::Drain));
}

async fn a_reset_is_passed_on_while_bytes_wait(under: Under) {
    for by in Side::BOTH {
        let mut rig = rig(&under, Limits::default(), &each(Direction::Up, Rate::LEAST));
        let pushed = stuff(&mut rig.client).await;
        match by {
            Side::Client => reset(rig.client),
            Side::Upstream => reset(rig.upstream),
        }
        let end = within(rig.ended.recv()).await.unwrap();
        assert_eq!(end.outcome.how, How::Reset);
        assert_eq!(end.outcome.by, by.into());
        assert!(end.bytes[0] < pushed as u64);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_pipe_is_held_while_bytes_wait_for_the_limit() {
    let splice = Arc::new(Splice::start(Sizes::default(), &Room::default()).unwrap());
    let under = Under::Splice(splice.clone());
    let mut rig = rig(&under, Limits::default(), &each(Direction::Up, Rate::LEAST));
    stuff(&mut rig.client).await;
    // It made one for the trial, which it has kept.
    until(|| splice.idle_pipes() == 1).await;
    assert!(rig.card.meter.moved(Direction::Up) < 1 << 20);
}
