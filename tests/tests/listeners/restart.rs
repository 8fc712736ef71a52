//! A relay that starts takes over from the one that runs, under load and when things go wrong.

use std::{
    fs,
    io::{Read, Write},
    os::unix::net::{UnixListener, UnixStream},
    path::PathBuf,
    process::Stdio,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    thread,
};

use anyhow::{Context, Result, anyhow, ensure};
use relay_tests::{
    matrix::Stage,
    needs::{Need, met},
    patience,
    payload::Stream,
    peer::{Address, Listener, Peer, Server, echo},
    relay::{Launch, Relay},
    topology::Wire,
};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use super::under_each;

const CLIENTS: u64 = 4;
const RESTARTS: usize = 4;

/// What every generation is started with.
struct House {
    folder: tempfile::TempDir,
    upstream: Server,
    arguments: Vec<String>,
}

impl House {
    fn new(options: &str) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let upstream = Listener::bind(&Address::parse("127.0.0.1:0")?)?.serve(echo)?;
        let mut house = Self {
            folder,
            upstream,
            arguments: Vec::new(),
        };
        let flags = format!(
            "--log-format json --drain-timeout 1h --handover unix:{} --admin unix:{} --listen 127.0.0.1:0 --to {} {options}",
            house.path("handover").display(),
            house.path("admin").display(),
            house.upstream.address(),
        );
        house.arguments = flags.split_whitespace().map(String::from).collect();
        Ok(house)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn launch(&self) -> Launch {
        Launch::new(self.arguments.clone())
    }

    fn front(&self) -> Address {
        Address::Unix(self.path("front"))
    }

    /// A listener more, and its file.
    fn with_front(mut self) -> Self {
        let (front, to) = (self.front(), self.upstream.address().to_string());
        let more = ["--listen".into(), front.to_string(), "--to".into(), to];
        self.arguments.extend(more);
        self
    }
}

/// A connection of its own, and an answer to the last byte.
fn visit(at: &Address, seed: u64) -> Result<()> {
    const BYTES: u64 = 3000;
    let client = Peer::connect(at)?;
    client.send_stream(&mut Stream::new(seed), BYTES)?;
    client.expect(&mut Stream::new(seed), BYTES)?;
    client.finish()?;
    client.expect_end()
}

/// A connection that stays, with what was sent on it.
struct Long {
    client: Peer,
    sent: Stream,
    came: Stream,
}

impl Long {
    fn new(at: &Address) -> Result<Self> {
        Ok(Self {
            client: Peer::connect(at)?,
            sent: Stream::new(7),
            came: Stream::new(7),
        })
    }

    fn talk(&mut self) -> Result<()> {
        self.client.send_stream(&mut self.sent, 10_000)?;
        self.client.expect(&mut self.came, 10_000)
    }
}

/// Restarts again and again while clients come; each generation gets a connection that outlives it.
fn restart(stage: &Stage) -> Result<()> {
    let house = House::new(&format!("--engine {}", stage.engine))?;
    let first = house.launch().start()?;
    let at = first.address().clone();
    let (stop, answered) = (AtomicBool::new(false), AtomicUsize::new(0));
    let (mut old, mut longs) = (Vec::new(), Vec::new());
    let last = thread::scope(|scope| {
        let clients = Vec::from_iter((0..CLIENTS).map(|seed| {
            let (at, stop, answered) = (&at, &stop, &answered);
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    if let Err(fault) = visit(at, seed) {
                        stop.store(true, Ordering::Relaxed);
                        return Err(fault);
                    }
                    answered.fetch_add(1, Ordering::Relaxed);
                }
                Ok(())
            })
        }));
        let generations = || -> Result<Relay> {
            let mut relay = first;
            for _ in 0..RESTARTS {
                let before = answered.load(Ordering::Relaxed);
                patience::until_true("clients", || {
                    ensure!(!stop.load(Ordering::Relaxed), "a client has failed");
                    Ok(answered.load(Ordering::Relaxed) >= before + 20)
                })?;
                longs.push(Long::new(&at)?);
                longs.iter_mut().try_for_each(Long::talk)?;
                let next = house.launch().start()?;
                ensure!(next.address() == &at, "it listens elsewhere");
                relay.says("handed over", 1)?;
                old.push(std::mem::replace(&mut relay, next));
                longs.iter_mut().try_for_each(Long::talk)?;
            }
            Ok(relay)
        };
        let done = generations();
        stop.store(true, Ordering::Relaxed);
        for client in clients {
            client.join().map_err(|_| anyhow!("a client panicked"))??;
        }
        done
    })?;
    for mut long in longs {
        long.talk()?;
        long.client.finish()?;
        long.client.expect_end()?;
    }
    let all = answered.load(Ordering::Relaxed) + RESTARTS;
    last.signal(Signal::TERM)?;
    let mut records = 0;
    for mut relay in old.into_iter().chain([last]) {
        let code = relay.exit_code()?;
        ensure!(code == 0, "exit code {code}");
        for record in relay.records(0)? {
            records += 1;
            record.ended("client", "end")?;
            record.carried_by(stage.engine)?;
        }
    }
    ensure!(records == all, "{records} records of {all} connections");
    for gone in ["handover", "admin"] {
        ensure!(!house.path(gone).exists(), "{gone} is left");
    }
    Ok(())
}

#[test]
fn restarts_under_load_refuse_reset_and_lose_nobody() -> Result<()> {
    under_each("restarts", Wire::Loopback, restart)
}

#[test]
fn files_of_unix_sockets_stay_with_the_one_that_took_them() -> Result<()> {
    let house = House::new("--engine splice")?.with_front();
    let front = house.front();
    let mut relay = house.launch().start()?;
    for _ in 0..3 {
        let mut long = Long::new(&front)?;
        long.talk()?;
        let next = house.launch().start()?;
        long.talk()?;
        long.client.finish()?;
        long.client.expect_end()?;
        let mut old = std::mem::replace(&mut relay, next);
        ensure!(old.exit_code()? == 0);
        visit(&front, 1)?;
        let admin = house.path("admin").display().to_string();
        let status =
            Launch::new(["status", "--json", "--admin", &format!("unix:{admin}")]).run()?;
        let status: Value =
            serde_json::from_str(&status.stdout).with_context(|| format!("{status:?}"))?;
        let process = relay.process().as_raw_nonzero().get();
        ensure!(status["pid"] == process, "the old one answers: {status}");
    }
    relay.signal(Signal::TERM)?;
    ensure!(relay.exit_code()? == 0);
    for gone in ["front", "handover", "admin"] {
        ensure!(!house.path(gone).exists(), "{gone} is left");
    }
    Ok(())
}

#[test]
fn a_relay_that_fails_to_start_leaves_the_other_serving() -> Result<()> {
    let house = House::new("--engine splice")?.with_front();
    let mut relay = house.launch().start()?;
    let busy = Listener::bind(&Address::parse("127.0.0.1:0")?)?;
    let at = busy.address().to_string();
    for (count, more) in [
        ["--listen", &at, "--to", &at],
        ["--congestion", "no-such", "--rise", "1"],
    ]
    .into_iter()
    .enumerate()
    {
        let failed = house.launch().with(more).run()?;
        ensure!(failed.status.code() == Some(1), "{failed:?}");
        relay.says("this one goes on", count + 1)?;
        visit(relay.address(), 1)?;
        visit(&house.front(), 2)?;
    }
    let usage = house.launch().with(["--rise", "0"]).run()?;
    usage.failed(2, &["--rise"])?;
    visit(relay.address(), 3)?;
    // It can still hand over.
    let next = house.launch().start()?;
    ensure!(relay.exit_code()? == 0);
    visit(next.address(), 4)?;
    next.finish_all().map(drop)
}

/// One message, as the two relays send them.
fn frame(message: &Value) -> Result<Vec<u8>> {
    let text = message.to_string();
    let length = u32::try_from(text.len())?;
    Ok([&length.to_le_bytes()[..], text.as_bytes()].concat())
}

fn heard(stream: &mut UnixStream) -> Result<Value> {
    stream.set_read_timeout(Some(patience::limit()))?;
    let mut length = [0; 4];
    stream.read_exact(&mut length)?;
    let mut text = vec![0; u32::from_le_bytes(length) as usize];
    stream.read_exact(&mut text)?;
    Ok(serde_json::from_slice(&text)?)
}

#[test]
fn a_relay_that_dies_in_mid_handover_leaves_the_other_serving() -> Result<()> {
    let house = House::new("--engine copy")?;
    let relay = house.launch().start()?;
    let mut heir = UnixStream::connect(house.path("handover"))?;
    let offer = heard(&mut heir)?;
    ensure!(
        offer["offer"]["sockets"].as_array().map(Vec::len) == Some(3),
        "{offer}"
    );
    visit(relay.address(), 1)?;
    relay.signal(Signal::HUP)?;
    relay.says("not reloaded: another relay is taking over", 1)?;
    drop(heir);
    relay.says("this one goes on", 1)?;
    visit(relay.address(), 2)?;
    relay.finish(2).map(drop)
}

#[test]
fn a_stop_in_mid_handover_leaves_the_files_to_the_other() -> Result<()> {
    let house = House::new("--engine splice")?.with_front();
    let mut relay = house.launch().start()?;
    let mut heir = UnixStream::connect(house.path("handover"))?;
    heard(&mut heir)?;
    relay.signal(Signal::TERM)?;
    ensure!(relay.exit_code()? == 0);
    for there in ["front", "handover", "admin"] {
        ensure!(house.path(there).exists(), "{there} is gone");
    }
    // Nobody has them after all.
    let next = house.launch().start()?;
    visit(&house.front(), 1)?;
    next.finish(1).map(drop)
}

#[test]
fn where_the_other_has_died_a_relay_starts_by_itself() -> Result<()> {
    let house = House::new("--engine splice")?.with_front();
    let relay = house.launch().start()?;
    relay.kill()?;
    let relay = house.launch().start()?;
    visit(&house.front(), 1)?;
    relay.finish(1).map(drop)
}

#[test]
fn a_stop_is_heard_before_clients_are_served() -> Result<()> {
    for signal in [Signal::TERM, Signal::INT] {
        let house = House::new("--engine copy")?;
        // Somebody who does not answer.
        let other = UnixListener::bind(house.path("handover"))?;
        let (mut child, _keep) = house.launch().spawn(&|command| {
            command.stdout(Stdio::null()).stderr(Stdio::piped());
        })?;
        let _heir = other.accept()?;
        kill_process(Pid::from_child(&child), signal)?;
        let status = patience::until("relay to end", || Ok(child.try_wait()?));
        if status.is_err() {
            child.kill()?;
        }
        let mut said = String::new();
        child
            .stderr
            .take()
            .context("no stderr")?
            .read_to_string(&mut said)?;
        ensure!(status?.code() == Some(0), "{said}");
        ensure!(
            said.contains("stopped before clients were served"),
            "{said}"
        );
    }
    Ok(())
}

/// A relay that starts, and one that is played: it offers nothing, hears that the other is ready, and says `last`.
fn played(last: Option<Value>) -> Result<(House, Result<Relay>)> {
    let house = House::new("--engine copy")?;
    let listener = UnixListener::bind(house.path("handover"))?;
    let started = thread::scope(|scope| {
        let old = scope.spawn(move || -> Result<()> {
            let (mut heir, _) = listener.accept()?;
            drop(listener);
            let offer = json!({"offer": {"protocol": 1, "sockets": [], "more": false}});
            heir.write_all(&frame(&offer)?)?;
            let ready = heard(&mut heir)?;
            ensure!(ready["ready"]["taken"] == json!([]), "{ready}");
            if let Some(last) = last {
                heir.write_all(&frame(&last)?)?;
            }
            Ok(())
        });
        let started = house.launch().start();
        old.join().map_err(|_| anyhow!("it panicked"))??;
        Ok::<_, anyhow::Error>(started)
    })?;
    Ok((house, started))
}

#[test]
fn when_the_other_dies_before_its_last_word_the_new_one_serves() -> Result<()> {
    let (_house, relay) = played(None)?;
    let relay = relay?;
    relay.says("the relay that ran is gone", 1)?;
    visit(relay.address(), 1)?;
    relay.finish(1).map(drop)
}

#[test]
fn when_the_other_keeps_its_sockets_the_new_one_gives_up() -> Result<()> {
    let (_house, relay) = played(Some(json!({"withdrawn": {"why": "it was slow"}})))?;
    let said = format!("{:#}", relay.err().context("it serves")?);
    ensure!(
        said.contains("--handover") && said.contains("it was slow"),
        "{said}"
    );
    Ok(())
}

#[test]
fn a_relay_without_privileges_hands_over_and_other_users_get_nothing() -> Result<()> {
    use std::os::unix::fs::{PermissionsExt, chown};
    if !met("handover_without_privileges", &[Need::Root])? {
        return Ok(());
    }
    let house = House::new("--engine splice --user 65534:65534")?.with_front();
    // So that the last one can remove its files.
    chown(house.folder.path(), Some(65534), Some(65534))?;
    fs::set_permissions(house.folder.path(), fs::Permissions::from_mode(0o755))?;
    let mut relay = house.launch().start()?;
    for seed in 0..2 {
        let next = house.launch().start()?;
        let mut old = std::mem::replace(&mut relay, next);
        ensure!(old.exit_code()? == 0);
        visit(relay.address(), seed)?;
        visit(&house.front(), seed)?;
    }
    let mode = fs::metadata(house.path("handover"))?.permissions().mode() & 0o777;
    ensure!(mode == 0o600, "{mode:o}");
    let stranger = Launch::new(
        format!(
            "--handover unix:{} --listen 127.0.0.1:0 --to 127.0.0.1:1 --engine copy",
            house.path("handover").display()
        )
        .split(' '),
    );
    let told = stranger.user(4_123_456).run()?;
    told.failed(1, &["--handover", "Permission denied", "same user"])?;
    relay.signal(Signal::TERM)?;
    ensure!(relay.exit_code()? == 0);
    Ok(())
}
