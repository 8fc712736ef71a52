//! Programs that people really run, with configurations of the test's own, in its namespaces.

use std::{
    fs,
    net::{SocketAddr, TcpStream},
    os::unix::{
        fs::{PermissionsExt, chown},
        process::CommandExt,
    },
    path::Path,
    process::{Child, Command, Stdio},
};

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};

use crate::{
    matrix::Stage,
    needs::{self, Need},
    netns::Place,
    patience,
    payload::Stream,
    peer::Address,
};

const FILE: usize = 6 << 20;

/// Downloads on one kept connection.
const DOWNLOADS: usize = 3;

/// A server, and the signal that ends it and its processes at once. It is sent when this is dropped.
struct Service(Child, Signal);

impl Service {
    fn start(
        place: &Place,
        command: &mut Command,
        address: SocketAddr,
        end: Signal,
    ) -> Result<Self> {
        let name = command.get_program().to_string_lossy().into_owned();
        command.stdin(Stdio::null()).stdout(Stdio::null());
        let child = place.enter(|| Ok(command.spawn()?)).context(name.clone())?;
        let mut service = Self(child, end);
        patience::until_true(&format!("{name} to listen"), || {
            let ended = service.0.try_wait()?;
            ensure!(ended.is_none(), "{name} ended: {ended:?}");
            place.enter(|| Ok(TcpStream::connect(address).is_ok()))
        })?;
        Ok(service)
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = kill_process(Pid::from_child(&self.0), self.1);
        let ended = patience::until("the server to end", || Ok(self.0.try_wait()?));
        if ended.is_err() {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }
}

fn program(name: &'static str) -> Result<Command> {
    let path = needs::program(name).with_context(|| format!("no {name}"))?;
    Ok(Command::new(path))
}

/// Runs it to its end in `place`, and gives what it printed.
fn run(place: &Place, command: &mut Command) -> Result<String> {
    let output = place.enter(|| Ok(command.stdin(Stdio::null()).output()?))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{command:?}: {said}");
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn open_folder() -> Result<tempfile::TempDir> {
    let folder = tempfile::tempdir()?;
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755))?;
    Ok(folder)
}

fn nginx(stage: &Stage, folder: &Path, address: SocketAddr) -> Result<Service> {
    let content = Stream::new(1).take(FILE);
    fs::write(folder.join("file"), content)?;
    let text = format!(
        "daemon off; user root; worker_processes 1; pid {0}/nginx.pid; error_log stderr;\n\
         events {{ worker_connections 64; }}\n\
         http {{ access_log off; client_body_temp_path {0}/body; proxy_temp_path {0}/proxy;\n\
         fastcgi_temp_path {0}/fastcgi; uwsgi_temp_path {0}/uwsgi; scgi_temp_path {0}/scgi;\n\
         sendfile on; server {{ listen {address}; root {0}; }} }}\n",
        folder.display()
    );
    let config = folder.join("nginx.conf");
    fs::write(&config, text)?;
    let mut command = program("nginx")?;
    command.arg("-e").arg("stderr").arg("-p").arg(folder);
    command.arg("-c").arg(config).stderr(Stdio::null());
    Service::start(&stage.net.upstream, &mut command, address, Signal::TERM)
}

fn download(stage: &Stage, folder: &Path, relay: &Address) -> Result<()> {
    let mut curl = program("curl")?;
    curl.args(["--silent", "--show-error", "--fail"]);
    for number in 0..DOWNLOADS {
        curl.arg("--output")
            .arg(folder.join(format!("got{number}")));
        curl.arg(format!("http://{relay}/file"));
    }
    run(&stage.net.client, &mut curl)?;
    for number in 0..DOWNLOADS {
        let got = fs::read(folder.join(format!("got{number}")))?;
        ensure!(got.len() == FILE, "{} of {FILE} bytes", got.len());
        Stream::new(1).check(&got)?;
    }
    Ok(())
}

/// curl gets a file of nginx several times on one connection.
///
/// # Errors
///
/// Fails when a byte is wrong.
pub fn nginx_and_curl(stage: &Stage) -> Result<()> {
    let needed = [Need::Program("nginx"), Need::Program("curl")];
    if !needs::met("nginx_and_curl", &needed)? {
        return Ok(());
    }
    let folder = open_folder()?;
    let address = SocketAddr::new(stage.net.upstream_ip, 8080);
    let _nginx = nginx(stage, folder.path(), address)?;
    let relay = stage.relay(&Address::Ip(address))?;
    download(stage, folder.path(), relay.address())?;
    let records = stage.finish(relay, 1)?;
    let least = (DOWNLOADS * FILE) as u64;
    ensure!(records[0].bytes_down > least, "{records:?}");
    Ok(())
}

/// curl, relay, HAProxy, nginx.
///
/// # Errors
///
/// Fails when a byte is wrong.
pub fn haproxy_in_the_chain(stage: &Stage) -> Result<()> {
    let programs = ["nginx", "curl", "haproxy"].map(Need::Program);
    if !needs::met("haproxy_in_the_chain", &programs)? {
        return Ok(());
    }
    let folder = open_folder()?;
    let behind = SocketAddr::new(stage.net.upstream_ip, 8080);
    let _nginx = nginx(stage, folder.path(), behind)?;
    let address = SocketAddr::new(stage.net.upstream_ip, 8081);
    let config = folder.path().join("haproxy.cfg");
    let text = format!(
        "global\n nbthread 1\n\
         defaults\n mode tcp\n timeout connect 60s\n timeout client 600s\n timeout server 600s\n\
         listen chain\n bind {address}\n server nginx {behind}\n"
    );
    fs::write(&config, text)?;
    let mut haproxy = program("haproxy")?;
    haproxy
        .arg("-db")
        .arg("-f")
        .arg(config)
        .stderr(Stdio::null());
    let _haproxy = Service::start(&stage.net.upstream, &mut haproxy, address, Signal::TERM)?;
    let relay = stage.relay(&Address::Ip(address))?;
    download(stage, folder.path(), relay.address())?;
    stage.finish(relay, 1)?;
    Ok(())
}

/// psql copies rows in and out of PostgreSQL, and pgbench asks it small questions.
///
/// # Errors
///
/// Fails when a row is wrong or a query fails.
pub fn postgresql(stage: &Stage) -> Result<()> {
    let programs = ["initdb", "postgres", "psql", "pgbench"].map(Need::Program);
    if !needs::met("postgresql", &programs)? {
        return Ok(());
    }
    let folder = open_folder()?;
    let (user, group) = account("postgres").context("no user postgres")?;
    let data = folder.path().join("data");
    fs::create_dir(&data)?;
    chown(&data, Some(user), Some(group))?;
    let as_postgres = |name| -> Result<Command> {
        let mut command = program(name)?;
        command.uid(user).gid(group).current_dir("/");
        command.env("LC_ALL", "C");
        Ok(command)
    };
    let mut initdb = as_postgres("initdb")?;
    initdb.args(["-U", "postgres", "-A", "trust", "-N", "-D"]);
    run(&Place::Here, initdb.arg(&data))?;
    let rules = data.join("pg_hba.conf");
    fs::write(&rules, "host all all 10.99.0.0/16 trust\n")?;

    let address = SocketAddr::new(stage.net.upstream_ip, 5432);
    let mut postgres = as_postgres("postgres")?;
    postgres.arg("-D").arg(&data);
    for setting in [
        format!("listen_addresses={}", address.ip()),
        format!("port={}", address.port()),
        "unix_socket_directories=".into(),
        "fsync=off".into(),
        "shared_buffers=16MB".into(),
    ] {
        postgres.arg("-c").arg(setting);
    }
    postgres.stderr(Stdio::null());
    let _postgres = Service::start(&stage.net.upstream, &mut postgres, address, Signal::INT)?;
    let relay = stage.relay(&Address::Ip(address))?;
    let Address::Ip(front) = relay.address() else {
        anyhow::bail!("not an IP address");
    };
    let client = |name| -> Result<Command> {
        let mut command = program(name)?;
        command.args([
            "-h",
            &front.ip().to_string(),
            "-p",
            &front.port().to_string(),
        ]);
        command
            .args(["-U", "postgres"])
            .env("PGCONNECT_TIMEOUT", "60");
        Ok(command)
    };
    // The server listens before it takes queries.
    patience::until_true("PostgreSQL to answer", || {
        let mut psql = client("psql")?;
        Ok(run(&stage.net.client, psql.args(["-c", "select 1", "postgres"])).is_ok())
    })?;
    let mut rows = String::new();
    for (number, row) in Stream::new(1).take(3 << 20).chunks(1000).enumerate() {
        let digits: Vec<String> = row.iter().map(|byte| format!("{byte:02x}")).collect();
        rows += &format!("{number}\t{}\n", digits.concat());
    }
    let (given, got) = (folder.path().join("given"), folder.path().join("got"));
    fs::write(&given, &rows)?;
    let mut psql = client("psql")?;
    psql.args([
        "-v",
        "ON_ERROR_STOP=1",
        "-c",
        "create table t (n int, d text)",
    ]);
    psql.arg("-c")
        .arg(format!("\\copy t from '{}'", given.display()));
    psql.arg("-c").arg(format!(
        "\\copy (select * from t order by n) to '{}'",
        got.display()
    ));
    run(&stage.net.client, psql.arg("postgres"))?;
    ensure!(
        fs::read_to_string(&got)? == rows,
        "the rows came back otherwise"
    );

    let mut fill = client("pgbench")?;
    run(
        &stage.net.client,
        fill.args(["-i", "-q", "-n", "-s", "1", "postgres"]),
    )?;
    let mut bench = client("pgbench")?;
    bench.args(["-n", "-c", "4", "-j", "2", "-t", "100", "postgres"]);
    let said = run(&stage.net.client, &mut bench)?;
    ensure!(said.contains("400/400"), "{said}");

    let records = relay.finish_all()?;
    ensure!(records.len() >= 7, "{records:?}");
    for record in &records {
        ensure!(record.end.how == "end", "{record:?}");
        record.carried_by(stage.engine)?;
    }
    Ok(())
}

/// User and group of an account.
fn account(name: &str) -> Option<(u32, u32)> {
    let accounts = fs::read_to_string("/etc/passwd").ok()?;
    let line = accounts
        .lines()
        .find(|line| line.starts_with(&format!("{name}:")))?;
    let mut numbers = line.split(':').skip(2);
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}
