//! The fuzz targets, compiled so that they tell libFuzzer what they reach.

use std::path::PathBuf;

use anyhow::{Context, Result};

use crate::host;

/// What LLVM has to add, for libFuzzer to see edges and what is compared with what. cargo-fuzz asks for the same, but
/// for the sanitizers, which need a nightly compiler; relay has next to no unsafe code for them to look at.
const FLAGS: [&str; 9] = [
    "--cfg=fuzzing",
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
    "-Ccodegen-units=1",
    "-Cdebug-assertions=on",
    "-Coverflow-checks=on",
];

/// Builds them, in a directory of their own, since all crates are instrumented. Gives the program.
pub(super) fn build() -> Result<PathBuf> {
    let version = host::output(std::process::Command::new("rustc").arg("-vV"))?;
    let triple = version.lines().find_map(|line| line.strip_prefix("host: "));
    let triple = triple.context("rustc does not say what host this is")?;
    let target = host::target()?.join("fuzz");
    let mut cargo = host::cargo();
    cargo
        .args(["build", "--locked", "--release", "--package", "relay-fuzz"])
        // With a target, programs of the build itself are not instrumented.
        .args(["--target", triple, "--target-dir"])
        .arg(&target)
        .env("CARGO_ENCODED_RUSTFLAGS", FLAGS.join("\x1f"));
    host::succeed(&mut cargo)
        .context("the fuzz targets do not build; libFuzzer needs a C++ compiler (g++)")?;
    Ok(target.join(triple).join("release/relay-fuzz"))
}
