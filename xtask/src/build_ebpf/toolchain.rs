//! A compiler that can build for the BPF target, and the linker and strip that go with it.

use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};

use crate::host;

/// The LLVM of the linker. A compiler with a newer one writes bitcode that the linker cannot read.
pub(super) const LLVM: u32 = 22;

/// What builds the object.
pub(super) struct Toolchain {
    /// `rustc --version` and `bpf-linker --version`, a line each.
    pub(super) versions: String,
    /// Where the compiler keeps its libraries and their source.
    pub(super) sysroot: PathBuf,
    /// bpf-linker.
    pub(super) linker: PathBuf,
    /// llvm-strip.
    pub(super) strip: PathBuf,
    compiler: Compiler,
}

struct Compiler {
    cargo: PathBuf,
    rustc: PathBuf,
    /// A release that has to be told to accept `-Zbuild-std`.
    stable: bool,
}

impl Toolchain {
    /// A cargo that sees nothing of the caller's settings: flags, profiles and toolchains all come as variables, and
    /// those of the cargo that runs this program are among them.
    pub(super) fn cargo(&self) -> Command {
        let mut cargo = clean(&self.compiler.cargo);
        cargo.env("RUSTC", &self.compiler.rustc);
        // Set to nothing they turn off what a configuration file asks for.
        cargo.env("RUSTC_WRAPPER", "");
        cargo.env("RUSTC_WORKSPACE_WRAPPER", "");
        if self.compiler.stable {
            cargo.env("RUSTC_BOOTSTRAP", "1");
        }
        cargo
    }
}

/// The toolchain whose versions are `recorded`, else the first that can build.
pub(super) fn find(recorded: Option<&str>) -> Result<Toolchain> {
    let mut found = Vec::new();
    let mut missing = Vec::new();
    for compiler in compilers() {
        match complete(compiler) {
            Ok(toolchain) => found.push(toolchain),
            Err(why) => missing.push(format!("  {why:#}")),
        }
    }
    let same = |toolchain: &Toolchain| Some(toolchain.versions.as_str()) == recorded;
    let chosen = found.iter().position(same).unwrap_or(0);
    if chosen < found.len() {
        return Ok(found.swap_remove(chosen));
    }
    bail!(
        "no toolchain for the BPF target:\n{}\nRun `cargo xtask build-ebpf --install`.",
        missing.join("\n")
    );
}

/// The distribution's compiler, and the nightly of rustup.
fn compilers() -> Vec<Compiler> {
    let mut compilers = vec![Compiler {
        cargo: "/usr/bin/cargo".into(),
        rustc: "/usr/bin/rustc".into(),
        stable: true,
    }];
    let nightly = |tool: &str| {
        host::output(clean(Path::new("rustup")).args(["which", "--toolchain", "nightly", tool]))
    };
    if let (Ok(cargo), Ok(rustc)) = (nightly("cargo"), nightly("rustc")) {
        compilers.push(Compiler {
            cargo: cargo.into(),
            rustc: rustc.into(),
            stable: false,
        });
    }
    compilers
}

fn complete(compiler: Compiler) -> Result<Toolchain> {
    let Compiler { cargo, rustc, .. } = &compiler;
    let ask = |question: &[&str]| host::output(clean(rustc).args(question));
    if !cargo.is_file() || !rustc.is_file() {
        bail!("there is no {} with {}", rustc.display(), cargo.display());
    }
    let version = ask(&["--version"])?;
    let llvm = ask(&["-vV"])?;
    if llvm_major(&llvm) != Some(LLVM) {
        bail!("{}: {version} has not LLVM {LLVM}", rustc.display());
    }
    let sysroot = PathBuf::from(ask(&["--print", "sysroot"])?);
    let core = sysroot.join("lib/rustlib/src/rust/library/core");
    if !core.is_dir() {
        bail!(
            "{}: no source of core at {}",
            rustc.display(),
            core.display()
        );
    }
    let Some(linker) = linker() else {
        bail!("bpf-linker is not on the PATH nor in cargo's bin directory");
    };
    let Some(strip) = strip(&sysroot) else {
        bail!("there is no llvm-strip of LLVM {LLVM}");
    };
    Ok(Toolchain {
        versions: format!(
            "{version}\n{}",
            host::output(clean(&linker).arg("--version"))?
        ),
        sysroot,
        linker,
        strip,
        compiler,
    })
}

/// The `22` of the line `LLVM version: 22.1.8`.
fn llvm_major(verbose: &str) -> Option<u32> {
    let version = verbose
        .lines()
        .find_map(|line| line.strip_prefix("LLVM version: "))?;
    version.split('.').next()?.parse().ok()
}

pub(super) fn linker() -> Option<PathBuf> {
    let installed = cargo_home().ok()?.join("bin/bpf-linker");
    host::which("bpf-linker").or_else(|| installed.is_file().then_some(installed))
}

/// Where cargo keeps what it downloads and installs.
pub(super) fn cargo_home() -> Result<PathBuf> {
    let named = env::var_os("CARGO_HOME").map(PathBuf::from);
    let default = || Some(env::home_dir()?.join(".cargo"));
    named
        .or_else(default)
        .context("neither CARGO_HOME nor HOME is set")
}

fn strip(sysroot: &Path) -> Option<PathBuf> {
    let debian = PathBuf::from(format!("/usr/lib/llvm-{LLVM}/bin/llvm-strip"));
    // rustup's component llvm-tools.
    let rustup = sysroot.join(format!(
        "lib/rustlib/{}-unknown-linux-gnu/bin/llvm-strip",
        env::consts::ARCH
    ));
    [debian, rustup].into_iter().find(|file| file.is_file())
}

/// `program` with only those variables that say who and where the caller is.
fn clean(program: &Path) -> Command {
    let keep = |name: &str| {
        let proxy = name.to_ascii_lowercase().ends_with("_proxy");
        let network = ["CARGO_HTTP_", "CARGO_NET_", "SSL_CERT_", "RUSTUP_"]
            .iter()
            .any(|prefix| name.starts_with(prefix));
        let place = [
            "PATH",
            "HOME",
            "USER",
            "TERM",
            "TMPDIR",
            "CARGO_HOME",
            "RUSTUP_HOME",
        ];
        (proxy || network || place.contains(&name)) && name != "RUSTUP_TOOLCHAIN"
    };
    let mut command = Command::new(program);
    command
        .env_clear()
        .envs(env::vars_os().filter(|(name, _)| name.to_str().is_some_and(keep)));
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_llvm_of_a_compiler_is_read() {
        let verbose = "rustc 1.96.0\nhost: x86_64-unknown-linux-gnu\nLLVM version: 22.1.8";
        assert_eq!(llvm_major(verbose), Some(22));
        assert_eq!(llvm_major("rustc 1.96.0"), None);
    }
}
