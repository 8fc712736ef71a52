//! Connections on which nothing happens: held without a thread for each, until their peers end them.

use std::{
    collections::HashMap,
    io::{PipeReader, PipeWriter, pipe},
    mem::MaybeUninit,
    os::fd::{AsRawFd, OwnedFd},
    sync::{Arc, Mutex, PoisonError},
    thread,
};

use anyhow::{Context, Result};
use rustix::{
    event::epoll::{self, CreateFlags, EventData, EventFlags},
    io::Errno,
};
use socket2::Socket;

/// What stands for the end of [`Idle`] among the descriptors.
const END: u64 = u64::MAX;

/// Holds connections; all of them end when it is dropped.
pub(super) struct Idle {
    ends: Arc<Ends>,
    _alive: PipeWriter,
}

struct Ends {
    poll: OwnedFd,
    /// By descriptor.
    held: Mutex<HashMap<u64, Socket>>,
    _gone: PipeReader,
}

impl Idle {
    pub(super) fn new() -> Result<Self> {
        let poll = epoll::create(CreateFlags::CLOEXEC).context("epoll_create")?;
        let (gone, alive) = pipe()?;
        epoll::add(&poll, &gone, EventData::new_u64(END), EventFlags::empty())?;
        let ends = Arc::new(Ends {
            poll,
            held: Mutex::default(),
            _gone: gone,
        });
        let waits = ends.clone();
        thread::spawn(move || waits.wait());
        Ok(Self {
            ends,
            _alive: alive,
        })
    }

    pub(super) fn hold(&self, connection: Socket) -> Result<()> {
        let name = u64::try_from(connection.as_raw_fd())?;
        let mut held = self
            .ends
            .held
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        epoll::add(
            &self.ends.poll,
            &connection,
            EventData::new_u64(name),
            EventFlags::RDHUP,
        )?;
        held.insert(name, connection);
        Ok(())
    }
}

impl Ends {
    fn wait(&self) {
        let mut buffer = [const { MaybeUninit::uninit() }; 256];
        loop {
            let events = match epoll::wait(&self.poll, &mut buffer, None) {
                Ok((events, _)) => events,
                Err(Errno::INTR) => continue,
                Err(_) => return,
            };
            let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
            for event in events {
                match event.data.u64() {
                    END => return held.clear(),
                    name => drop(held.remove(&name)),
                }
            }
        }
    }
}
