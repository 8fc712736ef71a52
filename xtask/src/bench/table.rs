//! A table for the terminal: medians, their spread, and ratios within the rounds to the kernel's routing and to the best peer.

use std::fmt::Write;

use super::{
    contestant::Contestant,
    figures::{self, Figure},
    results::{Row, Table},
};

/// The table of one workload. Ratios are of its first metric.
pub(super) fn text(table: &Table) -> String {
    let mut text = format!("\n{}: {}\n", table.workload, table.about);
    let names = table.rows.iter().map(|row| row.contestant.len());
    let width = names.max().unwrap_or(0).max(15);
    let mut head = " ".repeat(width);
    for metric in &table.metrics {
        let _ = write!(head, " {:>15}", metric.name);
    }
    let _ = writeln!(text, "{head} {:>7} {:>7}", "direct", "peer");
    let mut units = " ".repeat(width);
    for metric in &table.metrics {
        let _ = write!(units, " {:>15}", metric.unit);
    }
    let _ = writeln!(text, "{units} {:>7} {:>7}", "ratio", "ratio");
    let direct = table.rows.iter().find(|row| row.contestant == "direct");
    let peer = best_peer(table, 0);
    for row in &table.rows {
        let name = format!("{:width$}", row.contestant);
        text += &line(table, name, row, direct, peer);
    }
    text
}

/// The best of those that are not relay.
pub(super) fn best_peer(table: &Table, metric: usize) -> Option<&Row> {
    figures::best(table, metric, |row| {
        Contestant::of(&row.contestant).is_some_and(Contestant::is_peer)
    })
}

fn line(
    table: &Table,
    mut line: String,
    row: &Row,
    direct: Option<&Row>,
    peer: Option<&Row>,
) -> String {
    if row.rounds.iter().any(Option::is_some) {
        for metric in 0..table.metrics.len() {
            let figure = figures::of(row, metric);
            let _ = write!(line, " {:>15}", figure.map_or_else(String::new, short));
        }
        for other in [direct, peer] {
            let ratio = other.and_then(|other| figures::ratio(row, other, 0));
            let ratio = ratio.map_or_else(String::new, |ratio| format!("{ratio:.2}"));
            let _ = write!(line, " {ratio:>7}");
        }
    }
    if let Some(absent) = &row.absent {
        let _ = write!(line, " does not take part: {absent}");
    }
    if let Some(fault) = &row.fault {
        let _ = write!(line, "  {fault}");
    }
    line + "\n"
}

/// Three digits and the spread in percent: `66.1k ±2%`.
pub(super) fn short(figure: Figure) -> String {
    let Figure { median, spread } = figure;
    let percent = match median {
        0.0 => 0.0,
        _ => 100.0 * spread / median.abs(),
    };
    format!("{} ±{percent:.0}%", number(median))
}

/// Three digits and a k or M.
pub(super) fn number(value: f64) -> String {
    let (scaled, suffix) = match value.abs() {
        million if million >= 1e6 => (value / 1e6, "M"),
        thousand if thousand >= 1e4 => (value / 1e3, "k"),
        _ => (value, ""),
    };
    let digits = match scaled.abs() {
        hundreds if hundreds >= 100.0 => 0,
        tens if tens >= 10.0 => 1,
        ones if ones >= 1.0 => 2,
        _ => 3,
    };
    format!("{scaled:.digits$}{suffix}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_digits() {
        let told = [0.0, 0.0123, 1.0, 45.67, 999.0, 66_123.0, 1_234_567.0].map(number);
        assert_eq!(
            told,
            ["0.000", "0.012", "1.00", "45.7", "999", "66.1k", "1.23M"]
        );
    }
}
