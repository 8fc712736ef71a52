//! Values as typed, in flags and in files alike.

use std::{
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    str::FromStr,
    time::Duration,
};

use bytesize::ByteSize;
use clap::ValueEnum as _;
use ipnet::IpNet;
use relay::{
    plan::{Address, Balance, Choice, EngineKind, Owner, Protocol, ProxyVersion, Rate, Size},
    privileges::Account,
};
use serde::Deserialize;
use serde_with::DeserializeFromStr;
use tracing::level_filters::LevelFilter;

use crate::logs::Format;

/// Limits longer than this mean never, and no clock has to hold them.
pub(crate) const LONGEST: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// What moves the bytes.
#[derive(Clone, Copy, Debug, clap::ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Engine {
    /// The best that serves the connection.
    Auto,
    /// A BPF program in the kernel, TCP only.
    Sockmap,
    /// splice(2) through a pipe.
    Splice,
    /// read(2) and write(2).
    Copy,
}

impl From<Engine> for Choice {
    fn from(engine: Engine) -> Self {
        match engine {
            Engine::Auto => Self::Auto,
            Engine::Sockmap => Self::Only(EngineKind::Sockmap),
            Engine::Splice => Self::Only(EngineKind::Splice),
            Engine::Copy => Self::Only(EngineKind::Copy),
        }
    }
}

/// How one of several upstreams is chosen.
#[derive(Clone, Copy, Debug, clap::ValueEnum, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Balancing {
    /// Each in turn.
    RoundRobin,
    /// The one with the fewest live connections.
    LeastConnections,
    /// Of two taken at random, the one with fewer live connections.
    RandomTwo,
    /// Always the same one for a client's address; when it fails, only its own clients move.
    SourceHash,
}

impl From<Balancing> for Balance {
    fn from(balancing: Balancing) -> Self {
        match balancing {
            Balancing::RoundRobin => Self::RoundRobin,
            Balancing::LeastConnections => Self::LeastConnections,
            Balancing::RandomTwo => Self::RandomTwo,
            Balancing::SourceHash => Self::SourceHash,
        }
    }
}

/// A version of the PROXY protocol.
#[derive(Clone, Copy, Debug, clap::ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Proxy {
    /// A line of text.
    V1,
    /// Binary.
    V2,
}

impl From<Proxy> for ProxyVersion {
    fn from(version: Proxy) -> Self {
        match version {
            Proxy::V1 => Self::V1,
            Proxy::V2 => Self::V2,
        }
    }
}

/// A name server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, DeserializeFromStr)]
pub(crate) struct Server(pub(crate) SocketAddr);

impl FromStr for Server {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let with_port = || text.parse::<IpAddr>().map(|ip| SocketAddr::new(ip, 53));
        let server = text.parse().or_else(|_| with_port());
        server
            .map(Self)
            .map_err(|_| "a name server is written ip, ip:port or [v6]:port")
    }
}

/// Who says where connections go.
#[derive(Clone, Copy, Debug, clap::ValueEnum, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Mode {
    /// The route.
    Forward,
    /// The client, by SOCKS5.
    Socks5,
    /// The client, by HTTP CONNECT.
    HttpConnect,
}

impl Mode {
    /// How clients ask, where they do.
    pub(crate) fn protocol(self) -> Option<Protocol> {
        match self {
            Self::Forward => None,
            Self::Socks5 => Some(Protocol::Socks5),
            Self::HttpConnect => Some(Protocol::HttpConnect),
        }
    }
}

/// How lines of the log look.
#[derive(Clone, Copy, Debug, clap::ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum LogFormat {
    /// For people.
    Text,
    /// One JSON object per line.
    Json,
}

impl From<LogFormat> for Format {
    fn from(format: LogFormat) -> Self {
        match format {
            LogFormat::Text => Self::Text,
            LogFormat::Json => Self::Json,
        }
    }
}

/// How grave a diagnostic is.
#[derive(Clone, Copy, Debug, clap::ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Level {
    Off,
    Error,
    Warn,
    Info,
    Debug,
    Trace,
}

impl Level {
    /// Its name in flags and files.
    pub(crate) fn name(self) -> String {
        let name = clap::ValueEnum::to_possible_value(&self);
        name.map_or_else(String::new, |name| name.get_name().to_owned())
    }
}

impl FromStr for Level {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let level = <Self as clap::ValueEnum>::from_str(text, false);
        level.map_err(|_| {
            let names = Self::value_variants().iter().map(|level| level.name());
            let names = Vec::from_iter(names).join(", ");
            format!("{text:?} is no log level: use one of {names}")
        })
    }
}

impl From<Level> for LevelFilter {
    fn from(level: Level) -> Self {
        match level {
            Level::Off => Self::OFF,
            Level::Error => Self::ERROR,
            Level::Warn => Self::WARN,
            Level::Info => Self::INFO,
            Level::Debug => Self::DEBUG,
            Level::Trace => Self::TRACE,
        }
    }
}

/// A duration, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, DeserializeFromStr)]
pub(crate) struct Limit(pub(crate) Option<Duration>);

impl Limit {
    /// For limits where 0 would end everything at once.
    pub(crate) fn or_never(self) -> Option<Duration> {
        self.0.filter(|limit| !limit.is_zero())
    }
}

impl FromStr for Limit {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "none" => Ok(Self(None)),
            _ => duration(text).map(|limit| Self(Some(limit))),
        }
    }
}

/// A duration that is longer than 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, DeserializeFromStr)]
pub(crate) struct Positive(pub(crate) Duration);

impl FromStr for Positive {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match duration(text)? {
            Duration::ZERO => Err("it must be longer than 0".into()),
            limit => Ok(Self(limit)),
        }
    }
}

/// Bytes per second, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, DeserializeFromStr)]
pub(crate) struct Speed(pub(crate) Option<Rate>);

impl FromStr for Speed {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "none" {
            return Ok(Self(None));
        }
        let size = text.strip_suffix("/s").unwrap_or(text);
        let size: ByteSize = size
            .parse()
            .map_err(|_| "not bytes per second: write 10MiB/s for one, or none".to_owned())?;
        match (size.as_u64(), Rate::new(size.as_u64())) {
            (0, _) => Ok(Self(None)),
            (_, Some(rate)) => Ok(Self(Some(rate))),
            (_, None) => Err("it must be 1KiB/s or more; 0 or none is no limit".into()),
        }
    }
}

/// How much a pipe or a buffer holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, DeserializeFromStr)]
pub(crate) struct Vessel(pub(crate) Size);

impl FromStr for Vessel {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let size: ByteSize = text
            .parse()
            .map_err(|_| "not a number of bytes: write 64KiB for one".to_owned())?;
        let size = usize::try_from(size.as_u64()).ok().and_then(Size::new);
        size.map(Self)
            .ok_or_else(|| "it must be from 4KiB to 64MiB".into())
    }
}

/// Permissions of a file, octal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, DeserializeFromStr)]
pub(crate) struct Permissions(pub(crate) u32);

impl FromStr for Permissions {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mode = u32::from_str_radix(text, 8).ok();
        let mode = mode.filter(|mode| *mode <= 0o777);
        mode.map(Self)
            .ok_or_else(|| "not a file mode: write 660 for one, in octal digits".into())
    }
}

/// The path of a Unix socket.
#[derive(Clone, Debug, PartialEq, Eq, DeserializeFromStr)]
pub(crate) struct Socket(pub(crate) PathBuf);

impl FromStr for Socket {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.parse() {
            Ok(Address::Unix(path)) => Ok(Self(path)),
            Ok(_) => Err("not a Unix socket: write unix:/path".into()),
            Err(error) => Err(error.to_string()),
        }
    }
}

/// A network, or the one of a single address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, DeserializeFromStr)]
pub(crate) struct Network(pub(crate) IpNet);

impl FromStr for Network {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let single = text.parse::<IpAddr>().map(IpNet::from);
        let network = single.or_else(|_| text.parse());
        network
            .map(Self)
            .map_err(|_| "not a network: write 10.0.0.0/8, 2001:db8::/32 or an address".into())
    }
}

/// The numbers of an account that a file is to be given to.
pub(super) fn owner(account: Account) -> Result<Owner, String> {
    let numbers = account.numbers();
    let (user, group) = numbers.map_err(|none| format!("socket-owner {account}: {none}"))?;
    Ok(Owner { user, group })
}

fn duration(text: &str) -> Result<Duration, String> {
    let duration = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    match duration <= LONGEST {
        true => Ok(duration),
        false => Err("it is longer than 100 years".into()),
    }
}
