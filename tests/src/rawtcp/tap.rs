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

/// A device in a namespace, gone when dropped.
pub struct Tap {
    device: SyncDevice,
}

impl Tap {
    /// Makes the device `name` in `place`. It has no address yet and is down.
    ///
    /// # Errors
    ///
    /// Fails without privileges, and on a kernel without TUN.
    pub fn new(place: &Place, name: &str) -> Result<Self> {
        let device = place.enter(|| {
            let device = DeviceBuilder::new()
                .name(name)
                .layer(Layer::L3)
                .enable(false);
            device.build_sync().context(DEVICE)
        })?;
        device.set_nonblocking(true)?;
        Ok(Self { device })
    }

    /// Lets the kernel receive `packet`.
    ///
    /// # Errors
    ///
    /// Fails when the device is down.
    pub fn send(&self, packet: &[u8]) -> Result<()> {
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
        let mut packet = vec![0; LARGEST];
        match self.device.recv(&mut packet) {
            Ok(length) => {
                packet.truncate(length);
                Ok(Some(packet))
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error).context("the device"),
        }
    }
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
