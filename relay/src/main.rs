//! The `relay` command: parse, plan, serve, exit code.

mod ask;
mod check;
mod cli;
mod config;
mod desk;
mod logs;
mod settings;
mod start;
mod status;
mod top;

use std::{future::Future, process::ExitCode, time::Duration};

use anyhow::{Context, Result};
use cli::Command;

fn main() -> ExitCode {
    let done = match cli::parse(std::env::args_os()) {
        Ok(Command::Serve(serve)) => start::start(*serve),
        Ok(Command::Ask(ask)) => on_runtime(|| (), ask::run(ask)).map(|()| ExitCode::SUCCESS),
        Ok(Command::Check(check)) => {
            on_runtime(|| (), check::run(check)).map(|()| ExitCode::SUCCESS)
        }
        Err(refusal) => return refusal.report(),
    };
    done.unwrap_or_else(|error| {
        cli::complain(&format!("{error:#}"));
        ExitCode::FAILURE
    })
}

/// Runs `work` on this thread and others, which begin with `begin_thread`; and waits no longer than a moment for what it
/// leaves behind: a name that is still being resolved.
fn on_runtime<T>(
    begin_thread: impl Fn() + Send + Sync + 'static,
    work: impl Future<Output = Result<T>>,
) -> Result<T> {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = builder
        .enable_all()
        .on_thread_start(begin_thread)
        .build()
        .context("cannot start the runtime")?;
    let done = runtime.block_on(work);
    runtime.shutdown_timeout(Duration::from_secs(1));
    done
}
