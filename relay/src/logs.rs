//! What relay writes on stderr: diagnostics and access records, line by line, from a thread of its own.
//!
//! A thread, because a task must not wait for whoever reads stderr. Its queue is bounded and loses nothing: a reader
//! that lags by more than [`QUEUE`] lines holds relay up rather than lose a record. At the end the queue is written
//! out, for [`FLUSH`] at most; tracing-appender's guard gives up after a second, and panics where stdout is gone.

use std::{
    io::{self, IsTerminal, Write},
    sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel},
    thread,
    time::{Duration, Instant, SystemTime},
};

use relay::stats::{record::Finished, sink::Sink};
use serde::Serialize;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::{Layer, Registry, layer::SubscriberExt, reload, util::SubscriberInitExt};

/// Lines that may wait to be written; some 300 bytes each.
const QUEUE: usize = 64 * 1024;

/// How much is written with one call when lines queue up.
const BATCH: usize = 64 * 1024;

/// How long lines collect after some were written: a line that comes alone is written at once, and where thousands of
/// connections end in a second, not each of them wakes the writer.
const REST: Duration = Duration::from_millis(2);

/// How long the end of the process may take to write out what is queued.
const FLUSH: Duration = Duration::from_secs(5);

/// How lines look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    /// For people.
    Text,
    /// One JSON object per line.
    Json,
}

/// What is written, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Log {
    pub(crate) format: Format,
    /// The least grave diagnostic; records have none.
    pub(crate) level: LevelFilter,
}

/// Starts the writer, on a thread that begins with `begin_thread`, and sends the diagnostics to it.
///
/// # Errors
///
/// Fails when the thread cannot be started.
pub(crate) fn start(
    Log { format, level }: Log,
    begin_thread: impl FnOnce() + Send + 'static,
) -> io::Result<(Records, Dial, Flush)> {
    let (lines, flush) = writer(io::stderr(), begin_thread)?;
    let make = {
        let lines = lines.clone();
        move || lines.clone()
    };
    let layer = tracing_subscriber::fmt::layer()
        .with_writer(make)
        .log_internal_errors(false);
    let layer: Box<dyn Layer<Registry> + Send + Sync> = match format {
        Format::Json => layer.json().flatten_event(true).boxed(),
        Format::Text => {
            let colours = io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
            layer.with_ansi(colours).boxed()
        }
    };
    // `try_init` also routes the `log` crate here, which aya-log speaks.
    let (filter, dial) = reload::Layer::new(level);
    let subscriber = tracing_subscriber::registry().with(layer.with_filter(filter));
    subscriber.try_init().map_err(io::Error::other)?;
    Ok((Records { format, lines }, Dial(dial), flush))
}

/// Changes the level while relay runs.
pub(crate) struct Dial(reload::Handle<LevelFilter, Registry>);

impl Dial {
    /// From here on, diagnostics less grave than `level` are not written.
    pub(crate) fn set(&self, level: LevelFilter) -> Result<(), String> {
        self.0.reload(level).map_err(|error| error.to_string())?;
        // What speaks `log` asks here first.
        log::set_max_level(spoken(level));
        Ok(())
    }
}

fn spoken(level: LevelFilter) -> log::LevelFilter {
    match level {
        LevelFilter::OFF => log::LevelFilter::Off,
        LevelFilter::ERROR => log::LevelFilter::Error,
        LevelFilter::WARN => log::LevelFilter::Warn,
        LevelFilter::INFO => log::LevelFilter::Info,
        LevelFilter::DEBUG => log::LevelFilter::Debug,
        LevelFilter::TRACE => log::LevelFilter::Trace,
    }
}

/// Writes access records, at every log level.
pub(crate) struct Records {
    format: Format,
    lines: Lines,
}

impl Sink for Records {
    fn ended(&self, record: &Finished<'_>) {
        let timestamp = humantime::format_rfc3339_micros(SystemTime::now());
        let line = match self.format {
            Format::Text => format!("{timestamp} connection {record}\n").into_bytes(),
            Format::Json => {
                let entry = Entry {
                    timestamp: timestamp.to_string(),
                    message: "connection",
                    record,
                };
                // Strings and numbers alone: nothing in it can fail.
                let mut line = serde_json::to_vec(&entry).unwrap_or_default();
                line.push(b'\n');
                line
            }
        };
        self.lines.send(line);
    }
}

#[derive(Serialize)]
struct Entry<'a> {
    timestamp: String,
    message: &'static str,
    #[serde(flatten)]
    record: &'a Finished<'a>,
}

enum Message {
    Line(Vec<u8>),
    End,
}

/// The way to the writer.
#[derive(Clone)]
struct Lines(SyncSender<Message>);

impl Lines {
    fn send(&self, line: Vec<u8>) {
        // The writer is gone only after `Flush`, when nobody is left to read.
        let _ = self.0.send(Message::Line(line));
    }
}

impl Write for Lines {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.send(line.to_vec());
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Writes out what is queued when dropped.
pub(crate) struct Flush {
    lines: Lines,
    done: Receiver<()>,
}

impl Drop for Flush {
    fn drop(&mut self) {
        let deadline = Instant::now() + FLUSH;
        while let Err(TrySendError::Full(_)) = self.lines.0.try_send(Message::End) {
            if Instant::now() >= deadline {
                return;
            }
            thread::sleep(Duration::from_millis(5));
        }
        let left = deadline.saturating_duration_since(Instant::now());
        let _ = self.done.recv_timeout(left);
    }
}

fn writer(
    to: impl Write + Send + 'static,
    begin_thread: impl FnOnce() + Send + 'static,
) -> io::Result<(Lines, Flush)> {
    let (lines, queue) = sync_channel(QUEUE);
    let (finished, done) = sync_channel(1);
    thread::Builder::new().name("log".into()).spawn(move || {
        begin_thread();
        drain(&queue, to);
        let _ = finished.send(());
    })?;
    let lines = Lines(lines);
    let flush = Flush {
        lines: lines.clone(),
        done,
    };
    Ok((lines, flush))
}

fn drain(queue: &Receiver<Message>, mut to: impl Write) {
    let mut batch = Vec::new();
    while let Ok(first) = queue.recv() {
        let mut next = Some(first);
        let mut end = false;
        while let Some(message) = next.take() {
            match message {
                Message::Line(line) => batch.extend_from_slice(&line),
                Message::End => end = true,
            }
            if !end && batch.len() < BATCH {
                next = queue.try_recv().ok();
            }
        }
        write(&mut to, &batch);
        if end {
            return;
        }
        batch.clear();
        thread::sleep(REST);
    }
}

/// A stderr that cannot be written to takes nothing down; the lines are gone, there is no other place for them.
fn write(to: &mut impl Write, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        match to.write(bytes) {
            Ok(0) => return,
            Ok(taken) => bytes = &bytes[taken..],
            Err(error) => match error.kind() {
                io::ErrorKind::Interrupted => (),
                // Somebody who shares the terminal or pipe has made it nonblocking.
                io::ErrorKind::WouldBlock => thread::sleep(Duration::from_millis(5)),
                _ => return,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    /// Takes a few bytes at a time and refuses now and then.
    #[derive(Clone, Default)]
    struct Grudging(Arc<Mutex<(Vec<u8>, usize)>>);

    impl Write for Grudging {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let (taken, calls) = &mut *self.0.lock().unwrap();
            *calls += 1;
            match *calls % 40 {
                0 => Err(io::ErrorKind::Interrupted.into()),
                1 => Err(io::ErrorKind::WouldBlock.into()),
                _ => {
                    let some = bytes.len().min(1000);
                    taken.extend_from_slice(&bytes[..some]);
                    Ok(some)
                }
            }
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn every_line_is_written_before_the_end() {
        let out = Grudging::default();
        let (lines, flush) = writer(out.clone(), || ()).unwrap();
        let mut expected = String::new();
        for number in 0..5000 {
            let line = format!("line {number}\n");
            expected += &line;
            lines.send(line.into_bytes());
        }
        drop(flush);
        assert_eq!(out.0.lock().unwrap().0, expected.as_bytes());
    }

    struct Closed;

    impl Write for Closed {
        fn write(&mut self, _bytes: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::BrokenPipe.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_closed_stderr_holds_nobody_up() {
        let (lines, flush) = writer(Closed, || ()).unwrap();
        for _ in 0..2 * QUEUE {
            lines.send(b"line\n".to_vec());
        }
        drop(flush);
        lines.send(b"late\n".to_vec());
    }
}
