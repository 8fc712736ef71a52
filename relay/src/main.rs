//! The `relay` command: parse, plan, serve, exit code.

mod check;
mod cli;
mod config;
mod logs;
mod settings;

use std::{future::Future, process::ExitCode, sync::Arc, time::Duration};

use anyhow::{Context, Result};
use cli::{Command, Serve};
use relay::{
    drain::Drained,
    serve::{self, Reread},
    stats::{declines::Declines, record::Books},
};

fn main() -> ExitCode {
    let done = match cli::parse(std::env::args_os()) {
        Ok(Command::Serve(serve)) => start(serve),
        Ok(Command::Check(check)) => on_runtime(check::run(check)).map(|()| ExitCode::SUCCESS),
        Err(refusal) => return refusal.report(),
    };
    done.unwrap_or_else(|error| {
        cli::complain(&format!("{error:#}"));
        ExitCode::FAILURE
    })
}

fn start(Serve { plan, log, source }: Serve) -> Result<ExitCode> {
    // Dropped last: what the runtime leaves behind is written, too.
    let (records, _flush) = logs::start(log).context("cannot start the log")?;
    let books = Arc::new(Books {
        sink: Box::new(records),
        declines: Declines::default(),
    });
    let reread = source.map(|source| {
        let read = move || source.read().map(|config| config.plan);
        let read = move || read().map_err(|fault| fault.to_string());
        Arc::new(read) as Reread
    });
    let (_control, requests) = serve::control();
    on_runtime(async {
        Ok(match serve::run(plan, books, requests, reread).await? {
            Drained::Clean => ExitCode::SUCCESS,
            Drained::Cut(_) => ExitCode::FAILURE,
        })
    })
}

/// Runs `work`, and waits no longer than a moment for what it leaves behind: a name that is still being resolved.
fn on_runtime<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = builder
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    let done = runtime.block_on(work);
    runtime.shutdown_timeout(Duration::from_secs(1));
    done
}
