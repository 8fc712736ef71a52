//! The admin listener: HTTP for whoever wants to see or steer a running relay.
//!
//! It serves one request per connection, a few at a time and none for long, from tasks of their own: what carries
//! connections neither waits for it nor fails with it.

mod answer;
mod exposition;
mod page;
mod process;
pub mod report;
mod upstreams;

use std::{
    convert::Infallible, io, net::TcpListener, os::unix::net::UnixListener, sync::Arc,
    time::Duration,
};

use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::Semaphore,
    time::{sleep, timeout},
};

use crate::{
    accept::{Held, Listener},
    close,
    plan::Address,
    serve::Control,
    stats::books::Books,
};

/// Requests that are served at once; others wait in the backlog.
const AT_ONCE: usize = 32;

/// How long a request may take from its first byte to the last of its answer.
const WHOLE: Duration = Duration::from_secs(30);

/// How long its header may take.
const HEADER: Duration = Duration::from_secs(5);

/// How large its header may be, and how many fields it may have.
const ROOM: (usize, usize) = (16 * 1024, 64);

/// How long to rest when a client cannot be accepted, for want of descriptors above all.
const PAUSE: Duration = Duration::from_millis(200);

/// What the answers are made of.
pub struct Desk {
    /// What is shown.
    pub books: Arc<Books>,
    /// Has the settings read again.
    pub control: Control,
    /// Changes the level of the log, or says why not.
    pub set_level: Box<SetLevel>,
}

/// Changes the level of the log to the one of this name.
pub type SetLevel = dyn Fn(&str) -> Result<(), String> + Send + Sync;

/// The admin listener, open but not served yet.
#[derive(Debug)]
pub struct Admin {
    socket: Socket,
    // Its file must not outlive it.
    _held: Held,
}

#[derive(Debug)]
enum Socket {
    Tcp(tokio::net::TcpListener),
    Unix(tokio::net::UnixListener),
}

impl Admin {
    /// Registers `listener` with the current runtime.
    ///
    /// # Errors
    ///
    /// Fails with what epoll_ctl(2) said.
    pub fn open(listener: Listener) -> io::Result<Self> {
        let unix = matches!(listener.address(), Address::Unix(_));
        tracing::info!(admin = %listener.address(), "the admin listener is up");
        let (fd, _held) = listener.into_parts()?;
        let socket = match unix {
            true => Socket::Unix(tokio::net::UnixListener::from_std(UnixListener::from(fd))?),
            false => Socket::Tcp(tokio::net::TcpListener::from_std(TcpListener::from(fd))?),
        };
        Ok(Self { socket, _held })
    }

    /// Serves requests for ever.
    pub async fn serve(self, desk: Desk) {
        let (desk, places) = (Arc::new(desk), Arc::new(Semaphore::new(AT_ONCE)));
        loop {
            let Ok(place) = places.clone().acquire_owned().await else {
                return;
            };
            let accepted = match &self.socket {
                Socket::Tcp(listener) => listener
                    .accept()
                    .await
                    .map(|(stream, _)| Stream::Tcp(stream)),
                Socket::Unix(listener) => listener
                    .accept()
                    .await
                    .map(|(stream, _)| Stream::Unix(stream)),
            };
            let stream = match accepted {
                Ok(stream) => stream,
                // A client that is gone costs a rest, too, which nobody notices here.
                Err(error) => {
                    tracing::debug!(%error, "admin: cannot accept");
                    sleep(PAUSE).await;
                    continue;
                }
            };
            let desk = desk.clone();
            tokio::spawn(async move {
                match stream {
                    Stream::Tcp(stream) => {
                        // Listeners of relay hand on that a close is a reset.
                        close::disarm(&stream);
                        converse(stream, desk).await;
                    }
                    Stream::Unix(stream) => converse(stream, desk).await,
                }
                drop(place);
            });
        }
    }
}

enum Stream {
    Tcp(tokio::net::TcpStream),
    Unix(tokio::net::UnixStream),
}

async fn converse(stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static, desk: Arc<Desk>) {
    let service = service_fn(move |request: hyper::Request<Incoming>| {
        let desk = desk.clone();
        async move { Ok::<_, Infallible>(answer::answer(request, desk).await) }
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(HEADER)
        .max_header_size(ROOM.0)
        .max_headers(ROOM.1)
        .keep_alive(false);
    let conversation = http.serve_connection(TokioIo::new(stream), service);
    match timeout(WHOLE, conversation).await {
        Ok(Ok(())) => (),
        Ok(Err(error)) => tracing::debug!(%error, "admin: a request failed"),
        Err(_) => tracing::debug!("admin: a request took too long"),
    }
}
