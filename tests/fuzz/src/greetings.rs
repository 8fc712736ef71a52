//! Greetings, through the sockets that they come in by: what is not the greeting is left for the engine, to the byte.

use std::{
    future::Future,
    io::{Read, Write},
    net::Shutdown,
    os::{fd::AsFd, unix::net::UnixStream},
    time::Duration,
};

use relay::{
    drain::Drain,
    greet::{self, Asked, Origin},
    pair::{Peer, Socket},
    plan::{AcceptProxy, Ask, Credentials, Protocol, ProxyVersion, Reach},
};
use tokio::runtime::{Builder, Runtime};

/// Longer than any input takes; nobody waits for it, since each ends.
const LIMIT: Duration = Duration::from_secs(60);

/// A PROXY protocol header. One that tells an origin tells the same when relay writes it.
pub(crate) fn proxy(data: &[u8]) {
    let Some(origin) = origin(data) else { return };
    if origin.source.is_ipv4() != origin.destination.is_ipv4() {
        return;
    }
    for version in [ProxyVersion::V1, ProxyVersion::V2] {
        let header = greet::header(version, Some(origin));
        let again = self::origin(&header);
        assert!(again == Some(origin), "{version:?}: {origin:?}, {again:?}");
    }
}

fn origin(data: &[u8]) -> Option<Origin> {
    let accept = AcceptProxy {
        from: Vec::new(),
        limit: LIMIT,
    };
    let (client, _far) = client(data)?;
    let (client, origin) = run(greet::origin(client, &accept, &Drain::new()))?.ok()?;
    left(&client, data);
    origin
}

/// A client that speaks SOCKS5 and does not wait for answers.
pub(crate) fn socks5(data: &[u8]) {
    asked(data, Protocol::Socks5);
}

/// A client that speaks HTTP.
pub(crate) fn http_connect(data: &[u8]) {
    asked(data, Protocol::HttpConnect);
}

fn asked(data: &[u8], protocol: Protocol) {
    let credentials = Credentials {
        user: "u".into(),
        password: "p".into(),
    };
    for credentials in [None, Some(credentials)] {
        let Some((client, _far)) = client(data) else {
            return;
        };
        let ask = Ask {
            protocol,
            limit: LIMIT,
            credentials,
            reach: Reach::default(),
        };
        let heard = run(greet::asked(client, &ask, &Drain::new()));
        if let Some(Ok(Asked { client, to })) = heard {
            left(&client, data);
            assert!(!to.to_string().is_empty());
        }
    }
}

/// What was read and what is left are what was sent.
fn left(client: &Socket, data: &[u8]) {
    let mut rest = Vec::new();
    let stream = client.as_fd().try_clone_to_owned().map(UnixStream::from);
    let read = stream.and_then(|mut stream| stream.read_to_end(&mut rest));
    assert!(read.is_ok(), "{read:?}");
    let taken = usize::try_from(client.read).unwrap_or(usize::MAX);
    assert!(data.get(taken..) == Some(&rest[..]), "{taken} were taken");
}

/// A client that has said `data` and its end; also what keeps its answers from being an error.
fn client(data: &[u8]) -> Option<(Socket, UnixStream)> {
    let (near, mut far) = pair()?;
    // More than fits is no greeting either.
    far.set_nonblocking(true).ok()?;
    far.write_all(data).ok()?;
    far.shutdown(Shutdown::Write).ok()?;
    Some((near, far))
}

fn pair() -> Option<(Socket, UnixStream)> {
    let (near, far) = UnixStream::pair().ok()?;
    near.set_nonblocking(true).ok()?;
    let peer = Peer::Unix(std::path::Path::new("/fuzz").into());
    Some((Socket::new(near.into(), peer), far))
}

fn run<T>(greeting: impl Future<Output = T>) -> Option<T> {
    thread_local! {
        static RUNTIME: Option<Runtime> = Builder::new_current_thread().enable_all().build().ok();
    }
    RUNTIME.with(|runtime| Some(runtime.as_ref()?.block_on(greeting)))
}
