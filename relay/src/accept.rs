//! Accepting clients: what a listener is, and what each of accept(2)'s errors means for it.

mod bind;
mod held;
mod original;
mod passed;
mod unlink;

use std::{
    io,
    net::SocketAddr,
    os::fd::{AsFd, OwnedFd},
    path::Path,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use rustix::{
    io::Errno,
    net::{SocketFlags, acceptfrom_with},
    process::{Resource, Rlimit, getrlimit, setrlimit},
};
use tokio::io::unix::AsyncFd;

use crate::{
    drain::{Place, Places, Room, Seat},
    pair::{Peer, Socket},
    plan::{Address, Door, Listen, Tcp},
    sys::reactor,
    tune::tune_listener,
};

pub use self::{
    bind::{BindError, bind, bind_private},
    held::Held,
    original::{Astray, Ours, Own},
    passed::{Passed, inherit},
};

/// How long a listener rests when there is nothing to accept a client with: long enough not to spin, short beside what
/// a client waits for.
const PAUSE: Duration = Duration::from_millis(100);

/// Failures closer together than this are one episode, and logged once.
const EPISODE: Duration = Duration::from_secs(30);

/// A socket that listens, not yet watched by any runtime.
#[derive(Debug)]
pub struct Listener {
    held: Held,
    address: Address,
    /// Its backlog is somebody else's to say.
    passed: bool,
}

/// Opens all sockets that `listen` stands for.
///
/// # Errors
///
/// Fails with what the system said and what would help.
pub async fn listen(
    listen: &Listen,
    door: &Door,
    options: &Tcp,
    passed: &Passed,
) -> Result<Vec<Listener>, BindError> {
    match listen {
        Listen::At(address) => {
            let first = bind(address, door, options).await?;
            let at = first.address.clone();
            let mut all = vec![first];
            if door.reuse_port && matches!(at, Address::Ip(_)) {
                // None of them is closed before the others: with a socket goes its backlog.
                for _ in 1..thread::available_parallelism().map_or(1, usize::from) {
                    all.push(bind(&at, door, options).await?);
                }
            }
            Ok(all)
        }
        Listen::Passed(name) => passed.listen(listen, name.as_deref(), door, options),
    }
}

impl Listener {
    /// Where it really listens: with the port that was chosen for port 0.
    #[must_use]
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Its socket.
    #[must_use]
    pub fn held(&self) -> &Held {
        &self.held
    }

    /// The socket, for others than [`Acceptor`]; its file is there as long as the second value is kept.
    ///
    /// # Errors
    ///
    /// Fails without a free descriptor.
    pub fn into_parts(self) -> io::Result<(OwnedFd, Held)> {
        Ok((self.held.as_fd().try_clone_to_owned()?, self.held))
    }

    /// Registers with the current runtime.
    ///
    /// # Errors
    ///
    /// Fails with what epoll_ctl(2) said.
    pub fn open(self) -> io::Result<Acceptor> {
        let path = match &self.address {
            Address::Unix(path) => Some(Arc::from(path.as_path())),
            Address::Ip(_) | Address::Name(..) | Address::Original => None,
        };
        Ok(Acceptor {
            fd: reactor::share(self.held.socket())?,
            held: self.held,
            address: self.address,
            passed: self.passed,
            path,
            failed: None,
            full: None,
            on_trouble: OnTrouble(Box::new(|| ())),
        })
    }
}

/// A listener that accepts on the runtime that it was opened on.
#[derive(Debug)]
pub struct Acceptor {
    held: Held,
    fd: AsyncFd<Arc<OwnedFd>>,
    address: Address,
    passed: bool,
    path: Option<Arc<Path>>,
    failed: Option<Instant>,
    full: Option<Instant>,
    on_trouble: OnTrouble,
}

impl Acceptor {
    /// Where it really listens.
    #[must_use]
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Whether it is somebody else's socket, as systemd's.
    #[must_use]
    pub fn is_passed(&self) -> bool {
        self.passed
    }

    /// Its socket.
    #[must_use]
    pub fn held(&self) -> &Held {
        &self.held
    }

    /// The next client, nonblocking, in no poll set, and armed to reset, with its places (the route's, and the
    /// one in all) and descriptors for both of its sockets.
    ///
    /// It never fails: what keeps it from accepting is logged once per episode and waited out. Dropping the future
    /// loses no client.
    pub async fn accept(
        &mut self,
        places: [&Places; 2],
        room: &Room,
    ) -> (Socket, [Place; 2], Seat) {
        loop {
            let Ok(mut ready) = self.fd.readable().await else {
                // The runtime is shutting down, and this task with it.
                return std::future::pending().await;
            };
            // Only now: a listener without clients keeps no place from the others.
            let taken = match places.map(Places::try_take) {
                [Some(route), Some(all)] => [route, all],
                missing => {
                    drop(missing);
                    wait(&mut self.full, &self.address, places).await
                }
            };
            let seat = match room.try_seat() {
                Some(seat) => seat,
                None => wait_for_descriptors(&mut self.full, &self.address, room).await,
            };
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let errno = match acceptfrom_with(self.fd.get_ref(), flags) {
                Ok((fd, from)) => match self.peer(from.and_then(|from| from.try_into().ok())) {
                    Some(peer) => return (Socket::new(fd, peer), taken, seat),
                    None => continue,
                },
                Err(errno) => errno,
            };
            match Trouble::of(errno) {
                Trouble::Idle => ready.clear_ready(),
                Trouble::Client => (),
                Trouble::Host => {
                    self.report(errno);
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    }

    /// Goes on by the rules of `door`, as far as an open listener can.
    pub fn renew(&self, door: &Door, tcp: &Tcp) {
        if !self.passed {
            // It fails on what does not listen, and this does.
            let _ = rustix::net::listen(&self.fd, bind::backlog(door));
        }
        let Address::Ip(at) = self.address else {
            return;
        };
        if let Err(refused) = tune_listener(&self.fd, tcp, bind::backlog(door)) {
            let (setting, error) = (refused.setting, io::Error::from(refused.errno));
            tracing::warn!(listen = %self.address, setting, %error, "an option is refused; {}", refused.advice);
        }
        if let Err(error) = bind::set_transparent(self.fd.get_ref(), at, door.transparent) {
            let (listen, error) = (&self.address, io::Error::from(error));
            // Only what was never transparent may refuse to be made so.
            if door.transparent {
                tracing::warn!(%listen, %error, "transparent needs CAP_NET_ADMIN and takes effect at the next start");
            }
        }
    }

    /// Has `tell` called whenever clients that came cannot be accepted.
    pub fn on_trouble(&mut self, tell: impl Fn() + Send + Sync + 'static) {
        self.on_trouble = OnTrouble(Box::new(tell));
    }

    fn peer(&self, from: Option<SocketAddr>) -> Option<Peer> {
        match &self.path {
            Some(path) => Some(Peer::Unix(path.clone())),
            // A socket for both families shows IPv4 clients as ::ffff:a.b.c.d.
            None => {
                from.map(|from| Peer::Ip(SocketAddr::new(from.ip().to_canonical(), from.port())))
            }
        }
    }

    fn report(&mut self, errno: Errno) {
        self.on_trouble.0();
        if is_new(&mut self.failed) {
            let error = io::Error::from(errno);
            tracing::warn!(listen = %self.address, %error, "cannot accept; clients wait in the backlog, trying on");
        }
    }
}

/// Both places, as soon as they are free. Who waits for one in all keeps the route's: nobody else can use it then.
async fn wait(
    full: &mut Option<Instant>,
    listen: &Address,
    [route, all]: [&Places; 2],
) -> [Place; 2] {
    [
        place(route, "max-connections", full, listen).await,
        place(all, "max-connections-total", full, listen).await,
    ]
}

/// Descriptors for both sockets, as soon as there are some: one that is accepted without could only be reset.
async fn wait_for_descriptors(full: &mut Option<Instant>, listen: &Address, room: &Room) -> Seat {
    if is_new(full) {
        let limit = room.seats();
        tracing::warn!(%listen, limit, "the limit of open files (ulimit -n, LimitNOFILE=) has no room for more; clients wait in the backlog until a connection ends");
    }
    let seat = room.seat().await;
    *full = Some(Instant::now());
    seat
}

async fn place(
    places: &Places,
    setting: &str,
    full: &mut Option<Instant>,
    listen: &Address,
) -> Place {
    if let Some(place) = places.try_take() {
        return place;
    }
    if is_new(full) {
        let limit = places.limit();
        tracing::warn!(%listen, limit, "{setting} is reached; clients wait in the backlog until a connection ends");
    }
    let place = places.take().await;
    // The episode lasts as long as somebody waits.
    *full = Some(Instant::now());
    place
}

/// Whether this begins an episode that began last at `last`, and notes that it goes on.
fn is_new(last: &mut Option<Instant>) -> bool {
    let before = last.replace(Instant::now());
    before.is_none_or(|last| last.elapsed() >= EPISODE)
}

struct OnTrouble(Box<dyn Fn() + Send + Sync>);

impl std::fmt::Debug for OnTrouble {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("OnTrouble")
    }
}

/// What an error of accept(2) is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trouble {
    /// Nobody is waiting.
    Idle,
    /// One client is gone; the next may be there.
    Client,
    /// Nobody can be accepted now.
    Host,
}

impl Trouble {
    fn of(errno: Errno) -> Self {
        match errno {
            Errno::AGAIN => Self::Idle,
            // The network errors that accept(2) says to treat like EAGAIN by retrying.
            Errno::CONNABORTED
            | Errno::INTR
            | Errno::NETDOWN
            | Errno::PROTO
            | Errno::NOPROTOOPT
            | Errno::HOSTDOWN
            | Errno::NONET
            | Errno::HOSTUNREACH
            | Errno::NETUNREACH => Self::Client,
            _ => Self::Host,
        }
    }
}

/// Raises the soft limit of open files to the hard one: a connection takes two, and pipes while bytes are under way.
pub fn raise_open_files() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    match setrlimit(Resource::Nofile, raised) {
        Ok(()) => tracing::debug!(from = ?limit.current, to = ?limit.maximum, "open files"),
        Err(error) => {
            tracing::debug!(%error, limit = ?limit.current, "open files: the limit stays");
        }
    }
}

#[cfg(test)]
mod tests;
