//! `relay top`: a running relay in a terminal, looked at again and again until q.

mod rates;
mod view;

use std::{
    io::{self, IsTerminal},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use ratatui::{
    DefaultTerminal,
    crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers},
};
use relay::admin::report::{Connection, Status};
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::mpsc,
    time::{MissedTickBehavior, interval},
};

use self::rates::Rates;
use crate::desk::Desk;

/// What one look has seen.
#[derive(Debug)]
struct Seen {
    at: Instant,
    status: Status,
    connections: Vec<Connection>,
}

/// Shows it until the operator has seen enough.
pub(crate) async fn run(desk: Desk, every: Duration) -> Result<()> {
    if !io::stdout().is_terminal() {
        bail!("top: standard output is no terminal; use relay status, or relay status --json");
    }
    // Before the screen is taken, where an error can be read.
    let first = look(&desk).await?;
    let mut terminate = signal(SignalKind::terminate()).context("cannot watch signals")?;
    let mut hangup = signal(SignalKind::hangup()).context("cannot watch signals")?;
    // It also has a panic give the terminal back.
    let terminal = ratatui::try_init().context("cannot use the terminal")?;
    let shown = tokio::select! {
        shown = show(terminal, desk, every, first) => shown,
        _ = terminate.recv() => Ok(()),
        _ = hangup.recv() => Ok(()),
    };
    let restored = ratatui::try_restore().context("cannot give the terminal back");
    shown.and(restored)
}

async fn look(desk: &Desk) -> Result<Seen> {
    let status = desk.read("/status").await?;
    let connections = desk.read("/connections").await?;
    let at = Instant::now();
    Ok(Seen {
        at,
        status,
        connections,
    })
}

async fn show(
    mut terminal: DefaultTerminal,
    desk: Desk,
    every: Duration,
    first: Seen,
) -> Result<()> {
    let mut events = events();
    let mut looks = looks(desk, every);
    let mut rates = Rates::default();
    let mut lines = rates.take(&first);
    let (mut seen, mut fault) = (first, None);
    loop {
        terminal
            .draw(|frame| view::draw(frame, &seen.status, &lines, fault.as_deref()))
            .context("cannot draw")?;
        tokio::select! {
            event = events.recv() => match event {
                Some(Ok(event)) if is_enough(&event) => return Ok(()),
                Some(Ok(_)) => (),
                Some(Err(error)) => return Err(error).context("cannot read keys"),
                None => return Ok(()),
            },
            look = looks.recv() => match look {
                Some(Ok(new)) => {
                    lines = rates.take(&new);
                    (seen, fault) = (new, None);
                }
                Some(Err(error)) => fault = Some(format!("{error:#}")),
                None => return Ok(()),
            },
        }
    }
}

/// Keys and changes of the window's size, from a thread: a read of the terminal cannot be called off.
fn events() -> mpsc::Receiver<io::Result<Event>> {
    let (tell, told) = mpsc::channel(16);
    thread::spawn(move || {
        loop {
            let event = event::read();
            let failed = event.is_err();
            if tell.blocking_send(event).is_err() || failed {
                return;
            }
        }
    });
    told
}

/// Looks again and again, beside the drawing: an answer may be slow.
fn looks(desk: Desk, every: Duration) -> mpsc::Receiver<Result<Seen>> {
    let (tell, told) = mpsc::channel(1);
    tokio::spawn(async move {
        let mut due = interval(every);
        due.set_missed_tick_behavior(MissedTickBehavior::Delay);
        due.tick().await;
        loop {
            due.tick().await;
            if tell.send(look(&desk).await).await.is_err() {
                return;
            }
        }
    });
    told
}

fn is_enough(event: &Event) -> bool {
    let Event::Key(key) = event else { return false };
    let control = key.modifiers.contains(KeyModifiers::CONTROL);
    key.kind == KeyEventKind::Press
        && match key.code {
            KeyCode::Char('q') | KeyCode::Esc => true,
            KeyCode::Char('c') => control,
            _ => false,
        }
}
