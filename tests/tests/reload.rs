//! Files instead of flags: what they say, what is wrong with them, and a change of them while relay runs.

use std::{fs, path::PathBuf};

use anyhow::{Context, Result, ensure};
use relay_tests::{
    patience,
    peer::{Address, Listener, Peer},
    relay::{Finished, Launch, Relay},
};
use rustix::{
    fs::{CWD, FileType, Mode, mknodat},
    process::Signal,
};
use tempfile::TempDir;

fn anywhere() -> Result<Listener> {
    Listener::bind(&Address::parse("127.0.0.1:0")?)
}

/// A file that relay is to read.
struct File {
    _folder: TempDir,
    path: PathBuf,
}

impl File {
    fn new(text: &str) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("relay.toml");
        fs::write(&path, text)?;
        Ok(Self {
            _folder: folder,
            path,
        })
    }

    fn write(&self, text: &str) -> Result<()> {
        Ok(fs::write(&self.path, text)?)
    }

    fn run(&self, flags: &[&str]) -> Result<Finished> {
        let path = self.path.to_str().context("not UTF-8")?;
        Launch::new(flags.iter().copied().chain([path])).run()
    }
}

fn route(name: &str, listen: &str, to: &Address) -> String {
    format!("[[route]]\nname = \"{name}\"\nlisten = \"{listen}\"\nto = \"{to}\"\n")
}

/// A client and the upstream that it reached.
fn through(address: &Address, to: &Listener) -> Result<(Peer, Peer)> {
    let client = Peer::connect(address)?;
    client.send(b"hello")?;
    let upstream = to.accept()?;
    ensure!(upstream.receive(5)? == b"hello");
    Ok((client, upstream))
}

/// The connection goes on, in both directions.
fn talk((client, upstream): &(Peer, Peer)) -> Result<()> {
    client.send(b"more")?;
    ensure!(upstream.receive(4)? == b"more");
    upstream.send(b"thanks")?;
    ensure!(client.receive(6)? == b"thanks");
    Ok(())
}

fn reload(relay: &Relay, done: usize) -> Result<()> {
    relay.signal(Signal::HUP)?;
    relay.says("\"reloaded\"", done)
}

#[test]
fn a_file_says_what_flags_can_say() -> Result<()> {
    let (web, socket) = (anywhere()?, anywhere()?);
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("s");
    let text = [
        "engine = \"copy\"\ndrain-timeout = \"1s\"\n".to_owned(),
        route("web", "127.0.0.1:0", web.address()),
        route(
            "socket",
            &format!("unix:{}", path.display()),
            socket.address(),
        ),
    ];
    let file = File::new(&text.concat())?;
    let relay = Launch::config(&file.path).start()?;
    let [web_at, socket_at] = relay.addresses() else {
        anyhow::bail!("{:?}", relay.addresses());
    };
    ensure!(*socket_at == Address::Unix(path));
    drop(through(web_at, &web)?);
    drop(through(socket_at, &socket)?);
    let records = relay.finish(2)?;
    let mut names = Vec::from_iter(records.iter().map(|record| record.route.as_str()));
    names.sort_unstable();
    ensure!(names == ["socket", "web"], "{names:?}");
    Ok(())
}

#[test]
fn the_lines_of_rinetd_are_served() -> Result<()> {
    let to = anywhere()?;
    let Address::Ip(at) = to.address() else {
        anyhow::bail!("{}", to.address());
    };
    let text = format!("# web\n127.0.0.1 0 {} {}\n", at.ip(), at.port());
    let file = File::new(&text)?;
    let launch = Launch::new(["--log-format", "json", "--engine", "copy", "--rinetd"]);
    let relay = launch.with([file.path.display().to_string()]).start()?;
    drop(through(relay.address(), &to)?);
    relay.finish(1).map(drop)
}

#[test]
fn a_fault_has_its_file_line_and_column() -> Result<()> {
    let file = File::new("engine = \"auto\"\n\n[[route]]\nlisten = \"127.0.0.1\"\n")?;
    let place = format!("{}:4:10", file.path.display());
    for flags in [&["--config"][..], &["check", "--config"]] {
        file.run(flags)?.failed(2, &[&place, "no port"])?;
    }
    let missing = Launch::new(["--config", "/nowhere/relay.toml"]).run()?;
    missing.failed(2, &["/nowhere/relay.toml", "No such file"])
}

#[test]
fn a_good_file_is_told_and_not_served() -> Result<()> {
    let busy = anywhere()?;
    // Taken: so check does not bind.
    let text = route("web", &busy.address().to_string(), busy.address());
    let file = File::new(&text)?;
    let told = file.run(&["check", "--config"])?;
    ensure!(told.status.success(), "{told:?}");
    ensure!(told.stdout.starts_with("web: 127.0.0.1:"), "{told:?}");
    let json = file.run(&["check", "--json", "--config"])?;
    ensure!(json.stdout.contains("\"route\":\"web\""), "{json:?}");
    Ok(())
}

#[test]
fn a_file_and_routes_on_the_command_line_exclude_each_other() -> Result<()> {
    let file = File::new("")?;
    let flags = ["--listen", "127.0.0.1:0", "--to", "127.0.0.1:1", "--config"];
    file.run(&flags)?.failed(2, &["--config", "--listen"])
}

#[test]
fn a_reload_changes_routes_and_touches_no_connection() -> Result<()> {
    let [kept, before, after, gone, fresh] = [(); 5].map(|()| anywhere());
    let (kept, before, after, gone, fresh) = (kept?, before?, after?, gone?, fresh?);
    let first = [
        route("kept", "127.0.0.1:0", kept.address()),
        route("changed", "[::1]:0", before.address()),
        route("gone", "127.0.0.2:0", gone.address()),
    ];
    let file = File::new(&first.concat())?;
    let relay = Launch::config(&file.path).start()?;
    let [kept_at, changed_at, gone_at] = relay.addresses() else {
        anyhow::bail!("{:?}", relay.addresses());
    };
    let under_way = [
        through(kept_at, &kept)?,
        through(changed_at, &before)?,
        through(gone_at, &gone)?,
    ];
    let second = [
        route("fresh", "127.0.0.3:0", fresh.address()),
        route("changed", "[::1]:0", after.address()),
        route("kept", "127.0.0.1:0", kept.address()),
    ];
    file.write(&second.concat())?;
    reload(&relay, 1)?;
    ensure!(relay.has_said("listeners opened 1, closed 1; routes changed 1, kept 1"));
    under_way.iter().try_for_each(talk)?;
    patience::until_true("the listener to be closed", || {
        Ok(Peer::connect(gone_at).is_err())
    })?;
    drop(through(kept_at, &kept)?);
    drop(through(changed_at, &after)?);
    let fresh_at = relay.listening().pop().context("nothing listens")?;
    drop(through(&fresh_at, &fresh)?);
    under_way.iter().try_for_each(talk)?;
    drop(under_way);
    relay.finish(6).map(drop)
}

#[test]
fn a_reload_that_cannot_be_had_changes_nothing() -> Result<()> {
    let (to, busy) = (anywhere()?, anywhere()?);
    let good = route("web", "127.0.0.1:0", to.address());
    let file = File::new(&good)?;
    let relay = Launch::config(&file.path).start()?;
    let pair = through(relay.address(), &to)?;
    let taken = route("taken", &busy.address().to_string(), to.address());
    for (at, (text, cause)) in [
        ("[[route]\n".to_owned(), ":1:"),
        (format!("{good}colour = 1\n"), ":5:1"),
        (taken, "choose another port"),
        (String::new(), "no route"),
    ]
    .into_iter()
    .enumerate()
    {
        file.write(&text)?;
        relay.signal(Signal::HUP)?;
        relay.says("not reloaded", at + 1)?;
        ensure!(relay.has_said(cause), "{cause}");
        talk(&pair)?;
        drop(through(relay.address(), &to)?);
    }
    file.write(&good)?;
    reload(&relay, 1)?;
    drop(pair);
    relay.finish(5).map(drop)
}

#[test]
fn a_stop_does_not_wait_for_a_file_that_hangs() -> Result<()> {
    let to = anywhere()?;
    let file = File::new(&route("web", "127.0.0.1:0", to.address()))?;
    let relay = Launch::config(&file.path).start()?;
    fs::remove_file(&file.path)?;
    // Nobody writes: whoever opens it to read waits.
    mknodat(CWD, &file.path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)?;
    relay.signal(Signal::HUP)?;
    drop(through(relay.address(), &to)?);
    relay.finish(1).map(drop)
}

#[test]
fn flags_cannot_be_read_again() -> Result<()> {
    let to = anywhere()?;
    let launch = Launch::forward(&Address::parse("127.0.0.1:0")?, to.address());
    let relay = launch.with(["--engine", "copy"]).start()?;
    relay.signal(Signal::HUP)?;
    relay.says("no file to read again", 1)?;
    drop(through(relay.address(), &to)?);
    relay.finish(1).map(drop)
}
