//! Clients that say where they want to go, in SOCKS5 or by HTTP CONNECT: what they ask, and what they are told.

use std::time::Duration;

use rustix::net::{Shutdown, getsockname, shutdown};
use subtle::ConstantTimeEq;
use tokio::time::timeout;

use super::{Refusal, ear::Ear, http, say, socks5, within};
use crate::{
    close::{self, Outcome},
    drain::Drain,
    pair::{Side, Socket},
    plan::{Address, Ask, Credentials, Protocol},
};

/// How long a client that is refused may take to read why.
const FAREWELL: Duration = Duration::from_secs(2);
/// How much of what it still says is read meanwhile: unread, it would make a reset of the end, and destroy the answer.
const UNHEARD: u64 = 1024 * 1024;

/// A client that waits to be connected.
#[derive(Debug)]
pub struct Asked {
    /// The client.
    pub client: Socket,
    /// Where it wants to go.
    pub to: Address,
}

/// Hears where `client` wants to go. A client that is refused has been told why when this returns.
///
/// # Errors
///
/// Says how the connection has ended.
pub async fn asked(client: Socket, ask: &Ask, drain: &Drain) -> Result<Asked, Outcome> {
    let mut ear = Ear::new(client)?;
    let hearing = async {
        match ask.protocol {
            Protocol::Socks5 => by_socks5(&mut ear, ask).await,
            Protocol::HttpConnect => by_http(&mut ear, ask).await,
        }
    };
    let heard = within(ask.limit, drain, hearing).await;
    match heard {
        Ok(to) => Ok(Asked {
            client: ear.release(),
            to,
        }),
        Err(Refused { refusal, answer }) => {
            if let Some(answer) = answer {
                farewell(ear, &answer).await;
            }
            Err(refusal.outcome())
        }
    }
}

/// A refusal, and what the client is told of it.
struct Refused {
    refusal: Refusal,
    answer: Option<Vec<u8>>,
}

impl From<Refusal> for Refused {
    fn from(refusal: Refusal) -> Self {
        Self {
            refusal,
            answer: None,
        }
    }
}

async fn by_socks5(ear: &mut Ear, ask: &Ask) -> Result<Address, Refused> {
    let offered = ear.hear(socks5::MOST, socks5::ways).await?;
    let way = match &ask.credentials {
        None => socks5::NO_AUTHENTICATION,
        Some(_) => socks5::USER_AND_PASSWORD,
    };
    let refused = |refusal, answer: &[u8]| Refused {
        refusal,
        answer: Some(answer.to_vec()),
    };
    if !offered.contains(&way) {
        return Err(refused(Refusal::Unauthorized, &socks5::choose(None)));
    }
    ear.say(&socks5::choose(Some(way)))?;
    if let Some(credentials) = &ask.credentials {
        let (user, password) = ear.hear(socks5::MOST, socks5::credentials).await?;
        if !knows(credentials, &user, &password) {
            return Err(refused(Refusal::Unauthorized, &socks5::admit(false)));
        }
        ear.say(&socks5::admit(true))?;
    }
    match ear.hear(socks5::MOST, socks5::request).await? {
        socks5::Request::Connect(to) => Ok(to),
        socks5::Request::Other(reply) => Err(refused(Refusal::Command, &reply.message(None))),
    }
}

async fn by_http(ear: &mut Ear, ask: &Ask) -> Result<Address, Refused> {
    let refused = |refusal: Refusal| Refused {
        answer: http::refused(&refusal),
        refusal,
    };
    let head = ear.hear(http::MOST, http::head).await.map_err(refused)?;
    let to = head.to.ok_or_else(|| refused(Refusal::Command))?;
    if let Some(credentials) = &ask.credentials {
        let given = head.authorization.unwrap_or_default();
        let mut parts = given.splitn(2, |byte| *byte == b':');
        let (user, password) = (parts.next(), parts.next());
        if !knows(
            credentials,
            user.unwrap_or_default(),
            password.unwrap_or_default(),
        ) {
            return Err(refused(Refusal::Unauthorized));
        }
    }
    to.map_err(refused)
}

/// Both are compared, and each in constant time: what a guess has right cannot be told from how long it takes.
fn knows(credentials: &Credentials, user: &[u8], password: &[u8]) -> bool {
    let user = credentials.user.as_bytes().ct_eq(user);
    let password = credentials.password.as_bytes().ct_eq(password);
    (user & password).into()
}

/// How the connection of a client ends that may not go where it wants to.
#[must_use]
pub fn out_of_reach() -> Outcome {
    Refusal::Destination.outcome()
}

/// Tells `client` what came of what it asked for. One whose upstream is not to be had is told why, and is gone then.
///
/// # Errors
///
/// Says how the connection has ended.
pub async fn answer(
    client: Socket,
    protocol: Protocol,
    upstream: Result<Socket, Outcome>,
) -> Result<(Socket, Socket), Outcome> {
    let refused = |outcome: &Outcome| *outcome == out_of_reach();
    match upstream {
        Ok(upstream) => {
            let message = match protocol {
                Protocol::Socks5 => {
                    let near = getsockname(&upstream).ok();
                    let near = near.and_then(|near| near.try_into().ok());
                    socks5::Reply::Succeeded.message(near)
                }
                Protocol::HttpConnect => http::CONNECTED.to_vec(),
            };
            say(&client, Side::Client, &message)?;
            Ok((client, upstream))
        }
        Err(outcome) => {
            let message = match protocol {
                Protocol::Socks5 if refused(&outcome) => {
                    Some(socks5::Reply::NotAllowed.message(None))
                }
                Protocol::Socks5 => Some(socks5::Reply::of(&outcome).message(None)),
                Protocol::HttpConnect if refused(&outcome) => http::refused(&Refusal::Destination),
                Protocol::HttpConnect => Some(http::failed(&outcome)),
            };
            if let (Some(message), Ok(ear)) = (message, Ear::new(client)) {
                farewell(ear, &message).await;
            }
            Err(outcome)
        }
    }
}

/// The last words to a client, and an orderly end.
async fn farewell(ear: Ear, words: &[u8]) {
    if ear.say(words).is_err() || shutdown(&ear, Shutdown::Write).is_err() {
        return;
    }
    // A client that does not end by then has had the time to read.
    let _ = timeout(FAREWELL, ear.ignore(UNHEARD)).await;
    let client = ear.release();
    close::disarm(&client);
    drop(client);
}
