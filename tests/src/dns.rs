//! A name server whose answers a test can change.

use std::{
    collections::HashMap,
    net::{SocketAddr, UdpSocket},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use anyhow::{Context, Result};
use hickory_proto::{
    op::{Message, OpCode},
    rr::{Name, RData, Record, rdata},
};

/// How often it looks whether it is to stop.
const LOOK: Duration = Duration::from_millis(50);

/// How long its answers hold, in seconds: the shortest time that is not none.
const TTL: u32 = 1;

/// Answers over UDP on loopback until it is dropped.
#[derive(Debug)]
pub struct Dns {
    address: SocketAddr,
    state: Arc<State>,
    serving: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct State {
    records: Mutex<HashMap<Name, Vec<RData>>>,
    silent: AtomicBool,
    stop: AtomicBool,
}

impl Dns {
    /// Knows nothing yet.
    ///
    /// # Errors
    ///
    /// Fails when there is no socket to be had.
    pub fn start() -> Result<Self> {
        let socket = UdpSocket::bind("127.0.0.1:0")?;
        socket.set_read_timeout(Some(LOOK))?;
        let address = socket.local_addr()?;
        let state = Arc::<State>::default();
        let serving = thread::spawn({
            let state = state.clone();
            move || serve(&socket, &state)
        });
        Ok(Self {
            address,
            state,
            serving: Some(serving),
        })
    }

    /// Where it is asked.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// From now on `name` has these addresses.
    ///
    /// # Errors
    ///
    /// Fails when that is no name.
    pub fn addresses(&self, name: &str, addresses: &[&str]) -> Result<()> {
        let data = addresses.iter().map(|address| {
            Ok(match address.parse()? {
                std::net::IpAddr::V4(address) => RData::A(rdata::A(address)),
                std::net::IpAddr::V6(address) => RData::AAAA(rdata::AAAA(address)),
            })
        });
        self.set(name, data.collect::<Result<_>>()?)
    }

    /// From now on `name` has these services: priority, weight, port and host.
    ///
    /// # Errors
    ///
    /// Fails when one of them is no name.
    pub fn services(&self, name: &str, services: &[(u16, u16, u16, &str)]) -> Result<()> {
        let data = services.iter().map(|(priority, weight, port, host)| {
            let host = name_of(host)?;
            Ok(RData::SRV(rdata::SRV::new(*priority, *weight, *port, host)))
        });
        self.set(name, data.collect::<Result<_>>()?)
    }

    /// From now on it answers nobody, or everybody again.
    pub fn silence(&self, silent: bool) {
        self.state.silent.store(silent, Ordering::Relaxed);
    }

    fn set(&self, name: &str, data: Vec<RData>) -> Result<()> {
        let mut records = lock(&self.state);
        records.insert(name_of(name)?, data);
        Ok(())
    }
}

impl Drop for Dns {
    fn drop(&mut self) {
        self.state.stop.store(true, Ordering::Relaxed);
        if let Some(serving) = self.serving.take() {
            let _ = serving.join();
        }
    }
}

fn name_of(text: &str) -> Result<Name> {
    Name::from_ascii(format!("{}.", text.trim_end_matches('.'))).with_context(|| text.to_owned())
}

fn lock(state: &State) -> std::sync::MutexGuard<'_, HashMap<Name, Vec<RData>>> {
    state.records.lock().unwrap_or_else(PoisonError::into_inner)
}

fn serve(socket: &UdpSocket, state: &State) {
    let mut buffer = [0; 4096];
    while !state.stop.load(Ordering::Relaxed) {
        let (length, from) = match socket.recv_from(&mut buffer) {
            Ok(received) => received,
            // It is time to look, a signal came, or somebody who asked has gone.
            Err(_) => continue,
        };
        if state.silent.load(Ordering::Relaxed) {
            continue;
        }
        if let Some(answer) = answer(&buffer[..length], state) {
            let _ = socket.send_to(&answer, from);
        }
    }
}

fn answer(question: &[u8], state: &State) -> Option<Vec<u8>> {
    let question = Message::from_vec(question).ok()?;
    let query = question.queries.first()?.clone();
    let mut answer = Message::response(question.metadata.id, OpCode::Query);
    let records = lock(state);
    let data = records.get(query.name()).into_iter().flatten();
    let kind = query.query_type();
    for data in data.filter(|data| data.record_type() == kind) {
        answer.add_answer(Record::from_rdata(query.name().clone(), TTL, data.clone()));
    }
    answer.add_query(query);
    answer.to_vec().ok()
}
