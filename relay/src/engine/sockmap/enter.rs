//! Into the map: both sockets inserted with the gates closed, then the gates opened, then both kicked.

use std::{io, sync::Arc};

use relay_common::flow::OPEN;
use rustix::io::Errno;

use super::{
    carried::{Base, Carried, Names, judge_unread},
    slots::{Lease, Slots},
};
use crate::{
    decline::Why,
    engine::{Connection, Declined},
    pair::{Direction, Side},
    sys::tcp,
};

/// How many slots to try: one can still be held by a socket that another engine carries to its end.
const TRIES: usize = 4;

/// Puts the sockets of `connection` into the map, their gates closed; nothing is redirected until [`open`]. The program
/// gets whole segments, also one of which a part was read before, and cuts that off.
pub(super) fn enter(
    base: &Arc<Base>,
    slots: &Arc<Slots>,
    mut connection: Box<Connection>,
) -> Result<Carried, Declined> {
    if connection.pace.is_some() {
        let why = Why::Paced;
        return Err(Declined { connection, why });
    }
    let written = match Side::BOTH.map(|side| fit(&connection, side)) {
        [Ok(client), Ok(upstream)] => [client, upstream],
        [Err(why), _] | [_, Err(why)] => return Err(Declined { connection, why }),
    };
    // Kept until a free one is found, or the next try would get the same.
    let mut taken = Vec::new();
    while taken.len() < TRIES {
        let Some(lease) = slots.lease() else {
            return Err(Declined {
                connection,
                why: Why::Full,
            });
        };
        match insert(base, &connection, &lease) {
            Ok(names) => {
                return Ok(Carried::new(
                    connection,
                    names,
                    lease,
                    base.clone(),
                    written,
                ));
            }
            Err(Refusal::SlotTaken) => taken.push(lease),
            Err(Refusal::Socket { why, inserted }) => {
                // A socket leaves the map only by closing: bytes in flight would be dropped after their ACK. Its gate
                // stays closed, so everything can be read from it.
                for side in inserted {
                    match side {
                        Side::Client => connection.pair.client.mapped = true,
                        Side::Upstream => connection.pair.upstream.mapped = true,
                    }
                }
                return Err(Declined { connection, why });
            }
        }
    }
    Err(Declined {
        connection,
        why: Why::Full,
    })
}

/// Lets the program redirect, and runs it over what has arrived since before the insert.
pub(super) fn open(carried: &Carried) {
    for direction in Direction::BOTH {
        carried.flow(direction).set_gate(OPEN);
    }
    for side in Side::BOTH {
        // It fails only on a socket that reports an error, which the supervisor sees.
        let _ = tcp::kick(carried.connection.pair.socket(side));
    }
}

/// Checks what needs no insert to be known, and gives what was written to the socket so far, which is also what no
/// acknowledgement of a greeting may change.
fn fit(connection: &Connection, side: Side) -> Result<u64, Why> {
    let socket = connection.pair.socket(side);
    if !socket.is_tcp() {
        return Err(Why::NotTcp(side));
    }
    let failed = |error: io::Error| refusal(side, &error);
    if tcp::protocol(socket).map_err(failed)? != libc::IPPROTO_TCP {
        return Err(Why::Mptcp(side));
    }
    if tcp::info(socket).map_err(failed)?.state != tcp::state::ESTABLISHED {
        return Err(Why::Finished(side));
    }
    // The program asks for room in the send buffer; that room must be all that a send needs.
    tcp::ignore_notsent_lowat(socket).map_err(failed)?;
    tcp::written_so_far(socket).map_err(failed)
}

enum Refusal {
    SlotTaken,
    Socket { why: Why, inserted: Vec<Side> },
}

fn insert(base: &Arc<Base>, connection: &Connection, lease: &Lease) -> Result<Names, Refusal> {
    for side in Side::BOTH {
        base.ledger.entry(lease.slot(side.index())).reset();
    }
    let refused = |side, error: io::Error, inserted| match error.raw_os_error() {
        Some(libc::EEXIST) if side == Side::Client => Refusal::SlotTaken,
        _ => Refusal::Socket {
            why: refusal(side, &error),
            inserted,
        },
    };
    let names = Names::give(base, connection, lease)
        .map_err(|(side, error)| refused(side, error, Vec::new()))?;
    let mut inserted = Vec::new();
    for side in Side::BOTH {
        let socket = connection.pair.socket(side);
        if let Err(error) = base
            .kernel
            .insert(lease.slot(side.index()), rustix::fd::AsFd::as_fd(socket))
        {
            judge_unread(connection, &inserted);
            return Err(refused(side, error, inserted));
        }
        inserted.push(side);
    }
    Ok(names)
}

/// What the kernel's refusal of a socket means; net/core/sock_map.c and net/core/skmsg.c.
fn refusal(side: Side, error: &io::Error) -> Why {
    match Errno::from_io_error(error).unwrap_or(Errno::IO) {
        Errno::OPNOTSUPP => Why::Finished(side),
        Errno::INVAL => Why::Ulp(side),
        Errno::BUSY => Why::Busy(side),
        errno => Why::Insert { side, errno },
    }
}
