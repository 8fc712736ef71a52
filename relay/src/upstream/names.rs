//! Names: the hosts file and DNS, asked for addresses and services.

use std::{
    fs, io,
    net::{IpAddr, SocketAddr},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant, SystemTime},
};

use futures_util::future::{join, join_all};
use hickory_resolver::{
    Hosts, TokioResolver,
    config::{ConnectionConfig, LookupIpStrategy, NameServerConfig, ResolverConfig},
    lookup::Lookup,
    net::{NetError, runtime::TokioRuntimeProvider},
    proto::{
        op::Query,
        rr::{Name, RData, RecordType, rdata::SRV},
    },
};

use tokio::sync::watch;

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
    servers: watch::Sender<Vec<SocketAddr>>,
    current: Mutex<Option<Arc<Resolver>>>,
}

/// As the files were at one time.
struct Resolver {
    servers: Vec<SocketAddr>,
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
    /// The name in full by which DNS has answered; none where the hosts file did.
    pub(super) name: Option<Name>,
}

impl Names {
    /// Asks `servers`, or those of /etc/resolv.conf where there are none; /etc/hosts comes first in any case.
    #[must_use]
    pub fn new(servers: Vec<SocketAddr>) -> Self {
        Self(Arc::new(Inner {
            servers: watch::Sender::new(servers),
            current: Mutex::new(None),
        }))
    }

    /// Asks these from here on. Whoever follows a name asks for it at once.
    pub fn ask(&self, servers: Vec<SocketAddr>) {
        self.0.servers.send_if_modified(|asked| {
            let other = *asked != servers;
            *asked = servers;
            other
        });
    }

    /// Tells when others are asked.
    pub(super) fn servers(&self) -> watch::Receiver<Vec<SocketAddr>> {
        self.0.servers.subscribe()
    }

    /// Whether DNS says that there is nothing at `upstream`: no such name, or no address at it. A server that fails or is silent
    /// says nothing. `name` is the one in full that had an answer before: where a search list is tried, the last of its
    /// names may well not exist while the right one could not be asked for.
    pub(super) async fn is_gone(&self, upstream: &Upstream, name: Option<&Name>) -> bool {
        let Ok(resolver) = self.resolver() else {
            return false;
        };
        let host = match &upstream.at {
            Target::Address(Address::Name(host, _)) | Target::Srv(host) => host,
            Target::Address(_) => return false,
        };
        let Some(mut name) = name.cloned().or_else(|| Name::from_utf8(host).ok()) else {
            return false;
        };
        name.set_fqdn(true);
        resolver.has_nothing(name, &upstream.at).await
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
        let servers = servers.borrow().clone();
        let files = FILES.map(|path| fs::metadata(path).and_then(|of| of.modified()).ok());
        let mut current = current.lock().unwrap_or_else(PoisonError::into_inner);
        match &*current {
            Some(resolver) if resolver.files == files && resolver.servers == servers => {
                Ok(resolver.clone())
            }
            _ => {
                let resolver = Arc::new(Resolver {
                    files,
                    // Without the file there are no static names.
                    hosts: Hosts::from_system().unwrap_or_default(),
                    dns: dns(&servers)?,
                    servers,
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
    name: Option<Name>,
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
            name: self.name,
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
                name: None,
            });
        }
        let lookup = self.dns.lookup_ip(name).await?;
        Ok(Found {
            addresses: lookup.iter().collect(),
            until: lookup.valid_until(),
            name: asked(lookup.as_lookup()),
        })
    }

    async fn has_nothing(&self, name: Name, at: &Target) -> bool {
        let no_records = |error: NetError| error.is_no_records_found();
        if let Target::Srv(_) = at {
            let found = self.dns.lookup(name, RecordType::SRV).await;
            return found.map_or_else(no_records, |found| services(&found).next().is_none());
        }
        let (v4, v6) = join(
            self.dns.lookup(name.clone(), RecordType::A),
            self.dns.lookup(name, RecordType::AAAA),
        )
        .await;
        v4.is_err_and(no_records) && v6.is_err_and(no_records)
    }

    async fn services(&self, name: &str, weight: u32) -> Result<Answer, io::Error> {
        let lookup = self.dns.lookup(name, RecordType::SRV).await;
        let lookup = lookup.map_err(other)?;
        let mut services = Vec::from_iter(services(&lookup));
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
            name: asked(&lookup),
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

/// The name that was asked for, in full.
fn asked(lookup: &Lookup) -> Option<Name> {
    lookup.answers().first().map(|record| record.name.clone())
}

/// The services in an answer. A target of `.` says that there is no such service.
fn services(lookup: &Lookup) -> impl Iterator<Item = &SRV> {
    let records = lookup.answers().iter();
    records.filter_map(|record| match &record.data {
        RData::SRV(service) if !service.target.is_root() => Some(service),
        _ => None,
    })
}
