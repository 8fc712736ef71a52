//! Latency by quantile as curves, both axes logarithmic.

use plotters::prelude::*;

use super::results::{Row, Table};

const SIZE: (u32, u32) = (1000, 360);

/// An SVG picture; none when the workload measures no latency, or it cannot be drawn.
pub(super) fn draw(table: &Table) -> Option<String> {
    let rows = table.rows.iter().filter(|row| !row.latency.is_empty());
    let rows: Vec<&Row> = rows.collect();
    let latencies = rows
        .iter()
        .flat_map(|row| &row.latency)
        .map(|(_, micros)| *micros);
    let (least, most) = latencies.fold((f64::MAX, 0.0_f64), |(least, most), micros| {
        (least.min(micros), most.max(micros))
    });
    if rows.is_empty() || most <= 0.0 {
        return None;
    }
    let mut svg = String::new();
    picture(&mut svg, &rows, least.max(1.0), most).ok()?;
    Some(svg)
}

/// A quantile by how many nines it has: 0.9 is 1, 0.99 is 2.
fn nines(quantile: f64) -> f64 {
    -(1.0 - quantile).max(1e-5).log10()
}

fn picture(
    svg: &mut String,
    rows: &[&Row],
    least: f64,
    most: f64,
) -> Result<(), Box<dyn std::error::Error>> {
    let area = SVGBackend::with_string(svg, SIZE).into_drawing_area();
    let mut chart = ChartBuilder::on(&area)
        .margin(10)
        .x_label_area_size(35)
        .y_label_area_size(70)
        .build_cartesian_2d(0.0..4.2_f64, (least * 0.8..most * 1.2).log_scale())?;
    chart
        .configure_mesh()
        .x_labels(6)
        .x_label_formatter(&|nines| {
            format!("{:.5}", 1.0 - 10_f64.powf(-nines))
                .trim_end_matches('0')
                .trim_end_matches('.')
                .to_owned()
        })
        .y_label_formatter(&|micros| format!("{micros:.0}"))
        .draw()?;
    for (number, row) in rows.iter().enumerate() {
        let colour = Palette99::pick(number).to_rgba();
        let width = if row.contestant.starts_with("relay") {
            3
        } else {
            1
        };
        let points = row.latency.iter().filter(|(quantile, _)| *quantile < 1.0);
        let points = points.map(|(quantile, micros)| (nines(*quantile), micros.max(least)));
        let line = LineSeries::new(points, colour.stroke_width(width));
        chart
            .draw_series(line)?
            .label(row.contestant.clone())
            .legend(move |(x, y)| {
                PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(width))
            });
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE.mix(0.8))
        .draw()?;
    area.present()?;
    Ok(())
}
