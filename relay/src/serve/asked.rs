//! A client that says where it wants to go, and the connection there.

use std::{
    io,
    net::SocketAddr,
    time::{Duration, Instant},
};

use crate::{
    close::Outcome,
    connect,
    drain::Drain,
    greet::{self, Asked},
    pair::{Peer, Side, Socket},
    plan::Ask,
    stats::record::Record,
};

/// Hears what `client` asks for, connects it, and tells it what came of that. Gives both sockets.
///
/// # Errors
///
/// Says how the connection has ended.
pub(super) async fn join(
    client: Socket,
    ask: &Ask,
    limit: Duration,
    drain: &Drain,
    record: &mut Record,
) -> Result<(Socket, Socket), Outcome> {
    let Asked { client, to } = greet::asked(client, ask, drain).await?;
    let until = Instant::now() + limit;
    let dialling = async {
        let found = greet::found(&to, &ask.reach, limit).await?;
        dial(&found, until, record).await
    };
    let (fd, upstream) = connect::while_waited_for(client.fd, drain, dialling).await;
    greet::answer(Socket { fd, ..client }, ask.protocol, upstream).await
}

/// Tries the addresses in order, each with its share of the time that is left.
async fn dial(
    found: &[SocketAddr],
    until: Instant,
    record: &mut Record,
) -> Result<Socket, Outcome> {
    let mut last = io::ErrorKind::NotFound.into();
    for (at, left) in found.iter().zip((1..=found.len()).rev()) {
        let left = u32::try_from(left).unwrap_or(u32::MAX);
        let share = until.saturating_duration_since(Instant::now()) / left;
        record.dialled(Peer::Ip(*at));
        match connect::attempt(&Peer::Ip(*at), share).await {
            Ok(upstream) => return Ok(upstream),
            Err(errno) => last = errno.into(),
        }
    }
    Err(Outcome::failed(Side::Upstream, "connect", &last))
}
