//! relay's own end of a connection to an upstream: address, interface and mark, and what it takes to have them.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    os::fd::OwnedFd,
    sync::Arc,
};

use rustix::{
    io::Errno,
    net::{self, AddressFamily, sockopt},
};
use socket2::SockRef;

use super::Failed;
use crate::{
    pair::Peer,
    plan::Outgoing,
    sys::{
        tcp,
        tune::{errno, stream},
    },
};

/// What the near end of an attempt is to be.
#[derive(Clone, Debug, Default)]
pub struct Near {
    outgoing: Arc<Outgoing>,
    /// Whose address it is to have.
    client: Option<Peer>,
}

/// What a route wants of its connections to upstreams and cannot have.
#[derive(Debug, thiserror::Error)]
#[error("cannot set {setting}: {error}; {advice}")]
pub struct Unfit {
    setting: &'static str,
    error: io::Error,
    advice: &'static str,
}

impl Near {
    /// As `outgoing` says, for an attempt on behalf of nobody: a check.
    #[must_use]
    pub fn own(outgoing: Arc<Outgoing>) -> Self {
        let client = None;
        Self { outgoing, client }
    }

    /// As `outgoing` says, for `client`.
    #[must_use]
    pub fn of(outgoing: Arc<Outgoing>, client: &Peer) -> Self {
        let client = outgoing.transparent.then(|| client.clone());
        Self { outgoing, client }
    }

    /// Whether there is an address to connect to `at` from.
    #[must_use]
    pub fn reaches(&self, at: &Peer) -> bool {
        match (at, &self.client) {
            (Peer::Unix(_), _) => true,
            (Peer::Ip(at), None) => self.outgoing.source(*at).0,
            (Peer::Ip(at), Some(Peer::Ip(client))) => at.is_ipv4() == client.is_ipv4(),
            (Peer::Ip(_), Some(Peer::Unix(_))) => false,
        }
    }

    /// The addresses to connect to `at` from, best first; none where the kernel chooses.
    pub(super) fn sources(&self, at: SocketAddr) -> [Option<SocketAddr>; 2] {
        match &self.client {
            // Its port may be in use here, or the same connection be on its way out of the kernel's memory.
            Some(Peer::Ip(client)) => [Some(*client), Some(SocketAddr::new(client.ip(), 0))],
            _ => {
                let source = self.outgoing.source(at).1;
                [source.map(|source| SocketAddr::new(source, 0)), None]
            }
        }
    }

    /// Makes it the near end of `fd`, a socket of the family of `source` that is not bound yet.
    pub(super) fn set(&self, fd: &OwnedFd, source: Option<SocketAddr>) -> Result<(), Failed> {
        self.apply(fd, source)
            .map_err(|Refused(setting, errno)| Failed {
                call: setting.call(),
                errno,
            })
    }

    fn apply(&self, fd: &OwnedFd, source: Option<SocketAddr>) -> Result<(), Refused> {
        let Outgoing {
            interface, mark, ..
        } = &*self.outgoing;
        let socket = SockRef::from(fd);
        if let Some(interface) = interface {
            let bound = socket.bind_device(Some(interface.as_bytes()));
            bound.map_err(|error| Refused(Setting::Interface, errno(&error)))?;
        }
        if let Some(mark) = mark {
            let marked = socket.set_mark(*mark);
            marked.map_err(|error| Refused(Setting::Mark, errno(&error)))?;
        }
        let Some(source) = source else {
            return Ok(());
        };
        if self.client.is_some() {
            set_transparent(fd, source)?;
        }
        let bind = || {
            match source.port() {
                0 => tcp::bind_address_only(fd).map_err(|error| errno(&error))?,
                // Another connection of this client to somebody else may have the port, too.
                _ => sockopt::set_socket_reuseaddr(fd, true)?,
            }
            net::bind(fd, &source)
        };
        bind().map_err(|errno| Refused(Setting::Source, errno))
    }
}

/// A setting that the kernel refuses, and with what.
struct Refused(Setting, Errno);

#[derive(Clone, Copy)]
enum Setting {
    Interface,
    Mark,
    Transparent,
    Source,
}

impl Setting {
    /// The call that has it.
    fn call(self) -> &'static str {
        match self {
            Self::Interface => "SO_BINDTODEVICE",
            Self::Mark => "SO_MARK",
            Self::Transparent => "IP_TRANSPARENT",
            Self::Source => "bind",
        }
    }
}

fn set_transparent(fd: &OwnedFd, source: SocketAddr) -> Result<(), Refused> {
    let socket = SockRef::from(fd);
    let set = match source {
        SocketAddr::V4(_) => socket.set_ip_transparent_v4(true),
        SocketAddr::V6(_) => socket.set_ip_transparent_v6(true),
    };
    set.map_err(|error| Refused(Setting::Transparent, errno(&error)))
}

/// Tries on sockets of its own what `outgoing` asks for: with the privileges that the process has now.
///
/// # Errors
///
/// Says which setting is refused, and the way out.
pub fn try_out(outgoing: &Outgoing) -> Result<(), Unfit> {
    if *outgoing == Outgoing::default() {
        return Ok(());
    }
    let near = Near::own(Arc::new(outgoing.clone()));
    let sources = [outgoing.v4.map(IpAddr::V4), outgoing.v6.map(IpAddr::V6)];
    let sources = sources.iter().flatten().map(|ip| SocketAddr::new(*ip, 0));
    let sources = Vec::from_iter(sources.map(Some));
    let sources = match sources.is_empty() {
        true => vec![None],
        false => sources,
    };
    for source in sources {
        let family = match source {
            Some(SocketAddr::V6(_)) => AddressFamily::INET6,
            _ => AddressFamily::INET,
        };
        let fd = match stream(family) {
            Ok(fd) => fd,
            // Then there is nothing to be said about settings.
            Err(_) => continue,
        };
        near.apply(&fd, source)?;
    }
    if outgoing.transparent
        && let Ok(fd) = stream(AddressFamily::INET)
    {
        let any = SocketAddr::from(([0, 0, 0, 0], 0));
        set_transparent(&fd, any)?;
    }
    Ok(())
}

impl From<Refused> for Unfit {
    fn from(Refused(setting, errno): Refused) -> Self {
        let (setting, advice) = match (setting, errno) {
            (Setting::Interface, Errno::NODEV) => {
                ("interface", "there is no such network interface")
            }
            (Setting::Interface, Errno::PERM) => (
                "interface",
                "before Linux 5.7 it needs CAP_NET_RAW; keep it with --keep-capabilities net_raw",
            ),
            (Setting::Interface, _) => ("interface", "check its name"),
            (Setting::Mark, _) => (
                "mark",
                "every connection needs CAP_NET_ADMIN for it, or CAP_NET_RAW from Linux 5.17 on: start relay with that, and beside --user keep it with --keep-capabilities net_admin",
            ),
            (Setting::Transparent, _) => (
                "transparent-source",
                "every connection needs CAP_NET_ADMIN or CAP_NET_RAW for it: start relay with one, and beside --user keep it with --keep-capabilities net_raw",
            ),
            (Setting::Source, Errno::ADDRNOTAVAIL) => {
                ("source", "no interface of this host has that address")
            }
            (Setting::Source, _) => ("source", "check the address"),
        };
        Unfit {
            setting,
            error: errno.into(),
            advice,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    fn unfit_setting(outgoing: &Outgoing) -> &'static str {
        try_out(outgoing).unwrap_err().setting
    }

    #[test]
    fn what_cannot_be_had_is_named() {
        let free = Outgoing::default();
        let elsewhere = Outgoing {
            v4: Some([192, 0, 2, 1].into()),
            ..free.clone()
        };
        assert_eq!(unfit_setting(&elsewhere), "source");
        let interface = Outgoing {
            interface: Some("no-such-0".into()),
            ..free.clone()
        };
        assert_eq!(unfit_setting(&interface), "interface");
        let here = Outgoing {
            v4: Some([127, 0, 0, 9].into()),
            interface: Some("lo".into()),
            ..free
        };
        assert!(try_out(&here).is_ok());
    }

    #[test]
    fn a_source_has_a_port_for_each_upstream_again() {
        let outgoing = Outgoing {
            v4: Some([127, 0, 0, 9].into()),
            ..Outgoing::default()
        };
        let near = Near::own(outgoing.into());
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        let fd = stream(AddressFamily::INET).unwrap();
        near.set(&fd, near.sources(at)[0]).unwrap();
        // The port is left to connect(2).
        let named = SocketAddr::try_from(net::getsockname(&fd).unwrap()).unwrap();
        assert_eq!(named, "127.0.0.9:0".parse().unwrap());
        let _ = net::connect(&fd, &at);
        let (_socket, from) = listener.accept().unwrap();
        assert_eq!(from.ip(), named.ip());
    }

    #[test]
    fn a_client_stands_for_its_own_family_only() {
        let outgoing = Arc::new(Outgoing {
            transparent: true,
            ..Outgoing::default()
        });
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let client = Peer::Ip(client.local_addr().unwrap());
        let near = Near::of(outgoing.clone(), &client);
        let (v4, v6) = (
            Peer::Ip("192.0.2.1:1".parse().unwrap()),
            Peer::Ip("[2001:db8::1]:1".parse().unwrap()),
        );
        assert_eq!((near.reaches(&v4), near.reaches(&v6)), (true, false));
        let nobody = Near::of(
            outgoing.clone(),
            &Peer::Unix(std::path::Path::new("/a").into()),
        );
        assert!(!nobody.reaches(&v4));
        let check = Near::own(outgoing);
        assert!(check.reaches(&v4) && check.reaches(&v6));
    }
}
