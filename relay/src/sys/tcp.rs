//! Socket options of tcp(7) that rustix does not wrap.
#![expect(
    unsafe_code,
    reason = "getsockopt, setsockopt and ioctl with arguments of the kernel's own layout"
)]

use std::{
    ffi::c_int,
    io, mem,
    net::SocketAddr,
    os::fd::{AsFd, AsRawFd},
};

use rustix::{
    io::Errno,
    net::{SendFlags, sendto, sockopt},
};

/// The states of a TCP socket that relay asks about; include/net/tcp_states.h.
pub(crate) mod state {
    pub(crate) const ESTABLISHED: u8 = 1;
    pub(crate) const FIN_WAIT1: u8 = 4;
    pub(crate) const FIN_WAIT2: u8 = 5;
}

/// The part of `struct tcp_info` (include/uapi/linux/tcp.h) up to what relay reads. Since Linux 4.6.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Info {
    /// One of the TCP states.
    pub(crate) state: u8,
    _to_rto: [u8; 7],
    _to_total_retrans: [u32; 24],
    _pacing: [u64; 2],
    /// Bytes of ours that the peer has acknowledged; its SYN may count as one.
    pub(crate) bytes_acked: u64,
    /// Bytes of the peer that the kernel has acknowledged, in order; its FIN counts as one.
    pub(crate) bytes_received: u64,
}

const _: () = assert!(
    mem::size_of::<Info>() == 136,
    "tcpi_bytes_received ends at byte 136"
);

impl Info {
    /// Whether the peer's FIN has arrived (or the connection is gone): what was received before is all there will be.
    pub(crate) fn is_read_closed(&self) -> bool {
        ![state::ESTABLISHED, state::FIN_WAIT1, state::FIN_WAIT2].contains(&self.state)
    }
}

/// Reads `TCP_INFO`.
pub(crate) fn info(socket: impl AsFd) -> io::Result<Info> {
    let mut info = Info::default();
    let mut length = mem::size_of::<Info>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes to `info`, which is that large, plain data, and outlives the call.
    let said = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            (&raw mut info).cast(),
            &raw mut length,
        )
    };
    match said {
        0 if length as usize == mem::size_of::<Info>() => Ok(info),
        0 => Err(io::ErrorKind::Unsupported.into()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Bytes written to the socket that the peer has not acknowledged, sent or not (`SIOCOUTQ`).
pub(crate) fn unacknowledged(socket: impl AsFd) -> io::Result<u64> {
    let mut bytes: c_int = 0;
    // SAFETY: SIOCOUTQ writes one int to the address given, which outlives the call.
    let said = unsafe { libc::ioctl(socket.as_fd().as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
    match said {
        0 => Ok(u64::try_from(bytes).unwrap_or(0)),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Whether the next byte to be read is an urgent one (`SIOCATMARK`). Sockets that have none say no.
pub(crate) fn is_at_mark(socket: impl AsFd) -> bool {
    let mut at: c_int = 0;
    // SAFETY: SIOCATMARK writes one int to the address given, which outlives the call.
    let said = unsafe { libc::ioctl(socket.as_fd().as_raw_fd(), SIOCATMARK, &raw mut at) };
    said == 0 && at != 0
}

/// include/uapi/asm-generic/sockios.h; libc has it for other systems only.
const SIOCATMARK: libc::Ioctl = 0x8905;

/// Everything ever written to the socket, counted from where the kernel likes: only differences mean something.
///
/// An acknowledgement between the two calls makes the answer too small, never too large.
pub(crate) fn written(socket: impl AsFd) -> io::Result<u64> {
    let acknowledged = info(&socket)?.bytes_acked;
    Ok(acknowledged + unacknowledged(&socket)?)
}

/// The same, and right: for a socket that nobody writes to meanwhile.
pub(crate) fn written_so_far(socket: impl AsFd) -> io::Result<u64> {
    let mut acknowledged = info(&socket)?.bytes_acked;
    loop {
        let unacknowledged = unacknowledged(&socket)?;
        // What was written is finite, and so is how often this finds that more of it was acknowledged.
        match info(&socket)?.bytes_acked {
            same if same == acknowledged => return Ok(acknowledged + unacknowledged),
            more => acknowledged = more,
        }
    }
}

/// Runs the socket's data-ready hook over what is in its receive queue, by setting `SO_RCVLOWAT` to what it is.
///
/// The call takes the socket lock, so it also orders the caller's memory against the verdicts before and after it.
pub(crate) fn kick(socket: impl AsFd) -> io::Result<()> {
    set(socket, libc::SOL_SOCKET, libc::SO_RCVLOWAT, 1)
}

/// Has the socket tell of bytes only once half of its receive buffer is full, until it is [`kick`]ed. Of its FIN and of errors
/// it tells at once. How it is read does not change.
///
/// For more than the window is worth the kernel would enlarge the buffer; net/ipv4/tcp.c, `tcp_set_rcvlowat`.
pub(crate) fn hush(socket: impl AsFd) -> io::Result<()> {
    let half = sockopt::socket_recv_buffer_size(&socket)? / 2;
    let half = c_int::try_from(half).unwrap_or(c_int::MAX);
    set(socket, libc::SOL_SOCKET, libc::SO_RCVLOWAT, half)
}

/// Lets the socket take bytes as long as its send buffer has room, whatever `net.ipv4.tcp_notsent_lowat` says.
pub(crate) fn ignore_notsent_lowat(socket: impl AsFd) -> io::Result<()> {
    set(
        socket,
        libc::IPPROTO_TCP,
        libc::TCP_NOTSENT_LOWAT,
        c_int::MAX,
    )
}

/// Lets a listener take data with the SYN of a client, of so many at a time. Minimum kernel version: 3.7.
pub(crate) fn set_fast_open(listener: impl AsFd, queue: c_int) -> io::Result<()> {
    set(listener, libc::IPPROTO_TCP, libc::TCP_FASTOPEN, queue)
}

/// Connects a nonblocking socket to `at` and has `bytes` go with the SYN, where the kernel has a cookie of that host for it
/// (`EINPROGRESS` and none of them otherwise). Gives how many it has taken. Minimum kernel version: 3.6.
#[doc(alias = "MSG_FASTOPEN")]
pub(crate) fn connect_with(
    socket: impl AsFd,
    at: SocketAddr,
    bytes: &[u8],
) -> Result<usize, Errno> {
    let flags = SendFlags::from_bits_retain(libc::MSG_FASTOPEN.cast_unsigned());
    sendto(socket, bytes, flags | SendFlags::NOSIGNAL, &at)
}

/// Has a bind to port 0 take an address only. The port is chosen by connect(2), for which one is free as long as this peer has
/// it not yet: many more connections are possible that way than there are ports. Minimum kernel version: 4.2.
pub(crate) fn bind_address_only(socket: impl AsFd) -> io::Result<()> {
    set(socket, libc::IPPROTO_IP, libc::IP_BIND_ADDRESS_NO_PORT, 1)
}

/// The protocol of the socket, `IPPROTO_TCP` or `IPPROTO_MPTCP`. Since Linux 2.6.32.
pub(crate) fn protocol(socket: impl AsFd) -> io::Result<c_int> {
    let mut value: c_int = 0;
    let mut length = mem::size_of::<c_int>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes to `value`, which is that large and outlives the call.
    let said = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PROTOCOL,
            (&raw mut value).cast(),
            &raw mut length,
        )
    };
    match said {
        0 => Ok(value),
        _ => Err(io::Error::last_os_error()),
    }
}

fn set(socket: impl AsFd, level: c_int, option: c_int, value: c_int) -> io::Result<()> {
    let length = mem::size_of::<c_int>() as libc::socklen_t;
    // SAFETY: the kernel reads `length` bytes from `value`, which is that large and outlives the call.
    let said = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            level,
            option,
            (&raw const value).cast(),
            length,
        )
    };
    match said {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read, Write},
        net::{TcpListener, TcpStream},
        time::{Duration, Instant},
    };

    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (near, listener.accept().unwrap().0)
    }

    /// Waits for so many bytes; the kernel counts a FIN as one.
    fn arrived(socket: &TcpStream, bytes: u64) {
        let deadline = Instant::now() + Duration::from_secs(60);
        while info(socket).unwrap().bytes_received < bytes {
            assert!(Instant::now() < deadline, "{bytes} bytes never came");
        }
    }

    #[test]
    fn what_was_written_is_counted_before_and_after_it_is_acknowledged() {
        let (mut near, mut far) = pair();
        let before = written(&near).unwrap();
        near.write_all(&[7; 5000]).unwrap();
        assert_eq!(written(&near).unwrap() - before, 5000);
        far.read_exact(&mut [0; 5000]).unwrap();
        assert_eq!(written(&near).unwrap() - before, 5000);
        assert_eq!(info(&far).unwrap().bytes_received, 5000);
    }

    #[test]
    fn a_hushed_socket_tells_of_its_fin_and_when_it_is_kicked() {
        let tells = |socket: &TcpStream| {
            let mut asked = [PollFd::new(socket, PollFlags::IN)];
            poll(&mut asked, Some(&Timespec::default())).unwrap() == 1
        };
        let (mut near, far) = pair();
        let buffer = sockopt::socket_recv_buffer_size(&far).unwrap();
        hush(&far).unwrap();
        near.write_all(&[7; 1000]).unwrap();
        arrived(&far, 1000);
        assert!(!tells(&far));
        assert_eq!(sockopt::socket_recv_buffer_size(&far).unwrap(), buffer);
        kick(&far).unwrap();
        assert!(tells(&far));
        hush(&far).unwrap();
        assert!(!tells(&far));
        near.shutdown(std::net::Shutdown::Write).unwrap();
        arrived(&far, 1001);
        assert!(tells(&far));
    }

    #[test]
    fn a_fin_counts_as_one_byte_received() {
        let (near, mut far) = pair();
        near.shutdown(std::net::Shutdown::Write).unwrap();
        assert_eq!(far.read(&mut [0]).unwrap(), 0);
        assert_eq!(info(&far).unwrap().bytes_received, 1);
    }

    #[test]
    fn protocols_are_told_apart() {
        assert_eq!(protocol(&pair().0).unwrap(), libc::IPPROTO_TCP);
    }
}
