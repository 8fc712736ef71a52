//! Files: each is read, or has a fault that names it.

use std::{io::Write, os::fd::AsRawFd, path::PathBuf};

use relay::plan::{Address, Listen, Route, Target};
use rustix::fs::{MemfdFlags, memfd_create};

use crate::{
    addresses::alike,
    config::{Form, Source},
    settings::Given,
};

/// A TOML file.
pub(crate) fn toml(data: &[u8]) {
    read(data, Form::Toml);
}

/// The lines of rinetd, which know of no other addresses than hosts with ports.
pub(crate) fn rinetd(data: &[u8]) {
    let host = |at: &Address| matches!(at, Address::Ip(_) | Address::Name(..));
    for Route { listen, to, .. } in read(data, Form::Rinetd) {
        let from_hosts = listen
            .iter()
            .all(|at| matches!(at, Listen::At(at) if host(at)));
        let mut targets = to.0.iter().map(|upstream| &upstream.at);
        let to_hosts = targets.all(|at| matches!(at, Target::Address(at) if host(at)));
        assert!(from_hosts && to_hosts, "{listen:?} to {to}");
    }
}

/// The routes of a file that holds `data`.
fn read(data: &[u8], form: Form) -> Vec<Route> {
    let file = memfd_create("config", MemfdFlags::CLOEXEC);
    let Ok(mut file) = file.map(std::fs::File::from) else {
        return Vec::new();
    };
    if file.write_all(data).is_err() {
        return Vec::new();
    }
    let path = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
    let source = Source::new(path.clone(), form, Given::default());
    match source.read() {
        Ok(config) => {
            let routes = config.plan.routes;
            assert!(!routes.is_empty(), "a plan without routes");
            for listen in routes.iter().flat_map(|route| &route.listen) {
                alike::<Listen>(&listen.to_string());
            }
            routes
        }
        Err(fault) => {
            let told = fault.to_string();
            let rest = told.strip_prefix(&*path.to_string_lossy());
            let rest = rest.and_then(|rest| rest.strip_prefix(':'));
            assert!(rest.is_some_and(|rest| rest.len() > 1), "{told}");
            Vec::new()
        }
    }
}
