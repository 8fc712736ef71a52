//! What relay says: access records and diagnostics, read from its JSON log.

use std::fmt;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use crate::matrix::GREETING;

/// What carries a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Engine {
    /// BPF redirects segments in the kernel.
    Sockmap,
    /// splice(2).
    Splice,
    /// read(2) and write(2).
    Copy,
    /// What relay chooses, which may change while it carries. No record says so.
    Auto,
}

impl Engine {
    /// The name in flags and records.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Sockmap => "sockmap",
            Self::Splice => "splice",
            Self::Copy => "copy",
            Self::Auto => "auto",
        }
    }
}

impl fmt::Display for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The access record of one connection.
#[derive(Clone, Debug, Deserialize)]
pub struct Record {
    /// The route's name.
    pub route: String,
    /// The listener that the client came to.
    pub listener: String,
    /// Who connected.
    pub client: String,
    /// Who was dialled.
    pub upstream: Option<String>,
    /// What carried it.
    pub engine: Option<Engine>,
    /// Which engines did not, and why.
    pub declined: Vec<Declined>,
    /// Bytes from client to upstream.
    pub bytes_up: u64,
    /// Bytes from upstream to client.
    pub bytes_down: u64,
    /// From accept to end.
    pub duration_ms: u64,
    /// Who ended it, and how.
    pub end: End,
}

/// An engine that gave a connection back.
#[derive(Clone, Debug, Deserialize)]
pub struct Declined {
    /// Which.
    pub engine: Engine,
    /// Why.
    pub reason: String,
}

/// Who ended a connection, and how.
#[derive(Clone, Debug, Deserialize)]
pub struct End {
    /// `client`, `upstream` or `relay`.
    pub by: String,
    /// `end`, `reset`, `idle`, `drain` or `error`.
    pub how: String,
    /// What was wrong with a greeting.
    pub reason: Option<String>,
    /// The limit that was reached.
    pub limit: Option<String>,
    /// The system's number for an error.
    pub errno: Option<i32>,
    /// The call that failed.
    pub call: Option<String>,
}

impl Record {
    /// Checks who ended it and how.
    ///
    /// # Errors
    ///
    /// Fails when it was not so.
    pub fn ended(&self, by: &str, how: &str) -> Result<&Self> {
        ensure!(
            self.end.by == by && self.end.how == how,
            "ended by {} with {}, not by {by} with {how}: {self:?}",
            self.end.by,
            self.end.how
        );
        Ok(self)
    }

    /// Checks the bytes.
    ///
    /// # Errors
    ///
    /// Fails when others were counted.
    pub fn moved(&self, up: u64, down: u64) -> Result<&Self> {
        ensure!(
            (self.bytes_up, self.bytes_down) == (up, down),
            "{up} up and {down} down were moved, and the record says otherwise: {self:?}"
        );
        Ok(self)
    }

    /// Checks the bytes that went after the greeting of [`crate::matrix::Stage::join`].
    ///
    /// # Errors
    ///
    /// Fails when others were counted.
    pub fn moved_after_greeting(&self, up: u64, down: u64) -> Result<&Self> {
        self.moved(GREETING + up, GREETING + down)
    }

    /// Checks what carried it.
    ///
    /// # Errors
    ///
    /// Fails when it was another engine.
    pub fn carried_by(&self, engine: Engine) -> Result<&Self> {
        ensure!(
            self.engine == Some(engine) || (engine == Engine::Auto && self.engine.is_some()),
            "not carried by {engine}: {self:?}"
        );
        Ok(self)
    }

    /// Why `engine` did not take it.
    ///
    /// # Errors
    ///
    /// Fails when the record does not say that it declined.
    pub fn why_not(&self, engine: Engine) -> Result<&str> {
        let declined = self.declined.iter().find(|one| one.engine == engine);
        let declined = declined.with_context(|| format!("{engine} did not decline: {self:?}"))?;
        Ok(&declined.reason)
    }
}
