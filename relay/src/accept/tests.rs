//! What accepting is held to.

use std::{
    fs,
    net::TcpStream,
    num::NonZeroU32,
    os::unix::net::{UnixListener, UnixStream},
    path::PathBuf,
};

use rustix::{fs::OFlags, net::sockopt};
use tokio::time::timeout;

use super::*;
use crate::{
    accept::bind::bind,
    plan::{Door, Tcp},
};

const LOOPBACK: &str = "127.0.0.1:0";

/// A directory that goes with the test.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("relay-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn socket(&self) -> PathBuf {
        self.0.join("s")
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

async fn listen(text: &str) -> Listener {
    bind(&text.parse().unwrap(), &Door::default(), &Tcp::default())
        .await
        .unwrap()
}

/// The next client, where there may be any number.
async fn next(acceptor: &mut Acceptor) -> Socket {
    let (route, all) = (Places::default(), Places::default());
    acceptor.accept([&route, &all], &Room::default()).await.0
}

async fn refused(address: Address) -> String {
    bind(&address, &Door::default(), &Tcp::default())
        .await
        .unwrap_err()
        .to_string()
}

fn port(listener: &Listener) -> SocketAddr {
    match listener.address() {
        Address::Ip(address) => *address,
        other => panic!("{other}"),
    }
}

#[tokio::test]
async fn accepted_sockets_inherit_what_the_listener_has() {
    let listener = listen(LOOPBACK).await;
    let client = TcpStream::connect(port(&listener)).unwrap();
    let accepted = next(&mut listener.open().unwrap()).await;
    let fd = &accepted.fd;
    assert_eq!(accepted.peer, Peer::Ip(client.local_addr().unwrap()));
    assert!(sockopt::tcp_nodelay(fd).unwrap());
    assert!(sockopt::socket_keepalive(fd).unwrap());
    assert_eq!(sockopt::tcp_keepidle(fd).unwrap(), Duration::from_secs(60));
    assert_eq!(sockopt::tcp_keepintvl(fd).unwrap(), Duration::from_secs(10));
    assert_eq!(sockopt::tcp_keepcnt(fd).unwrap(), 6);
    let linger = sockopt::socket_linger(fd).unwrap();
    assert_eq!(linger, Some(Duration::ZERO), "armed to reset");
    let flags = rustix::fs::fcntl_getfl(fd).unwrap();
    assert!(flags.contains(OFlags::NONBLOCK));
    let flags = rustix::io::fcntl_getfd(fd).unwrap();
    assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
}

#[tokio::test]
async fn clients_are_accepted_one_after_the_other() {
    let listener = listen(LOOPBACK).await;
    let at = port(&listener);
    let mut acceptor = listener.open().unwrap();
    for _ in 0..3 {
        let clients = [(); 5].map(|()| TcpStream::connect(at).unwrap());
        for client in clients {
            let accepted = next(&mut acceptor).await;
            assert_eq!(accepted.peer, Peer::Ip(client.local_addr().unwrap()));
        }
    }
}

#[tokio::test]
async fn a_client_of_a_socket_for_both_families_shows_as_ipv4() {
    let Ok(listener) = bind(
        &"[::]:0".parse().unwrap(),
        &Door::default(),
        &Tcp::default(),
    )
    .await
    else {
        // A host without IPv6 has nothing to show.
        return;
    };
    let at = SocketAddr::from(([127, 0, 0, 1], port(&listener).port()));
    let client = TcpStream::connect(at).unwrap();
    let accepted = next(&mut listener.open().unwrap()).await;
    assert_eq!(accepted.peer, Peer::Ip(client.local_addr().unwrap()));
}

#[tokio::test]
async fn a_name_listens_on_one_of_its_addresses() {
    let listener = listen("localhost:0").await;
    assert!(port(&listener).ip().is_loopback());
    let nowhere = refused(Address::Name("no-such-host.invalid".into(), 1)).await;
    assert!(nowhere.starts_with("--listen no-such-host.invalid:1: cannot resolve"));
}

#[tokio::test]
async fn a_taken_port_is_named_with_what_helps() {
    let first = listen(LOOPBACK).await;
    let told = refused(Address::Ip(port(&first))).await;
    let expected = format!(
        "--listen {}: cannot listen: Address already in use (os error 98); choose another port or stop what uses it",
        first.address()
    );
    assert_eq!(told, expected);
}

#[tokio::test]
async fn an_address_of_another_host_is_told_as_such() {
    // 192.0.2.0/24 is for documentation (RFC 5737).
    let told = refused("192.0.2.1:0".parse().unwrap()).await;
    assert!(told.contains("no interface of this host"), "{told}");
}

#[tokio::test]
async fn a_unix_listener_serves_and_goes_with_its_file() {
    let scratch = Scratch::new("unix");
    let path = scratch.socket();
    let listener = bind(
        &Address::Unix(path.clone()),
        &Door::default(),
        &Tcp::default(),
    )
    .await
    .unwrap();
    let _client = UnixStream::connect(&path).unwrap();
    let mut acceptor = listener.open().unwrap();
    let peer = next(&mut acceptor).await.peer;
    assert_eq!(peer, Peer::Unix(path.as_path().into()));
    drop(acceptor);
    assert!(!path.exists());
}

#[tokio::test]
async fn a_stale_socket_file_is_taken_over() {
    let scratch = Scratch::new("stale");
    let path = scratch.socket();
    drop(UnixListener::bind(&path).unwrap());
    assert!(path.exists(), "std leaves the file");
    let _listener = bind(
        &Address::Unix(path.clone()),
        &Door::default(),
        &Tcp::default(),
    )
    .await
    .unwrap();
    UnixStream::connect(&path).unwrap();
}

#[tokio::test]
async fn a_live_socket_is_in_use_also_with_a_full_backlog() {
    let scratch = Scratch::new("live");
    let path = scratch.socket();
    let live = UnixListener::bind(&path).unwrap();
    rustix::net::listen(&live, 0).unwrap();
    let _fills_the_backlog = UnixStream::connect(&path).unwrap();
    for _ in 0..2 {
        let told = refused(Address::Unix(path.clone())).await;
        assert!(told.contains("in use"), "{told}");
    }
    assert!(path.exists());
}

#[tokio::test]
async fn what_is_no_socket_is_left_alone() {
    let scratch = Scratch::new("file");
    let path = scratch.socket();
    fs::write(&path, "precious").unwrap();
    let told = refused(Address::Unix(path.clone())).await;
    assert!(told.contains("no socket"), "{told}");
    assert_eq!(fs::read(&path).unwrap(), b"precious");
    let missing = scratch.0.join("missing/s");
    let told = refused(Address::Unix(missing)).await;
    assert!(told.contains("directory does not exist"), "{told}");
}

#[tokio::test]
async fn somebody_elses_file_is_not_unlinked() {
    let scratch = Scratch::new("unlink");
    let path = scratch.socket();
    let listener = bind(
        &Address::Unix(path.clone()),
        &Door::default(),
        &Tcp::default(),
    )
    .await
    .unwrap();
    // Kept under another name, so that the new file cannot get its inode.
    fs::rename(&path, scratch.0.join("old")).unwrap();
    let _other = UnixListener::bind(&path).unwrap();
    drop(listener);
    assert!(path.exists());
}

#[test]
fn errors_are_told_apart_by_whom_they_concern() {
    assert_eq!(Trouble::of(Errno::AGAIN), Trouble::Idle);
    for errno in [Errno::CONNABORTED, Errno::INTR, Errno::NETUNREACH] {
        assert_eq!(Trouble::of(errno), Trouble::Client);
    }
    for errno in [
        Errno::MFILE,
        Errno::NFILE,
        Errno::NOBUFS,
        Errno::NOMEM,
        Errno::PERM,
    ] {
        assert_eq!(Trouble::of(errno), Trouble::Host);
    }
}

#[tokio::test]
async fn at_the_limit_clients_wait_in_the_backlog() {
    let listener = listen(LOOPBACK).await;
    let at = port(&listener);
    let mut acceptor = listener.open().unwrap();
    let (route, all) = (
        Places::new(NonZeroU32::new(2)),
        Places::new(NonZeroU32::new(1)),
    );
    let _clients = [(); 3].map(|()| TcpStream::connect(at).unwrap());
    let (_first, [of_route, of_all], _seat) =
        acceptor.accept([&route, &all], &Room::default()).await;
    let full = timeout(
        Duration::from_millis(200),
        acceptor.accept([&route, &all], &Room::default()),
    )
    .await;
    assert!(full.is_err(), "one in all");
    assert!(acceptor.full.is_some(), "it is reported");
    all.set_limit(None);
    let (_second, _places, _seat) = acceptor.accept([&route, &all], &Room::default()).await;
    let full = timeout(
        Duration::from_millis(200),
        acceptor.accept([&route, &all], &Room::default()),
    )
    .await;
    assert!(full.is_err(), "two of the route");
    drop((of_route, of_all));
    acceptor.accept([&route, &all], &Room::default()).await;
}

#[tokio::test]
async fn a_listener_without_clients_keeps_no_place() {
    let (idle, busy) = (listen(LOOPBACK).await, listen(LOOPBACK).await);
    let at = port(&busy);
    let (mut idle, mut busy) = (idle.open().unwrap(), busy.open().unwrap());
    let (route, all) = (Places::default(), Places::new(NonZeroU32::new(1)));
    let waiting = tokio::spawn({
        let all = all.clone();
        async move {
            idle.accept([&Places::default(), &all], &Room::default())
                .await
        }
    });
    tokio::task::yield_now().await;
    let _client = TcpStream::connect(at).unwrap();
    busy.accept([&route, &all], &Room::default()).await;
    waiting.abort();
}
