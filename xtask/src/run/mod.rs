//! `cargo xtask run`: the forwarder itself, or a demonstration of every engine that this host offers.

mod demo;

use std::{
    ffi::OsString,
    os::unix::process::CommandExt,
    path::PathBuf,
    process::{Command, ExitCode},
};

use anyhow::{Context, Result};

use crate::host;

/// Build relay in release and run it; without arguments, show what its engines do here.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// relay's own arguments.
    #[arg(last = true)]
    arguments: Vec<OsString>,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let relay = build()?;
    if args.arguments.is_empty() {
        return demo::run(&relay);
    }
    // Takes this process's place, so that signals and the exit code are relay's own.
    let error = Command::new(&relay).args(&args.arguments).exec();
    Err(error).with_context(|| relay.display().to_string())
}

/// Builds relay in release with frame pointers, which a profiler follows, in a place of its own.
pub(crate) fn build_with_frames() -> Result<PathBuf> {
    let target = host::target()?.join("frames");
    let mut cargo = host::cargo();
    cargo.args(["build", "--release", "--package", "relay"]);
    cargo.arg("--target-dir").arg(&target);
    let flags = std::env::var("RUSTFLAGS").unwrap_or_default();
    cargo.env("RUSTFLAGS", flags + " -C force-frame-pointers=yes");
    // It would hide the others.
    cargo.env_remove("CARGO_ENCODED_RUSTFLAGS");
    host::succeed(&mut cargo)?;
    Ok(target.join("release/relay"))
}

/// Builds relay in release.
pub(crate) fn build() -> Result<PathBuf> {
    host::succeed(host::cargo().args(["build", "--release", "--package", "relay"]))?;
    Ok(host::target()?.join("release/relay"))
}
