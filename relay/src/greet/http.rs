//! HTTP CONNECT: the head of a request, and the answers.

use base64::{Engine as _, prelude::BASE64_STANDARD};
use httparse::{EMPTY_HEADER, Status};
use rustix::io::Errno;

use super::Refusal;
use crate::{
    close::{How, Outcome},
    plan::{self, Address},
};

/// What a head may take.
pub(super) const MOST: usize = 16 * 1024;
const HEADERS: usize = 100;

/// The head of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Head {
    /// Where the client wants to go; none when it asks for anything but that.
    pub(super) to: Option<Result<Address, Refusal>>,
    /// The user and the password that it gave, with a colon between.
    pub(super) authorization: Option<Vec<u8>>,
}

/// Reads a head.
pub(super) fn head(bytes: &[u8]) -> Result<Option<(Head, usize)>, Refusal> {
    let mut headers = [EMPTY_HEADER; HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    let length = match request.parse(bytes) {
        Ok(Status::Complete(length)) => length,
        Ok(Status::Partial) => return Ok(None),
        Err(_) => return Err(Refusal::Malformed),
    };
    let to = match request.method {
        Some("CONNECT") => Some(authority(request.path.unwrap_or_default())),
        _ => None,
    };
    let authorization = request
        .headers
        .iter()
        .find(|header| header.name.eq_ignore_ascii_case("Proxy-Authorization"))
        .and_then(|header| basic(header.value));
    Ok(Some((Head { to, authorization }, length)))
}

fn authority(text: &str) -> Result<Address, Refusal> {
    let (host, port) = text.rsplit_once(':').ok_or(Refusal::Malformed)?;
    let port = plan::port(port).ok_or(Refusal::Malformed)?;
    let bare = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'));
    super::named(bare.unwrap_or(host), port)
}

fn basic(value: &[u8]) -> Option<Vec<u8>> {
    let text = std::str::from_utf8(value).ok()?;
    let (scheme, rest) = text.trim().split_once(' ')?;
    let is_basic = scheme.eq_ignore_ascii_case("Basic");
    is_basic.then(|| BASE64_STANDARD.decode(rest.trim()).ok())?
}

/// The answer to a client that is connected.
pub(super) const CONNECTED: &[u8] = b"HTTP/1.1 200 Connection established\r\n\r\n";

/// The answer to a request that is refused.
pub(super) fn refused(refusal: &Refusal) -> Option<Vec<u8>> {
    let answer = match refusal {
        Refusal::Malformed => status("400 Bad Request", ""),
        Refusal::Command => status("405 Method Not Allowed", "Allow: CONNECT\r\n"),
        Refusal::Unauthorized => status(
            "407 Proxy Authentication Required",
            "Proxy-Authenticate: Basic realm=\"relay\"\r\n",
        ),
        Refusal::Destination => status("403 Forbidden", ""),
        Refusal::Late => status("408 Request Timeout", ""),
        Refusal::Untrusted | Refusal::Ended | Refusal::Over(_) => return None,
    };
    Some(answer)
}

/// The answer to a client whose upstream is not to be had.
pub(super) fn failed(outcome: &Outcome) -> Vec<u8> {
    let late = Errno::TIMEDOUT.raw_os_error();
    match outcome.how {
        How::Error { errno, .. } if errno == late => status("504 Gateway Timeout", ""),
        How::Drain => status("503 Service Unavailable", ""),
        _ => status("502 Bad Gateway", ""),
    }
}

fn status(line: &str, header: &str) -> Vec<u8> {
    format!("HTTP/1.1 {line}\r\n{header}Content-Length: 0\r\nConnection: close\r\n\r\n")
        .into_bytes()
}

#[cfg(test)]
mod tests;
