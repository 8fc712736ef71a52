//! The reference engine: read(2) into a pooled buffer, write(2) from it.
use crate::{drain::Drain, engine::Connection};
/// Stub.
#[derive(Debug, Default)]
pub struct Copy {}
impl Copy {
    /// Stub.
    pub async fn run(&self, _connection: Box<Connection>, _drain: &Drain) {}
}
