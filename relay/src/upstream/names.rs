//! Names: the hosts file and DNS, asked for addresses and services.

use std::{
    fs, io,
    net::{IpAddr, SocketAddr},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant, SystemTime},
};

use futures_util::future::join_all;
use hickory_resolver::{
    Hosts, TokioResolver,
    config::{ConnectionConfig, LookupIpStrategy, NameServerConfig, ResolverConfig},
    net::{NetError, runtime::TokioRuntimeProvider},
    proto::{
        op::Query,
        rr::{Name, RData, RecordType},
    },
};

use super::endpoint::Place;
use crate::{
    pair::Peer,
    plan::{Address, Target, Upstream},
};

/// What glibc asks where resolv.conf(5) names no server.
const LOCAL: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

/// Files that say how names are resolved. They are read again when they change.
const FILES: [&str; 2] = ["/etc/hosts", "/etc/resolv.conf"];

/// How long what the hosts file says holds: nobody announces its changes, and a look at it costs little.
const FIXED: Duration = Duration::from_secs(5);

/// The resolver of this process. Clones are the same one.
#[derive(Clone, Debug)]
pub struct Names(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    /// Asked instead of the system's own, if any.
    servers: Vec<SocketAddr>,
    current: Mutex<Option<Arc<Resolver>>>,
}

/// As the files were at one time.
struct Resolver {
    files: [Option<SystemTime>; 2],
    hosts: Hosts,
    dns: TokioResolver,
}

impl std::fmt::Debug for Resolver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Resolver").finish_non_exhaustive()
    }
}

/// What a name stands for, and for how long.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) places: Vec<Place>,
    pub(super) until: Instant,
}

impl Names {
    /// Asks `servers`, or those of /etc/resolv.conf where there are none; /etc/hosts comes first in any case.
    #[must_use]
    pub fn new(servers: Vec<SocketAddr>) -> Self {
        Self(Arc::new(Inner {
            servers,
            current: Mutex::new(None),
        }))
    }

    /// Where `upstream` is now.
    pub(super) async fn places(&self, upstream: &Upstream) -> Result<Answer, io::Error> {
        let resolver = self.resolver().map_err(other)?;
        match &upstream.at {
            Target::Address(Address::Name(host, port)) => {
                let found = resolver.addresses(host).await.map_err(other)?;
                let places = found.into_places(host, *port, upstream.weight.into(), 0);
                Ok(places)
            }
            Target::Srv(name) => resolver.services(name, upstream.weight.into()).await,
            Target::Address(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    fn resolver(&self) -> Result<Arc<Resolver>, NetError> {
        let Inner { servers, current } = &*self.0;
        let files = FILES.map(|path| fs::metadata(path).and_then(|of| of.modified()).ok());
        let mut current = current.lock().unwrap_or_else(PoisonError::into_inner);
        match &*current {
            Some(resolver) if resolver.files == files => Ok(resolver.clone()),
            _ => {
                let resolver = Arc::new(Resolver {
                    files,
                    // Without the file there are no static names.
                    hosts: Hosts::from_system().unwrap_or_default(),
                    dns: dns(servers)?,
                });
                *current = Some(resolver.clone());
                Ok(resolver)
            }
        }
    }
}

fn dns(servers: &[SocketAddr]) -> Result<TokioResolver, NetError> {
    let own = |servers: Vec<NameServerConfig>| {
        let config = ResolverConfig::from_parts(None, Vec::new(), servers);
        TokioResolver::builder_with_config(config, TokioRuntimeProvider::default())
    };
    let mut builder = match servers {
        [] => TokioResolver::builder_tokio()
            .unwrap_or_else(|_| own(vec![NameServerConfig::udp_and_tcp(LOCAL)])),
        _ => own(servers.iter().map(server).collect()),
    };
    let options = builder.options_mut();
    options.ip_strategy = LookupIpStrategy::Ipv6AndIpv4;
    // A server that loses a datagram is asked again in time for the dial that waits.
    options.timeout = options.timeout.min(Duration::from_secs(2));
    builder.build()
}

fn server(at: &SocketAddr) -> NameServerConfig {
    let mut ways = [ConnectionConfig::udp(), ConnectionConfig::tcp()];
    for way in &mut ways {
        way.port = at.port();
    }
    NameServerConfig::new(at.ip(), true, ways.into())
}

fn other(error: NetError) -> io::Error {
    io::Error::other(error)
}

/// The addresses of one host.
struct Found {
    addresses: Vec<IpAddr>,
    until: Instant,
}

impl Found {
    fn into_places(self, host: &str, port: u16, weight: u32, rank: u32) -> Answer {
        let place = |address| Place {
            at: Peer::Ip(SocketAddr::new(address, port)),
            host: format!("{host}:{port}"),
            weight,
            rank,
        };
        Answer {
            places: self.addresses.into_iter().map(place).collect(),
            until: self.until,
        }
    }
}

impl Resolver {
    async fn addresses(&self, host: &str) -> Result<Found, NetError> {
        let name = Name::from_utf8(host)?;
        // A name that is in the file is nobody else's business.
        let fixed = [RecordType::AAAA, RecordType::A].map(|kind| {
            let query = Query::query(name.clone(), kind);
            self.hosts.lookup_static_host(&query)
        });
        let fixed = fixed.iter().flatten().flat_map(|lookup| lookup.answers());
        let fixed = Vec::from_iter(fixed.filter_map(|record| record.data.ip_addr()));
        if !fixed.is_empty() {
            return Ok(Found {
                addresses: fixed,
                until: Instant::now() + FIXED,
            });
        }
        let lookup = self.dns.lookup_ip(name).await?;
        Ok(Found {
            addresses: lookup.iter().collect(),
            until: lookup.valid_until(),
        })
    }

    async fn services(&self, name: &str, weight: u32) -> Result<Answer, io::Error> {
        let lookup = self.dns.lookup(name, RecordType::SRV).await;
        let lookup = lookup.map_err(other)?;
        let services = lookup
            .answers()
            .iter()
            .filter_map(|record| match &record.data {
                // A target of `.` says that there is no such service.
                RData::SRV(service) if !service.target.is_root() => Some(service),
                _ => None,
            });
        let mut services = Vec::from_iter(services);
        services.sort_by_key(|service| service.priority);
        let found = services.iter().map(|service| async {
            let host = service.target.to_utf8();
            let found = self.addresses(&host).await?;
            // 0 is for one that is to be taken hardly ever.
            let weight = weight * u32::from(service.weight.max(1));
            let rank = u32::from(service.priority);
            let host = host.trim_end_matches('.');
            Ok(found.into_places(host, service.port, weight, rank))
        });
        let mut answer = Answer {
            places: Vec::new(),
            until: lookup.valid_until(),
        };
        let mut fault = None;
        for found in join_all(found).await {
            match found {
                Ok(found) => {
                    answer.until = answer.until.min(found.until);
                    answer.places.extend(found.places);
                }
                Err(error) => fault = Some(other(error)),
            }
        }
        match (answer.places.is_empty(), fault) {
            (true, Some(fault)) => Err(fault),
            (true, None) => Err(io::Error::other("no such service")),
            (false, _) => Ok(answer),
        }
    }
}
