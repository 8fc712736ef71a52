//! Names for crates that do not depend on where they lie.
//!
//! cargo gives the compiler a hash to tell crates apart, and the hash of a crate outside its workspace (relay-common is
//! one, seen from relay-ebpf, and core another) has its full path in it. It ends up in the names of functions and in
//! their order. So cargo calls this program in place of the compiler, and the crate's name and version become the hash.

use std::{env, ffi::OsString, os::unix::process::CommandExt, path::Path, process::Command};

use anyhow::{Context, Result};

/// Set where this program stands in for the compiler; the target whose crates are renamed.
const MARK: &str = "RELAY_XTASK_RENAME_CRATES";

/// Makes `cargo` call this program in place of the compiler.
pub(super) fn stand_in(cargo: &mut Command, target: &str) -> Result<()> {
    let program = env::current_exe().context("where is this program?")?;
    cargo.env("RUSTC_WRAPPER", program).env(MARK, target);
    Ok(())
}

/// Where this program stands in for the compiler: becomes it and does not return.
pub(crate) fn become_compiler() -> Result<()> {
    let Ok(target) = env::var(MARK) else {
        return Ok(());
    };
    let mut arguments = env::args_os().skip(1);
    let compiler = arguments.next().context("no compiler given")?;
    let package = |part: &str| env::var(format!("CARGO_PKG_{part}")).unwrap_or_default();
    let name = format!("{}-{}", package("NAME"), package("VERSION"));
    let arguments = renamed(arguments.collect(), &target, &name);
    let error = Command::new(&compiler).args(arguments).exec();
    Err(error).with_context(|| Path::new(&compiler).display().to_string())
}

fn renamed(arguments: Vec<OsString>, target: &str, name: &str) -> Vec<OsString> {
    if !arguments.iter().any(|argument| argument == target) {
        return arguments;
    }
    let rename = |argument: OsString| match argument.to_str() {
        Some(text) if text.starts_with("metadata=") => format!("metadata={name}").into(),
        _ => argument,
    };
    arguments.into_iter().map(rename).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn renamed_line(line: &str) -> String {
        let arguments = line.split(' ').map(OsString::from).collect();
        let renamed = renamed(arguments, "bpf", "a-1.0.0");
        renamed.join(" ".as_ref()).into_string().unwrap()
    }

    #[test]
    fn a_crate_for_the_target_is_renamed() {
        let line = "--crate-name a --target bpf -C metadata=8f -C extra-filename=-8f";
        let same = "--crate-name a --target bpf -C metadata=a-1.0.0 -C extra-filename=-8f";
        assert_eq!(renamed_line(line), same);
    }

    #[test]
    fn a_build_script_keeps_its_name() {
        let line = "--crate-name build_script_build -C metadata=8f";
        assert_eq!(renamed_line(line), line);
    }
}
