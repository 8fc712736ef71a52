//! nginx, asked by curl and wrk.

use std::{fs, net::SocketAddr, path::Path};

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;

use super::{LARGE, behind, finish, relay};
use crate::{
    matrix::Stage,
    payload::Stream,
    peers::{self, Nginx, Service, program, run},
};

const FILE: usize = 6 << 20;

/// Downloads on one kept connection.
const DOWNLOADS: usize = 3;

/// Gets `name` of nginx `times` times on one connection, and checks each byte.
fn download(stage: &Stage, name: &str, folder: &Path, relay: SocketAddr) -> Result<()> {
    let mut curl = program("curl")?;
    curl.args(["--silent", "--show-error", "--fail"]);
    let times = if name == "large" { 1 } else { DOWNLOADS };
    for number in 0..times {
        curl.arg("--output");
        curl.arg(folder.join(format!("got{number}")));
        curl.arg(format!("http://{relay}/{name}"));
    }
    run(&stage.net.client, &mut curl)?;
    let length = fs::metadata(folder.join(name))?.len();
    for number in 0..times {
        let got = fs::read(folder.join(format!("got{number}")))?;
        ensure!(got.len() as u64 == length, "{} of {length}", got.len());
        Stream::new(1).check(&got)?;
    }
    Ok(())
}

/// curl gets a large file of nginx, and one several times on one connection.
///
/// # Errors
///
/// Fails when a byte is wrong.
pub fn nginx_and_curl(stage: &Stage) -> Result<()> {
    if !peers::met("nginx_and_curl", &["nginx", "curl"])? {
        return Ok(());
    }
    let upstream = behind(stage, 8080);
    let nginx = Nginx::start(&stage.net.upstream, upstream)?;
    let content = Stream::new(1).take(LARGE);
    fs::write(nginx.folder().join("large"), &content)?;
    fs::write(nginx.folder().join("file"), &content[..FILE])?;
    let (relay, front) = relay(stage, upstream)?;
    download(stage, "file", nginx.folder(), front)?;
    download(stage, "large", nginx.folder(), front)?;
    let records = stage.finish(relay, 2)?;
    let least = (DOWNLOADS * FILE) as u64;
    ensure!(records[0].bytes_down > least, "{records:?}");
    ensure!(records[1].bytes_down > LARGE as u64, "{records:?}");
    Ok(())
}

/// curl, relay, HAProxy, nginx.
///
/// # Errors
///
/// Fails when a byte is wrong.
pub fn haproxy_in_the_chain(stage: &Stage) -> Result<()> {
    if !peers::met("haproxy_in_the_chain", &["nginx", "curl", "haproxy"])? {
        return Ok(());
    }
    let (upstream, address) = (behind(stage, 8080), behind(stage, 8081));
    let nginx = Nginx::start(&stage.net.upstream, upstream)?;
    fs::write(nginx.folder().join("file"), Stream::new(1).take(FILE))?;
    let config = nginx.folder().join("haproxy.cfg");
    let text = format!(
        "global\n nbthread 1\n\
         defaults\n mode tcp\n timeout connect 60s\n timeout client 600s\n timeout server 600s\n\
         listen chain\n bind {address}\n server nginx {upstream}\n"
    );
    fs::write(&config, text)?;
    let _haproxy = Service::start(
        &stage.net.upstream,
        "haproxy",
        |haproxy| {
            haproxy.arg("-db").arg("-f").arg(config);
            Ok(())
        },
        address,
        Signal::TERM,
    )?;
    let (relay, front) = relay(stage, address)?;
    download(stage, "file", nginx.folder(), front)?;
    stage.finish(relay, 1)?;
    Ok(())
}

/// wrk asks nginx for a small file on 100 connections that are kept, and on ones that are closed after each answer.
///
/// # Errors
///
/// Fails when wrk counts an error.
pub fn nginx_and_wrk(stage: &Stage) -> Result<()> {
    if !peers::met("nginx_and_wrk", &["nginx", "wrk"])? {
        return Ok(());
    }
    let upstream = behind(stage, 8080);
    let _nginx = Nginx::start(&stage.net.upstream, upstream)?;
    let (relay, front) = relay(stage, upstream)?;
    let mut closed = 0;
    for header in ["Connection: keep-alive", "Connection: close"] {
        let mut wrk = program("wrk")?;
        wrk.args(["-t", "2", "-c", "100", "-d", "1s", "--timeout", "60s"]);
        wrk.args(["-H", header])
            .arg(format!("http://{front}/small"));
        let said = run(&stage.net.client, &mut wrk)?;
        ensure!(!said.contains("Socket errors"), "{header}: {said}");
        ensure!(!said.contains("Non-2xx"), "{header}: {said}");
        let requests = said
            .lines()
            .find_map(|line| line.split_once(" requests in "));
        let (requests, _) = requests.with_context(|| said.clone())?;
        closed = requests.trim().parse()?;
        ensure!(closed > 0, "{header}: {said}");
    }
    finish(stage, relay, closed)
}
