//! A client that says where it wants to go, and the connection there.

use crate::{
    close::Outcome,
    connect::Opening,
    drain::Drain,
    greet::{self, Asked},
    pair::{Peer, Socket},
    plan::Ask,
    stats::record::Record,
    upstream::{Elsewhere, Upstreams},
};

/// Hears what `client` asks for, connects it, on behalf of `from` and with `opening`, and tells it what came of that. Gives both sockets.
///
/// # Errors
///
/// Says how the connection has ended.
pub(super) async fn join(
    client: Socket,
    ask: &Ask,
    from: &Peer,
    opening: Opening,
    upstreams: &Upstreams,
    drain: &Drain,
    record: &mut Record,
) -> Result<(Socket, Socket), Outcome> {
    let Asked { client, to } = greet::asked(client, ask, drain).await?;
    let to = Elsewhere {
        to: &to,
        reach: Some(&ask.reach),
    };
    let dialled = upstreams.dial(client, from, Some(to), opening, drain).await;
    if let Some(peer) = dialled.peer {
        record.dialled(peer);
    }
    let upstream = dialled.upstream.map(|(upstream, taken)| {
        record.taken(taken);
        upstream
    });
    greet::answer(dialled.client, ask.protocol, upstream).await
}
