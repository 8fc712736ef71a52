//! PostgreSQL, asked by psql and pgbench.

use std::{
    fmt::Write as _,
    fs,
    net::SocketAddr,
    process::{Command, Stdio},
};

use anyhow::{Result, ensure};
use rustix::process::{Pid, Signal, kill_process};

use super::{behind, finish, relay};
use crate::{
    matrix::Stage,
    patience,
    payload::Stream,
    peers::{self, Postgres, run},
};

const PROGRAMS: &[&str] = &["initdb", "postgres", "psql", "pgbench"];

/// Rows of 1,000 bytes in hexadecimal digits, 100 MB as text.
const ROWS: usize = 50_000;

fn psql(front: SocketAddr) -> Result<Command> {
    let mut psql = Postgres::client("psql", front)?;
    psql.args(["--no-psqlrc", "-v", "ON_ERROR_STOP=1", "-At", "postgres"]);
    Ok(psql)
}

/// psql copies 100 MB of rows in and out of PostgreSQL.
///
/// # Errors
///
/// Fails when a row is wrong.
pub fn postgresql_copies(stage: &Stage) -> Result<()> {
    if !peers::met("postgresql_copies", PROGRAMS)? {
        return Ok(());
    }
    let upstream = behind(stage, 5432);
    let server = Postgres::start(&stage.net.upstream, upstream)?;
    let (relay, front) = relay(stage, upstream)?;
    let mut rows = String::with_capacity(ROWS * 2010);
    let mut stream = Stream::new(1);
    let mut row = [0; 1000];
    for number in 0..ROWS {
        stream.fill(&mut row);
        write!(rows, "{number}\t")?;
        for eight in row.chunks_exact(8) {
            write!(rows, "{:016x}", u64::from_le_bytes(eight.try_into()?))?;
        }
        rows.push('\n');
    }
    let (given, got) = (server.folder().join("given"), server.folder().join("got"));
    fs::write(&given, &rows)?;
    let mut copy = psql(front)?;
    copy.args(["-c", "create unlogged table t (n int, d text)"]);
    copy.arg("-c")
        .arg(format!("\\copy t from '{}'", given.display()));
    copy.arg("-c")
        .arg(format!("\\copy t to '{}'", got.display()));
    run(&stage.net.client, &mut copy)?;
    ensure!(fs::read(&got)? == rows.as_bytes(), "other rows came back");
    let records = stage.finish(relay, 1)?;
    let length = rows.len() as u64;
    ensure!(records[0].bytes_up > length, "{records:?}");
    ensure!(records[0].bytes_down > length, "{records:?}");
    Ok(())
}

/// pgbench asks small questions on several connections, as text and prepared.
///
/// # Errors
///
/// Fails when a transaction does.
pub fn postgresql_and_pgbench(stage: &Stage) -> Result<()> {
    if !peers::met("postgresql_and_pgbench", PROGRAMS)? {
        return Ok(());
    }
    let upstream = behind(stage, 5432);
    let _server = Postgres::start(&stage.net.upstream, upstream)?;
    let (relay, front) = relay(stage, upstream)?;
    let mut fill = Postgres::client("pgbench", front)?;
    fill.args(["-i", "-q", "-n", "-s", "1", "postgres"]);
    run(&stage.net.client, &mut fill)?;
    for mode in ["simple", "prepared"] {
        let mut bench = Postgres::client("pgbench", front)?;
        bench.args([
            "-n", "-c", "8", "-j", "2", "-t", "50", "-M", mode, "postgres",
        ]);
        let said = run(&stage.net.client, &mut bench)?;
        ensure!(said.contains("400/400"), "{said}");
        ensure!(said.contains("failed transactions: 0 "), "{said}");
    }
    finish(stage, relay, 17)
}

/// Ctrl-C in psql ends a query that would take long: the request to cancel it comes on a connection of its own.
///
/// # Errors
///
/// Fails when the query goes on.
pub fn postgresql_cancels(stage: &Stage) -> Result<()> {
    if !peers::met("postgresql_cancels", PROGRAMS)? {
        return Ok(());
    }
    let upstream = behind(stage, 5432);
    let _server = Postgres::start(&stage.net.upstream, upstream)?;
    let (relay, front) = relay(stage, upstream)?;
    let mut long = psql(front)?;
    long.args(["-c", "select pg_sleep(3600)"]);
    long.stdout(Stdio::null()).stderr(Stdio::piped());
    let long = stage.net.client.enter(|| Ok(long.spawn()?))?;
    patience::until_true("the query to run", || {
        let mut ask = psql(front)?;
        ask.args([
            "-c",
            "select count(*) from pg_stat_activity where wait_event = 'PgSleep'",
        ]);
        Ok(run(&stage.net.client, &mut ask)?.trim() == "1")
    })?;
    kill_process(Pid::from_child(&long), Signal::INT)?;
    let ended = long.wait_with_output()?;
    let said = String::from_utf8_lossy(&ended.stderr);
    ensure!(said.contains("canceling statement"), "{ended:?}");
    // psql itself, at least one that asked, and no byte comes back for the request to cancel.
    let records = relay.finish_all()?;
    ensure!(records.len() >= 3, "{records:?}");
    for record in records {
        record.carried_by(stage.engine)?;
    }
    Ok(())
}
