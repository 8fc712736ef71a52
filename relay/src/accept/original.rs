//! Where a redirected client wanted to go, and how a connection of relay to itself is told.

use std::{
    collections::HashSet,
    io,
    net::{IpAddr, SocketAddr, UdpSocket},
    os::fd::AsFd,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use rustix::{
    io::Errno,
    net::{getsockname, sockopt},
};

/// Why a client cannot be sent to where it wanted to go.
#[derive(Clone, Copy, Debug, thiserror::Error, PartialEq, Eq)]
pub enum Astray {
    /// The kernel has no other destination for it than relay.
    #[error("it was not redirected: it connected to relay itself")]
    Direct,
    /// It wanted to go to a listener of relay.
    #[error("it was on its way to {0}, where relay listens")]
    ToListener(SocketAddr),
    /// It is relay itself, whose own connections are redirected, too.
    #[error(
        "it is relay itself, on its way to {0}: exempt relay's own connections from the redirect, by user or mark"
    )]
    Itself(SocketAddr),
    /// The kernel would not say.
    #[error("the kernel does not say where it was going: {0}")]
    Unknown(Errno),
}

/// The addresses that relay itself has: of its listeners, and of its connections to original destinations.
#[derive(Clone, Debug, Default)]
pub struct Ours(Arc<Mutex<Addresses>>);

#[derive(Debug, Default)]
struct Addresses {
    /// As many times as there are listeners with it.
    listeners: Vec<SocketAddr>,
    dialled: HashSet<SocketAddr>,
}

/// An address is relay's own until this is dropped.
#[derive(Debug)]
pub struct Own {
    ours: Ours,
    address: SocketAddr,
    listens: bool,
}

impl Ours {
    /// relay listens at `address`.
    #[must_use]
    pub fn listens(&self, address: SocketAddr) -> Own {
        let address = canonical(address);
        self.lock().listeners.push(address);
        Own {
            ours: self.clone(),
            address,
            listens: true,
        }
    }

    /// relay has connected this socket; none when its address cannot be had, and then it is dead.
    #[must_use]
    pub fn dials(&self, socket: impl AsFd) -> Option<Own> {
        let address = name(socket).ok()?;
        // A port is given once at a time, and a guard kept too long would refuse somebody else.
        self.lock().dialled.insert(address).then(|| Own {
            ours: self.clone(),
            address,
            listens: false,
        })
    }

    /// Where `client`, accepted from `from`, wanted to go: what a REDIRECT or DNAT has noted, or, on a `transparent` listener,
    /// where it believes to be.
    ///
    /// # Errors
    ///
    /// Fails where a connection would come back to relay, and where the kernel knows no destination.
    pub fn destination(
        &self,
        client: impl AsFd,
        from: SocketAddr,
        transparent: bool,
    ) -> Result<SocketAddr, Astray> {
        let here = name(&client).map_err(Astray::Unknown)?;
        let wanted = match transparent {
            true => here,
            false => redirected(&client, here)?,
        };
        if self.is_dialled(from) {
            return Err(Astray::Itself(wanted));
        }
        if !transparent && wanted == here {
            return Err(Astray::Direct);
        }
        match self.is_listener(wanted) {
            true if wanted == here => Err(Astray::Direct),
            true => Err(Astray::ToListener(wanted)),
            false => Ok(wanted),
        }
    }

    /// Whether `address` is that of a connection of relay to an original destination.
    #[must_use]
    pub fn is_dialled(&self, address: SocketAddr) -> bool {
        self.lock().dialled.contains(&canonical(address))
    }

    fn is_listener(&self, wanted: SocketAddr) -> bool {
        let of_port = |one: &&SocketAddr| one.port() == wanted.port();
        let listeners = Vec::from_iter(self.lock().listeners.iter().filter(of_port).copied());
        let any = listeners.iter().any(|one| one.ip().is_unspecified());
        listeners.contains(&wanted) || (any && is_local(wanted.ip()))
    }

    fn lock(&self) -> MutexGuard<'_, Addresses> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        let mut all = self.ours.lock();
        if !self.listens {
            all.dialled.remove(&self.address);
        } else if let Some(at) = all.listeners.iter().position(|one| *one == self.address) {
            all.listeners.swap_remove(at);
        }
    }
}

/// An IPv4 address is one also on a socket for both families.
fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

fn name(socket: impl AsFd) -> Result<SocketAddr, Errno> {
    SocketAddr::try_from(getsockname(socket)?).map(canonical)
}

/// What conntrack has noted (`SO_ORIGINAL_DST`).
fn redirected(client: impl AsFd, here: SocketAddr) -> Result<SocketAddr, Astray> {
    let noted = match here {
        SocketAddr::V4(_) => sockopt::ip_original_dst(client).map(SocketAddr::V4),
        SocketAddr::V6(_) => sockopt::ipv6_original_dst(client).map(SocketAddr::V6),
    };
    match noted {
        // Scope and flow label are of no use to a dial.
        Ok(noted) => Ok(SocketAddr::new(noted.ip(), noted.port())),
        // No conntrack, or a connection that it does not know: nobody has redirected it.
        Err(Errno::NOENT | Errno::NOPROTOOPT) => Err(Astray::Direct),
        Err(errno) => Err(Astray::Unknown(errno)),
    }
}

/// Whether this host has the address; only then can a socket be bound to it.
fn is_local(ip: IpAddr) -> bool {
    !matches!(UdpSocket::bind((ip, 0)), Err(error) if error.kind() == io::ErrorKind::AddrNotAvailable)
}

#[cfg(test)]
mod tests {
    use std::{
        net::{TcpListener, TcpStream},
        os::fd::OwnedFd,
    };

    use super::*;

    fn accepted(listener: &TcpListener) -> (TcpStream, OwnedFd, SocketAddr) {
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (socket, from) = listener.accept().unwrap();
        (client, socket.into(), from)
    }

    #[test]
    fn a_client_of_relay_itself_has_nowhere_to_go() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (_client, socket, from) = accepted(&listener);
        let ours = Ours::default();
        let _own = ours.listens(listener.local_addr().unwrap());
        for transparent in [true, false] {
            let told = ours.destination(&socket, from, transparent);
            assert_eq!(told, Err(Astray::Direct), "{transparent}");
        }
    }

    #[test]
    fn a_listener_on_every_address_is_at_the_local_ones_only() {
        let ours = Ours::default();
        let own = ours.listens("0.0.0.0:7".parse().unwrap());
        assert!(ours.is_listener("127.0.0.1:7".parse().unwrap()));
        assert!(!ours.is_listener("127.0.0.1:8".parse().unwrap()));
        assert!(!ours.is_listener("192.0.2.1:7".parse().unwrap()));
        drop(own);
        assert!(!ours.is_listener("127.0.0.1:7".parse().unwrap()));
    }

    #[test]
    fn a_connection_of_relay_is_known_while_it_lasts() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (client, socket, from) = accepted(&listener);
        let ours = Ours::default();
        let own = ours.dials(&client).unwrap();
        let told = ours.destination(&socket, from, true);
        assert!(matches!(told, Err(Astray::Itself(_))), "{told:?}");
        drop(own);
        assert!(ours.destination(&socket, from, true).is_ok());
    }
}
