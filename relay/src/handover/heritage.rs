//! The side that starts: asks for the sockets of the relay that runs, and says when it is ready.

use std::{io, os::fd::OwnedFd, path::Path, time::Duration};

use tokio::{net::UnixStream, time::timeout};

use super::{
    Fault, Role, may,
    wire::{Line, New, Offered, Old, PROTOCOL},
};
use crate::{
    accept::{BindError, Held, Listener, inherit},
    plan::{Door, Tcp},
};

/// How long the relay that runs may take to answer; it may be in the middle of a reload.
const PATIENCE: Duration = Duration::from_secs(30);

/// The sockets of the relay that runs, as far as they are not taken yet.
#[derive(Debug, Default)]
pub struct Heritage {
    sockets: Vec<Option<(Offered, OwnedFd)>>,
    taken: Vec<(usize, Held)>,
    from: Option<From>,
}

#[derive(Debug)]
struct From {
    line: Line,
    path: String,
}

impl From {
    fn fault(&self, what: impl ToString, advice: &'static str) -> Fault {
        let (path, what) = (self.path.clone(), what.to_string());
        Fault::Asking { path, what, advice }
    }
}

impl Heritage {
    /// Asks at `path`. Where nobody is, there is nothing to inherit.
    ///
    /// # Errors
    ///
    /// Fails when somebody is there, and does not hand over.
    pub async fn ask(path: &Path) -> Result<Self, Fault> {
        let fault = |what: String, advice| Fault::Asking {
            path: path.display().to_string(),
            what,
            advice,
        };
        let stream = match UnixStream::connect(path).await {
            Ok(stream) => stream,
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused
                ) =>
            {
                return Ok(Self::default());
            }
            Err(error) => {
                let what = format!("cannot ask the relay that runs: {error}");
                return Err(fault(what, "start relay as the same user, or as root"));
            }
        };
        let owner = stream.peer_cred().map(|owner| owner.uid());
        if !owner.as_ref().is_ok_and(|uid| may(*uid)) {
            let what = format!("whoever listens there is neither root nor this user: {owner:?}");
            return Err(fault(what, "choose a path in a directory of relay's own"));
        }
        let mut from = From {
            line: Line::new(stream),
            path: path.display().to_string(),
        };
        let sockets = match timeout(PATIENCE, offered(&mut from.line)).await {
            Ok(Ok(sockets)) => sockets,
            Ok(Err(error)) => {
                let what = format!("the relay that runs does not hand over: {error}");
                return Err(from.fault(what, "its log may say why; stop it and start anew"));
            }
            Err(_) => {
                let what = "the relay that runs does not answer";
                return Err(from.fault(what, "see what it is at, or stop it and start anew"));
            }
        };
        tracing::info!(
            sockets = sockets.len(),
            "taking over from the relay that runs"
        );
        Ok(Self {
            sockets: sockets.into_iter().map(Some).collect(),
            taken: Vec::new(),
            from: Some(from),
        })
    }

    /// Takes what stands for `listen` in this role.
    ///
    /// # Errors
    ///
    /// Fails when it does not bear the options of `door` and `tcp`.
    pub fn take(
        &mut self,
        role: Role,
        listen: &str,
        door: &Door,
        tcp: &Tcp,
    ) -> Result<Vec<Listener>, BindError> {
        let mut listeners = Vec::new();
        for (at, slot) in self.sockets.iter_mut().enumerate() {
            let wanted =
                |one: &mut (Offered, OwnedFd)| one.0.role == role && one.0.listen == listen;
            let Some((offered, fd)) = slot.take_if(wanted) else {
                continue;
            };
            let Offered { file, passed, .. } = offered;
            let listener = inherit(fd, listen, file, passed, tcp)?;
            self.taken.push((at, listener.held().clone()));
            listeners.push(listener);
            // Each of those that were opened for port 0 is another one.
            if listen.ends_with(":0") && !door.reuse_port {
                break;
            }
        }
        Ok(listeners)
    }

    /// Says that this relay is ready to accept, and waits until what it took is its own.
    ///
    /// # Errors
    ///
    /// Fails when the other one has thought better of it. If that is gone, the sockets are ours alone.
    pub async fn confirm(&mut self) -> Result<(), Fault> {
        self.sockets.clear();
        let (taken, held): (_, Vec<Held>) = self.taken.drain(..).unzip();
        let Some(mut from) = self.from.take() else {
            return Ok(());
        };
        let answered = async {
            from.line.say(&New::Ready { taken }, &[]).await?;
            from.line.hear::<Old>().await
        };
        match timeout(PATIENCE, answered).await {
            Ok(Ok(Some(Old::Yours))) => tracing::info!("took over; the other relay drains"),
            Ok(Ok(Some(Old::Withdrawn { why }))) => {
                return Err(from.fault(why, "start relay again"));
            }
            gone => {
                let _ = gone.map(|answer| {
                    answer.inspect_err(|error| tracing::debug!(%error, "the other relay"))
                });
                tracing::warn!(
                    "the relay that ran is gone; its listeners are taken over all the same"
                );
            }
        }
        held.iter().for_each(Held::claim);
        Ok(())
    }
}

/// All that is offered.
async fn offered(line: &mut Line) -> io::Result<Vec<(Offered, OwnedFd)>> {
    let mut all = Vec::new();
    loop {
        let (sockets, more) = match line.hear::<Old>().await? {
            Some(Old::Offer {
                protocol: PROTOCOL,
                sockets,
                more,
            }) => (sockets, more),
            Some(Old::Withdrawn { why }) => return Err(io::Error::other(why)),
            Some(_) => return Err(io::Error::other("it is of another version")),
            None => return Err(io::Error::other("it hung up")),
        };
        for offered in sockets {
            all.push((offered, line.socket()?));
        }
        if !more {
            return Ok(all);
        }
    }
}
