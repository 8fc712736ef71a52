//! SOCKS5 as a server has it: RFC 1928, and user and password as in RFC 1929.

use std::net::{IpAddr, SocketAddr};

use rustix::io::Errno;

use super::Refusal;
use crate::{
    close::{How, Outcome},
    plan::Address,
};

/// What any message of a client takes at most: one with user and password.
pub(super) const MOST: usize = 3 + 255 + 255;

const VERSION: u8 = 5;
/// The version of the messages with user and password.
const SUBVERSION: u8 = 1;
const CONNECT: u8 = 1;

/// Ways to authenticate.
pub(super) const NO_AUTHENTICATION: u8 = 0;
pub(super) const USER_AND_PASSWORD: u8 = 2;
const NONE_ACCEPTABLE: u8 = 0xff;

/// What may be said of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Reply {
    Succeeded = 0,
    Failed = 1,
    NotAllowed = 2,
    NetworkUnreachable = 3,
    HostUnreachable = 4,
    Refused = 5,
    UnknownCommand = 7,
    UnknownAddress = 8,
}

impl Reply {
    /// What the end of a dial is called here.
    pub(super) fn of(outcome: &Outcome) -> Self {
        let How::Error { errno, call } = outcome.how else {
            return Self::Failed;
        };
        match Errno::from_raw_os_error(errno) {
            _ if call == "resolve" => Self::HostUnreachable,
            Errno::CONNREFUSED => Self::Refused,
            Errno::NETUNREACH => Self::NetworkUnreachable,
            Errno::HOSTUNREACH | Errno::TIMEDOUT => Self::HostUnreachable,
            _ => Self::Failed,
        }
    }

    /// The message; `near` is the address from which relay has connected.
    pub(super) fn message(self, near: Option<SocketAddr>) -> Vec<u8> {
        let mut message = vec![VERSION, self as u8, 0];
        let near = near.unwrap_or(SocketAddr::from(([0, 0, 0, 0], 0)));
        match near.ip() {
            IpAddr::V4(ip) => {
                message.push(1);
                message.extend(ip.octets());
            }
            IpAddr::V6(ip) => {
                message.push(4);
                message.extend(ip.octets());
            }
        }
        message.extend(near.port().to_be_bytes());
        message
    }
}

/// The answer to the list of ways.
pub(super) fn choose(way: Option<u8>) -> [u8; 2] {
    [VERSION, way.unwrap_or(NONE_ACCEPTABLE)]
}

/// The answer to user and password.
pub(super) fn admit(admitted: bool) -> [u8; 2] {
    [SUBVERSION, u8::from(!admitted)]
}

/// Reads the ways to authenticate that a client offers.
pub(super) fn ways(bytes: &[u8]) -> Result<Option<(Vec<u8>, usize)>, Refusal> {
    let mut from = Cursor::new(bytes);
    from.expect(VERSION)?;
    let Some(count) = from.byte() else {
        return Ok(None);
    };
    if count == 0 {
        return Err(Refusal::Malformed);
    }
    Ok(from.take(count.into()).map(|ways| (ways.to_vec(), from.at)))
}

/// User and password, as bytes.
pub(super) type Said = (Vec<u8>, Vec<u8>);

/// Reads user and password.
pub(super) fn credentials(bytes: &[u8]) -> Result<Option<(Said, usize)>, Refusal> {
    let mut from = Cursor::new(bytes);
    from.expect(SUBVERSION)?;
    let (Some(user), Some(password)) = (from.counted(), from.counted()) else {
        return Ok(None);
    };
    Ok(Some(((user.to_vec(), password.to_vec()), from.at)))
}

/// What a client asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Request {
    /// To be connected.
    Connect(Address),
    /// Something else, which is refused with this.
    Other(Reply),
}

/// Reads a request.
pub(super) fn request(bytes: &[u8]) -> Result<Option<(Request, usize)>, Refusal> {
    let mut from = Cursor::new(bytes);
    from.expect(VERSION)?;
    let Some(command) = from.byte() else {
        return Ok(None);
    };
    from.expect(0)?;
    let host = match from.byte() {
        None => return Ok(None),
        Some(1) => from.array::<4>().map(|ip| Host::Ip(ip.into())),
        Some(3) => from.counted().map(|name| Host::Name(name.to_vec())),
        Some(4) => from.array::<16>().map(|ip| Host::Ip(ip.into())),
        Some(_) => return Ok(Some((Request::Other(Reply::UnknownAddress), bytes.len()))),
    };
    let (Some(host), Some(port)) = (host, from.array::<2>()) else {
        return Ok(None);
    };
    let to = host.at(u16::from_be_bytes(port))?;
    let request = match command {
        CONNECT => Request::Connect(to),
        _ => Request::Other(Reply::UnknownCommand),
    };
    Ok(Some((request, from.at)))
}

enum Host {
    Ip(IpAddr),
    Name(Vec<u8>),
}

impl Host {
    fn at(self, port: u16) -> Result<Address, Refusal> {
        match self {
            Self::Ip(ip) => Ok(Address::Ip(SocketAddr::new(ip, port))),
            Self::Name(name) => super::named(&String::from_utf8_lossy(&name), port),
        }
    }
}

/// Bytes, and how many of them were read.
struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let taken = self.bytes.get(self.at..self.at + count)?;
        self.at += count;
        Some(taken)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.first_chunk().copied()
    }

    fn byte(&mut self) -> Option<u8> {
        self.array::<1>().map(|[byte]| byte)
    }

    /// As many bytes as the next one says.
    fn counted(&mut self) -> Option<&'a [u8]> {
        let count = self.byte()?;
        self.take(count.into())
    }

    /// Goes on behind a byte that can be only this one; it may also be missing yet.
    fn expect(&mut self, byte: u8) -> Result<(), Refusal> {
        match self.byte() {
            Some(other) if other != byte => Err(Refusal::Malformed),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;
