//! TCP segments as bytes on the wire.

use std::net::SocketAddrV4;

use anyhow::{Context, Result, ensure};
use etherparse::{IpNumber, Ipv4Slice, PacketBuilder, TcpOptionElement, TcpSlice};

const HOPS: u8 = 64;

/// A segment, but for its bytes and options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    /// Who sends it.
    pub(super) from: SocketAddrV4,
    /// Who is to receive it.
    pub(super) to: SocketAddrV4,
    /// The sequence number of its first byte.
    pub(super) seq: u32,
    /// The sequence number that is expected next; none without the flag ACK.
    pub(super) ack: Option<u32>,
    /// The window as it is written, not scaled.
    pub(super) window: u16,
    /// Flag SYN.
    pub(super) syn: bool,
    /// Flag FIN.
    pub(super) fin: bool,
    /// Flag RST.
    pub(super) rst: bool,
    /// The urgent pointer; none without the flag URG.
    pub(super) urgent: Option<u16>,
}

impl Header {
    /// The whole IP packet.
    ///
    /// # Errors
    ///
    /// Fails when it would be too large.
    pub(super) fn write(&self, options: &[TcpOptionElement], bytes: &[u8]) -> Result<Vec<u8>> {
        let (from, to) = (self.from, self.to);
        let mut builder = PacketBuilder::ipv4(from.ip().octets(), to.ip().octets(), HOPS)
            .tcp(from.port(), to.port(), self.seq, self.window)
            .options(options)?;
        if let Some(ack) = self.ack {
            builder = builder.ack(ack);
        }
        if let Some(pointer) = self.urgent {
            builder = builder.urg(pointer);
        }
        if self.syn {
            builder = builder.syn();
        }
        if self.fin {
            builder = builder.fin();
        }
        if self.rst {
            builder = builder.rst();
        }
        if !bytes.is_empty() {
            builder = builder.psh();
        }
        let mut packet = Vec::with_capacity(builder.size(bytes.len()));
        builder.write(&mut packet, bytes)?;
        Ok(packet)
    }
}

/// A segment that came.
#[derive(Clone, Debug)]
pub(super) struct Heard {
    /// All but bytes and options.
    pub(super) header: Header,
    /// The option for the largest segment.
    pub(super) mss: Option<u16>,
    /// The option for the scale of windows.
    pub(super) scale: Option<u8>,
    /// The sender's clock, of the option for time stamps.
    pub(super) clock: Option<u32>,
    /// Its bytes.
    pub(super) bytes: Vec<u8>,
}

impl Heard {
    /// Reads an IP packet; none when it is not TCP over IPv4.
    ///
    /// # Errors
    ///
    /// Fails when it is, and is damaged.
    pub(super) fn read(packet: &[u8]) -> Result<Option<Self>> {
        if packet.first().is_none_or(|first| first >> 4 != 4) {
            return Ok(None);
        }
        let ip = Ipv4Slice::from_slice(packet).context("an IP packet")?;
        if ip.payload_ip_number() != IpNumber::TCP {
            return Ok(None);
        }
        ensure!(!ip.is_payload_fragmented(), "a fragment");
        let tcp = TcpSlice::from_slice(ip.payload().payload).context("a segment")?;
        let at = |address, port| SocketAddrV4::new(address, port);
        let mut heard = Self {
            header: Header {
                from: at(ip.header().source_addr(), tcp.source_port()),
                to: at(ip.header().destination_addr(), tcp.destination_port()),
                seq: tcp.sequence_number(),
                ack: tcp.ack().then(|| tcp.acknowledgment_number()),
                window: tcp.window_size(),
                syn: tcp.syn(),
                fin: tcp.fin(),
                rst: tcp.rst(),
                urgent: tcp.urg().then(|| tcp.urgent_pointer()),
            },
            mss: None,
            scale: None,
            clock: None,
            bytes: tcp.payload().to_vec(),
        };
        for option in tcp.options_iterator() {
            match option.context("an option")? {
                TcpOptionElement::MaximumSegmentSize(size) => heard.mss = Some(size),
                TcpOptionElement::WindowScale(scale) => heard.scale = Some(scale),
                TcpOptionElement::Timestamp(clock, _) => heard.clock = Some(clock),
                _ => (),
            }
        }
        Ok(Some(heard))
    }
}
