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

/// Where there is less than this, upstreams that are up give their rows to connections.
const TALL: u16 = 36;

/// Draws all of it. With a fault, what is shown is old.
pub(super) fn draw(frame: &mut Frame<'_>, status: &Status, lines: &Lines, fault: Option<&str>) {
    let rows = |count: usize| Constraint::Length(u16::try_from(count + 2).unwrap_or(u16::MAX));
    let reached = reached(status, frame.area().height);
    let areas = Layout::vertical([
        Constraint::Length(2),
        rows(status.engines.len()),
        rows(status.routes.len().min(ROUTES)),
        match reached.len() {
            0 => Constraint::Length(0),
            count => rows(count),
        },
        Constraint::Min(2),
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
        Row::new(cells)
    });
    let head = ["ENGINE", "", "ACTIVE", "UP", "DOWN", "RATE"];
    let widths = [9, 12, 8, 11, 11, 13].map(Constraint::Length);
    frame.render_widget(Table::new(rows, widths).header(header(head)), area);
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
        Row::new(cells)
    });
    let head = [
        "ROUTE",
        "LISTENS ON",
        "TO",
        "ACTIVE",
        "OPENED",
        "FAILED",
        "RATE",
    ];
    let widths = [
        Constraint::Fill(2),
        Constraint::Fill(2),
        Constraint::Fill(2),
        Constraint::Length(8),
        Constraint::Length(10),
        Constraint::Length(8),
        Constraint::Length(13),
    ];
    frame.render_widget(Table::new(rows, widths).header(header(head)), area);
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
    if reached.is_empty() {
        return;
    }
    let rows = reached.into_iter().map(|one| {
        let is_up = one.is_up();
        let row = Row::new([
            one.upstream,
            one.address,
            one.route,
            one.state.into(),
            one.since,
            one.active.to_string(),
            one.failures.to_string(),
            one.why,
        ]);
        match is_up {
            true => row,
            false => row.style(Style::new().red()),
        }
    });
    let head = [
        "UPSTREAM", "ADDRESS", "ROUTE", "STATE", "FOR", "ACTIVE", "FAILED", "WHY",
    ];
    let widths = [
        Constraint::Fill(2),
        Constraint::Fill(2),
        Constraint::Fill(2),
        Constraint::Length(10),
        Constraint::Length(9),
        Constraint::Length(8),
        Constraint::Length(8),
        Constraint::Fill(4),
    ];
    frame.render_widget(Table::new(rows, widths).header(header(head)), area);
}

fn connections(frame: &mut Frame<'_>, area: Rect, lines: &Lines) {
    let room = usize::from(area.height);
    let rows = lines.connections.iter().take(room);
    let rows = rows.map(|(connection, rate)| row(connection, *rate));
    let head = [
        "CLIENT", "UPSTREAM", "ROUTE", "ENGINE", "UP", "DOWN", "BACKLOG", "AGE", "RATE",
    ];
    let widths = [
        Constraint::Fill(3),
        Constraint::Fill(3),
        Constraint::Fill(2),
        Constraint::Length(8),
        Constraint::Length(10),
        Constraint::Length(10),
        Constraint::Length(10),
        Constraint::Length(9),
        Constraint::Length(12),
    ];
    frame.render_widget(Table::new(rows, widths).header(header(head)), area);
}

fn row(connection: &Connection, rate: u64) -> Row<'static> {
    let engine = connection.engine.map_or("-", |engine| engine.name());
    let row = Row::new([
        connection.client.clone(),
        connection.upstream.clone().unwrap_or_else(|| "-".into()),
        connection.route.clone(),
        engine.into(),
        bytes(connection.bytes_up),
        bytes(connection.bytes_down),
        bytes(connection.backlog_up + connection.backlog_down),
        age(connection.age_seconds),
        per_second(rate),
    ]);
    match rate {
        0 => row.style(Style::new().dim()),
        _ => row,
    }
}

fn header<const N: usize>(names: [&'static str; N]) -> Row<'static> {
    Row::new(names).style(Style::new().reversed())
}

fn per_second(rate: u64) -> String {
    format!("{}/s", bytes(rate))
}
