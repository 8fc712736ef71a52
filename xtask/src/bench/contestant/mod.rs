//! Who takes part: how each is found and started. Each has two threads or processes a machine of two CPUs, nodelay, pipes of
//! 1 MiB where it splices and buffers of 64 KiB where it copies, where that can be set. Unix sockets have the buffers that
//! the kernel gives them by itself (net.core.wmem_default), all alike.

mod haproxy;
mod nginx;
mod program;
pub(super) mod proof;
pub(super) mod relay;
mod rivals;
mod socat;

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::Result;

pub(super) use self::program::{Program, find};
use super::ends::Ends;
use crate::{load::socket::Address, run};

/// What moves the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// The kernel routes; there is no forwarder.
    Routed,
    /// relay's engine of this name, as its record says; any for auto.
    Engine(&'static str),
    /// splice(2).
    Splice,
    /// Into the process and out again.
    Copy,
    /// splice(2) or a copy, which depends on its version: what it is is seen, not demanded.
    Either,
}

/// What becomes of a contestant where an end is a Unix socket.
#[derive(Clone, Copy, Debug)]
enum OverUnix {
    /// It moves the bytes as it does between sockets of TCP.
    Alike,
    /// In a way that depends on the ends.
    By(fn(Ends) -> Way),
    /// It does not take part, for this reason.
    Not(&'static str),
}

/// What a contestant is started with.
pub(super) struct Site<'a> {
    /// The program.
    pub(super) program: &'a Path,
    pub(super) listen: Address,
    pub(super) to: Address,
    /// For its configuration.
    pub(super) directory: &'a Path,
    pub(super) threads: usize,
}

/// Makes the command line, and writes the configuration.
type Start = fn(&Site<'_>) -> Result<Command>;

/// One of those who are compared.
#[derive(Clone, Copy, Debug)]
pub(super) struct Contestant {
    pub(super) name: &'static str,
    /// Between sockets of TCP.
    pub(super) way: Way,
    over_unix: OverUnix,
    /// The program, and Debian's package where there is one.
    source: Source,
    /// What makes it say its version.
    version: &'static [&'static str],
    start: Start,
    /// Arguments that `start` does not know of.
    more: &'static [&'static str],
}

#[derive(Clone, Copy, Debug)]
enum Source {
    /// Nothing to start.
    None,
    /// Built from this tree.
    Relay,
    /// Built from tests/benches/rivals, or the Go program beside it.
    Rival(&'static str),
    /// Of Debian: the program, its package, and a file of another package that it needs.
    Debian {
        program: &'static str,
        package: &'static str,
        needs: Option<(&'static str, &'static str)>,
    },
}

/// All of them, in the order in which they are shown.
pub(super) const ALL: &[Contestant] = &[
    DIRECT,
    relay::AUTO,
    relay::SOCKMAP,
    relay::SPLICE,
    relay::COPY,
    haproxy::SPLICING,
    haproxy::COPYING,
    nginx::NGINX,
    rivals::SPLICE2,
    rivals::TOKIO,
    rivals::GO,
    rivals::REALM,
    socat::SOCAT,
];

const DIRECT: Contestant = Contestant {
    name: "direct",
    way: Way::Routed,
    over_unix: OverUnix::Not("the kernel routes no Unix sockets"),
    source: Source::None,
    version: &[],
    more: &[],
    start: |_| Ok(Command::new("true")),
};

impl Contestant {
    /// Where its program is, or what is missing.
    pub(super) fn find(&self, built: &Built) -> Result<PathBuf, String> {
        match self.source {
            Source::None => Ok(PathBuf::new()),
            Source::Relay => Ok(built.relay.clone()),
            Source::Rival(name) => built.rival(name),
            Source::Debian {
                program,
                package,
                needs,
            } => {
                if let Some((file, of)) = needs
                    && !Path::new(file).exists()
                {
                    return Err(format!("needs Debian's {of} (--install)"));
                }
                let found = program::find(program);
                found.ok_or_else(|| format!("needs Debian's {package} (--install)"))
            }
        }
    }

    /// Debian's packages that it needs and that are not there.
    pub(super) fn missing(&self) -> Vec<&'static str> {
        let Source::Debian {
            program,
            package,
            needs,
        } = self.source
        else {
            return Vec::new();
        };
        let own = program::find(program).is_none().then_some(package);
        let more = needs.filter(|(file, _)| !Path::new(file).exists());
        own.into_iter()
            .chain(more.map(|(_, package)| package))
            .collect()
    }

    /// What it says of its version; nothing where it says none.
    pub(super) fn version(&self, program: &Path) -> Option<String> {
        if self.version.is_empty() {
            return None;
        }
        let said = Command::new(program).args(self.version).output().ok()?;
        let text = [said.stdout, said.stderr].concat();
        let text = String::from_utf8_lossy(&text).into_owned();
        let line = text
            .lines()
            .find(|line| line.chars().any(|c| c.is_ascii_digit()));
        line.map(|line| line.trim().to_owned())
    }

    /// Whether there is no forwarder.
    pub(super) fn is_routed(&self) -> bool {
        self.way == Way::Routed
    }

    /// Whether it is relay.
    pub(super) fn is_ours(&self) -> bool {
        matches!(self.way, Way::Engine(_))
    }

    /// Whether it stands for what people would use instead.
    pub(super) fn is_peer(&self) -> bool {
        matches!(self.way, Way::Splice | Way::Copy)
    }

    /// How it moves bytes between such ends, or why it does not take part there.
    pub(super) fn between(&self, ends: Ends) -> Result<Way, &'static str> {
        match self.over_unix {
            _ if ends.are_tcp() => Ok(self.way),
            OverUnix::Alike => Ok(self.way),
            OverUnix::By(way) => Ok(way(ends)),
            OverUnix::Not(why) => Err(why),
        }
    }

    pub(super) fn command(&self, site: &Site<'_>) -> Result<Command> {
        let mut command = (self.start)(site)?;
        command.args(self.more);
        Ok(command)
    }

    /// The one of this name, or the one that it is a variant of.
    pub(super) fn of(name: &str) -> Option<&'static Self> {
        let is_variant = |one: &&Self| {
            let rest = name.strip_prefix(one.name);
            rest.is_some_and(|rest| rest.starts_with(' '))
        };
        let same = ALL.iter().find(|one| one.name == name);
        same.or_else(|| ALL.iter().find(is_variant))
    }
}

/// What was built for the bench.
pub(super) struct Built {
    relay: PathBuf,
    /// Where the rivals are, or why there are none.
    rivals: Result<PathBuf, String>,
    /// The Go program, or why there is none.
    go: Result<PathBuf, String>,
}

impl Built {
    /// Builds what `contestants` need; relay only where it is not given.
    pub(super) fn new(contestants: &[Contestant], relay: Option<&Path>) -> Result<Self> {
        let takes_part =
            |wanted: fn(&Source) -> bool| contestants.iter().any(|one| wanted(&one.source));
        let no = || Err("does not take part".to_owned());
        Ok(Self {
            relay: match relay {
                Some(given) => given.to_owned(),
                None if takes_part(|source| matches!(source, Source::Relay)) => run::build()?,
                None => PathBuf::new(),
            },
            rivals: match takes_part(
                |source| matches!(source, Source::Rival(name) if *name != "go"),
            ) {
                true => rivals::build(),
                false => no(),
            },
            go: match takes_part(|source| matches!(source, Source::Rival("go"))) {
                true => rivals::build_go(),
                false => no(),
            },
        })
    }

    fn rival(&self, name: &str) -> Result<PathBuf, String> {
        match name {
            "go" => self.go.clone(),
            _ => self.rivals.clone().map(|directory| directory.join(name)),
        }
    }
}
