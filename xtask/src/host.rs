//! What the commands know of the machine and the checkout: paths, and processes that are run to their end.

use std::{
    env,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail};

/// The checkout.
pub(crate) fn root() -> Result<&'static Path> {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .context("xtask is not inside the workspace")
}

/// Where cargo builds: this program lies in it, so no flag, variable or config file has to be asked.
pub(crate) fn target() -> Result<PathBuf> {
    let program = env::current_exe().context("where is this program?")?;
    let target = program.ancestors().nth(2);
    Ok(target
        .context("this program is not in a target directory")?
        .to_owned())
}

/// The cargo that runs this program.
pub(crate) fn cargo() -> Command {
    Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

/// Runs `command` to its end and fails unless it succeeds.
pub(crate) fn succeed(command: &mut Command) -> Result<()> {
    let status = command
        .stdin(Stdio::null())
        .status()
        .with_context(|| format!("could not run {}", program(command)))?;
    if !status.success() {
        bail!("{} failed: {status}", program(command));
    }
    Ok(())
}

/// What `command` prints; fails unless it succeeds.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("could not run {}", program(command)))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!(
            "{} failed: {}: {}",
            program(command),
            output.status,
            said.trim()
        );
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// The first file called `name` on the search path.
pub(crate) fn which(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    env::split_paths(&path)
        .map(|directory| directory.join(name))
        .find(|file| file.is_file())
}

fn program(command: &Command) -> String {
    command.get_program().to_string_lossy().into_owned()
}
