//! Real data through each engine, every byte checked, and a table of what it took.

use std::{
    io::{IsTerminal, stderr},
    net::SocketAddr,
    path::Path,
    process::{Command, ExitCode},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::Value;

use crate::{
    host,
    load::{
        bulk,
        forwarder::{self, Forwarder},
        pingpong, proc,
        upstream::{Ask, Upstream},
    },
};

/// Each way.
const BYTES: u64 = 1 << 30;

const ROUNDS: u64 = 20_000;

/// What is asked for in front of a stream; relay counts it too.
const ASK: u64 = Ask::LENGTH as u64;

/// A row of the table.
struct Row {
    engine: String,
    result: Outcome,
}

enum Outcome {
    Carried {
        up: f64,
        down: f64,
        p50: Duration,
        p99: Duration,
        cpu: Duration,
    },
    NotOffered(String),
    Wrong(String),
}

pub(super) fn run(relay: &Path) -> Result<ExitCode> {
    println!(
        "Each engine relays 1 GiB up, then 1 GiB down, on one connection, then {ROUNDS} ping-pongs of {} bytes on \
         another, from and to this process over loopback. Every byte is compared with a seeded stream.",
        pingpong::MESSAGE
    );
    let upstream = Upstream::start(SocketAddr::from(([127, 0, 0, 1], 0)).into())?;
    let mut rows = Vec::new();
    for engine in engines(relay)? {
        let name = engine["engine"]
            .as_str()
            .context("an engine without a name")?;
        let result = if engine["offered"] == true {
            carry(relay, name, &upstream)
                .unwrap_or_else(|error| Outcome::Wrong(format!("{error:#}")))
        } else {
            Outcome::NotOffered(
                engine["missing"]
                    .as_str()
                    .unwrap_or("no reason given")
                    .to_owned(),
            )
        };
        rows.push(Row {
            engine: name.to_owned(),
            result,
        });
    }
    print(&rows);
    let wrong = rows
        .iter()
        .any(|row| matches!(row.result, Outcome::Wrong(_)));
    Ok(match wrong {
        false => ExitCode::SUCCESS,
        true => ExitCode::FAILURE,
    })
}

/// What relay says of its engines on this host.
fn engines(relay: &Path) -> Result<Vec<Value>> {
    let report = host::output(Command::new(relay).args(["check", "--json"]))?;
    let report: Value = serde_json::from_str(&report).context("relay check --json")?;
    let engines = report["engines"].as_array();
    Ok(engines.context("relay check names no engines")?.clone())
}

fn carry(relay: &Path, engine: &str, upstream: &Upstream) -> Result<Outcome> {
    let forwarder = Forwarder::start(&mut forwarder::command(relay, engine, &upstream.address))?;
    let busy = proc::busy()?;
    let seed = 1;
    let mut progress = Progress::new(engine, 2 * BYTES, "bytes");
    let moved = bulk::both_ways(&forwarder.address, BYTES, seed, |bytes| progress.add(bytes));
    drop(progress);
    let times = moved.context("bulk")?;
    let mut progress = Progress::new(engine, ROUNDS, "round trips");
    let played = pingpong::play(&forwarder.address, ROUNDS, seed, || progress.add(1));
    drop(progress);
    let latency = played.context("ping-pong")?;
    let cpu = proc::busy()?.saturating_sub(busy);
    let faults = upstream.faults();
    ensure!(faults.is_empty(), "{}", faults.join("; "));
    let messages = ROUNDS * pingpong::MESSAGE as u64;
    let expected = [(BYTES + ASK, BYTES), (messages + ASK, messages)];
    for (record, (up, down)) in forwarder.records(2)?.iter().zip(expected) {
        ensure!(
            record["engine"] == engine,
            "another engine carried it: {record}"
        );
        ensure!(
            record["bytes_up"] == up && record["bytes_down"] == down,
            "wrong count: {record}"
        );
    }
    forwarder.stop()?;
    let at = |quantile| Duration::from_nanos(latency.value_at_quantile(quantile));
    Ok(Outcome::Carried {
        up: gigabits(times.up),
        down: gigabits(times.down),
        p50: at(0.5),
        p99: at(0.99),
        cpu,
    })
}

#[expect(clippy::cast_precision_loss, reason = "a rate for people")]
fn gigabits(took: Duration) -> f64 {
    BYTES as f64 * 8.0 / took.as_secs_f64().max(1e-9) / 1e9
}

fn print(rows: &[Row]) {
    println!(
        "\n{:8} {:>8} {:>10} {:>9} {:>9} {:>7}",
        "engine", "Gb/s up", "Gb/s down", "p50 µs", "p99 µs", "CPU s"
    );
    let micros = |duration: &Duration| duration.as_secs_f64() * 1e6;
    for Row { engine, result } in rows {
        match result {
            Outcome::Carried {
                up,
                down,
                p50,
                p99,
                cpu,
            } => println!(
                "{engine:8} {up:8.1} {down:10.1} {:9.1} {:9.1} {:7.2}",
                micros(p50),
                micros(p99),
                cpu.as_secs_f64()
            ),
            Outcome::NotOffered(reason) => println!("{engine:8} not offered: {reason}"),
            Outcome::Wrong(what) => println!("{engine:8} WRONG: {what}"),
        }
    }
    println!(
        "\nCPU seconds are of the whole machine, this program and all others with it: what the kernel does for a \
         connection is in no process's account."
    );
}

/// A bar on a terminal; a line at the beginning and one at the end elsewhere.
struct Progress {
    engine: String,
    what: &'static str,
    bar: Option<ProgressBar>,
    done: u64,
    drawn: u64,
    step: u64,
    begun: Instant,
}

impl Progress {
    fn new(engine: &str, length: u64, what: &'static str) -> Self {
        let bar = stderr().is_terminal().then(|| {
            let template = match what {
                "bytes" => "{prefix:8} {wide_bar} {bytes:>10} of {total_bytes} {bytes_per_sec:>14}",
                _ => "{prefix:8} {wide_bar} {pos:>10} of {len} {msg}",
            };
            let style = ProgressStyle::with_template(template);
            let style = style.unwrap_or_else(|_| ProgressStyle::default_bar());
            let bar = ProgressBar::new(length).with_style(style);
            bar.with_prefix(engine.to_owned()).with_message(what)
        });
        if bar.is_none() {
            eprintln!("{engine}: {length} {what}");
        }
        Self {
            engine: engine.to_owned(),
            what,
            bar,
            done: 0,
            drawn: 0,
            // Drawing is not what is measured.
            step: length / 100,
            begun: Instant::now(),
        }
    }

    fn add(&mut self, more: u64) {
        self.done += more;
        if self.done - self.drawn >= self.step {
            self.drawn = self.done;
            if let Some(bar) = &self.bar {
                bar.set_position(self.done);
            }
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        let Self {
            engine, what, done, ..
        } = self;
        match &self.bar {
            Some(bar) => bar.finish_and_clear(),
            None => eprintln!(
                "{engine}: {done} {what} in {:.2} s",
                self.begun.elapsed().as_secs_f64()
            ),
        }
    }
}
