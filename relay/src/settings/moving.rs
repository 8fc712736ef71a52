//! How the bytes of a route move, out of its settings: its sockets, and its bandwidth.

use bytesize::ByteSize;
use relay::plan::{Keepalive, Rates, Tcp};

use super::{Settings, values::Limit, values::Speed};

impl Settings {
    /// What these settings, complete, say of TCP.
    pub(super) fn tcp(&mut self) -> Tcp {
        let bytes = |size: ByteSize| usize::try_from(size.as_u64()).unwrap_or(usize::MAX);
        Tcp {
            nodelay: self.nodelay,
            keepalive: Keepalive {
                off: self
                    .keepalive_idle
                    .is_some_and(|idle| idle.or_never().is_none()),
                idle: self.keepalive_idle.and_then(Limit::or_never),
                interval: self.keepalive_interval.map(|every| every.0),
                count: self.keepalive_count,
            },
            user_timeout: self.user_timeout.and_then(Limit::or_never),
            congestion: self.congestion.take(),
            send_buffer: self.send_buffer.map(bytes),
            receive_buffer: self.receive_buffer.map(bytes),
            fast_open: self.fast_open.unwrap_or(false),
        }
    }

    /// What they say of bandwidth.
    pub(super) fn rates(&self) -> Rates {
        let rate = |speed: Option<Speed>| speed.and_then(|speed| speed.0);
        Rates {
            connection: [self.upload_rate, self.download_rate].map(rate),
            route: [self.route_upload_rate, self.route_download_rate].map(rate),
        }
    }
}
