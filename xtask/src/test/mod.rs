//! `cargo xtask test`: every test of the workspace, one binary after the other, and one closing account.

mod account;
mod binary;

use std::{
    env, fs,
    process::{Command, ExitCode, Stdio},
};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use self::{account::Account, binary::Binary};
use crate::host;

/// Run all tests; what cannot run on this machine is listed with the reason.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Only tests with this in their name.
    filter: Option<String>,
    /// Also those that take long.
    #[arg(long)]
    soak: bool,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let scratch = tempfile::tempdir().context("a directory for the list of skips")?;
    let skips = scratch.path().join("skips");
    fs::write(&skips, "")?;
    // All with one profile and one set of features, so that nothing is compiled twice.
    host::succeed(host::cargo().args(["build", "--workspace", "--bins"]))?;
    let binaries = build()?;
    let relay = relay()?;
    let mut account = Account::default();
    for binary in &binaries {
        println!("\n=== {}", binary.name);
        let mut command = Command::new(&binary.path);
        command
            .current_dir(&binary.directory)
            .env("CARGO_MANIFEST_DIR", &binary.directory)
            .args(&args.filter)
            .args(args.soak.then_some("--include-ignored"));
        account.add(
            &binary.name,
            &binary::run(&mut command, &relay, &skips, args.soak)?,
        );
    }
    println!("\n=== examples in the documentation");
    let mut command = host::cargo();
    command
        .args(["test", "--quiet", "--workspace", "--doc", "--"])
        .args(&args.filter);
    account.add(
        "documentation",
        &binary::run(&mut command, &relay, &skips, args.soak)?,
    );
    account.skipped(&fs::read_to_string(&skips)?);
    print!("{account}");
    Ok(match account.failed() {
        false => ExitCode::SUCCESS,
        true => ExitCode::FAILURE,
    })
}

/// Where cargo puts the program under test, as the profile of this program says.
fn relay() -> Result<std::path::PathBuf> {
    let own = env::current_exe()?;
    let relay = own.parent().context("a program without a directory")?;
    let relay = relay.join("relay");
    if !relay.is_file() {
        bail!("cargo has not built {}", relay.display());
    }
    Ok(relay)
}

/// Compiles all tests: those inside the packages first, then those that drive the program.
fn build() -> Result<Vec<Binary>> {
    let mut cargo = host::cargo();
    cargo.args(["test", "--workspace", "--no-run"]);
    cargo.arg("--message-format=json-render-diagnostics");
    cargo.stdin(Stdio::null()).stderr(Stdio::inherit());
    let output = cargo.output().context("could not run cargo")?;
    if !output.status.success() {
        bail!("the tests do not compile");
    }
    let messages = String::from_utf8(output.stdout).context("cargo's messages")?;
    let mut binaries = Vec::new();
    for message in messages.lines() {
        let message: Value = serde_json::from_str(message).context("cargo's messages")?;
        binaries.extend(Binary::built(&message));
    }
    binaries.sort_by(|a, b| (a.drives, &a.name).cmp(&(b.drives, &b.name)));
    Ok(binaries)
}
