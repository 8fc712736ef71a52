//! Sets the options of a route on a TCP socket, and names the one that the kernel refuses.

use std::{fs, os::fd::AsFd, time::Duration};

use rustix::{
    io::Errno,
    net::{AddressFamily, sockopt},
};

use crate::{
    plan::Tcp,
    sys::{tcp, tune::stream},
};

/// An option that the kernel refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Refused {
    /// The name of the setting.
    pub(crate) setting: &'static str,
    /// What setsockopt(2) said.
    pub(crate) errno: Errno,
    /// What would help.
    pub(crate) advice: &'static str,
}

/// `net.ipv4.tcp_fastopen`: listeners may take data with a SYN; Documentation/networking/ip-sysctl.rst.
const FOR_LISTENERS: u32 = 2;

/// Sets what `tcp` asks for on `socket`, which may be connected, and leaves the rest as it is.
pub(crate) fn tune(socket: impl AsFd, tcp: &Tcp) -> Result<(), Refused> {
    let Tcp {
        nodelay,
        keepalive,
        user_timeout,
        congestion,
        send_buffer,
        receive_buffer,
        fast_open: _,
    } = tcp;
    let fd = socket.as_fd();
    let check = "check its value";
    set("nodelay", check, *nodelay, |on| {
        sockopt::set_tcp_nodelay(fd, on)
    })?;
    let off = keepalive.off.then_some(false);
    set("keepalive-idle", check, off, |on| {
        sockopt::set_socket_keepalive(fd, on)
    })?;
    set(
        "keepalive-idle",
        "give 1s to 32767s",
        keepalive.idle,
        |idle| sockopt::set_tcp_keepidle(fd, idle),
    )?;
    set(
        "keepalive-interval",
        "give 1s to 32767s",
        keepalive.interval,
        |every| sockopt::set_tcp_keepintvl(fd, every),
    )?;
    set(
        "keepalive-count",
        "give 1 to 127",
        keepalive.count,
        |count| sockopt::set_tcp_keepcnt(fd, count),
    )?;
    set("user-timeout", "give less", *user_timeout, |limit| {
        sockopt::set_tcp_user_timeout(fd, milliseconds(limit)?)
    })?;
    set(
        "congestion",
        "net.ipv4.tcp_available_congestion_control has those of this kernel, tcp_allowed_congestion_control those for everybody",
        congestion.as_deref(),
        |name| sockopt::set_tcp_congestion(fd, name),
    )?;
    set(
        "send-buffer",
        "net.core.wmem_max allows less: raise it",
        *send_buffer,
        |bytes| {
            sockopt::set_socket_send_buffer_size(fd, bytes)?;
            had(sockopt::socket_send_buffer_size(fd)?, bytes)
        },
    )?;
    set(
        "receive-buffer",
        "net.core.rmem_max allows less: raise it",
        *receive_buffer,
        |bytes| {
            sockopt::set_socket_recv_buffer_size(fd, bytes)?;
            had(sockopt::socket_recv_buffer_size(fd)?, bytes)
        },
    )
}

/// Sets on a listener what its clients inherit, and what only a listener has.
pub(crate) fn tune_listener(socket: impl AsFd, tcp: &Tcp, backlog: i32) -> Result<(), Refused> {
    tune(&socket, tcp)?;
    let queue = tcp.fast_open.then_some(backlog);
    set(
        "fast-open",
        "add 2 to net.ipv4.tcp_fastopen, which lets listeners have it",
        queue,
        |queue| {
            // The kernel takes the option and makes nothing of it.
            let allowed = fs::read_to_string("/proc/sys/net/ipv4/tcp_fastopen");
            let allowed = allowed
                .ok()
                .and_then(|text| text.trim().parse::<u32>().ok());
            match allowed {
                Some(bits) if bits & FOR_LISTENERS == 0 => Err(Errno::OPNOTSUPP),
                _ => tcp::set_fast_open(&socket, queue).map_err(|e| crate::sys::tune::errno(&e)),
            }
        },
    )
}

/// Tries on a socket of its own what is to be set on others later.
pub(crate) fn try_out(tcp: &Tcp) -> Result<(), Refused> {
    match stream(AddressFamily::INET) {
        Ok(socket) => tune(socket, tcp),
        // Then there is nothing to be said about options.
        Err(_) => Ok(()),
    }
}

fn set<T>(
    setting: &'static str,
    advice: &'static str,
    value: Option<T>,
    option: impl FnOnce(T) -> Result<(), Errno>,
) -> Result<(), Refused> {
    let Some(value) = value else {
        return Ok(());
    };
    option(value).map_err(|errno| Refused {
        setting,
        errno,
        advice,
    })
}

fn milliseconds(limit: Duration) -> Result<u32, Errno> {
    let limit = i32::try_from(limit.as_millis()).map_err(|_| Errno::INVAL)?;
    u32::try_from(limit).map_err(|_| Errno::INVAL)
}

/// The kernel doubles what is asked for, for its own needs, and silently gives less than it was asked for; socket(7).
fn had(given: usize, asked: usize) -> Result<(), Errno> {
    match given >= asked.saturating_mul(2) {
        true => Ok(()),
        false => Err(Errno::NOBUFS),
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;
    use crate::plan::Keepalive;

    fn refused(tcp: Tcp) -> &'static str {
        try_out(&tcp).unwrap_err().setting
    }

    #[test]
    fn what_is_asked_for_is_set_also_on_a_connected_socket() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let tcp = Tcp {
            nodelay: Some(false),
            keepalive: Keepalive {
                off: false,
                idle: Some(Duration::from_secs(7)),
                interval: Some(Duration::from_secs(8)),
                count: Some(9),
            },
            user_timeout: Some(Duration::from_millis(1500)),
            congestion: Some("reno".into()),
            send_buffer: Some(20_000),
            receive_buffer: Some(30_000),
            fast_open: false,
        };
        tune(&socket, &tcp).unwrap();
        assert!(!sockopt::tcp_nodelay(&socket).unwrap());
        let seconds = Duration::from_secs;
        assert_eq!(sockopt::tcp_keepidle(&socket).unwrap(), seconds(7));
        assert_eq!(sockopt::tcp_keepintvl(&socket).unwrap(), seconds(8));
        assert_eq!(sockopt::tcp_keepcnt(&socket).unwrap(), 9);
        assert_eq!(sockopt::tcp_user_timeout(&socket).unwrap(), 1500);
        assert_eq!(sockopt::tcp_congestion(&socket).unwrap(), "reno");
        assert_eq!(sockopt::socket_send_buffer_size(&socket).unwrap(), 40_000);
        assert_eq!(sockopt::socket_recv_buffer_size(&socket).unwrap(), 60_000);
    }

    #[test]
    fn what_the_kernel_refuses_is_named() {
        let congestion = Some("no-such".into());
        let tcp = Tcp {
            congestion,
            ..Tcp::default()
        };
        assert_eq!(refused(tcp), "congestion");
        let send_buffer = Some(1 << 30);
        let tcp = Tcp {
            send_buffer,
            ..Tcp::default()
        };
        assert_eq!(refused(tcp), "send-buffer");
        let keepalive = Keepalive {
            count: Some(128),
            ..Keepalive::default()
        };
        let tcp = Tcp {
            keepalive,
            ..Tcp::default()
        };
        assert_eq!(refused(tcp), "keepalive-count");
        assert!(try_out(&Tcp::default()).is_ok());
    }
}
