//! The `relay` command: parse, plan, serve, exit code.

mod ask;
mod check;
mod cli;
mod config;
mod desk;
mod logs;
mod settings;
mod status;
mod top;

use std::{future::Future, process::ExitCode, sync::Arc, time::Duration};

use anyhow::{Context, Result};
use cli::{Command, Serve};
use config::Fault;
use relay::{
    accept::{Passed, bind_private},
    admin::{Admin, Desk},
    drain::Drained,
    plan::Address,
    privileges::Privileges,
    serve::{self, Reread},
    stats::books::Books,
};
use settings::Level;

fn main() -> ExitCode {
    let done = match cli::parse(std::env::args_os()) {
        Ok(Command::Serve(serve)) => start(serve),
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

fn start(serve: Serve) -> Result<ExitCode> {
    let Serve {
        plan,
        log,
        privileges,
        admin,
        source,
    } = serve;
    let passed = Passed::take().context("cannot take the sockets that systemd passes")?;
    // Before there is a second thread.
    let mut sockets = plan.sockets();
    if let Some(Address::Unix(path)) = &admin {
        sockets.push(path.clone());
    }
    let privileges = Privileges::prepare(privileges, &sockets)?;
    let begin_thread = {
        let privileges = privileges.clone();
        move || privileges.begin_thread()
    };
    // Dropped last: what the runtime leaves behind is written, too.
    let (records, dial, _flush) =
        logs::start(log, begin_thread.clone()).context("cannot start the log")?;
    let books = Arc::new(Books::new(Box::new(records)));
    let reread = source.map(|source| {
        let (admin, log) = (admin.clone(), log);
        let read = move || {
            let config = source.read()?;
            if config.admin != admin || config.log != log {
                tracing::warn!("[admin] and [log] take effect at the next start");
            }
            Ok(config.plan)
        };
        let read = move || read().map_err(|fault: Fault| fault.to_string());
        Arc::new(read) as Reread
    });
    let (control, requests) = serve::control();
    let work = async {
        if let Some(address) = admin {
            let desk = Desk {
                books: books.clone(),
                control,
                set_level: Box::new(move |name| dial.set(name.parse::<Level>()?.into())),
            };
            let listener = bind_private(&address, "--admin").await?;
            let admin = Admin::open(listener).context("cannot watch the admin listener")?;
            tokio::spawn(admin.serve(desk));
        }
        let served = serve::run(plan, books, passed, &privileges, requests, reread);
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
