//! The rival that `cargo xtask measure` compares with: the least proxy that tokio-splice2 makes.

use std::{env, error::Error, net::SocketAddr};

use tokio::net::{TcpListener, TcpStream};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = env::args().skip(1);
    let (Some(listen), Some(to)) = (arguments.next(), arguments.next()) else {
        return Err("usage: rival LISTEN TO".into());
    };
    let to: SocketAddr = to.parse()?;
    let listener = TcpListener::bind(listen).await?;
    let address = listener.local_addr()?;
    eprintln!(r#"{{"message":"listening","listen":"{address}"}}"#);
    loop {
        let (client, _) = listener.accept().await?;
        tokio::spawn(async move {
            if let Err(error) = carry(client, to).await {
                eprintln!("{error}");
            }
        });
    }
}

async fn carry(mut client: TcpStream, to: SocketAddr) -> std::io::Result<()> {
    let mut upstream = TcpStream::connect(to).await?;
    client.set_nodelay(true)?;
    upstream.set_nodelay(true)?;
    tokio_splice2::copy_bidirectional(&mut client, &mut upstream).await?;
    Ok(())
}
