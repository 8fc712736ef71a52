//! tokio's `copy_bidirectional`, with buffers of 64 KiB.

use std::error::Error;

use tokio::io::copy_bidirectional_with_sizes;

const BUFFER: usize = 64 * 1024;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let addresses = rivals::addresses("tokio 1 copy_bidirectional")?;
    rivals::serve(addresses, |mut client, mut upstream| async move {
        copy_bidirectional_with_sizes(&mut client, &mut upstream, BUFFER, BUFFER).await?;
        Ok(())
    })
    .await
}
