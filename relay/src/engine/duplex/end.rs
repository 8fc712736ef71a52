//! One socket of a connection while it is in the poll set.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use rustix::net::sockopt;
use tokio::io::{Interest, unix::AsyncFd};

use crate::{
    pair::{Pair, Peer, Socket},
    sys::tcp,
};

/// A socket that tokio's reactor watches.
pub(super) struct End {
    pub(super) poll: AsyncFd<OwnedFd>,
    pub(super) mapped: bool,
    pub(super) read: u64,
    peer: Peer,
}

/// Puts both sockets into the poll set, in the order of [`crate::pair::Side::BOTH`].
pub(super) fn open(pair: Pair) -> Result<[End; 2], Box<(Pair, io::Error)>> {
    let Pair { client, upstream } = pair;
    let client = match End::open(client) {
        Ok(client) => client,
        Err((client, error)) => return Err(Box::new((Pair { client, upstream }, error))),
    };
    match End::open(upstream) {
        Ok(upstream) => Ok([client, upstream]),
        Err((upstream, error)) => {
            let client = client.release();
            Err(Box::new((Pair { client, upstream }, error)))
        }
    }
}

/// Gives both sockets back. They stay in the poll set.
pub(super) fn release([client, upstream]: [End; 2]) -> Pair {
    Pair {
        client: client.release(),
        upstream: upstream.release(),
    }
}

impl End {
    fn open(socket: Socket) -> Result<Self, (Socket, io::Error)> {
        let Socket {
            fd,
            peer,
            mapped,
            read,
        } = socket;
        match fd.watched() {
            Ok(poll) => Ok(Self {
                poll,
                mapped,
                read,
                peer,
            }),
            Err((fd, error)) => Err((
                Socket {
                    fd,
                    peer,
                    mapped,
                    read,
                },
                error,
            )),
        }
    }

    fn release(self) -> Socket {
        Socket {
            fd: self.poll.into(),
            peer: self.peer,
            mapped: self.mapped,
            read: self.read,
        }
    }

    /// Whether a read stops only where there is no more: not at an urgent byte, at another writer's message, or at what a
    /// worker of the kernel has yet to queue.
    pub(super) fn is_plain(&self) -> bool {
        let urgent = || self.poll.try_io(Interest::PRIORITY, |_| Ok(())).is_ok();
        matches!(self.peer, Peer::Ip(_)) && !self.mapped && !urgent()
    }

    /// Has it tell of bytes only when there are many; false where that cannot be. A socket in the map is left alone: what the
    /// program is not told of it does not judge.
    pub(super) fn hush(&self) -> bool {
        matches!(self.peer, Peer::Ip(_)) && !self.mapped && tcp::hush(self).is_ok()
    }

    /// Has it tell of every byte again, and of those that are there at once.
    pub(super) fn unhush(&self) {
        let _ = tcp::kick(self);
    }

    /// Ends when the connection at this socket has failed: reset, timed out. A FIN is no failure.
    ///
    /// It is heard also while nothing is read or written, which is when no other call would say it.
    pub(super) async fn died(&self) -> io::Error {
        loop {
            let mut guard = match self.poll.ready(Interest::ERROR).await {
                Ok(guard) => guard,
                Err(gone) => return gone,
            };
            match sockopt::socket_error(self) {
                Ok(Ok(())) => guard.clear_ready(),
                Ok(Err(errno)) | Err(errno) => return errno.into(),
            }
        }
    }
}

impl AsFd for End {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.poll.get_ref().as_fd()
    }
}
