//! Three network namespaces in a row, joined by veth, which vanish with this process, however it ends.

use std::{
    fs::File,
    io::{Read, Write},
    net::SocketAddr,
    path::Path,
    process::{Child, Command, Stdio},
    thread,
};

use anyhow::{Context, Result, anyhow};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::os::fd::AsFd;

use super::Kit;
use crate::{
    host,
    load::{forwarder::Forwarder, upstream::Upstream},
};

/// client - relay - upstream.
pub(super) struct Lab {
    client: Namespace,
    relay: Namespace,
    pub(super) upstream: Upstream,
    _upstream: Namespace,
}

const RELAY: &str = "10.77.1.2";
const UPSTREAM: [u8; 4] = [10, 77, 2, 2];

impl Lab {
    pub(super) fn new() -> Result<Self> {
        let made = || Namespace::new().context("network namespaces need root");
        let (client, relay, upstream) = (made()?, made()?, made()?);
        relay.join("left", "10.77.1.2/24", &client, "right", "10.77.1.1/24")?;
        relay.join("right", "10.77.2.1/24", &upstream, "left", "10.77.2.2/24")?;
        let listen = SocketAddr::from((UPSTREAM, 0));
        Ok(Self {
            upstream: upstream.enter(|| Upstream::start(listen))?,
            client,
            relay,
            _upstream: upstream,
        })
    }

    /// Starts the rival and every engine side by side: each has its name and where it listens.
    pub(super) fn contenders(&self, kit: &Kit) -> Result<Vec<(String, Forwarder)>> {
        let (listen, to) = (format!("{RELAY}:0"), self.upstream.address.to_string());
        let rival = self.start(&kit.rival, &[&listen, &to])?;
        let mut contenders = vec![("tokio-splice2".to_owned(), rival)];
        for engine in &kit.engines {
            let json = ["--log-format", "json"];
            let flags = ["--listen", &listen, "--to", &to, "--engine", engine];
            let flags = [&flags[..], &json].concat();
            contenders.push((engine.clone(), self.start(&kit.relay, &flags)?));
        }
        Ok(contenders)
    }

    fn start(&self, program: &Path, flags: &[&str]) -> Result<Forwarder> {
        // Both become the program; it is killed when this process is.
        let mut command = Command::new("nsenter");
        command.arg(format!("--net={}", self.relay.path()));
        command.args(["setpriv", "--pdeathsig", "KILL"]);
        Forwarder::start(command.arg(program).args(flags))
    }

    /// Calls `act` where the clients are.
    pub(super) fn as_client<T: Send>(&self, act: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        self.client.enter(act)
    }
}

/// A namespace that lasts as long as a process that waits for this one to close a pipe.
struct Namespace(Child);

impl Namespace {
    fn new() -> Result<Self> {
        let mut command = Command::new("unshare");
        command.args(["--net", "cat"]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut namespace = Self(command.spawn().context("unshare")?);
        // When it answers it is in the namespace.
        let (stdin, stdout) = (namespace.0.stdin.as_mut(), namespace.0.stdout.as_mut());
        stdin.context("no pipe")?.write_all(b"\n")?;
        stdout
            .context("no pipe")?
            .read_exact(&mut [0])
            .context("unshare --net")?;
        namespace.ip(&["link", "set", "lo", "up"])?;
        Ok(namespace)
    }

    fn path(&self) -> String {
        format!("/proc/{}/ns/net", self.0.id())
    }

    fn ip(&self, arguments: &[&str]) -> Result<()> {
        let net = format!("--net={}", self.path());
        host::succeed(Command::new("nsenter").args([&net, "ip"]).args(arguments))
    }

    fn join(&self, name: &str, address: &str, other: &Self, theirs: &str, at: &str) -> Result<()> {
        let process = other.0.id().to_string();
        let link = ["link", "add", name, "type", "veth", "peer", "name", theirs];
        self.ip(&[&link[..], &["netns", &process]].concat())?;
        for (end, name, address) in [(self, name, address), (other, theirs, at)] {
            end.ip(&["address", "add", address, "dev", name])?;
            end.ip(&["link", "set", name, "up"])?;
        }
        Ok(())
    }

    /// Calls `act` on a thread in here; threads that it starts are in here too.
    fn enter<T: Send>(&self, act: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        let file = File::open(self.path()).with_context(|| self.path())?;
        let inside = || {
            move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))
                .context("setns")?;
            act()
        };
        let joined = thread::scope(|scope| scope.spawn(inside).join());
        joined.map_err(|_| anyhow!("a thread in a namespace panicked"))?
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
