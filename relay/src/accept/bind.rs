//! Making listeners: addresses to try, options to inherit, stale Unix sockets, and errors that say what to do.

use std::{
    fmt, fs, io,
    net::SocketAddr,
    os::{fd::AsFd, unix::fs::FileTypeExt},
    path::Path,
};

use rustix::{
    fs::{Gid, Mode, Uid, chmod, chown, fchmod},
    io::Errno,
    net::{self, AddressFamily, SocketAddrUnix, sockopt},
};

use socket2::SockRef;

use super::{
    Listener,
    held::Held,
    unlink::{Unlink, inode},
};
use crate::{
    close,
    plan::{Address, Door, Owner, Tcp},
    sys::tune::{errno, stream, tune},
    tune::{Refused, try_out, tune_listener},
};

/// A listener that cannot be had.
#[derive(Debug, thiserror::Error)]
#[error("{flag} {address}: cannot {what}: {error}; {advice}")]
pub struct BindError {
    flag: &'static str,
    address: String,
    what: String,
    error: io::Error,
    advice: &'static str,
}

/// Listens on `address`; for a name, on the first of its addresses that can be bound.
///
/// # Errors
///
/// Fails with what the system said and what would help.
pub async fn bind(address: &Address, door: &Door, options: &Tcp) -> Result<Listener, BindError> {
    match address {
        Address::Ip(at) => tcp(*at, door, options).map_err(|failed| failed.at(address)),
        Address::Unix(path) => unix(path, door, options).map_err(|failed| failed.at(address)),
        Address::Original => Err(fault(address, Errno::DESTADDRREQ)),
        Address::Name(host, port) => {
            let unresolved = |error| BindError {
                advice: "check the spelling and the resolver, or give an IP address",
                ..BindError::new(address, "resolve the name", error, "")
            };
            let found = tokio::net::lookup_host((host.as_str(), *port)).await;
            let mut last = unresolved(io::Error::other("it has no address"));
            for at in found.map_err(unresolved)? {
                match tcp(at, door, options) {
                    Ok(listener) => return Ok(listener),
                    Err(failed) => last = failed.at(address),
                }
            }
            Err(last)
        }
    }
}

/// The same for `flag`, which is not `--listen`; a Unix socket is the owner's alone.
///
/// # Errors
///
/// Fails with what the system said and what would help.
pub async fn bind_private(address: &Address, flag: &'static str) -> Result<Listener, BindError> {
    let door = Door {
        mode: Some(0o600),
        ..Door::default()
    };
    let bound = bind(address, &door, &Tcp::default()).await;
    bound.map_err(|error| BindError { flag, ..error })
}

fn fault(address: &impl fmt::Display, errno: Errno) -> BindError {
    let name = address.to_string();
    let unix = name.starts_with("unix:");
    let advice = match (errno, unix) {
        (Errno::ADDRINUSE, true) => "a process listens there; choose another path or stop it",
        (Errno::ADDRINUSE, _) => "choose another port or stop what uses it",
        (Errno::PERM, _) => "transparent needs CAP_NET_ADMIN",
        (Errno::ACCESS, true) => "check the permissions of its directory",
        (Errno::ACCESS, _) => {
            "it needs CAP_NET_BIND_SERVICE, or a port from net.ipv4.ip_unprivileged_port_start on"
        }
        (Errno::ADDRNOTAVAIL, _) => "no interface of this host has that address",
        (Errno::AFNOSUPPORT, _) => "this host has no such address family; IPv6 may be off",
        (Errno::EXIST, _) => "the path names something that is no socket; it is left alone",
        (Errno::NOENT | Errno::NOTDIR, _) => "its directory does not exist",
        (Errno::MFILE | Errno::NFILE, _) => "raise the limit of open files",
        _ => "check the address",
    };
    BindError::new(address, "listen", errno.into(), advice)
}

impl BindError {
    pub(super) fn new(
        address: &impl fmt::Display,
        what: impl Into<String>,
        error: io::Error,
        advice: &'static str,
    ) -> Self {
        Self {
            flag: "--listen",
            address: address.to_string(),
            what: what.into(),
            error,
            advice,
        }
    }
}

/// Why there is no listener, whatever it was to be called.
pub(super) enum Failed {
    Listen(Errno),
    Option(Refused),
    /// What was passed is no listening stream socket.
    NoListener,
}

impl From<Errno> for Failed {
    fn from(errno: Errno) -> Self {
        Self::Listen(errno)
    }
}

impl From<Refused> for Failed {
    fn from(refused: Refused) -> Self {
        Self::Option(refused)
    }
}

impl Failed {
    pub(super) fn at(self, address: &impl fmt::Display) -> BindError {
        match self {
            Self::Listen(errno) => fault(address, errno),
            Self::Option(refused) => {
                let what = format!("set {}", refused.setting);
                BindError::new(address, what, refused.errno.into(), refused.advice)
            }
            Self::NoListener => BindError::new(
                address,
                "listen",
                io::Error::other("what was passed is no listening stream socket"),
                "its unit needs ListenStream= and Accept=no",
            ),
        }
    }
}

fn tcp(at: SocketAddr, door: &Door, options: &Tcp) -> Result<Listener, Failed> {
    let family = match at {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let fd = stream(family)?;
    sockopt::set_socket_reuseaddr(&fd, true)?;
    if door.reuse_port {
        sockopt::set_socket_reuseport(&fd, true)?;
    }
    // Linux hands these on to every accepted socket, which saves each of them the calls; and a client that is still in
    // the backlog when the process dies sees a reset, too.
    tune(&fd)?;
    close::arm(&fd);
    tune_listener(&fd, options, backlog(door))?;
    if let SocketAddr::V6(_) = at {
        sockopt::set_ipv6_v6only(&fd, door.v6only)?;
    }
    if door.transparent {
        set_transparent(&fd, at, true)?;
    }
    net::bind(&fd, &at)?;
    net::listen(&fd, backlog(door))?;
    let address = SocketAddr::try_from(net::getsockname(&fd)?)?;
    Ok(Listener {
        held: Held::new(fd, None),
        address: Address::Ip(address),
        passed: false,
    })
}

fn unix(path: &Path, door: &Door, options: &Tcp) -> Result<Listener, Failed> {
    // The options are for the upstream then.
    try_out(options)?;
    let at = SocketAddrUnix::new(path)?;
    let fd = stream(AddressFamily::UNIX)?;
    let mode = door.mode.map(Mode::from_raw_mode);
    if let Some(mode) = mode {
        // Before the bind, which gives the file this mode (less the umask): there is no moment at which others may connect.
        fchmod(&fd, mode)?;
    }
    match net::bind(&fd, &at) {
        Err(Errno::ADDRINUSE) => {
            remove_stale(path, &at)?;
            net::bind(&fd, &at)?;
        }
        other => other?,
    }
    let unlink = Unlink::new(path.to_owned()).map_err(|error| errno(&error))?;
    if let Some(Owner { user, group }) = door.owner {
        let refused = |errno| {
            Failed::Option(Refused {
                setting: "socket-owner",
                errno,
                advice: "it needs CAP_CHOWN, as root has it at the start, or a group that relay is in",
            })
        };
        let (user, group) = (Uid::from_raw(user), group.map(Gid::from_raw));
        chown(path, Some(user), group).map_err(refused)?;
    }
    if let Some(mode) = mode {
        // What the umask has taken off; still nobody can connect.
        chmod(path, mode)?;
    }
    net::listen(&fd, backlog(door))?;
    Ok(Listener {
        held: Held::new(fd, Some(unlink)),
        address: Address::Unix(path.to_owned()),
        passed: false,
    })
}

/// Lets the socket have addresses that are not this host's. On a socket for both families it holds for both.
pub(super) fn set_transparent(
    fd: &impl AsFd,
    at: SocketAddr,
    transparent: bool,
) -> Result<(), Errno> {
    let socket = SockRef::from(fd);
    let set = match at {
        SocketAddr::V4(_) => socket.set_ip_transparent_v4(transparent),
        SocketAddr::V6(_) => socket.set_ip_transparent_v6(transparent),
    };
    set.map_err(|error| errno(&error))
}

pub(super) fn backlog(door: &Door) -> i32 {
    i32::try_from(door.backlog).unwrap_or(i32::MAX)
}

/// Removes the socket file of a listener that is gone: one that refuses, which a live one with a full backlog does not.
fn remove_stale(path: &Path, at: &SocketAddrUnix) -> Result<(), Errno> {
    let found = fs::symlink_metadata(path).map_err(|error| errno(&error))?;
    if !found.file_type().is_socket() {
        return Err(Errno::EXIST);
    }
    let seen = inode(path).map_err(|error| errno(&error))?;
    match net::connect(stream(AddressFamily::UNIX)?, at) {
        Err(Errno::CONNREFUSED) if inode(path).is_ok_and(|now| now == seen) => {
            tracing::info!(path = %path.display(), "taking over a stale socket file");
            fs::remove_file(path).map_err(|error| errno(&error))
        }
        // Gone in between.
        Err(Errno::NOENT) => Ok(()),
        // May be somebody else's, who is not to be asked.
        Err(Errno::ACCESS) => Err(Errno::ACCESS),
        _ => Err(Errno::ADDRINUSE),
    }
}
