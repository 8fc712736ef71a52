//! SOCKS5 and HTTP CONNECT, asked by curl and by hand.

use std::fs;

use anyhow::{Result, ensure};
use relay_tests::{
    dns::Dns,
    matrix::Stage,
    patience,
    payload::Stream,
    peer::{Address, Peer, go_on},
    peers::{self, Nginx, open_folder, program},
    relay::{Launch, Relay},
    topology::Wire,
};

use super::under_each;

const LENGTH: u64 = 300_000;
const FILE: usize = 3 << 20;

const SOCKS5: &str = "socks5";
const HTTP: &str = "http-connect";

fn launch(stage: &Stage, mode: &str) -> Launch {
    let at = stage.net.at_relay().to_string();
    Launch::new(["--log-format", "json", "--engine", stage.engine.name()])
        .with(["--listen", &at, "--mode", mode])
        .at(&stage.net.relay)
}

/// With the loopback in reach, where the tests are.
fn local(stage: &Stage, mode: &str) -> Result<Relay> {
    let launch = launch(stage, mode).with(["--allow-to", "127.0.0.0/8"]);
    launch.start()
}

fn port(at: &Address) -> Result<u16> {
    match at {
        Address::Ip(at) => Ok(at.port()),
        Address::Unix(_) => anyhow::bail!("no port"),
    }
}

/// The whole greeting of a client, which does not wait for answers.
fn greeting(mode: &str, to: &Address) -> Result<Vec<u8>> {
    Ok(match mode {
        SOCKS5 => {
            let mut said = vec![5, 1, 0, 5, 1, 0, 1, 127, 0, 0, 1];
            said.extend(port(to)?.to_be_bytes());
            said
        }
        _ => format!("CONNECT {to} HTTP/1.1\r\nHost: {to}\r\n\r\n").into_bytes(),
    })
}

/// How long the answers to it are.
fn answer(mode: &str, client: &Peer) -> Result<()> {
    if mode == SOCKS5 {
        let said = client.receive(12)?;
        ensure!(said[..6] == [5, 0, 5, 0, 0, 1], "{said:?}");
        return Ok(());
    }
    let said = client.receive(39)?;
    ensure!(said.starts_with(b"HTTP/1.1 200 "), "{said:?}");
    ensure!(said.ends_with(b"\r\n\r\n"), "{said:?}");
    Ok(())
}

/// In one segment, in single bytes, and with bytes of its own right behind.
#[test]
fn bytes_behind_a_greeting_are_carried() -> Result<()> {
    under_each("bytes_behind_a_greeting", Wire::Loopback, |stage| {
        let listener = stage.listen()?;
        for mode in [SOCKS5, HTTP] {
            let relay = local(stage, mode)?;
            for (early, piece) in [(0, 1000), (0, 1), (5000, 9000), (5000, 70_000)] {
                let client = stage.connect(&relay)?;
                let mut said = greeting(mode, listener.address())?;
                said.extend(Stream::new(1).take(early));
                for piece in said.chunks(piece) {
                    client.send(piece)?;
                }
                answer(mode, &client)?;
                let upstream = listener.accept()?;
                go_on(&client, &upstream, early as u64, LENGTH)?;
            }
            for record in stage.finish(relay, 4)? {
                record.moved(LENGTH, LENGTH)?.ended("client", "end")?;
                ensure!(record.upstream == Some(listener.address().to_string()));
            }
        }
        Ok(())
    })
}

/// The whole answer of a client that is refused, up to the end.
fn refusal(client: &Peer) -> Result<Vec<u8>> {
    let mut said = Vec::new();
    let mut buffer = [0; 1000];
    loop {
        match client.read(&mut buffer)? {
            0 => return Ok(said),
            count => said.extend(&buffer[..count]),
        }
    }
}

#[test]
fn who_is_refused_is_told_why() -> Result<()> {
    under_each("who_is_refused", Wire::Loopback, |stage| {
        let listener = stage.listen()?;
        let to = listener.address().clone();
        let closed = {
            let listener = stage.listen()?;
            listener.address().clone()
        };
        let relay = local(stage, SOCKS5)?;
        let mut outside = greeting(SOCKS5, &to)?;
        outside[7] = 10;
        let mut bind = greeting(SOCKS5, &to)?;
        bind[4] = 2;
        for (said, code) in [
            (greeting(SOCKS5, &closed)?, 5),
            (outside.clone(), 2),
            (bind, 7),
        ] {
            let client = stage.connect(&relay)?;
            client.send(&said)?;
            let told = refusal(&client)?;
            ensure!(told.get(2..4) == Some(&[5, code]), "{code}: {told:?}");
        }
        // A record is written when its client has had time to read the answer.
        let records = relay.finish(3)?;
        let mut reasons: Vec<_> = records.iter().map(|record| &record.end.reason).collect();
        reasons.sort();
        let expected = [None, Some("command"), Some("destination")];
        let same = reasons.iter().map(|reason| reason.as_deref()).eq(expected);
        ensure!(same, "{reasons:?}");

        let relay = local(stage, HTTP)?;
        for (said, status) in [
            (greeting(HTTP, &closed)?, "502"),
            (b"CONNECT 10.0.0.1:80 HTTP/1.1\r\n\r\n".to_vec(), "403"),
            (b"GET http://example.com/ HTTP/1.1\r\n\r\n".to_vec(), "405"),
            (b"CONNECT nowhere HTTP/1.1\r\n\r\n".to_vec(), "400"),
            (vec![b'a'; 20_000], "400"),
        ] {
            let client = stage.connect(&relay)?;
            client.send(&said)?;
            let told = String::from_utf8(refusal(&client)?)?;
            ensure!(told.starts_with(&format!("HTTP/1.1 {status} ")), "{told}");
        }
        relay.finish(5).map(drop)
    })
}

/// A name that anybody can have point here is no way around that.
#[test]
fn this_host_is_out_of_reach_by_default() -> Result<()> {
    under_each("out_of_reach", Wire::Loopback, |stage| {
        let listener = stage.listen()?;
        let at = port(listener.address())?;
        let relay = launch(stage, HTTP).start()?;
        let hosts = [
            "127.0.0.1",
            "localhost",
            "0.0.0.0",
            "[::1]",
            "[::ffff:127.0.0.1]",
        ];
        for host in hosts {
            let client = stage.connect(&relay)?;
            client.send(format!("CONNECT {host}:{at} HTTP/1.1\r\n\r\n").as_bytes())?;
            let told = String::from_utf8(refusal(&client)?)?;
            ensure!(told.starts_with("HTTP/1.1 403 "), "{host}: {told}");
        }
        relay.finish(hosts.len()).map(drop)
    })
}

/// Names that clients say are asked of relay's own resolver, and go by the addresses that they have at that time.
#[test]
fn names_are_resolved_by_relay_itself() -> Result<()> {
    under_each("names_resolved", Wire::Loopback, |stage| {
        let listener = stage.listen()?;
        let at = port(listener.address())?;
        let dns = Dns::start()?;
        dns.addresses("in.test", &["127.0.0.1"])?;
        // Neither the address that is denied nor the one that is not this host's is dialled.
        dns.addresses("both.test", &["10.0.0.1", "127.0.0.2", "127.0.0.1"])?;
        dns.addresses("out.test", &["127.0.0.2"])?;
        let server = dns.address().to_string();
        let launch = launch(stage, HTTP).with(["--dns", &server, "--allow-to", "127.0.0.0/8"]);
        let relay = launch.with(["--deny-to", "127.0.0.2/32"]).start()?;
        let ask = |host: &str| -> Result<Peer> {
            let client = stage.connect(&relay)?;
            client.send(format!("CONNECT {host}:{at} HTTP/1.1\r\n\r\n").as_bytes())?;
            Ok(client)
        };
        for host in ["in.test", "both.test"] {
            let client = ask(host)?;
            answer(HTTP, &client)?;
            let upstream = listener.accept()?;
            for (from, to) in [(&client, &upstream), (&upstream, &client)] {
                from.send(b"hello")?;
                ensure!(to.receive(5)? == b"hello");
            }
            client.finish()?;
            upstream.expect_end()?;
            upstream.finish()?;
            client.expect_end()?;
        }
        for (host, status) in [("out.test", "403"), ("nowhere.test", "502")] {
            let told = String::from_utf8(refusal(&ask(host)?)?)?;
            ensure!(told.starts_with(&format!("HTTP/1.1 {status} ")), "{told}");
        }
        // A name that now means this host's other address must not be believed for long.
        dns.addresses("in.test", &["127.0.0.2"])?;
        patience::until_true("the new address", || {
            let client = ask("in.test")?;
            let head = client.receive(13)?;
            Ok(head == b"HTTP/1.1 403 ")
        })?;
        relay.finish_all().map(drop)
    })
}

fn curl(arguments: &[&str], url: &str) -> Result<(bool, Vec<u8>, String)> {
    let mut curl = program("curl")?;
    curl.args(["--silent", "--show-error", "--fail", "--noproxy", ""]);
    let output = curl.args(arguments).arg(url).output()?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    Ok((output.status.success(), output.stdout, said))
}

/// Over veth, so that no address is this host's own loopback.
#[test]
fn curl_asks_and_gets_a_file() -> Result<()> {
    under_each("curl_asks", Wire::Veth, |stage| {
        if !peers::met("curl_asks", &["curl", "nginx"])? {
            return Ok(());
        }
        let upstream = std::net::SocketAddr::new(stage.net.upstream_ip, 8080);
        let nginx = Nginx::start(&stage.net.upstream, upstream)?;
        let content = Stream::new(1).take(FILE);
        fs::write(nginx.folder().join("file"), &content)?;
        let folder = open_folder()?;
        let file = folder.path().join("password");
        fs::write(&file, "p:w d\n")?;
        let url = format!("http://{upstream}/file");
        for (mode, ways) in [
            (SOCKS5, &["--socks5", "--socks5-hostname"][..]),
            (HTTP, &["--proxy"]),
        ] {
            for protected in [false, true] {
                let mut launch = launch(stage, mode);
                if protected {
                    let file = file.display().to_string();
                    launch = launch.with(["--auth-user", "me", "--auth-password-file", &file]);
                }
                let relay = launch.start()?;
                let address = relay.address().to_string();
                for way in ways {
                    let ask = |credentials: &[&str]| {
                        let arguments = [&["--proxytunnel", way, &address], credentials].concat();
                        stage.net.client.enter(|| curl(&arguments, &url))
                    };
                    let (good, got, said) = ask(&["--proxy-user", "me:p:w d"])?;
                    ensure!(good && got == content, "{mode} {way}: {said}");
                    let (good, _, said) = ask(&["--proxy-user", "me:p:w e"])?;
                    ensure!(good != protected, "{mode} {way}: {said}");
                    let (good, _, said) = ask(&[])?;
                    ensure!(good != protected, "{mode} {way}: {said}");
                }
                for record in relay.finish(ways.len() * 3)? {
                    match record.engine {
                        Some(_) => record.carried_by(stage.engine).map(drop)?,
                        None => record.ended("client", "greeting").map(drop)?,
                    }
                }
            }
        }
        Ok(())
    })
}

#[test]
fn a_mode_and_a_place_do_not_go_together() -> Result<()> {
    let both = "--listen 127.0.0.1:0 --to 127.0.0.1:1 --mode socks5";
    let finished = Launch::new(both.split_whitespace()).run()?;
    finished.failed(2, &["mode socks5", "takes no to"])?;
    let half = "--listen 127.0.0.1:0 --mode socks5 --auth-user me";
    let finished = Launch::new(half.split_whitespace()).run()?;
    finished.failed(2, &["auth-user", "auth-password-file"])?;
    let bad = "--listen 127.0.0.1:0 --mode socks5 --deny-to example.com";
    let finished = Launch::new(bad.split_whitespace()).run()?;
    finished.failed(2, &["--deny-to", "no network"])
}
