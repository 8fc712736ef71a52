//! What is loaded into the kernel: the program, its maps, and the calls that change them.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    sync::{Mutex, PoisonError},
};

use aya::{
    Ebpf, EbpfLoader,
    maps::{HashMap, Map, MapData, MapError, RingBuf, SockMap},
    programs::{ProgramError, SkSkb},
};
use aya_log::EbpfLogger;
use relay_common::names;

use super::{ledger::Ledger, missing::Missing, offsets::Offsets};

/// The verdict program, as `cargo xtask build-ebpf` made it.
static OBJECT: &[u8] =
    aya::include_bytes_aligned!(concat!(env!("CARGO_MANIFEST_DIR"), "/bytecode/relay.bpf.o"));

/// The loaded program and the maps that are changed while it runs.
pub(super) struct Kernel {
    sockets: Mutex<SockMap<MapData>>,
    slots: Mutex<HashMap<MapData, u64, u32>>,
    _loaded: Ebpf,
}

/// What the program reports: slots that need attention, and what it logs.
pub(super) struct Events {
    ring: RingBuf<MapData>,
    logger: Option<EbpfLogger<&'static dyn log::Log>>,
}

impl Kernel {
    /// Loads the program with room for `pairs` connections and attaches it to its sockmap. Once that is done, inserts
    /// need no privilege (since Linux 5.19).
    ///
    /// Minimum kernel version: 5.10.
    pub(super) fn load(pairs: u32, offsets: &Offsets) -> Result<(Self, Events, Ledger), Missing> {
        let slots = pairs * 2;
        let mut loaded = EbpfLoader::new()
            .btf(None)
            .map_max_entries(names::SOCKS, slots)
            .map_max_entries(names::SLOTS, slots)
            .map_max_entries(names::FLOWS, slots)
            .map_max_entries(names::EVENTS, ring_bytes(slots))
            .override_global(names::WRITE_SEQ, &offsets.write_seq, true)
            .override_global(names::WMEM_QUEUED, &offsets.wmem_queued, true)
            .override_global(names::COPIED_SEQ, &offsets.copied_seq, true)
            .override_global(names::SNDBUF, &offsets.sndbuf, true)
            .load(OBJECT)
            .map_err(|error| Missing::from_chain("creating the BPF maps", &error))?;
        let sockets = SockMap::try_from(take(&mut loaded, names::SOCKS)?).map_err(maps)?;
        attach(&mut loaded, &sockets)?;
        let flows = match take(&mut loaded, names::FLOWS)? {
            Map::Array(data) => data,
            _ => return Err(absent(names::FLOWS)),
        };
        let ledger = Ledger::map(flows.fd().as_fd(), slots).map_err(|error| Missing::Failed {
            call: "mmap of the flow records",
            detail: error.to_string(),
        })?;
        let events = Events {
            ring: RingBuf::try_from(take(&mut loaded, names::EVENTS)?).map_err(maps)?,
            logger: EbpfLogger::init(&mut loaded).ok(),
        };
        let slots = HashMap::try_from(take(&mut loaded, names::SLOTS)?).map_err(maps)?;
        let kernel = Self {
            sockets: Mutex::new(sockets),
            slots: Mutex::new(slots),
            _loaded: loaded,
        };
        Ok((kernel, events, ledger))
    }

    /// Puts a socket into the map.
    ///
    /// # Errors
    ///
    /// `EOPNOTSUPP` when its peer has sent a FIN, `EINVAL` with an upper-layer protocol, `EBUSY` when it is in a map
    /// with another program, `EEXIST` when the slot is not free.
    #[doc(alias = "BPF_MAP_TYPE_SOCKMAP")]
    pub(super) fn insert(&self, slot: u32, socket: BorrowedFd<'_>) -> io::Result<()> {
        const BPF_NOEXIST: u64 = 1;
        let mut sockets = self.sockets.lock().unwrap_or_else(PoisonError::into_inner);
        sockets
            .set(slot, &socket.as_raw_fd(), BPF_NOEXIST)
            .map_err(errno)
    }

    /// Tells the program which slot a socket has.
    pub(super) fn name(&self, cookie: u64, slot: u32) -> io::Result<()> {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        slots.insert(cookie, slot, 0).map_err(errno)
    }

    /// Takes the name of a closed socket back.
    pub(super) fn forget(&self, cookie: u64) {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        let removed = slots.remove(&cookie);
        debug_assert!(removed.is_ok(), "{removed:?}");
    }
}

#[cfg(test)]
impl Kernel {
    /// How many names are given.
    pub(super) fn names(&self) -> usize {
        self.slots.lock().unwrap().keys().count()
    }
}

impl std::fmt::Debug for Kernel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Kernel").finish_non_exhaustive()
    }
}

impl Events {
    /// The next slot that needs attention.
    pub(super) fn next(&mut self) -> Option<u32> {
        let item = self.ring.next()?;
        item.first_chunk().map(|bytes| u32::from_ne_bytes(*bytes))
    }

    /// Hands on what the program logged: only what should not have happened.
    pub(super) fn log(&mut self) {
        if let Some(logger) = &mut self.logger {
            logger.flush();
        }
    }

    /// A descriptor that is readable when there is something in the ring.
    pub(super) fn descriptor(&self) -> io::Result<OwnedFd> {
        self.ring.as_fd().try_clone_to_owned()
    }
}

/// The verifier gives up with `EAGAIN` when a signal is pending, and is to be called again.
const TRIES: u32 = 5;

fn attach(loaded: &mut Ebpf, sockets: &SockMap<MapData>) -> Result<(), Missing> {
    let program = loaded
        .program_mut(names::VERDICT)
        .ok_or_else(|| absent(names::VERDICT))?;
    let verdict: &mut SkSkb = program
        .try_into()
        .map_err(|error| Missing::from_chain("reading the verdict program", &error))?;
    let mut tries = 0..TRIES;
    loop {
        match verdict.load() {
            Ok(()) => break,
            Err(ProgramError::LoadError { io_error, .. })
                if io_error.kind() == io::ErrorKind::WouldBlock && tries.next().is_some() => {}
            Err(error) => return Err(Missing::from_chain("loading the verdict program", &error)),
        }
    }
    let attached = verdict.attach(sockets.fd());
    attached
        .map(|_| ())
        .map_err(|error| Missing::from_chain("attaching the verdict program", &error))
}

fn take(loaded: &mut Ebpf, name: &'static str) -> Result<Map, Missing> {
    loaded.take_map(name).ok_or_else(|| absent(name))
}

fn absent(name: &'static str) -> Missing {
    Missing::Failed {
        call: "reading the embedded object",
        detail: format!("it has no {name}"),
    }
}

#[expect(clippy::needless_pass_by_value, reason = "a function for map_err")]
fn maps(error: MapError) -> Missing {
    Missing::from_chain("opening the BPF maps", &error)
}

fn errno(error: MapError) -> io::Error {
    match error {
        MapError::SyscallError(error) => error.io_error,
        MapError::IoError(error) => error,
        other => io::Error::other(other),
    }
}

/// An entry is 8 bytes of header and 8 of data; the ring is never quite full, so it is twice as large.
fn ring_bytes(slots: u32) -> u32 {
    (slots * 16 * 2).max(4096).next_power_of_two()
}
