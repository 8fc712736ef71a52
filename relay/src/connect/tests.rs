//! What an attempt and the wait for it are held to.

use std::{
    io::{self, Read},
    net::{Shutdown, TcpListener, TcpStream},
    os::unix::net::{UnixListener, UnixStream},
};

use super::*;
use crate::close::By;

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
    let peer = Peer::Ip(near.local_addr().unwrap());
    (near, Socket::new(far.into(), peer))
}

/// A listener that takes nobody any more: its backlog is full, and a SYN to it goes unanswered.
struct Deaf {
    at: SocketAddr,
    _listener: OwnedFd,
    _backlog: Vec<OwnedFd>,
}

impl Deaf {
    fn new() -> Self {
        let listener = stream(AddressFamily::INET).unwrap();
        net::bind(&listener, &SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
        net::listen(&listener, 0).unwrap();
        let at = SocketAddr::try_from(net::getsockname(&listener).unwrap()).unwrap();
        let mut backlog = Vec::new();
        loop {
            let fd = stream(AddressFamily::INET).unwrap();
            let _ = net::connect(&fd, &at);
            // Over loopback a handshake is done when connect(2) returns; one that is not never will be.
            let done = net::connect(&fd, &at).is_ok();
            backlog.push(fd);
            if !done {
                break;
            }
            assert!(backlog.len() < 64, "the backlog never fills");
        }
        Self {
            at,
            _listener: listener,
            _backlog: backlog,
        }
    }
}

fn errno_of(outcome: Outcome) -> (By, &'static str, i32) {
    match outcome.how {
        How::Error { errno, call } => (outcome.by, call, errno),
        how => panic!("{how:?}"),
    }
}

struct Dialled {
    upstream: Result<Socket, Outcome>,
}

async fn dial(client: Socket, to: &Peer, limit: Duration, drain: &Drain) -> Dialled {
    let near = Near::default();
    let dialling = async {
        attempt(to, &near, &Opening::default(), limit)
            .await
            .map_err(Failed::outcome)
    };
    let (_client, upstream) = while_waited_for(client, drain, dialling).await;
    Dialled { upstream }
}

async fn fails(to: Peer, limit: Duration) -> Outcome {
    let (_near, far) = client();
    let dialled = dial(far, &to, limit, &Drain::new()).await;
    dialled.upstream.unwrap_err()
}

#[tokio::test]
async fn an_upstream_is_connected_armed_and_tuned() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    let (_near, far) = client();
    let dialled = dial(far, &Peer::Ip(at), HOUR, &Drain::new()).await;
    let socket = dialled.upstream.unwrap();
    assert_eq!(socket.peer, Peer::Ip(at));
    assert!(sockopt::tcp_nodelay(&socket).unwrap());
    assert!(sockopt::socket_keepalive(&socket).unwrap());
    assert_eq!(
        sockopt::socket_linger(&socket).unwrap(),
        Some(Duration::ZERO)
    );
    let mut accepted = listener.accept().unwrap().0;
    drop(socket);
    let error = accepted.read(&mut [0]).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
}

#[tokio::test]
async fn nobody_there_is_refused() {
    // Bound and not listening: nobody else gets the port meanwhile.
    let silent = stream(AddressFamily::INET).unwrap();
    net::bind(&silent, &SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    let at = SocketAddr::try_from(net::getsockname(&silent).unwrap()).unwrap();
    let (_near, far) = client();
    let dialled = dial(far, &Peer::Ip(at), HOUR, &Drain::new()).await;
    let expected = (By::Upstream, "connect", libc::ECONNREFUSED);
    assert_eq!(errno_of(dialled.upstream.unwrap_err()), expected);
}

#[tokio::test]
async fn a_silent_upstream_runs_into_the_deadline() {
    let deaf = Deaf::new();
    let outcome = fails(Peer::Ip(deaf.at), SOON).await;
    let expected = (By::Upstream, "connect", libc::ETIMEDOUT);
    assert_eq!(errno_of(outcome), expected);
}

#[tokio::test]
async fn a_client_that_resets_ends_the_dial() {
    let deaf = Deaf::new();
    let (near, far) = client();
    let to = Peer::Ip(deaf.at);
    let drain = Drain::new();
    let dialling = dial(far, &to, HOUR, &drain);
    let reset = async {
        tokio::task::yield_now().await;
        close::arm(&near);
        drop(near);
    };
    let (dialled, ()) = tokio::join!(dialling, reset);
    let outcome = dialled.upstream.unwrap_err();
    assert_eq!((outcome.by, outcome.how), (By::Client, How::Reset));
}

#[tokio::test]
async fn a_client_that_has_only_said_all_still_waits() {
    let deaf = Deaf::new();
    let (near, far) = client();
    near.shutdown(Shutdown::Write).unwrap();
    let dialled = dial(far, &Peer::Ip(deaf.at), SOON, &Drain::new()).await;
    let expected = (By::Upstream, "connect", libc::ETIMEDOUT);
    assert_eq!(errno_of(dialled.upstream.unwrap_err()), expected);
}

/// The watch is handed on with the socket, and with it what is known of the socket.
#[tokio::test]
async fn a_client_that_was_watched_can_be_written_to_at_once() {
    let (_tcp, tcp) = client();
    let (_unix, unix) = UnixStream::pair().unwrap();
    unix.set_nonblocking(true).unwrap();
    let peer = Peer::Unix(std::path::Path::new("a").into());
    for client in [tcp, Socket::new(unix.into(), peer)] {
        let drain = Drain::new();
        let later = async {
            sleep(Duration::from_millis(20)).await;
            Ok(())
        };
        let (client, _) = while_waited_for(client, &drain, later).await;
        let watched = client.fd.watched().unwrap();
        let minute = Duration::from_secs(60);
        let ready = timeout(minute, watched.writable()).await;
        assert!(matches!(ready, Ok(Ok(_))));
    }
}

#[tokio::test]
async fn a_unix_client_that_hangs_up_ends_the_dial() {
    let deaf = Deaf::new();
    let (near, far) = UnixStream::pair().unwrap();
    far.set_nonblocking(true).unwrap();
    drop(near);
    let peer = Peer::Unix(std::path::Path::new("a").into());
    let far = Socket::new(far.into(), peer);
    let dialled = dial(far, &Peer::Ip(deaf.at), HOUR, &Drain::new()).await;
    let outcome = dialled.upstream.unwrap_err();
    assert_eq!((outcome.by, outcome.how), (By::Client, How::Reset));
}

#[tokio::test]
async fn a_cut_ends_the_dial() {
    let deaf = Deaf::new();
    let (_near, far) = client();
    let to = Peer::Ip(deaf.at);
    let drain = Drain::new();
    let live = drain.live();
    let dialling = async {
        let dialled = dial(far, &to, HOUR, &drain).await;
        drop(live);
        dialled
    };
    let finishing = drain.finish(Duration::ZERO, pending());
    let (dialled, _) = tokio::join!(dialling, finishing);
    let outcome = dialled.upstream.unwrap_err();
    assert_eq!((outcome.by, outcome.how), (By::Relay, How::Drain));
}

#[tokio::test]
async fn a_full_unix_backlog_is_waited_for() {
    let path = std::env::temp_dir().join(format!("relay-connect-{}", std::process::id()));
    let _ = std::fs::remove_file(&path);
    let listener = UnixListener::bind(&path).unwrap();
    net::listen(&listener, 0).unwrap();
    let _fills_the_backlog = UnixStream::connect(&path).unwrap();
    let to = Peer::Unix(path.as_path().into());
    let outcome = fails(to.clone(), SOON).await;
    let expected = (By::Upstream, "connect", libc::ETIMEDOUT);
    assert_eq!(errno_of(outcome), expected);

    let (_near, far) = client();
    let drain = Drain::new();
    let accept = async {
        tokio::task::yield_now().await;
        listener.accept().unwrap()
    };
    let (dialled, _accepted) = tokio::join!(dial(far, &to, HOUR, &drain), accept);
    assert_eq!(
        dialled.upstream.unwrap().peer,
        Peer::Unix(path.as_path().into())
    );
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn a_socket_that_dialled_itself_is_found_out() {
    let fd = rustix::net::socket(
        AddressFamily::INET,
        rustix::net::SocketType::STREAM,
        Some(rustix::net::ipproto::TCP),
    )
    .unwrap();
    net::bind(&fd, &SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    let own = SocketAddr::try_from(net::getsockname(&fd).unwrap()).unwrap();
    net::connect(&fd, &own).unwrap();
    assert_eq!(not_itself(&fd, own), Err(Errno::CONNREFUSED));
    let any = SocketAddr::from(([0, 0, 0, 0], own.port()));
    assert_eq!(not_itself(&fd, any), Err(Errno::CONNREFUSED));
    let other = SocketAddr::from(([127, 0, 0, 1], own.port() ^ 1));
    assert_eq!(not_itself(&fd, other), Ok(()));
}
