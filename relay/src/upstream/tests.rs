//! What several upstreams are held to.

mod names;

use std::{
    collections::HashMap,
    net::{SocketAddr, TcpListener, TcpStream},
};

use super::*;
use crate::{
    close::{By, How},
    plan::{Balance, Check, Eject, Limits, Tcp, To, Upstream},
    stats::upstreams::{self, State, Watched},
};

/// Longer than any test may take: what ends before it was not ended by it.
const HOUR: Duration = Duration::from_secs(3600);

/// Short enough to wait for.
const SOON: Duration = Duration::from_millis(300);

/// A client that waits: its own end and relay's.
fn client() -> (TcpStream, Socket) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let far = listener.accept().unwrap().0;
    far.set_nonblocking(true).unwrap();
    (near, Socket::new(far.into(), from()))
}

fn from() -> Peer {
    Peer::Ip(([192, 0, 2, 1], 1).into())
}

fn listening() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    (listener, at)
}

/// Bound and not listening: it refuses, and nobody else gets the port meanwhile.
fn refusing() -> (socket2::Socket, SocketAddr) {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    socket.bind(&any.into()).unwrap();
    let at = socket.local_addr().unwrap().as_socket().unwrap();
    (socket, at)
}

fn upstream(at: SocketAddr) -> Upstream {
    crate::plan::Address::Ip(at).into()
}

fn backup(at: SocketAddr) -> Upstream {
    Upstream {
        backup: true,
        ..upstream(at)
    }
}

fn route(to: Vec<Upstream>, limit: Duration, pool: Pool) -> Route {
    Route {
        name: "test".into(),
        listen: vec!["127.0.0.1:0".parse().unwrap()],
        to: To(to),
        connect: limit,
        door: crate::plan::Door::default(),
        greet: crate::plan::Greet::default(),
        pool,
        limits: Limits::default(),
        rates: crate::plan::Rates::default(),
        tcp: Tcp::default(),
        outgoing: Outgoing::default(),
    }
}

fn start(to: Vec<Upstream>, limit: Duration, pool: Pool) -> Upstreams {
    Upstreams::start(&route(to, limit, pool), &Names::new(Vec::new()))
}

fn named(host: &str, port: u16) -> Vec<Upstream> {
    vec![crate::plan::Address::Name(host.into(), port).into()]
}

async fn dial(upstreams: &Upstreams) -> Dialled {
    let (_near, far) = client();
    upstreams
        .dial(far, &from(), None, Opening::default(), &Drain::new())
        .await
}

/// Where a dial ended up.
async fn lands(upstreams: &Upstreams) -> SocketAddr {
    let dialled = dial(upstreams).await;
    let (socket, _live) = dialled.upstream.unwrap();
    assert_eq!(dialled.peer.as_ref(), Some(&socket.peer));
    match socket.peer {
        Peer::Ip(at) => at,
        Peer::Unix(path) => panic!("{}", path.display()),
    }
}

fn endpoints(upstreams: &Upstreams) -> Vec<upstreams::Endpoint> {
    let all = upstreams.seen().into_iter();
    all.flat_map(|one| one.endpoints).collect()
}

fn at(upstreams: &Upstreams, at: SocketAddr) -> upstreams::Endpoint {
    let mut all = endpoints(upstreams).into_iter();
    all.find(|one| one.address == at.to_string()).unwrap()
}

#[tokio::test]
async fn each_has_its_turn() {
    let (one, other) = (listening(), listening());
    let upstreams = start(
        vec![upstream(one.1), upstream(other.1)],
        HOUR,
        Pool::default(),
    );
    let mut counts = HashMap::<_, u32>::new();
    for _ in 0..6 {
        *counts.entry(lands(&upstreams).await).or_default() += 1;
    }
    assert_eq!(counts, [(one.1, 3), (other.1, 3)].into());
}

#[tokio::test]
async fn the_next_is_dialled_when_one_refuses() {
    let (refusing, live) = (refusing(), listening());
    let upstreams = start(
        vec![upstream(refusing.1), upstream(live.1)],
        HOUR,
        Pool::default(),
    );
    for _ in 0..4 {
        assert_eq!(lands(&upstreams).await, live.1);
    }
    let seen = at(&upstreams, refusing.1);
    let counts = (seen.counts.connects, seen.counts.connect_failures);
    assert_eq!((counts, seen.active), ((2, 2), 0));
}

#[tokio::test]
async fn when_nobody_accepts_the_last_one_is_named() {
    let (one, other) = (refusing(), refusing());
    let upstreams = start(
        vec![upstream(one.1), upstream(other.1)],
        HOUR,
        Pool::default(),
    );
    let dialled = dial(&upstreams).await;
    assert_eq!(dialled.peer, Some(Peer::Ip(other.1)));
    let refused = How::Error {
        errno: libc::ECONNREFUSED,
        call: "connect",
    };
    let outcome = dialled.upstream.unwrap_err();
    assert_eq!((outcome.by, outcome.how), (By::Upstream, refused));
}

#[tokio::test]
async fn a_backup_is_dialled_only_when_the_others_fail() {
    let (first, spare) = (listening(), listening());
    let upstreams = start(
        vec![backup(spare.1), upstream(first.1)],
        HOUR,
        Pool::default(),
    );
    for _ in 0..3 {
        assert_eq!(lands(&upstreams).await, first.1);
    }
    let gone = refusing();
    let upstreams = start(
        vec![backup(spare.1), upstream(gone.1)],
        HOUR,
        Pool::default(),
    );
    assert_eq!(lands(&upstreams).await, spare.1);
    assert_eq!(at(&upstreams, gone.1).counts.connects, 1);
}

fn ejecting(after: u32, period: Duration) -> Pool {
    let eject = Some(Eject { after, period });
    Pool {
        eject,
        ..Pool::default()
    }
}

#[tokio::test]
async fn one_that_fails_in_a_row_is_left_out() {
    let (gone, live) = (refusing(), listening());
    let to = vec![upstream(gone.1), upstream(live.1)];
    let upstreams = start(to, HOUR, ejecting(2, HOUR));
    for _ in 0..12 {
        assert_eq!(lands(&upstreams).await, live.1);
    }
    let seen = at(&upstreams, gone.1);
    assert_eq!((seen.counts.connects, seen.state), (2, State::Ejected));
    assert!(seen.cause.unwrap().contains("refused"));
    assert_eq!(at(&upstreams, live.1).state, State::Up);
}

#[tokio::test]
async fn the_last_usable_one_is_never_left_out() {
    let (one, other) = (refusing(), refusing());
    let to = vec![upstream(one.1), upstream(other.1)];
    let upstreams = start(to, HOUR, ejecting(1, HOUR));
    for _ in 0..4 {
        dial(&upstreams).await.upstream.unwrap_err();
    }
    let states = endpoints(&upstreams).into_iter().map(|one| one.state);
    let up = states.filter(|state| *state == State::Up).count();
    assert_eq!(up, 1);
}

#[tokio::test]
async fn one_that_was_left_out_is_tried_again() {
    let (gone, live) = (refusing(), listening());
    let to = vec![upstream(gone.1), upstream(live.1)];
    let upstreams = start(to, HOUR, ejecting(1, Duration::from_millis(1)));
    let begun = std::time::Instant::now();
    while at(&upstreams, gone.1).counts.connects < 3 {
        lands(&upstreams).await;
        assert!(begun.elapsed() < Duration::from_secs(60));
    }
}

async fn until_state(upstreams: &Upstreams, of: SocketAddr, state: State) -> upstreams::Endpoint {
    let begun = std::time::Instant::now();
    loop {
        let seen = at(upstreams, of);
        if seen.state == state {
            return seen;
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "{seen:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn checks_take_an_upstream_down_and_back_up() {
    let (gone, (listener, live)) = (refusing(), listening());
    // Checks would fill its backlog. The thread ends with the tests.
    std::thread::spawn(move || listener.incoming().for_each(drop));
    let check = Some(Check {
        interval: Duration::from_millis(5),
        timeout: Duration::from_secs(10),
        rise: 2,
        fall: 2,
    });
    let pool = Pool {
        check,
        ..Pool::default()
    };
    let upstreams = start(vec![upstream(gone.1), upstream(live)], HOUR, pool);
    let down = until_state(&upstreams, gone.1, State::Down).await;
    assert!(down.cause.unwrap().contains("2 checks in a row failed"));
    for _ in 0..4 {
        assert_eq!(lands(&upstreams).await, live);
    }
    assert_eq!(at(&upstreams, gone.1).counts.connects, 0);
    gone.0.listen(4096).unwrap();
    let up = until_state(&upstreams, gone.1, State::Up).await;
    assert_eq!(up.cause, None);
    assert!(up.last_error.unwrap().contains("refused") && up.counts.checks >= 4);
    assert!(up.counts.check_failures >= 2 && up.counts.connect_failures == 0);
}

#[tokio::test]
async fn what_lives_is_counted_until_it_ends() {
    let live = listening();
    let upstreams = start(vec![upstream(live.1)], HOUR, Pool::default());
    let dialled = dial(&upstreams).await;
    assert_eq!(at(&upstreams, live.1).active, 1);
    drop(dialled);
    assert_eq!(at(&upstreams, live.1).active, 0);
}

#[tokio::test]
async fn the_least_busy_one_is_taken() {
    let (one, other) = (listening(), listening());
    let pool = Pool {
        balance: Balance::LeastConnections,
        ..Pool::default()
    };
    let upstreams = start(vec![upstream(one.1), upstream(other.1)], HOUR, pool);
    let busy = dial(&upstreams).await;
    let idle = match busy.peer == Some(Peer::Ip(one.1)) {
        true => other.1,
        false => one.1,
    };
    for _ in 0..3 {
        assert_eq!(lands(&upstreams).await, idle);
    }
}

#[tokio::test]
async fn a_name_without_an_address_fails_to_resolve() {
    let upstreams = start(named("no-such-host.invalid", 1), HOUR, Pool::default());
    let dialled = dial(&upstreams).await;
    let failed = How::Error {
        errno: 0,
        call: "resolve",
    };
    let outcome = dialled.upstream.unwrap_err();
    assert_eq!((outcome.by, outcome.how), (By::Upstream, failed));
    assert_eq!(dialled.peer, None);
    let seen = upstreams.seen();
    assert!(seen[0].unresolved.is_some() && seen[0].endpoints.is_empty());
}

#[tokio::test]
async fn a_name_is_resolved_and_dialled() {
    let (_listener, at) = listening();
    let upstreams = start(named("localhost", at.port()), HOUR, Pool::default());
    // Where localhost is ::1 as well, that one refuses and the next is tried.
    assert_eq!(lands(&upstreams).await.port(), at.port());
}

#[tokio::test]
async fn a_client_may_say_where_to() {
    let (listed, asked) = (listening(), listening());
    let upstreams = start(vec![upstream(listed.1)], HOUR, Pool::default());
    let port = asked.1.port();
    for to in [asked.1.to_string(), format!("localhost:{port}")] {
        let (_near, far) = client();
        let to = Elsewhere {
            to: &to.parse().unwrap(),
            reach: None,
        };
        let dialled = upstreams
            .dial(far, &from(), Some(to), Opening::default(), &Drain::new())
            .await;
        assert_eq!(dialled.upstream.unwrap().0.peer, Peer::Ip(asked.1));
    }
    assert_eq!(at(&upstreams, listed.1).counts.connects, 0);
}

#[tokio::test]
async fn what_a_name_means_is_what_has_to_be_in_reach() {
    let asked = listening();
    let upstreams = start(Vec::new(), HOUR, Pool::default());
    let (_near, far) = client();
    let to = Elsewhere {
        to: &format!("localhost:{}", asked.1.port()).parse().unwrap(),
        reach: Some(&Reach::default()),
    };
    let dialled = upstreams
        .dial(far, &from(), Some(to), Opening::default(), &Drain::new())
        .await;
    assert_eq!(dialled.upstream.unwrap_err(), crate::greet::out_of_reach());
    assert_eq!(dialled.peer, None);
}

#[tokio::test]
async fn a_client_of_another_family_than_all_upstreams_is_told_apart() {
    let there = listening();
    let mut route = route(vec![upstream(there.1)], HOUR, Pool::default());
    route.outgoing.transparent = true;
    let upstreams = Upstreams::start(&route, &Names::new(Vec::new()));
    let (_near, far) = client();
    let from = Peer::Ip("[2001:db8::1]:1".parse().unwrap());
    let dialled = upstreams
        .dial(far, &from, None, Opening::default(), &Drain::new())
        .await;
    let outcome = dialled.upstream.unwrap_err();
    let (call, errno) = ("connect", libc::EAFNOSUPPORT);
    assert_eq!(outcome.how, How::Error { errno, call });
    assert_eq!(at(&upstreams, there.1).counts.connects, 0);
}

#[tokio::test]
async fn a_resolver_that_is_silent_runs_into_the_deadline() {
    let silent = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let names = Names::new(vec![silent.local_addr().unwrap()]);
    let mut upstreams = start(Vec::new(), SOON, Pool::default());
    let entry = Arc::new(Entry::new(named("db.test", 1).remove(0)));
    upstreams.entries.push(entry.clone());
    let following = tokio::spawn(async move { entry.follow("test", &names).await });
    let outcome = dial(&upstreams).await.upstream.unwrap_err();
    following.abort();
    assert!(
        matches!(
            outcome.how,
            How::Error {
                errno: libc::ETIMEDOUT,
                call: "resolve"
            }
        ),
        "{outcome}"
    );
}
