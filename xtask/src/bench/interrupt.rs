//! Ctrl-C: the turn under way is the last, and everything is cleaned up. A second one ends at once.

use std::{
    process,
    sync::atomic::{AtomicBool, Ordering},
};

use anyhow::{Context, Result};

/// How a shell sees a program that SIGINT has ended.
pub(super) const CODE: u8 = 130;

static CAME: AtomicBool = AtomicBool::new(false);

/// From here on it is heard: SIGINT, SIGTERM and SIGHUP alike.
pub(super) fn listen() -> Result<()> {
    let heard = || {
        if CAME.swap(true, Ordering::Relaxed) {
            process::exit(CODE.into());
        }
        eprintln!("ending after this turn; again to end at once");
    };
    ctrlc::set_handler(heard).context("cannot listen for signals")
}

/// Whether it has come.
pub(super) fn came() -> bool {
    CAME.load(Ordering::Relaxed)
}
