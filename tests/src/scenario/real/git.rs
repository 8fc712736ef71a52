//! git, by its own protocol.

use std::{fs, path::Path, process::Command};

use anyhow::{Result, ensure};
use rustix::process::Signal;

use super::{behind, finish, relay};
use crate::{
    matrix::Stage,
    netns::Place,
    payload::Stream,
    peers::{self, Service, open_folder, program, run},
};

const FILE: usize = 3 << 20;

/// Says nothing of this machine's accounts and settings.
fn git(folder: &Path) -> Result<Command> {
    let mut git = program("git")?;
    git.current_dir(folder).env("HOME", folder);
    git.env("GIT_CONFIG_NOSYSTEM", "1");
    for who in ["GIT_AUTHOR", "GIT_COMMITTER"] {
        git.env(format!("{who}_NAME"), "test");
        git.env(format!("{who}_EMAIL"), "test@localhost");
    }
    Ok(git)
}

/// A repository is cloned, and a commit is pushed back.
///
/// # Errors
///
/// Fails when a byte is wrong.
pub fn git_clones_and_pushes(stage: &Stage) -> Result<()> {
    if !peers::met("git_clones_and_pushes", &["git"])? {
        return Ok(());
    }
    let folder = open_folder()?;
    let [work, bare, copy] = ["work", "bare", "copy"].map(|name| folder.path().join(name));
    let here = |at: &Path, words: &[&str]| run(&Place::Here, git(at)?.args(words));
    let folder = folder.path();
    here(folder, &["init", "-q", "-b", "main", "work"])?;
    fs::write(work.join("file"), Stream::new(1).take(FILE))?;
    here(&work, &["add", "file"])?;
    here(&work, &["commit", "-q", "-m", "first"])?;
    here(folder, &["clone", "-q", "--bare", "work", "bare"])?;

    let upstream = behind(stage, 9418);
    let _daemon = Service::start(
        &stage.net.upstream,
        "git",
        |daemon| {
            daemon.args(["daemon", "--reuseaddr", "--export-all"]);
            daemon.args(["--enable=receive-pack", "--init-timeout=90"]);
            daemon.arg(format!("--listen={}", upstream.ip()));
            daemon.arg(format!("--port={}", upstream.port()));
            daemon.arg(format!("--base-path={}", folder.display()));
            daemon.env("HOME", folder);
            Ok(())
        },
        upstream,
        Signal::TERM,
    )?;
    let (relay, front) = relay(stage, upstream)?;
    let url = format!("git://{front}/bare");
    let there = |at: &Path, words: &[&str]| run(&stage.net.client, git(at)?.args(words));
    there(folder, &["clone", "-q", &url, "copy"])?;
    here(&copy, &["fsck", "--strict"])?;
    let got = fs::read(copy.join("file"))?;
    ensure!(got.len() == FILE, "{} of {FILE} bytes", got.len());
    Stream::new(1).check(&got)?;
    fs::write(copy.join("file"), Stream::new(2).take(FILE))?;
    here(&copy, &["commit", "-q", "-a", "-m", "second"])?;
    there(&copy, &["push", "-q", "origin", "main"])?;
    here(&bare, &["fsck", "--strict"])?;
    let heads = [&copy, &bare].map(|at| here(at, &["rev-parse", "main"]));
    let [one, other] = heads;
    ensure!(one? == other?, "another commit came");
    finish(stage, relay, 2)
}
