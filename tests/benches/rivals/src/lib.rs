//! What the rivals share: their command line, and accepting.

use std::{
    convert::Infallible, env, error::Error, future::Future, io, net::SocketAddr, path::PathBuf,
    str::FromStr,
};

use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio_splice2::{AsyncReadFd, AsyncWriteFd, IsNotFile};

/// A connection: each of these libraries takes all kinds of it.
pub trait End: AsyncReadFd + AsyncWriteFd + IsNotFile + Unpin + Send + 'static {}

impl End for TcpStream {}
impl End for UnixStream {}

/// What joins two connections.
pub trait Carry: Copy + Send + 'static {
    /// Moves bytes both ways until both have ended.
    fn carry(
        self,
        client: impl End,
        upstream: impl End,
    ) -> impl Future<Output = io::Result<()>> + Send;
}

/// `ip:port` or `unix:/path`.
#[derive(Clone)]
pub enum Address {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

impl FromStr for Address {
    type Err = std::net::AddrParseError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.strip_prefix("unix:") {
            Some(path) => Ok(Self::Unix(path.into())),
            None => text.parse().map(Self::Tcp),
        }
    }
}

/// From where to where, as the command line says.
pub fn addresses<A>(library: &str) -> Result<[A; 2], Box<dyn Error>>
where
    A: FromStr<Err: Error + 'static>,
{
    let arguments = Vec::from_iter(env::args().skip(1));
    if arguments.iter().any(|argument| argument == "--version") {
        println!("{library}");
        std::process::exit(0);
    }
    match &arguments[..] {
        [listen, to] => Ok([listen.parse()?, to.parse()?]),
        _ => Err("usage: LISTEN TO".into()),
    }
}

/// Accepts clients and has `carry` join each to an upstream, those of TCP without delay.
pub async fn serve(
    [listen, to]: [Address; 2],
    carry: impl Carry,
) -> Result<Infallible, Box<dyn Error>> {
    match listen {
        Address::Tcp(address) => {
            let listener = std::net::TcpListener::bind(address)?;
            listener.set_nonblocking(true)?;
            let listener = TcpListener::from_std(listener)?;
            loop {
                let (client, _) = listener.accept().await?;
                // One that is gone already refuses.
                if client.set_nodelay(true).is_ok() {
                    tokio::spawn(join(client, to.clone(), carry));
                }
            }
        }
        Address::Unix(path) => {
            let listener = UnixListener::bind(path)?;
            loop {
                let (client, _) = listener.accept().await?;
                tokio::spawn(join(client, to.clone(), carry));
            }
        }
    }
}

/// A client that is gone is no news, and so nothing is said of errors.
async fn join(client: impl End, to: Address, carry: impl Carry) {
    let _ = connect(client, to, carry).await;
}

async fn connect(client: impl End, to: Address, carry: impl Carry) -> io::Result<()> {
    match to {
        Address::Tcp(address) => {
            let upstream = TcpStream::connect(address).await?;
            upstream.set_nodelay(true)?;
            carry.carry(client, upstream).await
        }
        Address::Unix(path) => carry.carry(client, UnixStream::connect(path).await?).await,
    }
}
