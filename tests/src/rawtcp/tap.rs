//! A TUN device: IP packets that the kernel sends to it are read here, and what is written here the kernel receives.
#![expect(unsafe_code, reason = "TUNSETIFF has no safe wrapper")]

use std::{
    ffi::c_void,
    fs::{File, OpenOptions},
    io::{ErrorKind, Read, Write},
    os::{fd::AsFd, unix::fs::OpenOptionsExt},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    ioctl::{Ioctl, IoctlOutput, Opcode, ioctl},
};

use crate::netns::Place;

/// The largest IP packet.
const LARGEST: usize = 65535;

/// The device's file.
pub const DEVICE: &str = "/dev/net/tun";

/// A device in a namespace, gone when dropped.
#[derive(Debug)]
pub struct Tap {
    file: File,
}

impl Tap {
    /// Makes the device `name` in `place`. It has no address yet and is down.
    ///
    /// # Errors
    ///
    /// Fails without privileges, and on a kernel without TUN.
    pub fn new(place: &Place, name: &str) -> Result<Self> {
        let file = place.enter(|| {
            let file = OpenOptions::new()
                .read(true)
                .write(true)
                .custom_flags(libc::O_NONBLOCK)
                .open(DEVICE)
                .context(DEVICE)?;
            let request = SetInterface::named(name)?;
            // SAFETY: TUNSETIFF reads and writes one `ifreq`, which `request` owns; the kernel keeps none of it.
            unsafe { ioctl(&file, request) }.context("TUNSETIFF")?;
            Ok(file)
        })?;
        Ok(Self { file })
    }

    /// Lets the kernel receive `packet`.
    ///
    /// # Errors
    ///
    /// Fails when the device is down.
    pub fn send(&self, packet: &[u8]) -> Result<()> {
        let written = (&self.file)
            .write(packet)
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
        let mut ready = [PollFd::new(&self.file, PollFlags::IN)];
        let wait = Timespec::try_from(wait)?;
        match poll(&mut ready, Some(&wait)) {
            Ok(0) | Err(Errno::INTR) => Ok(None),
            Ok(_) => self.read(),
            Err(errno) => Err(errno.into()),
        }
    }

    fn read(&self) -> Result<Option<Vec<u8>>> {
        let mut packet = vec![0; LARGEST];
        match (&self.file).read(&mut packet) {
            Ok(length) => {
                packet.truncate(length);
                Ok(Some(packet))
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error).context("the device"),
        }
    }
}

impl AsFd for Tap {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// `TUNSETIFF`: makes the opened file a device of this name, for IP packets without a header of the driver's own.
struct SetInterface(libc::ifreq);

impl SetInterface {
    fn named(name: &str) -> Result<Self> {
        // SAFETY: all of `ifreq` may be zero: it is integers, and a union with members that are.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        ensure!(name.len() < request.ifr_name.len(), "{name} is too long");
        for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
            *to = libc::c_char::try_from(from)?;
        }
        request.ifr_ifru.ifru_flags = (libc::IFF_TUN | libc::IFF_NO_PI) as libc::c_short;
        Ok(Self(request))
    }
}

// SAFETY: TUNSETIFF takes a pointer to an `ifreq` that it reads and writes, and does nothing to the file that a `File`
// does not expect.
unsafe impl Ioctl for SetInterface {
    type Output = ();

    const IS_MUTATING: bool = true;

    fn opcode(&self) -> Opcode {
        libc::TUNSETIFF as Opcode
    }

    fn as_ptr(&mut self) -> *mut c_void {
        (&raw mut self.0).cast()
    }

    unsafe fn output_from_ptr(_: IoctlOutput, _: *mut c_void) -> rustix::io::Result<()> {
        Ok(())
    }
}
