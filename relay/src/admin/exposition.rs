//! The metrics, in OpenMetrics text, made of the books at the moment they are asked for.

use std::{fmt, sync::Arc};

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, text::encode},
    registry::{Registry, Unit},
};

use super::{page::Page, process, report, upstreams};
use crate::{
    pair::Direction,
    plan::EngineKind,
    stats::{
        books::{Books, Phase},
        tally::Tally,
    },
};

/// All metrics.
pub(super) fn text(books: &Arc<Books>) -> Result<String, fmt::Error> {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Exposition(books.clone())));
    let mut text = String::new();
    encode(&mut text, &registry)?;
    Ok(text)
}

#[derive(Debug)]
struct Exposition(Arc<Books>);

impl Collector for Exposition {
    fn encode(&self, encoder: DescriptorEncoder) -> fmt::Result {
        let mut page = Page::new(encoder);
        let books = &self.0;
        books.refresh(false);
        process_wide(&mut page, books)?;
        let tallies = books.tallies();
        routes(&mut page, &tallies)?;
        upstreams::encode(&mut page, &tallies)?;
        live(&mut page, books)?;
        process::encode(&mut page)
    }
}

fn process_wide(page: &mut Page<'_>, books: &Books) -> fmt::Result {
    let version = [("version", env!("CARGO_PKG_VERSION"))];
    page.info("relay_build", "What is running", &version)?;
    let ready = u32::from(books.phase() == Phase::Serving);
    let help = "Whether clients are accepted";
    page.gauge("relay_ready", help, None, ready)?;
    let offers = books.offers();
    let offers = offers
        .iter()
        .map(|(engine, offered)| ([("engine", engine.name())], u32::from(offered.is_ok())));
    let help = "Whether the engine carries connections on this host";
    page.gauges("relay_engine_offered", help, None, offers)?;
    let declines = books.declines.counts();
    let declines = declines
        .iter()
        .map(|(engine, reason, count)| ([("engine", engine.name()), ("reason", reason)], *count));
    let help = "Connections that the engine gave back, untouched, for the next one to take";
    page.counters("relay_declines", help, None, declines)
}

fn routes(page: &mut Page<'_>, tallies: &[Arc<Tally>]) -> fmt::Result {
    let route = |tally: &'_ Arc<Tally>| ("route", tally.name().to_string());
    let opened = tallies.iter().map(|tally| ([route(tally)], tally.opened()));
    let help = "Connections accepted";
    page.counters("relay_connections_opened", help, None, opened)?;
    let entrances = Vec::from_iter(
        tallies
            .iter()
            .flat_map(|tally| tally.entrances().into_iter().map(move |one| (tally, one))),
    );
    let entrances = entrances.iter().map(|(tally, one)| {
        let listener = ("listener", one.listen().to_owned());
        ([route(tally), listener], one.opened())
    });
    let help = "Connections accepted, by the listener that clients came to";
    page.counters("relay_listener_connections_opened", help, None, entrances)?;
    let errors = tallies
        .iter()
        .map(|tally| ([route(tally)], tally.accept_errors()));
    let help = "How often clients that came could not be accepted, for want of descriptors mostly";
    page.counters("relay_accept_errors", help, None, errors)?;

    let ends = Vec::from_iter(tallies.iter().map(|tally| (route(tally), tally.ends())));
    let ended = ends.iter().flat_map(|(route, ends)| {
        ends.ended.iter().map(|((engine, by, how), count)| {
            let (by, how) = (by.to_string(), (*how).to_owned());
            let labels = [route.clone(), of(*engine), ("by", by), ("how", how)];
            (labels, *count)
        })
    });
    let help = "Connections ended: carried by which engine, ended by whom, and how";
    page.counters("relay_connections_ended", help, None, ended)?;
    let unconnected = ends.iter().flat_map(|(route, ends)| {
        let calls = ends.unconnected.iter();
        calls.map(|(call, count)| ([route.clone(), ("call", (*call).to_owned())], *count))
    });
    let help = "Connections whose upstream could not be had, by the call that failed";
    page.counters("relay_connect_failures", help, None, unconnected)?;

    let bytes = tallies.iter().flat_map(|tally| {
        let kinds = EngineKind::ALL
            .into_iter()
            .flat_map(|engine| Direction::BOTH.map(|direction| (engine, direction)));
        kinds.map(move |(engine, direction)| {
            let way = match direction {
                Direction::Up => "up",
                Direction::Down => "down",
            };
            let labels = [
                route(tally),
                ("direction", way.to_owned()),
                of(Some(engine)),
            ];
            (labels, tally.bytes(engine, direction))
        })
    });
    let help = "Bytes that the upstream's socket (up) or the client's (down) has taken";
    page.counters("relay", help, Some(&Unit::Bytes), bytes)
}

fn live(page: &mut Page<'_>, books: &Books) -> fmt::Result {
    let mut active = report::active(books);
    // A route without connections has none, rather than no number.
    let kinds = EngineKind::ALL.map(Some).into_iter().chain([None]);
    for (tally, engine) in books
        .tallies()
        .iter()
        .flat_map(|tally| kinds.clone().map(move |engine| (tally, engine)))
    {
        active.entry((tally.name().clone(), engine)).or_default();
    }
    let active = active
        .into_iter()
        .map(|((route, engine), count)| ([("route", route.to_string()), of(engine)], count));
    let help = "Live connections; those without an engine are being connected";
    page.gauges("relay_connections_active", help, None, active)
}

fn of(engine: Option<EngineKind>) -> (&'static str, String) {
    ("engine", engine.map_or("none", EngineKind::name).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        pair::Peer,
        stats::{record::Record, sink::Silent},
    };

    #[test]
    fn names_and_units_are_those_of_prometheus() {
        let books = Arc::new(Books::new(Box::new(Silent)));
        let client = Peer::Ip(([127, 0, 0, 1], 9).into());
        let tally = books.tally("a \"b\"\n");
        let entrance = tally.entrance("test");
        let mut record = Record::open(tally, entrance, client, books.clone());
        record.carried_by(EngineKind::Splice);
        record.meter().add(Direction::Up, 7);
        let text = text(&books).unwrap();
        for line in [
            "# TYPE relay_bytes counter",
            "# UNIT relay_bytes bytes",
            r#"relay_bytes_total{route="a \"b\"\n",direction="up",engine="splice"} 7"#,
            r#"relay_connections_opened_total{route="a \"b\"\n"} 1"#,
            r#"relay_listener_connections_opened_total{route="a \"b\"\n",listener="test"} 1"#,
            r#"relay_connections_active{route="a \"b\"\n",engine="splice"} 1"#,
            r#"relay_connections_active{route="a \"b\"\n",engine="copy"} 0"#,
            "relay_ready 0",
            "# UNIT process_start_time_seconds seconds",
        ] {
            assert!(
                text.lines().any(|told| told == line),
                "no {line} in\n{text}"
            );
        }
        assert!(text.ends_with("# EOF\n"));
    }
}
