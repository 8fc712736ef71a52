//! What the two relays say to each other: JSON with its length in front, and sockets beside it.

use std::{
    collections::VecDeque,
    io::{self, IoSlice, IoSliceMut},
    mem::MaybeUninit,
    os::fd::{BorrowedFd, OwnedFd},
};

use rustix::{
    cmsg_space,
    net::{
        RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
        SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
    },
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use tokio::{io::Interest, net::UnixStream};

use super::Role;

/// Of this conversation. Another number is another conversation.
pub(super) const PROTOCOL: u32 = 1;

/// Sockets in one message; the kernel takes 253 (`SCM_MAX_FD`).
pub(super) const SOCKETS: usize = 64;

/// The longest message, far above what so many sockets take.
const LONGEST: usize = 64 * 1024;

/// From the relay that runs.
#[derive(Debug, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Old {
    /// These sockets, which come beside it.
    Offer {
        protocol: u32,
        sockets: Vec<Offered>,
        more: bool,
    },
    /// They are the other's now.
    Yours,
    /// They are not, for this reason.
    Withdrawn { why: String },
}

/// A socket that is offered.
#[derive(Debug, Deserialize, Serialize)]
pub(super) struct Offered {
    pub(super) role: Role,
    /// As the plan has it.
    pub(super) listen: String,
    /// Device and inode of its file.
    pub(super) file: Option<(u64, u64)>,
    /// It is systemd's.
    pub(super) passed: bool,
}

/// From the relay that starts.
#[derive(Debug, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum New {
    /// It can accept on these, counted from 0 in the order of the offer.
    Ready { taken: Vec<usize> },
}

/// One end of the conversation.
#[derive(Debug)]
pub(super) struct Line {
    stream: UnixStream,
    bytes: Vec<u8>,
    /// Those that came, and belong to messages not read yet.
    sockets: VecDeque<OwnedFd>,
}

impl Line {
    pub(super) fn new(stream: UnixStream) -> Self {
        Self {
            stream,
            bytes: Vec::new(),
            sockets: VecDeque::new(),
        }
    }

    /// Says `message`, with at most [`SOCKETS`] sockets beside it.
    pub(super) async fn say(
        &self,
        message: &impl Serialize,
        sockets: &[BorrowedFd<'_>],
    ) -> io::Result<()> {
        let text = serde_json::to_vec(message)?;
        let length = u32::try_from(text.len()).map_err(io::Error::other)?;
        let frame = [&length.to_le_bytes()[..], &text].concat();
        let (mut left, mut beside) = (&frame[..], sockets);
        while !left.is_empty() {
            self.stream.writable().await?;
            let send = || Ok(send(&self.stream, left, beside)?);
            match self.stream.try_io(Interest::WRITABLE, send) {
                Ok(sent) => (left, beside) = (&left[sent..], &[]),
                Err(error) if is_passing(&error) => (),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// The next message; none when the other end is gone.
    pub(super) async fn hear<T: DeserializeOwned>(&mut self) -> io::Result<Option<T>> {
        loop {
            if let Some((head, rest)) = self.bytes.split_first_chunk() {
                let length = u32::from_le_bytes(*head) as usize;
                if length > LONGEST {
                    return Err(io::Error::other("what came is not what relay says"));
                }
                if let Some(text) = rest.get(..length) {
                    let message = serde_json::from_slice(text)?;
                    self.bytes.drain(..head.len() + length);
                    return Ok(Some(message));
                }
            }
            if !self.read().await? {
                return Ok(None);
            }
        }
    }

    /// The next socket that came beside the messages.
    pub(super) fn socket(&mut self) -> io::Result<OwnedFd> {
        let socket = self.sockets.pop_front();
        socket.ok_or_else(|| io::Error::other("a socket is missing"))
    }

    /// Reads on; false at the end.
    async fn read(&mut self) -> io::Result<bool> {
        let mut buffer = [0; 16 * 1024];
        loop {
            self.stream.readable().await?;
            let sockets = &mut self.sockets;
            let receive = || receive(&self.stream, &mut buffer, sockets);
            match self.stream.try_io(Interest::READABLE, receive) {
                Ok(0) => return Ok(false),
                Ok(count) => {
                    self.bytes.extend_from_slice(&buffer[..count]);
                    return Ok(true);
                }
                // It was killed with something unread.
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Ok(false),
                Err(error) if is_passing(&error) => (),
                Err(error) => return Err(error),
            }
        }
    }
}

fn is_passing(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
    )
}

fn send(
    stream: &UnixStream,
    bytes: &[u8],
    sockets: &[BorrowedFd<'_>],
) -> rustix::io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(SOCKETS))];
    let mut beside = SendAncillaryBuffer::new(&mut space);
    if !sockets.is_empty() && !beside.push(SendAncillaryMessage::ScmRights(sockets)) {
        return Err(rustix::io::Errno::TOOBIG);
    }
    sendmsg(
        stream,
        &[IoSlice::new(bytes)],
        &mut beside,
        SendFlags::NOSIGNAL,
    )
}

fn receive(
    stream: &UnixStream,
    bytes: &mut [u8],
    sockets: &mut VecDeque<OwnedFd>,
) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(SOCKETS))];
    let mut beside = RecvAncillaryBuffer::new(&mut space);
    let bytes = &mut [IoSliceMut::new(bytes)];
    let received = recvmsg(stream, bytes, &mut beside, RecvFlags::CMSG_CLOEXEC)?;
    for message in beside.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            sockets.extend(rights);
        }
    }
    match received.flags.contains(ReturnFlags::CTRUNC) {
        true => Err(io::Error::other(
            "not all sockets could be received: raise the limit of open files",
        )),
        false => Ok(received.bytes),
    }
}
