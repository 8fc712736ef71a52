//! What changed between two runs beyond the noise of both.

use std::fmt::Write;

use super::{
    contestant::Contestant,
    figures::{self, Figure},
    results::{Better, Metric, Row, Run, Table},
    table::{number, short},
};

/// Smaller changes are not told, however still the machine was.
const LEAST: f64 = 0.03;

/// A line for each figure of relay that is better or worse. How much the others have changed is the
/// machine's doing, and is taken out.
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
    for now in &new.tables {
        let Some(then) = old.tables.iter().find(|one| one.workload == now.workload) else {
            continue;
        };
        for (at, metric) in now.metrics.iter().enumerate() {
            if then.metrics.get(at) != Some(metric) {
                continue;
            }
            let drift = drift(then, now, at);
            let ours = pairs(then, now).filter(|(_, row)| is_ours(row));
            let lines = ours.filter_map(|(before, row)| line(metric, drift, before, row, at));
            for line in lines {
                changes += 1;
                let _ = writeln!(text, "{:17} {line}", now.workload);
            }
        }
    }
    if changes == 0 {
        text += "nothing changed beyond the noise\n";
    }
    text
}

/// The rows of contestants that are in both.
fn pairs<'a>(then: &'a Table, now: &'a Table) -> impl Iterator<Item = (&'a Row, &'a Row)> {
    now.rows.iter().filter_map(|row| {
        let of_name = |one: &&Row| one.contestant == row.contestant;
        Some((then.rows.iter().find(of_name)?, row))
    })
}

fn is_ours(row: &Row) -> bool {
    Contestant::of(&row.contestant).is_some_and(Contestant::is_ours)
}

/// How much of what it was a figure is now for those who are not relay: the median of them, 1 where there are none.
fn drift(then: &Table, now: &Table, at: usize) -> f64 {
    let others = pairs(then, now).filter(|(_, row)| !is_ours(row));
    let ratios = others.filter_map(|(before, row)| {
        let (before, now) = (
            figures::of(before, at)?.median,
            figures::of(row, at)?.median,
        );
        (before > 0.0 && now > 0.0).then(|| now / before)
    });
    figures::figure(ratios).map_or(1.0, |figure| figure.median)
}

fn line(metric: &Metric, drift: f64, before: &Row, row: &Row, at: usize) -> Option<String> {
    let (then, now) = (figures::of(before, at)?, figures::of(row, at)?);
    let change = change(metric, then, now, drift)?;
    let drift = match (drift - 1.0).abs() > LEAST {
        true => format!(", others {:+.0}%", 100.0 * (drift - 1.0)),
        false => String::new(),
    };
    Some(format!(
        "{:15} {:14} {change} ({} -> {} {}{drift})",
        row.contestant,
        metric.name,
        short(then),
        number(now.median),
        metric.unit
    ))
}

/// None within the noise: the spreads of both together.
fn change(metric: &Metric, then: Figure, now: Figure, drift: f64) -> Option<String> {
    let by = now.median / drift - then.median;
    let noise = then.spread + now.spread / drift;
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
        assert_eq!(
            change(&rate, figure(100.0, 5.0), figure(109.0, 5.0), 1.0),
            None
        );
        assert_eq!(
            change(&rate, figure(100.0, 0.0), figure(102.0, 0.0), 1.0),
            None
        );
        let faster = change(&rate, figure(100.0, 5.0), figure(120.0, 5.0), 1.0);
        assert_eq!(faster.as_deref(), Some("better +20%"));
        let time = Metric::new("p99", "µs", Better::Less);
        let slower = change(&time, figure(100.0, 5.0), figure(120.0, 5.0), 1.0);
        assert_eq!(slower.as_deref(), Some("WORSE +20%"));
    }

    fn table(rates: &[(&str, f64)]) -> Table {
        let row = |(contestant, rate): &(&str, f64)| Row {
            rounds: vec![Some(vec![*rate])],
            ..Row::of(contestant)
        };
        Table {
            workload: "w".into(),
            about: String::new(),
            metrics: vec![Metric::new("rate", "1/s", Better::More)],
            rows: rates.iter().map(row).collect(),
        }
    }

    #[test]
    fn what_all_have_in_common_is_the_machine() {
        let then = table(&[("direct", 100.0), ("socat", 50.0), ("relay splice", 60.0)]);
        let now = table(&[("direct", 80.0), ("socat", 40.0), ("relay splice", 48.0)]);
        let drift = drift(&then, &now, 0);
        assert!((drift - 0.8).abs() < 1e-9, "{drift}");
        let of = |now: f64| {
            let metric = Metric::new("rate", "1/s", Better::More);
            change(&metric, figure(60.0, 0.0), figure(now, 0.0), drift)
        };
        assert_eq!(of(48.0), None);
        assert_eq!(of(24.0).as_deref(), Some("WORSE -50%"));
    }
}
