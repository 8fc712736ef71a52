//! Where packets are led in a namespace: routes by way of relay, nftables, and routing by mark.

use std::{
    io::Write as _,
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail, ensure};

use crate::{
    needs,
    netns::{Netns, Place},
    topology::{Topology, Wire},
};

/// The namespace behind a place.
///
/// # Errors
///
/// Fails for the one of the tests themselves.
pub fn netns(place: &Place) -> Result<&Netns> {
    match place {
        Place::Inside(netns) => Ok(netns),
        Place::Here => bail!("no namespace"),
    }
}

/// Clients and upstreams that reach each other, in both families, by way of relay's namespace.
///
/// # Errors
///
/// Fails without privileges.
pub fn routed() -> Result<Topology> {
    let net = Wire::Veth.build()?;
    netns(&net.relay)?.ip("addr add fd99:1::1/64 dev clients nodad\n\
         addr add fd99:2::1/64 dev upstreams nodad\n")?;
    netns(&net.client)?.ip("addr add fd99:1::2/64 dev relay nodad\n\
         route add default via 10.99.1.1\n\
         route add ::/0 via fd99:1::1\n")?;
    netns(&net.upstream)?.ip("addr add fd99:2::2/64 dev relay nodad\n\
         route add default via 10.99.2.1\n\
         route add ::/0 via fd99:2::1\n")?;
    Ok(net)
}

/// One rule in a chain of this kind.
///
/// # Errors
///
/// Fails without nft(8), and with what it says.
pub fn nft(place: &Place, chain: &str, rule: &str) -> Result<()> {
    let rules = format!("table inet test {{\nchain test {{\ntype {chain};\n{rule}\n}}\n}}\n");
    place.enter(|| {
        let mut child = Command::new(needs::program("nft").context("no nft")?)
            .args(["-f", "-"])
            .stdin(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        let mut stdin = child.stdin.take().context("no stdin")?;
        stdin.write_all(rules.as_bytes())?;
        drop(stdin);
        let output = child.wait_with_output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "nft: {rules}: {said}");
        Ok(())
    })
}

/// Has packets with mark 1 delivered in `place`, whatever their address.
///
/// # Errors
///
/// Fails without privileges.
pub fn deliver_marked(place: &Place) -> Result<()> {
    for link in ["all", "clients", "upstreams"] {
        place.sysctl(&format!("net/ipv4/conf/{link}/rp_filter"), "0")?;
    }
    netns(place)?.ip("rule add fwmark 1 lookup 100\n\
         route add local 0.0.0.0/0 dev lo table 100\n\
         route add local ::/0 dev lo table 100\n")?;
    // A batch knows rules of the other family only.
    place.enter(|| {
        let rule = ["-6", "rule", "add", "fwmark", "1", "lookup", "100"];
        let status = Command::new("ip").args(rule).status()?;
        ensure!(status.success(), "ip {rule:?}");
        Ok(())
    })
}
