//! Handing over to a relay that starts, while everything else goes on.

use std::future::pending;

use tokio::signal::unix::Signal;
use tokio_util::sync::CancellationToken;

use super::{Requests, Stop};
use crate::{
    handover::{Heir, Offers, Role, Socket},
    notify,
};

/// What can be handed over besides the listeners of routes, and to whom.
#[derive(Debug, Default)]
pub struct Estate {
    /// Where a relay that starts asks; without it nothing is handed over.
    pub offers: Option<Offers>,
    /// The admin listener.
    pub admin: Option<Socket>,
    /// Says that the admin listener is another's.
    pub admin_left: CancellationToken,
}

/// How a conversation with a relay that starts has ended.
pub(super) enum Succession {
    /// The other has what it wants, and this relay is to drain.
    Done,
    /// It failed; this relay goes on.
    Failed,
    /// Meanwhile this relay was asked to stop.
    Stopped,
}

impl Estate {
    /// The next relay that starts. Without [`Estate::offers`] it never comes.
    pub(super) async fn heir(&self) -> Heir {
        match &self.offers {
            Some(offers) => offers.next().await,
            None => pending().await,
        }
    }

    /// Hands `sockets` over to `heir`, and the rest of it. A reload is refused meanwhile: it would change what is on offer.
    pub(super) async fn hand_over(
        &self,
        mut heir: Heir,
        mut sockets: Vec<Socket>,
        stop: &mut Stop,
        hangup: &mut Signal,
        requests: &mut Requests,
    ) -> Succession {
        let process = heir.process;
        tracing::info!(process, "another relay starts and asks for the listeners");
        sockets.extend(self.admin.clone());
        sockets.extend(self.offers.as_ref().map(Offers::socket));
        let taken = {
            let mut talk = std::pin::pin!(heir.convince(&sockets));
            loop {
                let busy = "another relay is taking over; reload that";
                tokio::select! {
                    biased;
                    () = stop.asked() => {
                        // The other has the sockets, and goes on with them.
                        sockets.iter().for_each(|socket| socket.held.leave());
                        return Succession::Stopped;
                    }
                    taken = &mut talk => break taken,
                    _ = hangup.recv() => tracing::error!("not reloaded: {busy}"),
                    request = requests.next() => {
                        // Who asked may be gone.
                        let _ = request.send(Err(busy.to_owned()));
                    }
                }
            }
        };
        let taken = match taken {
            Ok(taken) => taken,
            Err(why) => {
                tracing::warn!(
                    process,
                    "the other relay does not take over; this one goes on: {why}"
                );
                return Succession::Failed;
            }
        };
        for socket in taken.iter().filter_map(|at| sockets.get(*at)) {
            socket.held.leave();
            if socket.role == Role::Admin {
                self.admin_left.cancel();
            }
        }
        if let Some(process) = process {
            notify::main_process(process);
        }
        heir.release().await;
        tracing::info!(
            process,
            sockets = taken.len(),
            "handed over; no new connections"
        );
        Succession::Done
    }
}
