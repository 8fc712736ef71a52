//! Where finished records go.

use crate::stats::record::Finished;

/// Takes the record of every connection that has ended. It is called from the tasks that move bytes and must not block.
pub trait Sink: Send + Sync {
    /// A connection has ended.
    fn ended(&self, record: &Finished<'_>);
}

/// Drops every record.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silent;

impl Sink for Silent {
    fn ended(&self, _record: &Finished<'_>) {}
}
