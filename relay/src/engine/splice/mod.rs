//! splice(2) through a pipe.
use crate::{
    drain::Drain,
    engine::{Connection, Declined},
};
use std::sync::Arc;
/// Stub.
#[derive(Debug)]
pub struct Splice {}
impl Splice {
    /// Stub.
    pub fn start() -> Result<Self, Arc<str>> {
        Ok(Self {})
    }
    /// Stub.
    pub async fn run(&self, _connection: Box<Connection>, _drain: &Drain) -> Result<(), Declined> {
        Ok(())
    }
}
