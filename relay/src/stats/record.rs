//! The record of one connection, written when it is dropped: exactly once, whatever ended it.

use std::{
    fmt,
    sync::Arc,
    time::{Duration, Instant},
};

use serde::{Serialize, Serializer};

use crate::{
    close::{How, Outcome},
    decline::Why,
    pair::{Direction, Peer},
    plan::EngineKind,
    stats::{
        books::Books,
        card::Card,
        gauge::Raised,
        meter::Meter,
        tally::{Entrance, Tally},
    },
};

/// What is written down about a connection while it lives. Dropping it writes it.
pub struct Record {
    card: Arc<Card>,
    /// Where the card is kept.
    key: usize,
    /// Counts it among the live ones of its upstream.
    at_upstream: Option<Raised>,
    declined: Vec<Declined>,
    outcome: Option<Outcome>,
    books: Arc<Books>,
}

/// An engine that did not take the connection, and why.
#[derive(Clone, Debug, Serialize)]
pub struct Declined {
    /// The rung of the ladder.
    pub engine: EngineKind,
    /// The reason.
    #[serde(serialize_with = "reason")]
    pub reason: Why,
}

fn reason<S: Serializer>(why: &Why, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(why)
}

impl Record {
    /// Opens a record for a client that was just accepted at `entrance`, of the route with this `tally`, which is of `books`.
    #[must_use]
    pub fn open(
        tally: Arc<Tally>,
        entrance: Arc<Entrance>,
        client: Peer,
        books: Arc<Books>,
    ) -> Self {
        entrance.open();
        let (card, key) = books.registry.add(tally, entrance, client);
        Self {
            card,
            key,
            at_upstream: None,
            declined: Vec::new(),
            outcome: None,
            books,
        }
    }

    /// When the client was accepted.
    #[must_use]
    pub fn begun(&self) -> Instant {
        self.card.begun()
    }

    /// The client on whose behalf a proxy has connected.
    pub fn on_behalf_of(&mut self, client: Peer) {
        self.card.peers().client = client;
    }

    /// The upstream that is dialled.
    pub fn dialled(&mut self, upstream: Peer) {
        self.card.peers().upstream = Some(upstream);
    }

    /// The upstream took it, where it counts until it ends.
    pub fn taken(&mut self, at_upstream: Raised) {
        self.at_upstream = Some(at_upstream);
    }

    /// `engine` gave the connection back; counted, and logged when it is the first with this reason.
    pub fn declined(&mut self, engine: EngineKind, reason: Why) {
        self.books.declines.count(engine, &reason);
        self.declined.push(Declined { engine, reason });
    }

    /// `engine` carries the connection from here on.
    pub fn carried_by(&mut self, engine: EngineKind) {
        self.card.carried_by(engine);
    }

    /// What others see of the connection while it lives.
    #[must_use]
    pub fn card(&self) -> &Arc<Card> {
        &self.card
    }

    /// The byte counters.
    #[must_use]
    pub fn meter(&self) -> &Meter {
        &self.card.meter
    }

    /// How it ended. The first outcome stands.
    pub fn end(&mut self, outcome: Outcome) {
        self.outcome.get_or_insert(outcome);
    }
}

impl fmt::Debug for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Record")
            .field("card", &self.card)
            .finish_non_exhaustive()
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        // Without an outcome the task that carried it was dropped with the runtime: the process is going away.
        let outcome = self.outcome.unwrap_or(Outcome::relay(How::Drain));
        let Self { card, books, .. } = self;
        card.settle();
        books.registry.remove(card.id, self.key);
        card.tally.end(card.engine(), outcome);
        // Writing may have to wait, and nobody is to wait for that.
        let peers = card.peers().clone();
        books.sink.ended(&Finished {
            route: card.tally.name(),
            listener: card.entrance.listen(),
            client: &peers.client,
            upstream: peers.upstream.as_ref(),
            engine: card.engine(),
            declined: &self.declined,
            bytes_up: card.meter.moved(Direction::Up),
            bytes_down: card.meter.moved(Direction::Down),
            duration_ms: card.age(),
            end: outcome,
        });
    }
}

/// A connection that has ended, as it is written to the log.
#[derive(Debug, Serialize)]
pub struct Finished<'a> {
    /// The route's name.
    pub route: &'a str,
    /// The listener that the client came to.
    pub listener: &'a str,
    /// Who connected.
    pub client: &'a Peer,
    /// Who was dialled, unless nobody could be.
    pub upstream: Option<&'a Peer>,
    /// What carried it, unless it ended before.
    pub engine: Option<EngineKind>,
    /// The engines above that did not, and why.
    pub declined: &'a [Declined],
    /// Bytes of the client that the upstream's socket has taken.
    pub bytes_up: u64,
    /// Bytes of the upstream that the client's socket has taken.
    pub bytes_down: u64,
    /// From accept to end; milliseconds in JSON.
    #[serde(serialize_with = "milliseconds")]
    pub duration_ms: Duration,
    /// Who ended it, and how.
    pub end: Outcome,
}

fn milliseconds<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX))
}

impl fmt::Display for Finished<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let engine = self.engine.map_or("none", EngineKind::name);
        write!(f, "{} {} -> ", self.route, self.client)?;
        match self.upstream {
            Some(upstream) => write!(f, "{upstream}")?,
            None => f.write_str("none")?,
        }
        write!(
            f,
            " at={} engine={engine} up={} down={} ms={} end={}",
            self.listener,
            self.bytes_up,
            self.bytes_down,
            self.duration_ms.as_millis(),
            self.end
        )?;
        for declined in self.declined {
            write!(f, " declined={}({})", declined.engine, declined.reason)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::stats::sink::Sink;

    #[derive(Clone, Default)]
    struct Kept(Arc<Mutex<Vec<String>>>);

    impl Sink for Kept {
        fn ended(&self, record: &Finished<'_>) {
            self.0
                .lock()
                .unwrap()
                .push(serde_json::to_string(record).unwrap());
        }
    }

    fn open(kept: &Kept) -> Record {
        let books = Arc::new(Books::new(Box::new(kept.clone())));
        let client = Peer::Ip("127.0.0.1:9".parse().unwrap());
        let tally = books.tally("web");
        let entrance = tally.entrance("127.0.0.1:80");
        Record::open(tally, entrance, client, books)
    }

    #[test]
    fn a_record_is_written_once_with_what_was_moved() {
        let kept = Kept::default();
        let mut record = open(&kept);
        record.declined(EngineKind::Sockmap, Why::Full);
        record.carried_by(EngineKind::Splice);
        record.meter().add(Direction::Up, 7);
        record.end(Outcome::end(crate::pair::Side::Client));
        record.end(Outcome::relay(How::Drain));
        drop(record);
        let lines = kept.0.lock().unwrap();
        assert_eq!(lines.len(), 1);
        for part in [
            r#""engine":"splice""#,
            r#""declined":[{"engine":"sockmap","reason":"the sockmap is full"}]"#,
            r#""route":"web","listener":"127.0.0.1:80""#,
            r#""bytes_up":7,"bytes_down":0"#,
            r#""end":{"by":"client","how":"end"}"#,
        ] {
            assert!(lines[0].contains(part), "{part} in {}", lines[0]);
        }
    }

    #[test]
    fn a_record_that_nobody_ended_says_drain() {
        let kept = Kept::default();
        drop(open(&kept));
        assert!(kept.0.lock().unwrap()[0].contains(r#""end":{"by":"relay","how":"drain"}"#));
    }

    #[test]
    fn what_lives_is_in_the_registry_and_what_it_moved_in_the_totals() {
        let kept = Kept::default();
        let mut record = open(&kept);
        let books = record.books.clone();
        let tally = books.tally("web");
        record.meter().add(Direction::Up, 3);
        record.carried_by(EngineKind::Splice);
        let cards = books.registry.cards();
        assert_eq!(cards.len(), 1);
        assert_eq!(cards[0].engine(), Some(EngineKind::Splice));
        books.refresh(false);
        assert_eq!(tally.bytes(EngineKind::Splice, Direction::Up), 3);
        record.meter().add(Direction::Up, 4);
        // What a former engine has moved stays its own.
        record.carried_by(EngineKind::Copy);
        record.meter().add(Direction::Up, 5);
        drop(record);
        books.refresh(false);
        assert_eq!(tally.bytes(EngineKind::Splice, Direction::Up), 7);
        assert_eq!(tally.bytes(EngineKind::Copy, Direction::Up), 5);
        assert_eq!(tally.opened(), 1);
        assert!(books.registry.cards().is_empty());
    }
}
