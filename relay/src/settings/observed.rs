//! How relay is watched: its log, and its admin listener.

use clap::Args;
use merge::{Merge, option::overwrite_none};
use relay::plan::Address;
use serde::Deserialize;

use super::{Level, values::LogFormat};
use crate::logs::{Format, Log};

/// What may be said of the log.
#[derive(Args, Clone, Copy, Debug, Default, Deserialize, Merge)]
#[merge(strategy = overwrite_none)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct Logging {
    /// How diagnostics and records are written to stderr [default: text].
    #[arg(long = "log-format", value_name = "FORMAT")]
    format: Option<LogFormat>,
    /// The least grave diagnostic that is written; records are written always [default: info].
    #[arg(long = "log-level", value_name = "LEVEL")]
    level: Option<Level>,
}

impl Logging {
    /// With the defaults filled in.
    pub(crate) fn log(self) -> Log {
        Log {
            format: self.format.map_or(Format::Text, Into::into),
            level: self.level.unwrap_or(Level::Info).into(),
        }
    }
}

/// What may be said of the admin listener.
#[derive(Args, Clone, Debug, Default, Deserialize, Merge)]
#[merge(strategy = overwrite_none)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct Admin {
    /// Serves metrics, health, the state in JSON and steering over HTTP there: 127.0.0.1:9900 or unix:/run/relay.sock.
    ///
    /// Whoever can connect can also have the file read again and set the log level; a Unix socket is its owner's alone.
    #[arg(id = "admin", long = "admin", value_name = "ADDR")]
    pub(crate) listen: Option<Address>,
}
