//! What a run has found: every raw sample, and on which machine. This is the JSON file.

use serde::{Deserialize, Serialize};

use super::machine::Machine;

/// One call of the command.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Run {
    /// When it began, UTC, in the form of RFC 3339.
    pub(super) begun: String,
    pub(super) command: String,
    /// The commit of relay, with a `+` when the tree was changed.
    pub(super) commit: String,
    pub(super) machine: Machine,
    pub(super) tables: Vec<Table>,
}

/// What one workload has found.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Table {
    pub(super) workload: String,
    pub(super) about: String,
    pub(super) metrics: Vec<Metric>,
    pub(super) rows: Vec<Row>,
}

/// What is measured.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub(super) struct Metric {
    pub(super) name: String,
    pub(super) unit: String,
    pub(super) better: Better,
}

/// Which way is good.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Better {
    More,
    Less,
}

/// One contestant.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(super) struct Row {
    pub(super) contestant: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) version: Option<String>,
    /// Which engine or system call was seen to do it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) moved_by: Option<String>,
    /// In each round, a sample for each metric; none for a round that failed.
    pub(super) rounds: Vec<Option<Vec<f64>>>,
    /// Quantiles of all rounds together and the latency there, in microseconds.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) latency: Vec<(f64, f64)>,
    /// Why this is nothing for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) absent: Option<String>,
    /// Where CPU time went in one more turn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) profile: Option<Profile>,
    /// Why it is missing, or what ended it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) fault: Option<String>,
}

/// Where the whole machine's CPU time went.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Profile {
    /// The file of the flame graph.
    pub(super) svg: String,
    /// Samples of busy CPUs.
    pub(super) samples: u64,
    /// Samples of idle ones.
    pub(super) idle: u64,
    /// Functions, without those they call, and their share of the samples of busy CPUs in percent.
    pub(super) hottest: Vec<(String, f64)>,
}

impl Metric {
    pub(super) fn new(name: &str, unit: &str, better: Better) -> Self {
        Self {
            name: name.into(),
            unit: unit.into(),
            better,
        }
    }
}

impl Row {
    /// Of this contestant, with nothing found yet.
    pub(super) fn of(contestant: &str) -> Self {
        Self {
            contestant: contestant.into(),
            ..Self::default()
        }
    }

    /// The samples of one metric, round by round.
    pub(super) fn samples(&self, metric: usize) -> impl Iterator<Item = Option<f64>> {
        self.rounds
            .iter()
            .map(move |round| round.as_ref().and_then(|round| round.get(metric).copied()))
    }
}
