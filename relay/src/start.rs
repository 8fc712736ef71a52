//! The forwarder, put together: sockets from elsewhere, privileges, log, admin listener, and what they are for.

use std::{path::PathBuf, process::ExitCode, sync::Arc};

use anyhow::{Context, Result};
use relay::{
    accept::{Listener, Passed, bind_private},
    admin::{Admin, Desk},
    drain::Drained,
    handover::{self, Heritage, Offers, Role},
    plan::{Address, Door, Tcp},
    privileges::Privileges,
    serve::{self, Estate, Reread, Sockets, Stop},
    stats::books::Books,
};

use crate::{
    cli::Serve,
    config::{Fault, Source},
    logs::{self, Log},
    on_runtime,
    settings::Level,
};

/// Forwards until it is asked to stop.
pub(crate) fn start(serve: Serve) -> Result<ExitCode> {
    let Serve {
        plan,
        log,
        privileges,
        admin,
        handover,
        source,
    } = serve;
    // Before anything has taken their numbers, or there is a second thread.
    let passed = Passed::take().context("cannot take the sockets that systemd passes")?;
    let mut sockets = plan.sockets();
    if let Some(Address::Unix(path)) = &admin {
        sockets.push(path.clone());
    }
    sockets.extend(handover.clone());
    let privileges = Privileges::prepare(privileges, &sockets)?;
    let begin_thread = {
        let privileges = privileges.clone();
        move || privileges.begin_thread()
    };
    // Dropped last: what the runtime leaves behind is written, too.
    let (records, dial, _flush) =
        logs::start(log, begin_thread.clone()).context("cannot start the log")?;
    let books = Arc::new(Books::new(Box::new(records)));
    let reread = source.map(|source| reread(source, admin.clone(), handover.clone(), log));
    let (control, requests) = serve::control();
    let work = async {
        let mut stop = Stop::new().context("cannot watch signals")?;
        let outside = tokio::select! {
            biased;
            () = stop.asked() => None,
            outside = outside(passed, admin.as_ref(), handover) => Some(outside?),
        };
        let Some((sockets, listener)) = outside else {
            tracing::info!("stopped before clients were served");
            return Ok(ExitCode::SUCCESS);
        };
        if let Some(listener) = listener {
            let desk = Desk {
                books: books.clone(),
                control,
                set_level: Box::new(move |name| dial.set(name.parse::<Level>()?.into())),
            };
            let admin = Admin::open(listener).context("cannot watch the admin listener")?;
            let left = sockets.estate.admin_left.clone();
            tokio::spawn(async move { left.run_until_cancelled(admin.serve(desk)).await });
        }
        let served = serve::run(plan, books, sockets, &privileges, requests, reread, stop);
        Ok(match served.await? {
            Drained::Clean => ExitCode::SUCCESS,
            Drained::Cut(_) => ExitCode::FAILURE,
        })
    };
    on_runtime(begin_thread, work)
}

/// Reads the file again; what takes effect at the start only is said to.
fn reread(
    source: Box<Source>,
    admin: Option<Address>,
    handover: Option<PathBuf>,
    log: Log,
) -> Reread {
    let read = move || {
        let config = source.read()?;
        if config.admin != admin || config.log != log || config.handover != handover {
            tracing::warn!("[admin], [log] and handover take effect at the next start");
        }
        Ok(config.plan)
    };
    Arc::new(move || read().map_err(|fault: Fault| fault.to_string()))
}

/// The listeners that are no route's, and what comes from another relay.
async fn outside(
    passed: Passed,
    admin: Option<&Address>,
    handover: Option<PathBuf>,
) -> Result<(Sockets, Option<Listener>)> {
    let mut heritage = match &handover {
        Some(path) => Heritage::ask(path).await?,
        None => Heritage::default(),
    };
    let mut estate = Estate::default();
    let listener = match admin {
        Some(address) => Some(private(&mut heritage, Role::Admin, address, "--admin").await?),
        None => None,
    };
    if let (Some(listener), Some(address)) = (&listener, admin) {
        estate.admin = Some(handover::Socket::new(Role::Admin, address, listener));
    }
    if let Some(path) = handover {
        let at = Address::Unix(path);
        let listener = private(&mut heritage, Role::Handover, &at, "--handover").await?;
        let offers = Offers::open(listener).context("cannot watch the handover listener")?;
        estate.offers = Some(offers);
    }
    let sockets = Sockets {
        passed,
        heritage,
        estate,
    };
    Ok((sockets, listener))
}

/// The listener of the relay before, or a new one.
async fn private(
    heritage: &mut Heritage,
    role: Role,
    address: &Address,
    flag: &'static str,
) -> Result<Listener> {
    let listen = address.to_string();
    let inherited = heritage.take(role, &listen, &Door::default(), &Tcp::default())?;
    match inherited.into_iter().next() {
        Some(listener) => Ok(listener),
        None => Ok(bind_private(address, flag).await?),
    }
}
