//! Takes the sockets that the service manager passes.
#![expect(
    unsafe_code,
    reason = "the environment names descriptors by number, and they have no owner yet"
)]

use std::{
    io,
    os::fd::{FromRawFd, OwnedFd},
    sync::atomic::{AtomicBool, Ordering},
};

static TAKEN: AtomicBool = AtomicBool::new(false);

/// The descriptors in `LISTEN_FDS`, if `LISTEN_PID` is this process, with their names; closed on exec. Only the first call
/// gives any. The environment stays as it is: relay executes nothing, and to others `LISTEN_PID` says that it is not for
/// them.
///
/// # Errors
///
/// Fails when the environment makes no sense, or one of them is not open.
pub(crate) fn take() -> io::Result<Vec<(OwnedFd, String)>> {
    if TAKEN.swap(true, Ordering::Relaxed) {
        return Ok(Vec::new());
    }
    let passed = sd_notify::listen_fds_with_names()?;
    // SAFETY: by the protocol of sd_listen_fds(3) the descriptors were opened for this process, and those numbers are its to
    // take; each was just seen to be open. The flag above sees to it that each is owned once.
    let own = |fd| unsafe { OwnedFd::from_raw_fd(fd) };
    Ok(passed.map(|(fd, name)| (own(fd), name)).collect())
}
