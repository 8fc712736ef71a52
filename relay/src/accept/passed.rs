//! Sockets that somebody else has opened: the service manager, or the relay before.

use std::{
    io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::PathBuf,
    sync::Arc,
};

use std::{ffi::OsStr, net::SocketAddr};

use rustix::{
    io::{Errno, ioctl_fionbio},
    net::{AddressFamily, SocketAddrUnix, SocketType, getsockname, sockopt},
};

use super::{
    BindError, Listener,
    bind::{Failed, backlog},
    held::Held,
    unlink::Unlink,
};
use crate::{
    close,
    plan::{Address, Door, Listen, Plan, Tcp},
    sys::{passed, tune::tune},
    tune::{try_out, tune_listener},
};

/// The sockets that the service manager has passed. They stay open until the process ends, whoever listens on them:
/// their backlog is its own, too.
#[derive(Clone, Debug, Default)]
#[doc(alias = "LISTEN_FDS")]
pub struct Passed(Arc<Vec<(OwnedFd, String)>>);

impl Passed {
    /// Takes them, once; after that there are none. Call it before anything else is opened.
    ///
    /// # Errors
    ///
    /// Fails when the environment says something that is not so.
    pub fn take() -> io::Result<Self> {
        Ok(Self(Arc::new(passed::take()?)))
    }

    /// Warns of those that no route of `plan` listens on: their clients would wait for ever.
    pub fn warn_of_unused(&self, plan: &Plan) {
        for (_, name) in self.0.iter() {
            let own = Listen::Passed(Some(name.clone()));
            let mut listens = plan.routes.iter().flat_map(|route| &route.listen);
            if !listens.any(|listen| matches!(listen, Listen::Passed(_)) && listen.overlaps(&own)) {
                tracing::warn!(
                    name,
                    "systemd passes a socket that no route listens on: say listen = \"systemd:{name}\""
                );
            }
        }
    }

    /// Listens on those of this name, or on all.
    pub(super) fn listen(
        &self,
        listen: &Listen,
        name: Option<&str>,
        door: &Door,
        options: &Tcp,
    ) -> Result<Vec<Listener>, BindError> {
        let wanted = |one: &&(OwnedFd, String)| name.is_none_or(|name| name == one.1);
        let mut listeners = Vec::new();
        for (fd, _) in self.0.iter().filter(wanted) {
            let adopted = fd
                .try_clone()
                .map_err(|error| Failed::Listen(crate::sys::tune::errno(&error)))
                .and_then(|fd| adopt(fd, door, options));
            listeners.push(adopted.map_err(|failed| failed.at(listen))?);
        }
        match listeners.is_empty() {
            false => Ok(listeners),
            true => Err(self.missing(listen)),
        }
    }

    fn missing(&self, listen: &Listen) -> BindError {
        let names = Vec::from_iter(self.0.iter().map(|(_, name)| name.as_str()));
        let passed = match names.is_empty() {
            true => "it passed none to this process".to_owned(),
            false => format!("it passed {}", names.join(", ")),
        };
        BindError::new(
            listen,
            "get the socket from systemd",
            io::Error::other(passed),
            "start relay by its .socket unit, whose FileDescriptorName= is the name",
        )
    }
}

/// Makes a listener of the socket that another relay had for `listen`; `file` are device and inode of its file.
///
/// # Errors
///
/// Fails when it is no listener, or does not bear the options.
pub fn inherit(
    fd: OwnedFd,
    listen: &str,
    file: Option<(u64, u64)>,
    passed: bool,
    options: &Tcp,
) -> Result<Listener, BindError> {
    let path = listen.strip_prefix("unix:").map(PathBuf::from);
    let unlink = path.zip(file).map(|(path, inode)| Unlink::of(path, inode));
    // As it is: it may be the other's for good. What the options are is for Acceptor::renew.
    let checked = address(&fd).and_then(|address| {
        try_out(options)?;
        Ok(address)
    });
    Ok(Listener {
        address: checked.map_err(|failed| failed.at(&listen))?,
        held: Held::new(fd, unlink),
        passed,
    })
}

/// Makes a listener of one that systemd has, with the options of relay's own.
fn adopt(fd: OwnedFd, door: &Door, options: &Tcp) -> Result<Listener, Failed> {
    let address = address(&fd)?;
    ioctl_fionbio(&fd, true)?;
    if let Address::Unix(_) = address {
        try_out(options)?;
    } else {
        tune(&fd)?;
        close::arm(&fd);
        tune_listener(&fd, options, backlog(door))?;
    }
    Ok(Listener {
        held: Held::new(fd, None),
        address,
        passed: true,
    })
}

/// Where a stream socket listens.
fn address(fd: impl AsFd) -> Result<Address, Failed> {
    let is_stream = sockopt::socket_type(&fd) == Ok(SocketType::STREAM);
    if !is_stream || sockopt::socket_acceptconn(&fd) != Ok(true) {
        return Err(Failed::NoListener);
    }
    let name = getsockname(&fd)?;
    match sockopt::socket_domain(&fd)? {
        AddressFamily::UNIX => {
            let name = SocketAddrUnix::try_from(name)?;
            let path = match (name.path_bytes(), name.abstract_name()) {
                (Some(path), _) => PathBuf::from(OsStr::from_bytes(path)),
                // As ss(8) prints it.
                (None, Some(name)) => format!("@{}", String::from_utf8_lossy(name)).into(),
                (None, None) => PathBuf::from("@"),
            };
            Ok(Address::Unix(path))
        }
        AddressFamily::INET | AddressFamily::INET6 => Ok(Address::Ip(SocketAddr::try_from(name)?)),
        _ => Err(Failed::Listen(Errno::AFNOSUPPORT)),
    }
}
