//! A page of metrics, read as a scraper reads it.

use anyhow::{Result, ensure};
use prometheus_parse::{Sample, Scrape, Value};

/// What a scraper has read.
pub(crate) struct Page(Scrape);

impl Page {
    pub(crate) fn read(text: &str) -> Result<Self> {
        ensure!(text.ends_with("# EOF\n"), "it is cut off: {text}");
        // What OpenMetrics has that the parser has not: its last line, and units.
        let lines = text
            .lines()
            .filter(|line| *line != "# EOF" && !line.starts_with("# UNIT"));
        Ok(Self(Scrape::parse(lines.map(|line| Ok(line.to_owned())))?))
    }

    /// The sum of the samples of this name that have these labels.
    pub(crate) fn sum(&self, name: &str, labels: &[(&str, &str)]) -> Result<u64> {
        let mut found = self.samples(name, labels).peekable();
        ensure!(found.peek().is_some(), "no {name} with {labels:?}");
        let value = |sample: &Sample| match sample.value {
            Value::Counter(value) | Value::Gauge(value) | Value::Untyped(value) => value as u64,
            _ => 0,
        };
        Ok(found.map(value).sum())
    }

    /// Whether there is a sample of this name that has these labels.
    pub(crate) fn has(&self, name: &str, labels: &[(&str, &str)]) -> bool {
        self.samples(name, labels).next().is_some()
    }

    fn samples(&self, name: &str, labels: &[(&str, &str)]) -> impl Iterator<Item = &Sample> {
        self.0.samples.iter().filter(move |sample| {
            let mut labels = labels.iter();
            sample.metric == name
                && labels.all(|(key, value)| sample.labels.get(key) == Some(value))
        })
    }
}
