//! tokio-splice2's `copy_bidirectional`.

use std::error::Error;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let addresses = rivals::addresses("tokio-splice2 0.3")?;
    rivals::serve(addresses, |mut client, mut upstream| async move {
        tokio_splice2::copy_bidirectional(&mut client, &mut upstream).await?;
        Ok(())
    })
    .await
}
