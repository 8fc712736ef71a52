//! What changed between two runs beyond the noise of both.

use std::fmt::Write;

use super::{
    figures::{self, Figure},
    results::{Better, Metric, Row, Run},
    table::{number, short},
};

/// Smaller changes are not told, however still the machine was.
const LEAST: f64 = 0.03;

/// A line for each figure that is better or worse.
pub(super) fn compare(old: &Run, new: &Run) -> String {
    let mut text = format!("since {} ({}):\n", old.begun, old.commit);
    if old.machine.name != new.machine.name || old.machine.kernel != new.machine.kernel {
        let _ = writeln!(
            text,
            "another machine or kernel: {} with {}, now {} with {}",
            old.machine.name, old.machine.kernel, new.machine.name, new.machine.kernel
        );
    }
    let mut changes = 0;
    for table in &new.tables {
        let Some(before) = old.tables.iter().find(|one| one.workload == table.workload) else {
            continue;
        };
        for row in &table.rows {
            let of_name = |one: &&Row| one.contestant == row.contestant;
            let Some(then) = before.rows.iter().find(of_name) else {
                continue;
            };
            for (at, metric) in table.metrics.iter().enumerate() {
                if before.metrics.get(at) != Some(metric) {
                    continue;
                }
                let figures = (figures::of(then, at), figures::of(row, at));
                if let (Some(then), Some(now)) = figures
                    && let Some(change) = change(metric, then, now)
                {
                    changes += 1;
                    let _ = writeln!(
                        text,
                        "{:15} {:15} {:14} {change} ({} -> {} {})",
                        table.workload,
                        row.contestant,
                        metric.name,
                        short(then),
                        number(now.median),
                        metric.unit
                    );
                }
            }
        }
    }
    if changes == 0 {
        text += "nothing changed beyond the noise\n";
    }
    text
}

/// None within the noise: the spreads of both together.
fn change(metric: &Metric, then: Figure, now: Figure) -> Option<String> {
    let by = now.median - then.median;
    let noise = then.spread + now.spread;
    if then.median == 0.0 || by.abs() <= noise.max(LEAST * then.median.abs()) {
        return None;
    }
    let good = (by > 0.0) == (metric.better == Better::More);
    let percent = 100.0 * by / then.median;
    Some(format!(
        "{} {percent:+.0}%",
        if good { "better" } else { "WORSE" }
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figure(median: f64, spread: f64) -> Figure {
        Figure { median, spread }
    }

    #[test]
    fn noise_is_no_change() {
        let rate = Metric::new("rate", "1/s", Better::More);
        assert_eq!(change(&rate, figure(100.0, 5.0), figure(109.0, 5.0)), None);
        assert_eq!(change(&rate, figure(100.0, 0.0), figure(102.0, 0.0)), None);
        let faster = change(&rate, figure(100.0, 5.0), figure(120.0, 5.0));
        assert_eq!(faster.as_deref(), Some("better +20%"));
        let time = Metric::new("p99", "µs", Better::Less);
        let slower = change(&time, figure(100.0, 5.0), figure(120.0, 5.0));
        assert_eq!(slower.as_deref(), Some("WORSE +20%"));
    }
}
