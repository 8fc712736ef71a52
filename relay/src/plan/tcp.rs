//! Options of the TCP sockets of a route, towards clients and upstreams alike.

use std::time::Duration;

/// What is to differ from what every socket of relay has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tcp {
    /// Whether small segments are sent at once.
    pub nodelay: Option<bool>,
    /// Questions to a silent peer.
    pub keepalive: Keepalive,
    /// How long bytes may stay unacknowledged before the connection is given up (`TCP_USER_TIMEOUT`).
    pub user_timeout: Option<Duration>,
    /// The congestion control.
    pub congestion: Option<String>,
    /// Bytes that a send may be ahead of the peer (`SO_SNDBUF`); the kernel adjusts it where none is given.
    pub send_buffer: Option<usize>,
    /// Bytes that may wait to be read (`SO_RCVBUF`); the kernel adjusts it where none is given.
    pub receive_buffer: Option<usize>,
    /// Lets clients send with their SYN (TCP Fast Open), and sends a PROXY header with relay's own.
    pub fast_open: bool,
}

/// How a peer is asked whether it is still there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Keepalive {
    /// Never.
    pub off: bool,
    /// After so much silence.
    pub idle: Option<Duration>,
    /// So often.
    pub interval: Option<Duration>,
    /// Until so many questions are unanswered.
    pub count: Option<u32>,
}
