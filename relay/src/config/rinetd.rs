//! The lines of rinetd: address, port, address, port; after `#` nothing counts.

use std::{net::Ipv6Addr, ops::Range};

use relay::plan::{Address, Listen, Target};
use toml::Spanned;

use crate::settings::{Given, Settings};

/// Reads routes; a fault has its place in `text`.
pub(super) fn read(text: &str) -> Result<Given, (Range<usize>, String)> {
    let mut given = Given::default();
    let mut start = 0;
    for line in text.split_inclusive('\n') {
        let words = words(line, start);
        let whole = start..start + line.trim_end().len();
        start += line.len();
        if !words.is_empty() {
            let route = route(&words, whole.clone())?;
            given.route.push(Spanned::new(whole, route));
        }
    }
    Ok(given)
}

type Word<'a> = (Range<usize>, &'a str);

fn words(line: &str, start: usize) -> Vec<Word<'_>> {
    let line = line.split('#').next().unwrap_or_default();
    let words = line.split_whitespace().map(|word| {
        // A word is a part of the line.
        let at = start + (word.as_ptr().addr() - line.as_ptr().addr());
        (at..at + word.len(), word)
    });
    words.collect()
}

fn route(words: &[Word<'_>], whole: Range<usize>) -> Result<Settings, (Range<usize>, String)> {
    match words {
        [
            (at, "allow" | "deny" | "logfile" | "logcommon" | "pidlogfile"),
            ..,
        ] => {
            let what = "relay reads only the forwarding lines of rinetd; say the rest in a TOML file (--config)";
            Err((at.clone(), what.into()))
        }
        [host, port, to, to_port] => {
            let listen = Listen::At(address(host, port)?);
            let to = Target::Address(address(to, to_port)?);
            Ok(Settings::pair(vec![listen.into()], vec![to.into()]))
        }
        [_, _, _, _, (at, _), ..] => {
            let what = "options of rinetd are not read; say them in a TOML file (--config)";
            Err((at.clone(), what.into()))
        }
        _ => Err((whole, "a line is: address port address port".into())),
    }
}

fn address(host: &Word<'_>, port: &Word<'_>) -> Result<Address, (Range<usize>, String)> {
    let (at, text) = port;
    let number = match text.rsplit_once('/') {
        Some((number, "tcp")) => number,
        Some((_, "udp")) => return Err((at.clone(), "relay forwards TCP only".into())),
        _ => text,
    };
    if number.parse::<u16>().is_err() {
        let what = format!("`{text}` is not a port: write a number from 0 to 65535");
        return Err((at.clone(), what));
    }
    let (at, host) = host;
    let joined = match host.parse::<Ipv6Addr>() {
        Ok(host) => format!("[{host}]:{number}"),
        Err(_) => format!("{host}:{number}"),
    };
    match joined.parse() {
        Ok(address @ (Address::Ip(_) | Address::Name(..))) => Ok(address),
        // A host called unix: with its port it would be a path.
        Ok(Address::Unix(_) | Address::Original) => {
            let what = format!("`{host}` is not a host: write an address or a name");
            Err((at.clone(), what))
        }
        Err(error) => Err((at.clone(), format!("{error}"))),
    }
}
