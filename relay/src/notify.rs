//! What the service manager is told: ready, reloading, stopping, and a line for its status.
//!
//! The protocol of systemd's `Type=notify` and `notify-reload`. Without `NOTIFY_SOCKET` there is nobody to tell.

use sd_notify::NotifyState;

/// Clients are served; also after a reload, whatever came of it.
#[doc(alias = "READY=1")]
pub fn ready(status: &str) {
    tell(&[NotifyState::Ready, NotifyState::Status(status)]);
}

/// A reload has begun. [`ready`] ends it.
#[doc(alias = "RELOADING=1")]
pub fn reloading() {
    // With the time, which notify-reload wants; a clock that cannot be read leaves the plain word.
    match NotifyState::monotonic_usec_now() {
        Ok(now) => tell(&[NotifyState::Reloading, now]),
        Err(_) => tell(&[NotifyState::Reloading]),
    }
}

/// The drain has begun.
#[doc(alias = "STOPPING=1")]
pub fn stopping(status: &str) {
    tell(&[NotifyState::Stopping, NotifyState::Status(status)]);
}

/// This process is the service from here on, and what it says counts.
#[doc(alias = "MAINPID")]
pub fn main_process(process: u32) {
    tell(&[NotifyState::MainPid(process)]);
}

fn tell(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!(%error, "cannot tell the service manager in NOTIFY_SOCKET");
    }
}
