//! tokio's `copy_bidirectional`, with buffers of 64 KiB.

use std::{convert::Infallible, error::Error, io};

use rivals::{Carry, End};
use tokio::io::copy_bidirectional_with_sizes;

const BUFFER: usize = 64 * 1024;

#[derive(Clone, Copy)]
struct Copying;

impl Carry for Copying {
    async fn carry(self, mut client: impl End, mut upstream: impl End) -> io::Result<()> {
        copy_bidirectional_with_sizes(&mut client, &mut upstream, BUFFER, BUFFER).await?;
        Ok(())
    }
}

#[tokio::main]
async fn main() -> Result<Infallible, Box<dyn Error>> {
    rivals::serve(rivals::addresses("tokio 1 copy_bidirectional")?, Copying).await
}
