//! `relay top` in a terminal.

use std::{
    fs::File,
    io::{Read, Write},
    os::fd::{AsFd, OwnedFd},
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
};

use anyhow::{Context, Result, ensure};
use relay_tests::{
    desk::Desk,
    patience,
    peer::{Address, Listener, Peer, refusing},
    relay::{Launch, binary},
};
use rustix::{
    fs::{Mode, OFlags, open},
    process::{Pid, Signal, kill_process},
    pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt},
    termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize},
};

/// Gives the terminal its own screen, and back.
const ENTER: &str = "\u{1b}[?1049h";
const LEAVE: &str = "\u{1b}[?1049l";

/// So large that nothing is cut off.
const LARGE: [u16; 2] = [30, 160];

/// Half of what a terminal used to have.
const SMALL: [u16; 2] = [12, 40];

/// A terminal, and relay in it.
struct Terminal {
    keys: File,
    line: OwnedFd,
    shown: Arc<Mutex<Shown>>,
    top: Child,
}

/// What came to the terminal, and what it makes of that.
struct Shown {
    came: String,
    screen: vt100::Parser,
}

impl Terminal {
    fn top(desk: &Desk, [rows, columns]: [u16; 2]) -> Result<Self> {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY)?;
        grantpt(&master)?;
        unlockpt(&master)?;
        let name = ptsname(&master, Vec::new())?;
        let line = open(name, OFlags::RDWR | OFlags::NOCTTY, Mode::empty())?;
        let size = Winsize {
            ws_row: rows,
            ws_col: columns,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        tcsetwinsize(&line, size)?;
        let stream = || -> Result<Stdio> { Ok(line.try_clone()?.into()) };
        let mut command = Command::new(binary()?);
        command
            .args(["top", "--interval", "100ms", "--admin"])
            .arg(desk.address.to_string());
        let top = command
            .stdin(stream()?)
            .stdout(stream()?)
            .stderr(stream()?)
            .spawn()?;
        let keys = File::from(master);
        let shown = Arc::new(Mutex::new(Shown {
            came: String::new(),
            screen: vt100::Parser::new(rows, columns, 0),
        }));
        thread::spawn({
            let (mut screen, shown) = (keys.try_clone()?, shown.clone());
            move || {
                let mut buffer = vec![0; 4096];
                while let Ok(count) = screen.read(&mut buffer) {
                    let mut shown = shown.lock().unwrap_or_else(PoisonError::into_inner);
                    shown.came += &String::from_utf8_lossy(&buffer[..count]);
                    shown.screen.process(&buffer[..count]);
                }
            }
        });
        Ok(Self {
            keys,
            line,
            shown,
            top,
        })
    }

    fn shows(&self, words: &str) -> Result<()> {
        patience::until_true(words, || {
            let shown = self.shown();
            Ok(shown.came.contains(words) || shown.screen.screen().contents().contains(words))
        })
        .with_context(|| self.shown().screen.screen().contents())
    }

    fn shown(&self) -> MutexGuard<'_, Shown> {
        self.shown.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_raw(&self) -> Result<bool> {
        let modes = tcgetattr(self.line.as_fd())?.local_modes;
        Ok(!modes.intersects(LocalModes::ICANON | LocalModes::ECHO))
    }

    /// Waits for its end, which must be clean and give the terminal back.
    fn ends(&mut self) -> Result<()> {
        let status = patience::until("top to end", || Ok(self.top.try_wait()?))?;
        ensure!(
            status.code() == Some(0),
            "{status:?}: {}",
            self.shown().came
        );
        self.shows(LEAVE)?;
        ensure!(!self.is_raw()?, "the terminal is left raw");
        Ok(())
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.top.kill();
        let _ = self.top.wait();
    }
}

/// relay with a connection, and top beside it, ended by `end`.
fn ended_by(end: impl Fn(&mut Terminal) -> Result<()>) -> Result<()> {
    let (desk, to) = (
        Desk::new()?,
        Listener::bind(&Address::parse("127.0.0.1:0")?)?,
    );
    let relay = desk.launch(&to)?.with(["--engine", "copy"]).start()?;
    desk.is_ready(200)?;
    let client = Peer::connect(relay.address())?;
    let upstream = to.accept()?;
    client.send(&[7; 3 << 10])?;
    upstream.receive(3 << 10)?;
    let mut terminal = Terminal::top(&desk, LARGE)?;
    terminal.shows(ENTER)?;
    for words in ["serving", "copy", &client.local()?, "3.0 KiB", "q quits"] {
        terminal.shows(words)?;
    }
    ensure!(terminal.is_raw()?, "keys would be shown");
    // Two looks apart: now there is a rate.
    client.send(&[7; 64 << 10])?;
    upstream.receive(64 << 10)?;
    terminal.shows("67.0 KiB")?;
    end(&mut terminal)?;
    terminal.ends()?;
    drop((client, upstream));
    relay.finish_all().map(drop)
}

#[test]
fn top_draws_and_quits_with_q() -> Result<()> {
    ended_by(|terminal| Ok(terminal.keys.write_all(b"q")?))
}

#[test]
fn top_gives_the_terminal_back_at_a_signal() -> Result<()> {
    ended_by(|terminal| Ok(kill_process(Pid::from_child(&terminal.top), Signal::TERM)?))
}

#[test]
fn top_without_a_terminal_says_what_to_use() -> Result<()> {
    Desk::new()?
        .command(&["top"])?
        .failed(1, &["no terminal", "relay status"])
}

#[test]
fn top_tells_of_upstreams_that_are_down() -> Result<()> {
    let (desk, (_socket, gone)) = (Desk::new()?, refusing()?);
    let launch = Launch::new(["--log-format", "json", "--listen", "127.0.0.1:0"]);
    let relay = launch
        .with(["--to", &gone, "--engine", "copy"])
        .with(["--check-interval", "50ms"])
        .with(["--admin", &desk.address.to_string()])
        .start()?;
    desk.is_ready(200)?;
    for size in [LARGE, SMALL] {
        let mut terminal = Terminal::top(&desk, size)?;
        for words in ["UPSTREAM", "down", "ROUTE", "CLIENT", "q quits"] {
            terminal.shows(words)?;
        }
        terminal.keys.write_all(b"q")?;
        terminal.ends()?;
    }
    relay.finish(0).map(drop)
}
