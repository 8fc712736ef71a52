//! PROXY protocol headers, versions 1 and 2.

use std::net::SocketAddr;

use ppp::{v1, v2};

use super::{Origin, Refusal};
use crate::plan::ProxyVersion;

/// What a header may take. Version 2 allows for 64 KiB of extras; a client's certificate, the largest in use, is not sent
/// whole by anybody.
pub(super) const MOST: usize = 4096;

/// The longest line of version 1.
const LINE: usize = 107;
/// Signature, command, family and length of version 2.
const FIXED: usize = 16;

/// What of a stream is a header, whom it tells of, and how long it is.
pub(super) fn parse(bytes: &[u8]) -> Result<Option<(Option<Origin>, usize)>, Refusal> {
    let text = v1::PROTOCOL_PREFIX.as_bytes();
    let begins = |with: &[u8]| bytes.iter().zip(with).all(|(one, other)| one == other);
    if begins(v2::PROTOCOL_PREFIX) {
        binary(bytes)
    } else if begins(text) {
        line(bytes)
    } else {
        Err(Refusal::Malformed)
    }
}

/// The parser is given whole lines only: half an address looks like a wrong one to it.
fn line(bytes: &[u8]) -> Result<Option<(Option<Origin>, usize)>, Refusal> {
    let first = &bytes[..bytes.len().min(LINE)];
    let Some(end) = first.windows(2).position(|two| two == b"\r\n") else {
        return match first.len() {
            LINE => Err(Refusal::Malformed),
            _ => Ok(None),
        };
    };
    let length = end + 2;
    let header = v1::Header::try_from(&bytes[..length]).map_err(|_| Refusal::Malformed)?;
    let origin = match header.addresses {
        v1::Addresses::Tcp4(at) => Some(Origin {
            source: (at.source_address, at.source_port).into(),
            destination: (at.destination_address, at.destination_port).into(),
        }),
        v1::Addresses::Tcp6(at) => Some(Origin {
            source: (at.source_address, at.source_port).into(),
            destination: (at.destination_address, at.destination_port).into(),
        }),
        v1::Addresses::Unknown => None,
    };
    Ok(Some((origin.map(canonical), length)))
}

fn binary(bytes: &[u8]) -> Result<Option<(Option<Origin>, usize)>, Refusal> {
    let Some(fixed) = bytes.first_chunk::<FIXED>() else {
        return Ok(None);
    };
    let length = FIXED + usize::from(u16::from_be_bytes([fixed[14], fixed[15]]));
    if length > MOST {
        return Err(Refusal::Malformed);
    }
    let Some(bytes) = bytes.get(..length) else {
        return Ok(None);
    };
    let header = v2::Header::try_from(bytes).map_err(|_| Refusal::Malformed)?;
    let origin = match (header.command, header.addresses) {
        (v2::Command::Local, _) => None,
        (v2::Command::Proxy, v2::Addresses::IPv4(at)) => Some(Origin {
            source: (at.source_address, at.source_port).into(),
            destination: (at.destination_address, at.destination_port).into(),
        }),
        (v2::Command::Proxy, v2::Addresses::IPv6(at)) => Some(Origin {
            source: (at.source_address, at.source_port).into(),
            destination: (at.destination_address, at.destination_port).into(),
        }),
        // Addresses that relay has no use for; the protocol says to keep those of the connection.
        (v2::Command::Proxy, v2::Addresses::Unspecified | v2::Addresses::Unix(_)) => None,
    };
    Ok(Some((origin.map(canonical), length)))
}

/// IPv4 written as ::ffff:a.b.c.d is told as IPv4, where both are.
fn canonical(origin: Origin) -> Origin {
    let plain = |at: SocketAddr| SocketAddr::new(at.ip().to_canonical(), at.port());
    let (source, destination) = (plain(origin.source), plain(origin.destination));
    match source.is_ipv4() == destination.is_ipv4() {
        true => Origin {
            source,
            destination,
        },
        false => origin,
    }
}

/// The header that tells of `origin`.
pub(super) fn header(version: ProxyVersion, origin: Option<Origin>) -> Vec<u8> {
    match version {
        ProxyVersion::V1 => {
            let addresses = origin.map_or(v1::Addresses::Unknown, |origin| {
                v1::Addresses::from((origin.source, origin.destination))
            });
            addresses.to_string().into_bytes()
        }
        ProxyVersion::V2 => v2_header(origin),
    }
}

fn v2_header(origin: Option<Origin>) -> Vec<u8> {
    let protocol = origin.map_or(v2::Protocol::Unspecified, |_| v2::Protocol::Stream);
    let addresses = origin.map_or(v2::Addresses::Unspecified, |origin| {
        v2::Addresses::from((origin.source, origin.destination))
    });
    let command = v2::Version::Two | v2::Command::Proxy;
    let built = v2::Builder::with_addresses(command, protocol, addresses).build();
    // It fails only for payloads over 64 KiB, and here is none.
    built.unwrap_or_default()
}

#[cfg(test)]
mod tests;
