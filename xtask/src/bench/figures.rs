//! Medians, spreads, and ratios within a round.

use statrs::statistics::{Data, OrderStatistics};

use super::results::{Better, Row, Table};

/// A median, and half of the distance between the quartiles.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Figure {
    pub(super) median: f64,
    pub(super) spread: f64,
}

/// None without a sample.
pub(super) fn figure(samples: impl IntoIterator<Item = f64>) -> Option<Figure> {
    let samples = Vec::from_iter(samples);
    if samples.is_empty() {
        return None;
    }
    let mut data = Data::new(samples);
    let quartiles = data.upper_quartile() - data.lower_quartile();
    Some(Figure {
        median: data.median(),
        spread: quartiles / 2.0,
    })
}

/// Of one metric of `row`.
pub(super) fn of(row: &Row, metric: usize) -> Option<Figure> {
    figure(row.samples(metric).flatten())
}

/// The median of the ratios to `other` in the same round.
pub(super) fn ratio(row: &Row, other: &Row, metric: usize) -> Option<f64> {
    let pairs = row.samples(metric).zip(other.samples(metric));
    let ratios = pairs.filter_map(|(own, other)| match (own, other) {
        (Some(own), Some(other)) if other != 0.0 => Some(own / other),
        _ => None,
    });
    figure(ratios).map(|figure| figure.median)
}

/// The best of those rows that `may` take part.
pub(super) fn best(table: &Table, metric: usize, may: impl Fn(&Row) -> bool) -> Option<&Row> {
    let better = table.metrics.get(metric)?.better;
    let rows = table.rows.iter().filter(|row| may(row));
    let rows = rows.filter_map(|row| Some((row, of(row, metric)?.median)));
    let best = rows.max_by(|(_, one), (_, other)| match better {
        Better::More => one.total_cmp(other),
        Better::Less => other.total_cmp(one),
    });
    best.map(|(row, _)| row)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::results::Metric;

    fn row(contestant: &str, rounds: &[Option<f64>]) -> Row {
        Row {
            rounds: rounds
                .iter()
                .map(|round| round.map(|one| vec![one]))
                .collect(),
            ..Row::of(contestant)
        }
    }

    #[test]
    fn the_median_is_in_the_middle_and_the_spread_around_it() {
        assert_eq!(figure([]), None);
        assert_eq!(figure([3.0]).map(|figure| figure.median), Some(3.0));
        let figure = figure([5.0, 1.0, 3.0, 2.0, 4.0]).unwrap();
        assert!((figure.median - 3.0).abs() < 1e-9, "{figure:?}");
        assert!(figure.spread > 0.5 && figure.spread < 2.0, "{figure:?}");
    }

    #[test]
    fn ratios_are_of_the_same_round() {
        let slow = row("slow", &[Some(1.0), Some(10.0), None, Some(3.0)]);
        let fast = row("fast", &[Some(2.0), Some(20.0), Some(7.0), None]);
        assert_eq!(ratio(&slow, &fast, 0), Some(0.5));
        assert_eq!(ratio(&slow, &row("nobody", &[None; 4]), 0), None);
    }

    #[test]
    fn the_best_depends_on_what_is_better() {
        let table = |better| Table {
            workload: String::new(),
            about: String::new(),
            metrics: vec![Metric::new("m", "", better)],
            rows: vec![
                row("a", &[Some(1.0)]),
                row("b", &[Some(2.0)]),
                row("none", &[None]),
            ],
        };
        let of = |better| best(&table(better), 0, |_| true).map(|row| row.contestant.clone());
        assert_eq!(of(Better::More).as_deref(), Some("b"));
        assert_eq!(of(Better::Less).as_deref(), Some("a"));
    }
}
