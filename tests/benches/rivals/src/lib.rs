//! What the rivals share: their command line, and accepting.

use std::{env, error::Error, future::Future, io, net::SocketAddr};

use tokio::net::{TcpListener, TcpStream};

/// From where to where, as the command line says.
pub fn addresses(library: &str) -> Result<[SocketAddr; 2], Box<dyn Error>> {
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

/// Accepts clients and has `carry` join each to an upstream, both without delay.
pub async fn serve<F>(
    [listen, to]: [SocketAddr; 2],
    carry: impl Fn(TcpStream, TcpStream) -> F + Clone + Send + 'static,
) -> Result<(), Box<dyn Error>>
where
    F: Future<Output = io::Result<()>> + Send,
{
    let listener = std::net::TcpListener::bind(listen)?;
    listener.set_nonblocking(true)?;
    let listener = TcpListener::from_std(listener)?;
    loop {
        let (client, _) = listener.accept().await?;
        let carry = carry.clone();
        tokio::spawn(async move {
            // A client that is gone is no news.
            let _ = join(client, to, carry).await;
        });
    }
}

async fn join<F>(
    client: TcpStream,
    to: SocketAddr,
    carry: impl Fn(TcpStream, TcpStream) -> F,
) -> io::Result<()>
where
    F: Future<Output = io::Result<()>>,
{
    let upstream = TcpStream::connect(to).await?;
    client.set_nodelay(true)?;
    upstream.set_nodelay(true)?;
    carry(client, upstream).await
}
