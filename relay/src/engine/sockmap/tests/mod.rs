//! The engine on this kernel, in one process with its peers.

mod declines;
mod ends;
mod greeted;
mod pressure;

use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use super::{Sockmap, selftest::Bench};
use crate::{
    drain::Drain,
    plan::Limits,
    stats::{books::Books, record::Finished, sink::Sink},
};

/// Nothing takes this long unless it hangs.
const PATIENCE: Duration = Duration::from_secs(60);

/// A started engine, and the records of what it carried.
struct Rig {
    sockmap: Sockmap,
    drain: Drain,
    books: Arc<Books>,
    records: Records,
}

#[derive(Clone, Default)]
struct Records(Arc<Mutex<Vec<String>>>);

impl Sink for Records {
    fn ended(&self, record: &Finished<'_>) {
        let line = serde_json::to_string(record).unwrap();
        self.0.lock().unwrap().push(line);
    }
}

impl Rig {
    async fn new() -> Self {
        let drain = Drain::new();
        let sockmap = Sockmap::start(false, &drain).await.unwrap();
        let records = Records::default();
        let books = Books::new(Box::new(records.clone()));
        Self {
            sockmap,
            drain,
            books: Arc::new(books),
            records,
        }
    }

    fn bench(&self, limits: Limits) -> Bench {
        let (bench, connection) = Bench::with(limits, self.books.clone(), &self.drain).unwrap();
        self.sockmap.take(connection).unwrap();
        for stream in [&bench.client, &bench.server] {
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            stream.set_write_timeout(Some(PATIENCE)).unwrap();
        }
        bench
    }

    /// The record of the connection that ended last, once `count` have.
    fn record(&self, count: usize) -> String {
        until("a record", || {
            let records = self.records.0.lock().unwrap();
            (records.len() >= count).then(|| records[count - 1].clone())
        })
    }
}

fn until<T>(what: &str, mut there: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(value) = there() {
            return value;
        }
        assert!(Instant::now() < deadline, "no {what} within {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_self_test_passes_and_says_what_it_saw() {
    let rig = Rig::new().await;
    assert!(rig.sockmap.selftest().stalled > 0);
    assert!(rig.sockmap.selftest().took > Duration::ZERO);
}
