//! Makes the stream sockets of relay and sets on them what all of them have.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    time::Duration,
};

use rustix::{
    io::Errno,
    net::{AddressFamily, SocketFlags, SocketType, ipproto, socket_with, sockopt},
};

/// How long a TCP peer may be silent before it is asked whether it is still there, how often after that, and how many
/// questions may go unanswered: a dead one is noticed after two minutes. tcp(7) would first ask after two hours.
const KEEPALIVE: (Duration, Duration, u32) = (Duration::from_secs(60), Duration::from_secs(10), 6);

/// A nonblocking stream socket: TCP, or Unix where `family` says so.
pub(crate) fn stream(family: AddressFamily) -> Result<OwnedFd, Errno> {
    let protocol = (family != AddressFamily::UNIX).then_some(ipproto::TCP);
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socket_with(family, SocketType::STREAM, flags, protocol)
}

/// No Nagle delay, a question to silent peers, and urgent bytes in the stream: out of it they would be lost to recv(2), and the
/// sockmap has them there anyway. Sockets accepted from a tuned listener are tuned; tcp(7) does not
/// say so, Linux does it.
pub(crate) fn tune(tcp: impl AsFd) -> Result<(), Errno> {
    let (silence, interval, questions) = KEEPALIVE;
    sockopt::set_tcp_nodelay(&tcp, true)?;
    sockopt::set_socket_oobinline(&tcp, true)?;
    sockopt::set_socket_keepalive(&tcp, true)?;
    sockopt::set_tcp_keepidle(&tcp, silence)?;
    sockopt::set_tcp_keepintvl(&tcp, interval)?;
    sockopt::set_tcp_keepcnt(&tcp, questions)
}

/// The number in an error that came from the system.
pub(crate) fn errno(error: &io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}
