//! Network namespaces of a test's own, made with ip(8) and gone when dropped, and what runs inside them.

use std::{
    fs::File,
    io::Write as _,
    os::fd::AsFd,
    path::Path,
    process::{Command, Stdio},
    sync::{
        Arc, Once,
        atomic::{AtomicU32, Ordering},
    },
    thread,
};

use anyhow::{Context, Result, anyhow, ensure};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// Where ip-netns(8) keeps the names.
const NAMES: &str = "/run/netns";

/// What every name begins with; the process and a number follow.
const PREFIX: &str = "relay-test-";

/// A named network namespace.
#[derive(Debug)]
pub struct Netns {
    name: String,
    handle: File,
}

impl Netns {
    /// Makes an empty one, with a loopback that is up.
    ///
    /// # Errors
    ///
    /// Fails without ip(8) or without privileges.
    pub fn new() -> Result<Self> {
        static MADE: AtomicU32 = AtomicU32::new(0);
        static SWEPT: Once = Once::new();
        SWEPT.call_once(sweep);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let name = format!("{PREFIX}{}-{number}", std::process::id());
        ip(&["netns", "add", &name])?;
        let handle = File::open(Path::new(NAMES).join(&name))?;
        let made = Self { name, handle };
        made.ip("link set lo up\n")?;
        Ok(made)
    }

    /// The name that ip(8) knows.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Runs a batch of ip(8) commands inside.
    ///
    /// # Errors
    ///
    /// Fails when one of them does.
    pub fn ip(&self, batch: &str) -> Result<()> {
        let mut child = Command::new("ip")
            .args(["-n", &self.name, "-batch", "-"])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .context("ip(8)")?;
        let mut stdin = child.stdin.take().context("no stdin")?;
        stdin.write_all(batch.as_bytes())?;
        drop(stdin);
        let output = child.wait_with_output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "ip: {batch}: {said}");
        Ok(())
    }
}

impl Drop for Netns {
    fn drop(&mut self) {
        // What cannot be deleted now is swept by the next run.
        let _ = ip(&["netns", "del", &self.name]);
    }
}

/// Where a process or a socket lives. Clones are the same place.
#[derive(Clone, Debug)]
pub enum Place {
    /// The namespace of the tests themselves.
    Here,
    /// A namespace made for the test.
    Inside(Arc<Netns>),
}

impl Place {
    /// Runs `work` in this place. A socket made there stays there.
    ///
    /// # Errors
    ///
    /// Fails when the place cannot be entered, and with what `work` fails with.
    pub fn enter<T: Send>(&self, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        match self {
            Self::Here => work(),
            Self::Inside(_) => on_a_thread(|| {
                self.move_thread()?;
                work()
            }),
        }
    }

    /// Moves the calling thread here, for good.
    ///
    /// # Errors
    ///
    /// Fails without privileges.
    pub fn move_thread(&self) -> Result<()> {
        if let Self::Inside(netns) = self {
            move_into_link_name_space(netns.handle.as_fd(), Some(LinkNameSpaceType::Network))
                .context("setns")?;
        }
        Ok(())
    }

    /// Sets a sysctl of this namespace, `net/ipv4/tcp_rmem` for one.
    ///
    /// # Errors
    ///
    /// Fails outside a namespace of the test's own, where others would feel it.
    pub fn sysctl(&self, name: &str, value: &str) -> Result<()> {
        ensure!(matches!(self, Self::Inside(_)), "not in our own namespace");
        self.enter(|| Ok(std::fs::write(Path::new("/proc/sys").join(name), value)?))
            .with_context(|| format!("sysctl {name}"))
    }

    /// What the kernel has counted here so far under a name of TcpExt in /proc/net/netstat.
    ///
    /// # Errors
    ///
    /// Fails when it counts nothing of that name.
    pub fn counted(&self, name: &str) -> Result<u64> {
        let told = self.enter(|| Ok(std::fs::read_to_string("/proc/thread-self/net/netstat")?))?;
        let mut lines = told.lines().map(|line| line.split(' '));
        let found = match (lines.next(), lines.next()) {
            (Some(names), Some(values)) => names.zip(values).find(|(one, _)| *one == name),
            _ => None,
        };
        let (_, value) = found.with_context(|| format!("no {name}: {told}"))?;
        Ok(value.parse()?)
    }
}

/// Runs `work` on a thread that ends with it, and that it may therefore change as it likes.
///
/// # Errors
///
/// Fails with what `work` fails with.
pub fn on_a_thread<T: Send>(work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    thread::scope(|scope| match scope.spawn(work).join() {
        Ok(result) => result,
        Err(_) => Err(anyhow!("the thread panicked")),
    })
}

fn ip(arguments: &[&str]) -> Result<()> {
    let output = Command::new("ip")
        .args(arguments)
        .output()
        .context("ip(8)")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "ip {arguments:?}: {said}");
    Ok(())
}

/// Deletes what killed test runs have left.
fn sweep() {
    let Ok(names) = std::fs::read_dir(NAMES) else {
        return;
    };
    for name in names.flatten() {
        let name = name.file_name();
        let Some(rest) = name.to_str().and_then(|name| name.strip_prefix(PREFIX)) else {
            continue;
        };
        let process = rest.split('-').next().unwrap_or(rest);
        if !Path::new("/proc").join(process).exists() {
            let _ = ip(&["netns", "del", &name.to_string_lossy()]);
        }
    }
}
