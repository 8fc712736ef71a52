//! Privileges: what the process gives up for good once listeners are bound and engines loaded.
//!
//! Linux keeps users and capabilities for each thread. The threads of the runtime give theirs up as they begin, the main
//! thread, which binds and loads, when it is done with that: from Linux 5.19 on a socket enters the sockmap without any.
//! What holds for the whole process (no_new_privs, the bounding set, Landlock) is in place before there is a second thread,
//! and every thread inherits it.

mod account;
mod confine;
mod keep;

use std::{
    fs,
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
    thread,
    time::{Duration, Instant},
};

use caps::{CapSet, Capability, CapsHashSet, errors::CapsError};
use rustix::{
    process::{getegid, geteuid, getgid, getuid},
    thread::{set_no_new_privs, set_thread_groups, set_thread_res_gid, set_thread_res_uid},
};

use self::{account::Ids, confine::Confined};
pub use self::{
    account::{Account, NoAccount},
    keep::Keep,
};

/// How long threads that have just begun may take to give their privileges up.
const BEGINNING: Duration = Duration::from_secs(5);

/// What is asked for; the default is to keep everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// Whom to run as.
    pub user: Option<Account>,
    /// The capabilities not to give up.
    pub keep: Option<Keep>,
}

/// Why privileges cannot be given up.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// There is no such user or group.
    #[error("--user {0}: {1}")]
    Account(Account, NoAccount),
    /// The process may not become another user.
    #[error(
        "--user {0}: needs CAP_SETUID and CAP_SETGID: start relay as root, or leave --user out"
    )]
    Unprivileged(Account),
    /// A call failed.
    #[error("cannot drop privileges: {call}: {error}")]
    Refused {
        /// Which.
        call: &'static str,
        /// With what.
        error: String,
    },
    /// A thread was overlooked.
    #[error("cannot drop privileges: thread {0} still has some")]
    Overlooked(String),
}

/// What is to be given up, and by which thread it has been.
#[derive(Clone, Debug)]
pub struct Privileges(Option<Arc<Loss>>);

#[derive(Debug)]
struct Loss {
    ids: Option<Ids>,
    keep: CapsHashSet,
    /// To be kept as well, but relay was started without them.
    missing: CapsHashSet,
    confined: Confined,
    bounded: bool,
    failed: OnceLock<String>,
}

impl Privileges {
    /// Prepares what is wanted, and puts in place what holds for the whole process. Unix sockets can be made in the
    /// directories of `sockets` only from here on. The caller is the only thread, and there is
    /// no log yet.
    ///
    /// # Errors
    ///
    /// Fails when there is no such user, or privileges are missing for becoming it.
    pub fn prepare(wanted: Wanted, sockets: &[PathBuf]) -> Result<Self, Fault> {
        // Nothing is ever executed; from here on nothing can gain by it.
        set_no_new_privs(true).map_err(|error| refused("prctl(PR_SET_NO_NEW_PRIVS)", error))?;
        if wanted == Wanted::default() {
            return Ok(Self(None));
        }
        let ids = match wanted.user {
            Some(account) => Some(resolve(account)?),
            None => None,
        };
        let held = held()?;
        let keep = wanted.keep.unwrap_or_default().0;
        let (keep, missing) = keep.into_iter().partition(|one| held.contains(one));
        let directories = sockets.iter().filter_map(|path| path.parent());
        // A path of one word lies in the working directory.
        let directories = directories.map(|path| match path.as_os_str().is_empty() {
            true => Path::new("."),
            false => path,
        });
        let directories = Vec::from_iter(directories);
        let loss = Loss {
            ids,
            keep,
            missing,
            confined: confine::confine(&directories),
            bounded: bound(&held),
            failed: OnceLock::new(),
        };
        Ok(Self(Some(Arc::new(loss))))
    }

    /// Has the calling thread, which has just begun, give its privileges up. What fails is told by [`Privileges::shed`].
    pub fn begin_thread(&self) {
        if let Some(loss) = &self.0
            && let Err(fault) = loss.shed()
        {
            // The first is as good as any.
            let _ = loss.failed.set(fault.to_string());
        }
    }

    /// Has the calling thread, the last that has them, give its privileges up; then no thread has any, for good.
    ///
    /// # Errors
    ///
    /// Fails when a thread could not.
    pub fn shed(&self) -> Result<(), Fault> {
        let Some(loss) = &self.0 else {
            if geteuid().is_root() {
                tracing::info!(
                    "running as root; with --user NAME all privileges would be gone from here on"
                );
            }
            return Ok(());
        };
        loss.shed()?;
        loss.verify()?;
        loss.tell();
        Ok(())
    }
}

impl Loss {
    fn shed(&self) -> Result<(), Fault> {
        let kept = !self.keep.is_empty();
        if let Some(ids) = &self.ids
            && !ids.are_current()
        {
            if kept {
                caps::securebits::set_keepcaps(true)
                    .map_err(|error| refused("prctl(PR_SET_KEEPCAPS)", error))?;
            }
            let (uid, gid) = (ids.uid, ids.gid);
            set_thread_groups(&ids.groups).map_err(|error| refused("setgroups", error))?;
            set_thread_res_gid(gid, gid, gid).map_err(|error| refused("setresgid", error))?;
            set_thread_res_uid(uid, uid, uid).map_err(|error| refused("setresuid", error))?;
        }
        // The effective ones first: they cannot be more than the permitted ones.
        for set in [CapSet::Effective, CapSet::Permitted] {
            caps::set(None, set, &self.keep).map_err(|error| refused("capset", error))?;
        }
        caps::clear(None, CapSet::Inheritable).map_err(|error| refused("capset", error))
    }

    /// Looks at every thread there is. One that has just begun may not have come to it yet.
    fn verify(&self) -> Result<(), Fault> {
        let begun = Instant::now();
        loop {
            if let Some(failed) = self.failed.get() {
                let (call, error) = ("a thread", failed.clone());
                return Err(Fault::Refused { call, error });
            }
            let Some(thread) = self.overlooked() else {
                return Ok(());
            };
            if begun.elapsed() > BEGINNING {
                return Err(Fault::Overlooked(thread));
            }
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// The number of a thread that has more than it should; none where /proc cannot be read.
    fn overlooked(&self) -> Option<String> {
        let threads = fs::read_dir("/proc/self/task").ok()?;
        let has_more = |status: &str| {
            let field = |name| status.lines().find_map(|line| line.strip_prefix(name));
            let permitted = field("CapPrm:\t").and_then(|set| u64::from_str_radix(set, 16).ok());
            let kept = self.keep.iter().fold(0, |set, one| set | one.bitmask());
            let uid = field("Uid:\t").and_then(|ids| ids.split('\t').next()?.parse().ok());
            permitted.is_some_and(|permitted| permitted & !kept != 0)
                || uid.is_some_and(|uid: u32| {
                    let ids = self.ids.as_ref();
                    ids.is_some_and(|ids| ids.uid.as_raw() != uid)
                })
        };
        threads.flatten().find_map(|thread| {
            let status = fs::read_to_string(thread.path().join("status")).ok()?;
            has_more(&status).then(|| thread.file_name().to_string_lossy().into_owned())
        })
    }

    fn tell(&self) {
        let kept = names(&self.keep);
        let confined = &self.confined;
        if !self.missing.is_empty() {
            let missing = names(&self.missing);
            tracing::warn!(
                capabilities = missing,
                "cannot be kept: relay was started without them"
            );
        }
        tracing::info!(
            uid = geteuid().as_raw(), gid = getegid().as_raw(), capabilities = kept, bounding_set_emptied = self.bounded,
            landlock = %confined, "privileges dropped"
        );
        let mut lost = Vec::new();
        if !self.keep.contains(&Capability::CAP_NET_BIND_SERVICE)
            && let Some(ports) = privileged_ports()
        {
            lost.push(format!(
                "listen on ports below {ports} (CAP_NET_BIND_SERVICE)"
            ));
        }
        if !self.keep.contains(&Capability::CAP_NET_ADMIN) {
            lost.push("set marks or use addresses of others (CAP_NET_ADMIN)".to_owned());
        }
        lost.extend(confined.lost());
        lost.push("read files that its user may not read".to_owned());
        tracing::info!(
            "until the next start relay cannot, also for a reload: {}; --keep-capabilities keeps those that it names",
            lost.join("; ")
        );
    }
}

/// Ports below this one are privileged, where any are.
fn privileged_ports() -> Option<u16> {
    let start = fs::read_to_string("/proc/sys/net/ipv4/ip_unprivileged_port_start");
    let start = start.map_or(Some(1024), |text| text.trim().parse().ok());
    start.filter(|start| *start > 0)
}

fn names(capabilities: &CapsHashSet) -> String {
    let mut names = Vec::from_iter(capabilities.iter().map(ToString::to_string));
    names.sort_unstable();
    match names.is_empty() {
        true => "none".to_owned(),
        false => names.join(","),
    }
}

fn resolve(account: Account) -> Result<Ids, Fault> {
    let ids = match account.resolve() {
        Ok(ids) => ids,
        Err(none) => return Err(Fault::Account(account, none)),
    };
    let held = held()?;
    let may = [Capability::CAP_SETUID, Capability::CAP_SETGID];
    match ids.are_current() || may.iter().all(|one| held.contains(one)) {
        true => Ok(ids),
        false => Err(Fault::Unprivileged(account)),
    }
}

impl Ids {
    /// Whether the calling thread has them already: one that was made by a thread that has.
    fn are_current(&self) -> bool {
        [getuid(), geteuid()] == [self.uid; 2] && [getgid(), getegid()] == [self.gid; 2]
    }
}

fn held() -> Result<CapsHashSet, Fault> {
    caps::read(None, CapSet::Permitted).map_err(|error| refused("capget", error))
}

/// Empties the sets that an executed file could take capabilities from, as far as that is allowed; no_new_privs says the
/// same again.
fn bound(held: &CapsHashSet) -> bool {
    let ambient: Result<(), CapsError> = caps::clear(None, CapSet::Ambient);
    let bounding = match held.contains(&Capability::CAP_SETPCAP) {
        true => caps::clear(None, CapSet::Bounding).is_ok(),
        false => false,
    };
    ambient.is_ok() && bounding
}

fn refused(call: &'static str, error: impl ToString) -> Fault {
    let error = error.to_string();
    Fault::Refused { call, error }
}
