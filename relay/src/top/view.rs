//! What is drawn: a heading, engines, routes, upstreams, and as many connections as there is room for.

use ratatui::{
    Frame,
    layout::{Constraint, Layout, Rect},
    style::{Style, Stylize},
    text::Line,
    widgets::{Row, Table},
};
use relay::admin::report::{Connection, Status};

use super::rates::Lines;
use crate::status::{
    bytes, carried, heading, listens, to,
    upstreams::{self, Line as Upstream, age},
};

/// Rows of routes that are shown at most; `relay status` has them all.
const ROUTES: usize = 8;

/// Rows of upstreams that are shown at most, those that take no clients first.
const UPSTREAMS: usize = 8;

/// Lines of the heading, and those that connections have at least.
const HEADING: u16 = 2;
const CONNECTIONS: u16 = 3;

/// Where there is less than this, upstreams that are up give their rows to connections.
const TALL: u16 = 36;

/// Draws all of it. With a fault, what is shown is old.
pub(super) fn draw(frame: &mut Frame<'_>, status: &Status, lines: &Lines, fault: Option<&str>) {
    let height = frame.area().height;
    let reached = reached(status, height);
    let routed = status.routes.len().min(ROUTES);
    let [third, second, first] = room(height, [reached.len(), routed, status.engines.len()]);
    let areas = Layout::vertical([
        Constraint::Length(HEADING),
        Constraint::Length(first),
        Constraint::Length(second),
        Constraint::Length(third),
        Constraint::Min(CONNECTIONS),
        Constraint::Length(1),
    ]);
    let [top, first, second, third, fourth, bottom] = areas.areas(frame.area());
    frame.render_widget(Line::from(heading(status)).bold(), top);
    engines(frame, first, status, lines);
    routes(frame, second, status, lines);
    upstreams(frame, third, reached);
    connections(frame, fourth, lines);
    let foot = match fault {
        None => Line::from("q quits").dim(),
        Some(fault) => Line::from(format!("old, trying on: {fault}")).red(),
    };
    frame.render_widget(foot, bottom);
}

/// Lines for tables with so many rows, their headers and a gap included: each has what the ones before it leave, or none.
fn room(height: u16, rows: [usize; 3]) -> [u16; 3] {
    let mut left = height.saturating_sub(HEADING + CONNECTIONS + 1);
    rows.map(|rows| {
        let wanted = match rows {
            0 => 0,
            rows => u16::try_from(rows + 2).unwrap_or(u16::MAX),
        };
        let given = match left < 3 {
            true => 0,
            false => wanted.min(left),
        };
        left -= given;
        given
    })
}

/// A column: its name, its width, and the narrowest screen that has room for it.
struct Column(&'static str, Constraint, u16);

/// Screens narrower than this show what cannot be done without.
const NARROW: u16 = 70;

/// So wide that nothing has to be left out.
const WIDE: u16 = 110;

fn table<const N: usize>(
    frame: &mut Frame<'_>,
    area: Rect,
    columns: [Column; N],
    rows: impl Iterator<Item = (Style, [String; N])>,
) {
    let shown = columns.map(|Column(name, width, least)| (area.width >= least, name, width));
    let names = shown.iter().filter(|(shown, ..)| *shown);
    let widths = Vec::from_iter(names.clone().map(|(_, _, width)| *width));
    let head = Row::new(names.map(|(_, name, _)| *name)).style(Style::new().reversed());
    let rows = rows.take(usize::from(area.height)).map(|(style, cells)| {
        let cells = cells.into_iter().zip(&shown);
        let cells = cells.filter_map(|(cell, (shown, ..))| shown.then_some(cell));
        Row::new(cells).style(style)
    });
    frame.render_widget(Table::new(rows, widths).header(head), area);
}

fn engines(frame: &mut Frame<'_>, area: Rect, status: &Status, lines: &Lines) {
    let rows = status.engines.iter().map(|offer| {
        let [active, up, down] = carried(&status.routes, offer);
        let rate = lines.engines.get(&offer.engine).copied().unwrap_or(0);
        let state = match offer.offered {
            true => "offered",
            false => "not offered",
        };
        let cells = [
            offer.engine.to_string(),
            state.into(),
            active.to_string(),
            bytes(up),
            bytes(down),
            per_second(rate),
        ];
        (Style::new(), cells)
    });
    let columns = [
        Column("ENGINE", Constraint::Length(9), 0),
        Column("", Constraint::Length(12), NARROW),
        Column("ACTIVE", Constraint::Length(8), 0),
        Column("UP", Constraint::Length(11), NARROW),
        Column("DOWN", Constraint::Length(11), NARROW),
        Column("RATE", Constraint::Length(13), 0),
    ];
    table(frame, area, columns, rows);
}

fn routes(frame: &mut Frame<'_>, area: Rect, status: &Status, lines: &Lines) {
    let rows = status.routes.iter().map(|route| {
        let rate = lines.routes.get(&route.name).copied().unwrap_or(0);
        let cells = [
            route.name.clone(),
            listens(route),
            to(route),
            route.active.to_string(),
            route.opened.to_string(),
            route.connect_failures.to_string(),
            per_second(rate),
        ];
        (Style::new(), cells)
    });
    let columns = [
        Column("ROUTE", Constraint::Fill(2), 0),
        Column("LISTENS ON", Constraint::Fill(2), WIDE),
        Column("TO", Constraint::Fill(2), NARROW),
        Column("ACTIVE", Constraint::Length(8), 0),
        Column("OPENED", Constraint::Length(10), WIDE),
        Column("FAILED", Constraint::Length(8), NARROW),
        Column("RATE", Constraint::Length(13), 0),
    ];
    table(frame, area, columns, rows);
}

/// The upstreams that are worth their rows on a screen of this height.
fn reached(status: &Status, height: u16) -> Vec<Upstream> {
    let mut all = upstreams::lines(status);
    all.sort_by_key(Upstream::is_up);
    all.retain(|one| height >= TALL || !one.is_up());
    all.truncate(UPSTREAMS);
    all
}

fn upstreams(frame: &mut Frame<'_>, area: Rect, reached: Vec<Upstream>) {
    if area.height == 0 {
        return;
    }
    let rows = reached.into_iter().map(|one| {
        let style = match one.is_up() {
            true => Style::new(),
            false => Style::new().red(),
        };
        let cells = [
            one.upstream,
            one.address,
            one.route,
            one.state.into(),
            one.since,
            one.active.to_string(),
            one.failures.to_string(),
            one.why,
        ];
        (style, cells)
    });
    let columns = [
        Column("UPSTREAM", Constraint::Fill(2), 0),
        Column("ADDRESS", Constraint::Fill(2), WIDE),
        Column("ROUTE", Constraint::Fill(2), WIDE),
        Column("STATE", Constraint::Length(10), 0),
        Column("FOR", Constraint::Length(9), NARROW),
        Column("ACTIVE", Constraint::Length(8), WIDE),
        Column("FAILED", Constraint::Length(8), WIDE),
        Column("WHY", Constraint::Fill(4), NARROW),
    ];
    table(frame, area, columns, rows);
}

fn connections(frame: &mut Frame<'_>, area: Rect, lines: &Lines) {
    let rows = lines.connections.iter();
    let rows = rows.map(|(connection, rate)| row(connection, *rate));
    let columns = [
        Column("CLIENT", Constraint::Fill(3), 0),
        Column("UPSTREAM", Constraint::Fill(3), NARROW),
        Column("ROUTE", Constraint::Fill(2), WIDE),
        Column("ENGINE", Constraint::Length(8), NARROW),
        Column("UP", Constraint::Length(10), WIDE),
        Column("DOWN", Constraint::Length(10), WIDE),
        Column("BACKLOG", Constraint::Length(10), WIDE),
        Column("AGE", Constraint::Length(9), NARROW),
        Column("RATE", Constraint::Length(12), 0),
    ];
    table(frame, area, columns, rows);
}

fn row(connection: &Connection, rate: u64) -> (Style, [String; 9]) {
    let engine = connection.engine.map_or("-", |engine| engine.name());
    let cells = [
        connection.client.clone(),
        connection.upstream.clone().unwrap_or_else(|| "-".into()),
        connection.route.clone(),
        engine.into(),
        bytes(connection.bytes_up),
        bytes(connection.bytes_down),
        bytes(connection.backlog_up + connection.backlog_down),
        age(connection.age_seconds),
        per_second(rate),
    ];
    let style = match rate {
        0 => Style::new().dim(),
        _ => Style::new(),
    };
    (style, cells)
}

fn per_second(rate: u64) -> String {
    format!("{}/s", bytes(rate))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_low_screen_keeps_what_matters_more() {
        assert_eq!(room(24, [0, 1, 3]), [0, 3, 5]);
        assert_eq!(room(40, [2, 1, 3]), [4, 3, 5]);
        assert_eq!(room(12, [1, 1, 3]), [3, 3, 0]);
        assert_eq!(room(10, [4, 1, 3]), [4, 0, 0]);
        assert_eq!(room(2, [1, 1, 1]), [0, 0, 0]);
    }
}
