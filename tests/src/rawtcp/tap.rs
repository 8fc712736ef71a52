//! A TUN device: IP packets that the kernel sends to it are read here, and what is written here the kernel receives.

use std::{
    io::ErrorKind,
    os::fd::{AsFd, BorrowedFd},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
};
use tun_rs::{DeviceBuilder, Layer, SyncDevice};

use crate::netns::Place;

/// The largest IP packet.
const LARGEST: usize = 65535;

/// The device's file.
pub const DEVICE: &str = "/dev/net/tun";

/// What goes before every packet of a device with offload: `struct virtio_net_hdr`.
const VNET: usize = 10;

/// A device in a namespace, gone when dropped.
pub struct Tap {
    device: SyncDevice,
    offload: bool,
}

impl Tap {
    /// Makes the device `name` in `place`. It has no address yet and is down.
    ///
    /// With `offload` it is like a network card: the kernel has the bytes of a segment in pages of their own, so that it can
    /// make one of several, and it sends many segments as one, without checksums.
    ///
    /// # Errors
    ///
    /// Fails without privileges, and on a kernel without TUN.
    pub fn new(place: &Place, name: &str, offload: bool) -> Result<Self> {
        let device = place.enter(|| {
            let device = DeviceBuilder::new()
                .name(name)
                .layer(Layer::L3)
                .offload(offload)
                .enable(false);
            device.build_sync().context(DEVICE)
        })?;
        device.set_nonblocking(true)?;
        Ok(Self { device, offload })
    }

    /// Lets the kernel receive `packet`.
    ///
    /// # Errors
    ///
    /// Fails when the device is down.
    pub fn send(&self, packet: &[u8]) -> Result<()> {
        if self.offload {
            let mut framed = vec![0; VNET];
            framed[2..4].copy_from_slice(&headers(packet).to_ne_bytes());
            framed.extend_from_slice(packet);
            return self.write(&framed);
        }
        self.write(packet)
    }

    fn write(&self, packet: &[u8]) -> Result<()> {
        let written = self
            .device
            .send(packet)
            .with_context(|| format!("{} bytes to the device", packet.len()))?;
        ensure!(written == packet.len(), "a packet was cut");
        Ok(())
    }

    /// A packet that the kernel has sent; none when it sends none for `wait`.
    ///
    /// # Errors
    ///
    /// Fails when the device is gone.
    pub fn receive(&self, wait: Duration) -> Result<Option<Vec<u8>>> {
        if let Some(packet) = self.read()? {
            return Ok(Some(packet));
        }
        let mut ready = [PollFd::new(self, PollFlags::IN)];
        let wait = Timespec::try_from(wait)?;
        match poll(&mut ready, Some(&wait)) {
            Ok(0) | Err(Errno::INTR) => Ok(None),
            Ok(_) => self.read(),
            Err(errno) => Err(errno.into()),
        }
    }

    fn read(&self) -> Result<Option<Vec<u8>>> {
        let mut packet = vec![0; VNET + LARGEST];
        match self.device.recv(&mut packet) {
            Ok(length) => {
                packet.truncate(length);
                packet.drain(..if self.offload { VNET.min(length) } else { 0 });
                Ok(Some(packet))
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error).context("the device"),
        }
    }
}

/// How many bytes of an IPv4 packet with a segment are headers.
fn headers(packet: &[u8]) -> u16 {
    const IP: u16 = 20;
    let words = packet.get(usize::from(IP) + 12).map_or(0, |byte| byte >> 4);
    IP + u16::from(words) * 4
}

impl std::fmt::Debug for Tap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tap").finish_non_exhaustive()
    }
}

impl AsFd for Tap {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.device.as_fd()
    }
}
