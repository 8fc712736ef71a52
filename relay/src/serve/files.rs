//! What the limit of open files has room for, beside what is open when relay begins to serve.

use std::fs;

use rustix::process::{Resource, getrlimit};

use super::route::Shared;
use crate::plan::{Choice, EngineKind};

/// What is left for others than connections: name servers, checks, who looks at the admin listener, a second attempt of a dial.
const OTHERS: usize = 32;

/// The same again as a part of the limit, and at most.
const MORE: (usize, usize) = (16, 64);

/// Descriptors that connections leave to pipes, at most: as many as are kept for the next connection.
const PIPES: usize = 128;

/// Takes no more clients than there are descriptors for: one that is accepted must not be reset for want of one.
pub(super) fn fit(shared: &Shared, choice: Choice) {
    let Some(limit) = getrlimit(Resource::Nofile).current else {
        return;
    };
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let Ok(open) = fs::read_dir("/proc/self/fd") else {
        return;
    };
    let (all, pipes) = divide(limit, open.count(), choice);
    shared.room.fit(all, pipes);
    let Some(room) = shared.room.seats() else {
        return;
    };
    tracing::debug!(
        limit,
        room,
        "connections that the limit of open files has room for"
    );
    let wanted = shared.places.limit();
    if wanted > room {
        tracing::warn!(
            wanted,
            room,
            "max-connections-total is more than the limit of open files has room for; raise it (ulimit -n, LimitNOFILE=)"
        );
    }
}

/// Descriptors for connections and pipes, and those that connections leave to pipes.
fn divide(limit: usize, open: usize, choice: Choice) -> (usize, usize) {
    let others = OTHERS + (limit / MORE.0).min(MORE.1);
    let all = limit.saturating_sub(open).saturating_sub(others);
    let pipes = match choice {
        // Without a pipe it ends.
        Choice::Only(EngineKind::Splice) => (all / 2).min(PIPES),
        // Without a pipe it is copied.
        Choice::Auto => (all / 8).min(PIPES),
        Choice::Only(EngineKind::Sockmap | EngineKind::Copy) => 0,
    };
    (all, pipes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_limits_are_shared_and_large_ones_are_for_connections() {
        let copy = Choice::Only(EngineKind::Copy);
        assert_eq!(divide(1024, 30, Choice::Auto), (898, 112));
        assert_eq!(divide(1024, 30, copy), (898, 0));
        assert_eq!(divide(20_000, 30, Choice::Auto), (19_874, 128));
        assert_eq!(divide(20, 30, Choice::Auto), (0, 0));
        divide(usize::MAX, 30, Choice::Auto);
    }
}
