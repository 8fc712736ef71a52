//! `cargo xtask build-ebpf`: the verdict program, from its source to the object that is committed and embedded.

mod install;
mod naming;
mod toolchain;

use std::{
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

use anyhow::{Context, Result, bail};

pub(crate) use self::naming::become_compiler;
use self::toolchain::Toolchain;
use crate::host;

/// Build the eBPF object that relay embeds.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Compare with the committed object and change nothing.
    #[arg(long)]
    check: bool,
    /// Install what the build needs and is not there.
    #[arg(long)]
    install: bool,
}

const OBJECT: &str = "relay/bytecode/relay.bpf.o";
const TOOLCHAIN: &str = "relay/bytecode/toolchain.txt";
const TARGET: &str = "bpfel-unknown-none";

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let root = host::root()?;
    let recorded = fs::read_to_string(root.join(TOOLCHAIN)).ok();
    let recorded = recorded.as_deref().map(str::trim);
    if args.install {
        install::install()?;
        // On its own it must also serve where there is nothing to build yet.
        if !args.check && !root.join("relay-ebpf/Cargo.toml").exists() {
            return Ok(ExitCode::SUCCESS);
        }
    }
    let toolchain = toolchain::find(recorded)?;
    if args.check {
        let scratch = tempfile::tempdir().context("a directory to build in")?;
        let built = build(root, scratch.path(), &toolchain, true)?;
        return compare(root, &built, recorded, &toolchain);
    }
    let built = build(root, &host::target()?.join("bpf"), &toolchain, false)?;
    fs::create_dir_all(root.join("relay/bytecode"))?;
    fs::write(root.join(OBJECT), &built).context(OBJECT)?;
    fs::write(root.join(TOOLCHAIN), format!("{}\n", toolchain.versions)).context(TOOLCHAIN)?;
    println!(
        "{OBJECT}: {} bytes\n{TOOLCHAIN}:\n{}",
        built.len(),
        toolchain.versions
    );
    Ok(ExitCode::SUCCESS)
}

fn build(root: &Path, target: &Path, toolchain: &Toolchain, locked: bool) -> Result<Vec<u8>> {
    let source = root.join("relay-ebpf");
    let locked = if locked { &["--locked"][..] } else { &[] };
    let mut fetch = toolchain.cargo();
    host::succeed(fetch.current_dir(&source).arg("fetch").args(locked))
        .context("the crates that relay-ebpf uses")?;
    let mut cargo = toolchain.cargo();
    cargo
        .current_dir(&source)
        .args(["build", "--release", "-Zbuild-std=core", "--target", TARGET])
        .arg("--target-dir")
        .arg(target)
        .arg("--config")
        .arg(format!(
            "target.{TARGET}.linker={:?}",
            toolchain.linker.display().to_string()
        ))
        .env("CARGO_ENCODED_RUSTFLAGS", flags(root, target, toolchain)?)
        .args(locked);
    naming::stand_in(&mut cargo, TARGET)?;
    host::succeed(&mut cargo).context("relay-ebpf does not build")?;
    let built = target.join(TARGET).join("release/relay");
    let stripped = target.join("relay.bpf.o");
    // Takes the .debug sections, which hold paths and are most of the size; .BTF and .BTF.ext stay.
    host::succeed(
        Command::new(&toolchain.strip)
            .arg("--strip-debug")
            .arg("-o")
            .args([&stripped, &built]),
    )?;
    fs::read(&stripped).with_context(|| stripped.display().to_string())
}

/// The compiler's flags, in cargo's encoding. It is the one source of flags that no configuration adds to.
///
/// BTF names source files, so every directory that differs from machine to machine gets a fixed name.
fn flags(root: &Path, target: &Path, toolchain: &Toolchain) -> Result<OsString> {
    let mut flags = OsString::from("-Cdebuginfo=2\u{1f}-Clink-arg=--btf");
    // The last that fits wins, so what may lie inside another comes later.
    let mut named = vec![
        (root.to_owned(), "/relay"),
        (target.to_owned(), "/target"),
        (toolchain.sysroot.clone(), "/rust"),
    ];
    // One per registry, named after where it was downloaded from, which may be a mirror.
    for registry in fs::read_dir(toolchain::cargo_home()?.join("registry/src"))? {
        named.push((registry?.path(), "/crates"));
    }
    for (path, name) in named {
        for path in spellings(path) {
            flags.push("\u{1f}--remap-path-prefix=");
            flags.push(path);
            flags.push("=");
            flags.push(name);
        }
    }
    Ok(flags)
}

/// The path as given, and without symbolic links where that differs.
fn spellings(path: PathBuf) -> Vec<PathBuf> {
    let mut paths = Vec::from_iter(path.canonicalize());
    if !paths.contains(&path) {
        paths.push(path);
    }
    paths
}

fn compare(
    root: &Path,
    built: &[u8],
    recorded: Option<&str>,
    toolchain: &Toolchain,
) -> Result<ExitCode> {
    let committed = fs::read(root.join(OBJECT))
        .with_context(|| format!("{OBJECT}: run `cargo xtask build-ebpf` and commit it"))?;
    let used = &toolchain.versions;
    if built == committed {
        println!("{OBJECT} is what relay-ebpf gives with\n{used}");
        return Ok(ExitCode::SUCCESS);
    }
    let recorded = recorded.with_context(|| {
        format!("{TOOLCHAIN} is missing: run `cargo xtask build-ebpf` and commit it")
    })?;
    if recorded != used {
        bail!(
            "{OBJECT} cannot be checked: it was built with\n{recorded}\nand here is\n{used}\n\
             Install the recorded toolchain, or run `cargo xtask build-ebpf` and commit {OBJECT} and {TOOLCHAIN}."
        );
    }
    let kept = host::target()?.join("bpf-differs.o");
    fs::write(&kept, built)?;
    bail!(
        "{OBJECT} ({} bytes) is not what relay-ebpf gives ({} bytes, kept as {}): \
         run `cargo xtask build-ebpf` and commit {OBJECT} and {TOOLCHAIN}.",
        committed.len(),
        built.len(),
        kept.display()
    );
}
