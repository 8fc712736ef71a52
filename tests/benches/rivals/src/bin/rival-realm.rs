//! realm, from its core as it is published.

use std::error::Error;

use realm_core::endpoint::{BindOpts, ConnectOpts, Endpoint, RemoteAddr};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let [laddr, to] = rivals::addresses("realm_core 0.5")?;
    realm_core::tcp::run_tcp(Endpoint {
        laddr,
        raddr: RemoteAddr::SocketAddr(to),
        bind_opts: BindOpts::default(),
        conn_opts: ConnectOpts::default(),
        extra_raddrs: Vec::new(),
    })
    .await?;
    Ok(())
}
