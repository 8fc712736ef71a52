//! The pages of docs/uses: each command in them is run, and must print what the page says.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result, ensure};
use pulldown_cmark::{CodeBlockKind, Event, Parser, Tag, TagEnd};
use relay_tests::{
    needs::{self, Need},
    netns::{Netns, Place},
    peer::{Address, Listener, Peer, Server},
    relay::binary,
};

/// The hosts that the pages speak of; all are in the namespace of the test.
const HOSTS: [&str; 3] = ["10.0.0.5", "10.0.0.6", "10.0.0.7"];

/// What a page has in its fences, in order.
enum Block {
    /// A file to be written.
    File { name: String, text: String },
    /// Commands.
    Commands(String),
    /// What all commands since the last such block have printed.
    Printed(String),
}

fn blocks(page: &str) -> Result<Vec<Block>> {
    let mut blocks = Vec::new();
    let mut open: Option<(String, String)> = None;
    for event in Parser::new(page) {
        match event {
            Event::Start(Tag::CodeBlock(CodeBlockKind::Fenced(kind))) => {
                open = Some((kind.to_string(), String::new()));
            }
            Event::Text(text) => {
                if let Some((_, block)) = &mut open {
                    block.push_str(&text);
                }
            }
            Event::End(TagEnd::CodeBlock) => {
                let Some((kind, text)) = open.take() else {
                    continue;
                };
                blocks.push(match (kind.as_str(), kind.split_once(' ')) {
                    ("sh", _) => Block::Commands(text),
                    ("text", _) => Block::Printed(text),
                    (_, Some((_, name))) => Block::File {
                        name: name.to_owned(),
                        text,
                    },
                    _ => anyhow::bail!("a fence of kind {kind:?}, which is not run"),
                });
            }
            _ => (),
        }
    }
    Ok(blocks)
}

/// One shell for the whole page, as its reader would have; what it started in the background ends with it.
fn script(blocks: &[Block], folder: &Path) -> Result<(String, String)> {
    let mut script = String::from("set -eu\ntrap 'kill $(jobs -p) 2>/dev/null; wait' EXIT\n");
    let mut expected = String::new();
    for (number, block) in blocks.iter().enumerate() {
        match block {
            // Another page of the same name may follow: each is copied into place when its turn has come.
            Block::File { name, text } => {
                let kept = folder.join(format!("{number}.{name}"));
                fs::write(&kept, text)?;
                script.push_str(&format!("cp {} {name}\n", kept.display()));
            }
            Block::Commands(commands) => script.push_str(commands),
            Block::Printed(text) => expected.push_str(text),
        }
    }
    Ok((script, expected))
}

/// Says who it is to whoever asks, in HTTP.
fn host(place: &Place, address: &'static str) -> Result<Server> {
    let at = Address::parse(&format!("{address}:80"))?;
    let listener = place.enter(|| Listener::bind(&at))?;
    listener.serve(move |peer: Peer| {
        let mut asked = Vec::new();
        while !asked.ends_with(b"\r\n\r\n") {
            asked.extend(peer.receive(1)?);
        }
        let body = format!("hello from {address}\n");
        let length = body.len();
        let head =
            format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n");
        peer.send((head + &body).as_bytes())?;
        peer.finish()?;
        peer.expect_end()
    })
}

fn run(page: &str) -> Result<()> {
    let name = format!("pages::{page}");
    if !needs::met(
        &name,
        &[
            Need::Namespaces,
            Need::Program("curl"),
            Need::Program("nft"),
        ],
    )? {
        return Ok(());
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../docs/uses/{page}.md"));
    let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let namespace = Netns::new()?;
    for host in HOSTS {
        namespace.ip(&format!("address add {host}/32 dev lo"))?;
    }
    let place = Place::Inside(namespace.into());
    let hosts = HOSTS.map(|address| host(&place, address));
    let folder = tempfile::tempdir()?;
    let (script, expected) = script(&blocks(&text)?, folder.path())?;
    let mut shell = Command::new("timeout");
    shell
        .args(["60", "bash", "-c", &script])
        .current_dir(folder.path());
    shell.env("PATH", path_with_relay()?).stdin(Stdio::null());
    let output = place.enter(|| Ok(shell.output()?))?;
    let (printed, said) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    ensure!(
        output.status.success() && printed == expected,
        "{}: printed\n{printed}\nnot\n{expected}\nand said\n{said}",
        output.status
    );
    hosts.into_iter().try_for_each(|host| host?.stop())
}

fn path_with_relay() -> Result<std::ffi::OsString> {
    let binary: PathBuf = binary()?;
    let folder = binary.parent().context("no folder")?.to_owned();
    let path = env::var_os("PATH").unwrap_or_default();
    let folders = std::iter::once(folder).chain(env::split_paths(&path));
    Ok(env::join_paths(folders)?)
}

#[test]
fn port_forward() -> Result<()> {
    run("port-forward")
}

#[test]
fn load_balancer() -> Result<()> {
    run("load-balancer")
}

#[test]
fn sidecar() -> Result<()> {
    run("sidecar")
}

#[test]
fn socks5_exit() -> Result<()> {
    run("socks5-exit")
}

#[test]
fn transparent_source() -> Result<()> {
    run("transparent-source")
}

/// A page that nobody runs would be believed all the same.
#[test]
fn every_page_is_run() -> Result<()> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/uses");
    let mut pages = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let page = path.file_stem().context("no name")?;
        pages.push(page.to_string_lossy().into_owned());
    }
    pages.sort();
    ensure!(
        pages
            == [
                "load-balancer",
                "port-forward",
                "sidecar",
                "socks5-exit",
                "transparent-source"
            ],
        "{pages:?}"
    );
    Ok(())
}
