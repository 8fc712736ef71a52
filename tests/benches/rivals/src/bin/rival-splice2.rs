//! tokio-splice2's `copy_bidirectional`.

use std::{convert::Infallible, error::Error, io};

use rivals::{Carry, End};

#[derive(Clone, Copy)]
struct Splice2;

impl Carry for Splice2 {
    async fn carry(self, mut client: impl End, mut upstream: impl End) -> io::Result<()> {
        tokio_splice2::copy_bidirectional(&mut client, &mut upstream).await?;
        Ok(())
    }
}

#[tokio::main]
async fn main() -> Result<Infallible, Box<dyn Error>> {
    rivals::serve(rivals::addresses("tokio-splice2 0.3")?, Splice2).await
}
