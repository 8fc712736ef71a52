//! The sidecar's manifest, carried out: its rules and its settings in a namespace as a pod has, with a program that knows
//! nothing of them.

use std::{fs, process::Command};

use anyhow::{Context, Result, ensure};
use relay_tests::{
    needs::{self, Need},
    netns::Place,
    peer::{Address, Listener, Peer, exchange},
    record::Engine,
    relay::{Launch, Relay, binary},
    steer::routed,
    topology::Topology,
};
use serde_json::Value;

use super::kubernetes::objects;

const BYTES: u64 = 1 << 20;

/// What the manifest has.
struct Manifest {
    settings: String,
    redirect: Value,
    relay: Value,
}

impl Manifest {
    fn read() -> Result<Self> {
        let objects = objects()?;
        let of_file = objects
            .iter()
            .filter(|(path, _)| path.ends_with("sidecar.yaml"));
        let (mut settings, mut containers) = (None, Vec::new());
        for (_, object) in of_file {
            if let Some(text) = object["data"]["relay.toml"].as_str() {
                settings = Some(text.to_owned());
            }
            let inits = object["spec"]["initContainers"].as_array();
            containers.extend(inits.into_iter().flatten().cloned());
        }
        let mut named = |name: &str| {
            let at = containers.iter().position(|one| one["name"] == name);
            Ok::<_, anyhow::Error>(containers.remove(at.context(name.to_owned())?))
        };
        Ok(Self {
            settings: settings.context("no settings")?,
            redirect: named("redirect")?,
            relay: named("relay")?,
        })
    }
}

fn words(list: &Value) -> Result<Vec<String>> {
    Ok(serde_json::from_value(list.clone())?)
}

/// As root with the capabilities that `container` adds, those apart of which a cluster's policy takes some.
fn confined(container: &Value, but: &[&str]) -> Result<Vec<String>> {
    let capabilities = &container["securityContext"]["capabilities"];
    ensure!(capabilities["drop"] == serde_json::json!(["ALL"]));
    let added = words(&capabilities["add"])?.into_iter();
    let added = added.filter(|name| !but.contains(&name.as_str()));
    let set = added.fold("-all".to_owned(), |set, name| {
        format!("{set},+{}", name.to_lowercase())
    });
    Ok(["setpriv", "--bounding-set", &set, "--inh-caps=-all", "--"]
        .map(String::from)
        .into())
}

/// A pod of this manifest: its network namespace and what runs there.
struct Pod {
    net: Topology,
    relay: Relay,
    _settings: tempfile::TempDir,
}

impl Pod {
    fn start(manifest: &Manifest, but: &[&str]) -> Result<Self> {
        // relay's namespace is the pod's, and upstreams are elsewhere.
        let net = routed()?;
        redirect(&net.relay, &manifest.redirect)?;
        let folder = tempfile::tempdir()?;
        let file = folder.path().join("relay.toml");
        fs::write(&file, &manifest.settings)?;
        let arguments = words(&manifest.relay["args"])?;
        let at = arguments
            .iter()
            .position(|one| one.ends_with("/relay.toml"));
        let mut arguments = arguments.clone();
        arguments[at.context("no settings in the arguments")?] = file.display().to_string();
        let mut by = confined(&manifest.relay, but)?;
        by.push(binary()?.display().to_string());
        let relay = Launch::new(arguments).by(by).at(&net.relay).start()?;
        Ok(Self {
            net,
            relay,
            _settings: folder,
        })
    }

    /// The program connects to somewhere, and both sides talk.
    fn visit(&self, at: &str) -> Result<Address> {
        let listener = self
            .net
            .upstream
            .enter(|| Listener::bind(&Address::parse(at)?))?;
        let client = self.net.relay.enter(|| Peer::connect(listener.address()))?;
        let upstream = listener.accept()?;
        exchange(&client, &upstream, BYTES)?;
        Ok(listener.address().clone())
    }

    /// As the node's agent asks, from outside.
    fn probe(&self, container: &Value, name: &str) -> Result<()> {
        let probe = &container[name]["httpGet"];
        let mut ports = container["ports"].as_array().into_iter().flatten();
        let port = ports
            .find(|port| port["name"] == probe["port"])
            .context("no such port")?;
        let path = probe["path"].as_str().context("no path")?;
        let at = Address::parse(&format!("10.99.2.1:{}", port["containerPort"]))?;
        let agent = self.net.upstream.enter(|| Peer::connect(&at))?;
        agent.send(format!("GET {path} HTTP/1.1\r\nHost: pod\r\n\r\n").as_bytes())?;
        ensure!(agent.receive(12)? == b"HTTP/1.1 200", "{name}");
        Ok(())
    }
}

/// Runs the init container's command, with its capabilities.
fn redirect(place: &Place, container: &Value) -> Result<()> {
    let mut command = confined(container, &[])?;
    for word in words(&container["command"])? {
        let program = needs::program(&word).with_context(|| word.clone())?;
        command.push(program.display().to_string());
    }
    command.extend(words(&container["args"])?);
    let output = place.enter(|| {
        let run = Command::new(&command[0]).args(&command[1..]).output();
        run.context("setpriv")
    })?;
    ensure!(output.status.success(), "{output:?}");
    Ok(())
}

fn needed(name: &str) -> Result<bool> {
    let needs = [
        Need::Root,
        Need::Namespaces,
        Need::Program("nft"),
        Need::Program("setpriv"),
        Need::Offered(Engine::Sockmap),
    ];
    needs::met(name, &needs)
}

#[test]
fn what_the_program_connects_to_goes_through_the_sidecar() -> Result<()> {
    if !needed("deploy::what_the_program_connects_to_goes_through_the_sidecar")? {
        return Ok(());
    }
    let manifest = Manifest::read()?;
    let pod = Pod::start(&manifest, &[])?;
    for name in ["startupProbe", "livenessProbe", "readinessProbe"] {
        pod.probe(&manifest.relay, name)?;
    }
    let mut wanted = Vec::new();
    for at in ["10.99.2.2:0", "[fd99:2::2]:0"] {
        wanted.push(pod.visit(at)?.to_string());
    }
    let mut reached = Vec::new();
    for record in pod.relay.finish(2)? {
        record.moved(BYTES, BYTES)?;
        // Bulk stays with splice; that sockmap was to be had is what the capabilities are for.
        ensure!(record.declined.is_empty(), "{record:?}");
        reached.extend(record.upstream.clone());
    }
    // Records of two connections come in any order.
    wanted.sort();
    reached.sort();
    ensure!(reached == wanted, "{reached:?}, not {wanted:?}");
    Ok(())
}

/// Where the cluster's policy forbids what sockmap takes.
#[test]
fn a_sidecar_without_the_capabilities_splices() -> Result<()> {
    if !needed("deploy::a_sidecar_without_the_capabilities_splices")? {
        return Ok(());
    }
    let pod = Pod::start(&Manifest::read()?, &["BPF", "PERFMON", "NET_ADMIN"])?;
    pod.visit("10.99.2.2:0")?;
    let records = pod.relay.finish(1)?;
    let why = records[0]
        .carried_by(Engine::Splice)?
        .why_not(Engine::Sockmap)?;
    ensure!(why.contains("CAP_BPF"), "{why}");
    Ok(())
}
