//! The commands that ask a relay that runs.

use std::path::Path;

use clap::{Args, Subcommand};
use relay::plan::Address;

use crate::settings::{Level, Positive};

/// What to ask, and whom.
#[derive(Debug, Subcommand)]
pub(crate) enum Ask {
    /// Prints what a running relay does: engines, routes, totals, and why connections went one engine down.
    Status {
        /// Print one JSON object instead of tables.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        at: At,
    },
    /// Shows a running relay live: routes, engines, and connections by rate; q quits.
    Top {
        /// How often to look.
        #[arg(long, value_name = "DURATION", default_value = "1s")]
        interval: Positive,
        #[command(flatten)]
        at: At,
    },
    /// Has a running relay read its file again: listeners that stay keep their sockets, connections go on.
    Reload {
        #[command(flatten)]
        at: At,
    },
    /// Changes the least grave diagnostic that a running relay writes, until it ends.
    LogLevel {
        /// The level.
        level: Level,
        #[command(flatten)]
        at: At,
    },
}

/// Which relay to ask.
#[derive(Args, Debug)]
pub(crate) struct At {
    /// Its admin listener, as its own --admin has it. By default unix:/run/relay.sock, and unix:/run/relay/admin.sock where only
    /// that is there: a place that the systemd unit can have.
    #[arg(long, value_name = "ADDR")]
    admin: Option<Address>,
}

/// Where an admin listener is looked for, in this order.
const USUAL: [&str; 2] = ["/run/relay.sock", "/run/relay/admin.sock"];

impl At {
    /// The address to ask.
    pub(crate) fn address(self) -> Address {
        self.admin.unwrap_or_else(|| {
            let mut there = USUAL.iter().filter(|path| Path::new(path).exists());
            Address::Unix(there.next().unwrap_or(&USUAL[0]).into())
        })
    }
}
