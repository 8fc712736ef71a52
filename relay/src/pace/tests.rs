//! Buckets and turns, on a clock that only the test moves.

use std::future::poll_fn;

use super::*;

const UP: usize = 0;

fn rate(bytes: u64) -> Option<Rate> {
    Some(Rate::new(bytes).unwrap())
}

fn rates(connection: Option<Rate>, route: Option<Rate>) -> Rates {
    Rates {
        connection: [connection, None],
        route: [route, None],
    }
}

fn pacer(rates: &Rates, quotas: &Quotas) -> Box<Pacer> {
    let pace = Pace::new(rates, quotas).unwrap();
    assert!(pace.pacer(Direction::Down).is_none());
    pace.pacer(Direction::Up).unwrap()
}

async fn turn(pacer: &mut Pacer) -> usize {
    poll_fn(|cx| pacer.poll(cx)).await
}

/// Takes all it may until `until`, never more than `most` in a turn, and says how much that was.
async fn takes(pacer: &mut Pacer, most: usize, until: Instant) -> u64 {
    let mut all = 0;
    loop {
        let bytes = turn(pacer).await.min(most);
        if Instant::now() >= until {
            return all;
        }
        pacer.took(bytes);
        all += bytes as u64;
    }
}

#[tokio::test(start_paused = true)]
async fn no_more_than_the_rate_and_one_burst_and_not_much_less() {
    for bytes in [Rate::LEAST, 10_000, 100_000, 10 << 20, 1 << 30, 1 << 40] {
        let rate = rate(bytes);
        let mut pacer = pacer(&rates(rate, None), &Quotas::default());
        let begun = Instant::now();
        let all = takes(&mut pacer, usize::MAX, begun + Duration::from_secs(10)).await;
        let most = 10 * bytes + depth(rate.unwrap());
        assert!(all <= most, "{bytes}: {all}");
        assert!(all >= 9 * bytes, "{bytes}: {all}");
    }
}

#[tokio::test(start_paused = true)]
async fn no_time_makes_the_burst_larger() {
    let mut pacer = pacer(&rates(rate(100_000), None), &Quotas::default());
    tokio::time::advance(Duration::from_secs(3600)).await;
    let until = Instant::now() + Duration::from_millis(1);
    let all = takes(&mut pacer, usize::MAX, until).await;
    assert!((9_000..=10_100).contains(&all), "{all}");
}

#[tokio::test(start_paused = true)]
async fn what_of_a_turn_is_not_used_goes_back() {
    let mut pacer = pacer(&rates(rate(1 << 20), None), &Quotas::default());
    let begun = Instant::now();
    for _ in 0..5_000 {
        assert!(turn(&mut pacer).await > 0);
        pacer.took(10);
    }
    // 50 kB in all, of the 100 kB that a full bucket holds.
    assert!(!pacer.is_waiting());
    assert_eq!(begun.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn a_route_is_shared_evenly_whatever_comes_at_once() {
    let all = rates(None, rate(1 << 20));
    let quotas = Quotas::new(&all);
    let until = Instant::now() + Duration::from_secs(20);
    // One takes about half of what it may, and one has a limit of its own that is beyond its share.
    let tight = rates(rate(800_000), rate(1 << 20));
    let tasks = [
        (all, usize::MAX),
        (all, 3_000),
        (tight, usize::MAX),
        (all, usize::MAX),
    ];
    let tasks = tasks.map(|(rates, most)| {
        let mut pacer = pacer(&rates, &quotas);
        tokio::spawn(async move { takes(&mut pacer, most, until).await })
    });
    let mut shares = Vec::new();
    for task in tasks {
        shares.push(task.await.unwrap());
    }
    let sum: u64 = shares.iter().sum();
    assert!(sum <= 20 * (1 << 20) + (1 << 20) / 10, "{shares:?}");
    assert!(sum >= 18 * (1 << 20), "{shares:?}");
    // Turns come round evenly; who takes half of each has half.
    shares[1] *= 2;
    let (least, most) = (shares.iter().min().unwrap(), shares.iter().max().unwrap());
    assert!(most / least < 2, "{shares:?}");
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_ends_leaves_its_turn_to_the_others() {
    let all = rates(None, rate(Rate::LEAST));
    let quotas = Quotas::new(&all);
    let mut first = pacer(&all, &quotas);
    let bucket = quotas.0[UP].clone().unwrap();
    for _ in 0..4 {
        let bytes = turn(&mut first).await;
        first.took(bytes);
    }
    let waits = poll_fn(|cx| Poll::Ready(first.poll(cx).is_pending())).await;
    assert!(waits && first.is_waiting());
    let before = bucket.lock().earned;
    drop(first);
    let state = bucket.lock();
    assert_eq!(state.turns, 0);
    assert_eq!(before - state.earned, SECOND - 1);
}

#[tokio::test(start_paused = true)]
async fn a_rate_can_be_changed_under_those_who_share_it() {
    let slow = rates(None, rate(10_000));
    let quotas = Quotas::new(&slow);
    let mut old = pacer(&slow, &quotas);
    let ten = Duration::from_secs(10);
    takes(&mut old, usize::MAX, Instant::now() + ten).await;
    let fast = rates(None, rate(1_000_000));
    let renewed = quotas.renewed(&fast);
    let mut new = pacer(&fast, &renewed);
    let until = Instant::now() + ten;
    let (one, other) = tokio::join!(
        takes(&mut old, usize::MAX, until),
        takes(&mut new, usize::MAX, until)
    );
    assert!((9_000_000..=10_100_000).contains(&(one + other)));
    assert!(one.min(other) > 4_000_000, "{one} {other}");
    // Without a limit nobody waits any more, and whoever comes has none.
    let none = renewed.renewed(&Rates::default());
    assert!(Pace::new(&Rates::default(), &none).is_none());
    new.took(0);
    for _ in 0..1000 {
        let bytes = turn(&mut new).await;
        assert_eq!(bytes as u64, GULP);
        new.took(bytes);
    }
}
