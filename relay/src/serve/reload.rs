//! Reading the settings again while the forwarder runs, and asking it for that.

use std::{sync::Arc, time::Duration};

use tokio::{
    sync::{mpsc, oneshot},
    task::spawn_blocking,
};

use super::listeners::{Changes, Listeners};
use crate::{
    notify,
    plan::{Plan, Policy},
};

/// Reads the plan again; the error is for the operator.
pub type Reread = Arc<dyn Fn() -> Result<Plan, String> + Send + Sync>;

/// Asks a forwarder for a reload. Clones ask the same one.
#[derive(Clone, Debug)]
pub struct Control {
    requests: mpsc::Sender<Request>,
}

type Answer = Result<Changes, String>;
type Request = oneshot::Sender<Answer>;

/// The forwarder's end of it.
#[derive(Debug)]
pub struct Requests(mpsc::Receiver<Request>);

/// A way to ask, and the end to give to [`run`](super::run).
#[must_use]
pub fn control() -> (Control, Requests) {
    // Who asks waits for the answer, so that there is no queue to speak of.
    let (requests, taken) = mpsc::channel(1);
    (Control { requests }, Requests(taken))
}

impl Control {
    /// Has the plan read again and applied.
    ///
    /// # Errors
    ///
    /// Says what is wrong with it, or that the forwarder is stopping; what ran before runs on.
    pub async fn reload(&self) -> Answer {
        let stopping = || "relay is stopping".to_owned();
        let (answer, answered) = oneshot::channel();
        let asked = self.requests.send(answer).await;
        asked.map_err(|_| stopping())?;
        answered.await.map_err(|_| stopping())?
    }
}

impl Requests {
    /// The next one. Without anybody to ask it never comes.
    pub(super) async fn next(&mut self) -> Request {
        match self.0.recv().await {
            Some(request) => request,
            None => std::future::pending().await,
        }
    }
}

/// What a reload needs to know, and what it changes besides the listeners.
pub(super) struct Reloads {
    pub(super) reread: Option<Reread>,
    /// Of the engines that run; they are made once.
    pub(super) policy: Policy,
    pub(super) drain: Duration,
}

impl Reloads {
    /// Reads the plan and applies it, or says why everything stays as it is; in the log, too.
    pub(super) async fn reload(&mut self, listeners: &mut Listeners) -> Answer {
        notify::reloading();
        let done = self.try_reload(listeners).await;
        notify::ready(match &done {
            Ok(_) => "reloaded",
            Err(_) => "not reloaded: the log says why; what ran before runs on",
        });
        match &done {
            Ok(changes) => tracing::info!(%changes, "reloaded"),
            Err(error) => tracing::error!(%error, "not reloaded; what ran before runs on"),
        }
        done
    }

    async fn try_reload(&mut self, listeners: &mut Listeners) -> Answer {
        let Some(reread) = self.reread.clone() else {
            return Err("there is no file to read again: the routes came from flags".into());
        };
        // A file may lie on a disk that is slow or gone.
        let plan = spawn_blocking(move || reread()).await;
        let plan = plan.map_err(|error| error.to_string())??;
        let changes = listeners.apply(plan.routes).await;
        let changes = changes.map_err(|fault| fault.to_string())?;
        self.drain = plan.drain;
        listeners.limit(plan.max_connections);
        listeners.ask(plan.dns);
        if plan.policy != self.policy {
            tracing::warn!(
                "engine, trust-kernel, offload-after, pipe-size and buffer-size take effect at the next start"
            );
        }
        Ok(changes)
    }
}
