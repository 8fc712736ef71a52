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
    privileges::Privileges,
    serve::{self, Reread},
    stats::{declines::Declines, record::Books},
};

fn main() -> ExitCode {
    let done = match cli::parse(std::env::args_os()) {
        Ok(Command::Serve(serve)) => start(serve),
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

fn start(serve: Serve) -> Result<ExitCode> {
    let Serve {
        plan,
        log,
        privileges,
        source,
    } = serve;
    // Before there is a second thread.
    let privileges = Privileges::prepare(privileges, &plan.sockets())?;
    let begin_thread = {
        let privileges = privileges.clone();
        move || privileges.begin_thread()
    };
    // Dropped last: what the runtime leaves behind is written, too.
    let (records, _flush) =
        logs::start(log, begin_thread.clone()).context("cannot start the log")?;
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
    let work = async {
        let served = serve::run(plan, books, &privileges, requests, reread);
        Ok(match served.await? {
            Drained::Clean => ExitCode::SUCCESS,
            Drained::Cut(_) => ExitCode::FAILURE,
        })
    };
    on_runtime(begin_thread, work)
}

/// Runs `work` on this thread and others, which begin with `begin_thread`; and waits no longer than a moment for what it leaves behind: a name that is still being resolved.
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
