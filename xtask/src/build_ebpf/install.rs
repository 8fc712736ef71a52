//! Installing what the eBPF build needs, where it is missing.

use std::{
    process::{Command, Stdio},
    thread,
    time::Duration,
};

use anyhow::{Context, Result, bail};

use super::toolchain::{self, LLVM};
use crate::host;

const LINKER: &str = "0.13.0";
const PACKAGES: [&str; 4] = ["rustc-web", "cargo-web", "rust-web-src", "llvm-22-dev"];

/// Installs what is missing; does nothing where [`toolchain::find`] has all it needs.
pub(super) fn install() -> Result<()> {
    if toolchain::find(None).is_ok() {
        return Ok(());
    }
    let has_apt = host::which("apt-get").is_some();
    if has_apt {
        apt(&["update"])?;
        let mut install = vec!["install", "--yes", "--no-install-recommends"];
        install.extend(PACKAGES);
        apt(&install)?;
    }
    if toolchain::linker().is_none() {
        let prefix = format!("/usr/lib/llvm-{LLVM}");
        let path = std::env::var("PATH").unwrap_or_default();
        let mut cargo = host::cargo();
        cargo
            .args(["install", "--locked", &format!("bpf-linker@{LINKER}")])
            .env("LLVM_PREFIX", &prefix)
            .env("PATH", format!("{prefix}/bin:{path}"))
            // The checkout's flags are not for this.
            .env_remove("RUSTFLAGS")
            .env_remove("CARGO_ENCODED_RUSTFLAGS")
            .env_remove("CARGO_TARGET_DIR");
        host::succeed(&mut cargo).context("bpf-linker cannot be installed")?;
    }
    let found = toolchain::find(None);
    if has_apt {
        found?;
    } else {
        found.context(
            "without apt-get: `rustup toolchain install nightly --component rust-src,llvm-tools`, LLVM 22 for bpf-linker",
        )?;
    }
    Ok(())
}

/// Runs apt-get as root. Mirrors and locks fail for a while and then work: so it tries three times.
fn apt(arguments: &[&str]) -> Result<()> {
    const TRIES: u32 = 3;
    for attempt in 1..=TRIES {
        let mut command = as_root()?;
        command
            .args(["env", "DEBIAN_FRONTEND=noninteractive", "apt-get"])
            .args(["-o", "DPkg::Lock::Timeout=300", "-o", "Acquire::Retries=3"])
            .args(arguments);
        match host::succeed(&mut command) {
            Ok(()) => return Ok(()),
            Err(error) if attempt == TRIES => {
                return Err(error.context(format!("apt-get {}", arguments.join(" "))));
            }
            Err(_) => thread::sleep(Duration::from_secs(5)),
        }
    }
    bail!("apt-get was never run");
}

/// A command that runs its first argument as root.
fn as_root() -> Result<Command> {
    let uid = host::output(Command::new("id").arg("-u"))?;
    if uid == "0" {
        // Something that runs its arguments, as sudo does.
        return Ok(Command::new("/usr/bin/env"));
    }
    let sudo = Command::new("sudo")
        .args(["-n", "true"])
        .stdin(Stdio::null())
        .status();
    if !sudo.is_ok_and(|status| status.success()) {
        bail!("installing packages needs root or sudo without a password");
    }
    let mut command = Command::new("sudo");
    command.arg("-n");
    Ok(command)
}
