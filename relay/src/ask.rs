//! The commands that ask a running relay.

use std::io::Write;

use anyhow::{Context, Result};
use hyper::Method;

use crate::{cli::Ask, desk::Desk, status, top};

/// Asks, and prints the answer.
pub(crate) async fn run(ask: Ask) -> Result<()> {
    match ask {
        Ask::Status { json, at } => print(&status::run(&Desk(at.address()), json).await?),
        Ask::Top { interval, at } => top::run(Desk(at.address()), interval.0).await,
        Ask::Reload { at } => print(&Desk(at.address()).tell(Method::POST, "/reload", "").await?),
        Ask::LogLevel { level, at } => {
            let desk = Desk(at.address());
            print(&desk.tell(Method::PUT, "/log-level", &level.name()).await?)
        }
    }
}

fn print(text: &str) -> Result<()> {
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(error).context("cannot print the answer")
        }
        _ => Ok(()),
    }
}
