//! The FIN after the bytes: a half-close goes on only when everything before it has reached the target.

use rustix::net::{Shutdown, shutdown};

use super::carried::Carried;
use crate::{
    close::{By, How, Outcome},
    pair::Direction,
    sys::tcp,
};

/// Passes on the FIN of `direction` if all that came before it is with the target's socket; false while it is not.
///
/// The bytes that the source has received since its beginning, less those that were read before it entered the map and
/// the FIN that TCP counts as one, are those that the program must have judged.
pub(super) fn pass_on(carried: &Carried, direction: Direction) -> Result<bool, Outcome> {
    let (from, to) = (direction.from(), direction.to());
    let source = carried.connection.pair.socket(from);
    let failed = |error: std::io::Error| Outcome::failed(from, "getsockopt", &error);
    let info = tcp::info(source).map_err(failed)?;
    if !info.is_read_closed() {
        return Ok(false);
    }
    let flow = carried.flow(direction);
    let seen = carried.seen(direction);
    if seen >= info.bytes_received {
        // The connection is gone, and there was no FIN.
        return Err(Outcome {
            by: By::from(from),
            how: How::Reset,
        });
    }
    if seen + 1 < info.bytes_received {
        tcp::kick(source).map_err(failed)?;
        return Ok(false);
    }
    let failed = |error: std::io::Error| Outcome::failed(to, "shutdown", &error);
    if flow.waiting() > 0 || !carried.settled(direction).map_err(failed)? {
        return Ok(false);
    }
    let target = carried.connection.pair.socket(to);
    shutdown(target, Shutdown::Write).map_err(|errno| failed(errno.into()))?;
    carried.note_end(direction);
    Ok(true)
}
