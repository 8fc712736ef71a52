//! Fuzz targets: one for each thing that relay parses and did not write itself.
//!
//! A target takes any bytes and panics when something is wrong with what relay made of them. `cargo xtask fuzz` drives
//! them with bytes that reach ever more of the code; `tests/corpus.rs` with those that are kept.

mod addresses;
mod files;
mod greetings;

/// The modules of the program, as they are. They belong to its binary, and a path attribute on each of them would have
/// their own modules looked for in the wrong place.
#[path = "../../../relay/src"]
#[expect(dead_code, reason = "of the program, only what reads files is driven")]
mod program {
    pub(crate) mod config;
    pub(crate) mod logs;
    pub(crate) mod settings;
}

use program::{config, logs, settings};

/// Something that is given bytes.
pub struct Target {
    /// What it is called, and the directory of its corpus.
    pub name: &'static str,
    /// Panics when something is wrong.
    pub run: fn(&[u8]),
}

const fn target(name: &'static str, run: fn(&[u8])) -> Target {
    Target { name, run }
}

/// All targets.
pub const TARGETS: [Target; 6] = [
    target("address", addresses::address),
    target("config", files::toml),
    target("http_connect", greetings::http_connect),
    target("proxy", greetings::proxy),
    target("rinetd", files::rinetd),
    target("socks5", greetings::socks5),
];

/// The target of this name.
#[must_use]
pub fn find(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|target| target.name == name)
}
