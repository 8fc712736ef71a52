//! OpenSSH: commands, files, forwarded ports.

use std::{
    fs::{self, File},
    net::{Ipv4Addr, SocketAddr},
    process::{Command, Stdio},
};

use anyhow::{Result, ensure};

use super::{LARGE, behind, finish, relay};
use crate::{
    matrix::Stage,
    patience,
    payload::Stream,
    peer::{Address, Listener, Peer},
    peers::{self, Sshd, run},
};

const PROGRAMS: &[&str] = &["sshd", "ssh", "sftp", "ssh-keygen"];

const GIVEN: usize = 5 << 20;

fn as_root(command: &mut Command, front: SocketAddr) {
    command.arg(format!("root@{}", front.ip()));
}

fn same(path: &std::path::Path, length: usize) -> Result<()> {
    let got = fs::read(path)?;
    ensure!(got.len() == length, "{} of {length} bytes", got.len());
    Stream::new(1).check(&got)
}

/// ssh runs commands: the exit code is passed on, and 100 MB go through `cat` each way.
///
/// # Errors
///
/// Fails when a byte or the code is wrong.
pub fn ssh_runs_commands(stage: &Stage) -> Result<()> {
    if !peers::met("ssh_runs_commands", PROGRAMS)? {
        return Ok(());
    }
    let upstream = behind(stage, 2222);
    let sshd = Sshd::start(&stage.net.upstream, upstream)?;
    let (relay, front) = relay(stage, upstream)?;
    let ssh = || sshd.client("ssh", front.port());

    let mut command = ssh()?;
    as_root(&mut command, front);
    command.arg("echo said; exit 42").stdin(Stdio::null());
    let output = stage.net.client.enter(|| Ok(command.output()?))?;
    ensure!(output.status.code() == Some(42), "{output:?}");
    ensure!(output.stdout == b"said\n", "{output:?}");

    let [given, kept, got] = ["given", "kept", "got"].map(|name| sshd.path(name));
    fs::write(&given, Stream::new(1).take(LARGE))?;
    let mut up = ssh()?;
    as_root(&mut up, front);
    up.arg(format!("cat > {}", kept.display()));
    up.stdin(File::open(&given)?);
    let up = stage.net.client.enter(|| Ok(up.output()?))?;
    ensure!(up.status.success(), "{up:?}");
    same(&kept, LARGE)?;
    let mut down = ssh()?;
    as_root(&mut down, front);
    down.arg(format!("cat {}", kept.display()));
    down.stdin(Stdio::null()).stdout(File::create(&got)?);
    let down = stage.net.client.enter(|| Ok(down.output()?))?;
    ensure!(down.status.success(), "{down:?}");
    same(&got, LARGE)?;
    finish(stage, relay, 3)
}

/// sftp puts a file and gets it back.
///
/// # Errors
///
/// Fails when a byte is wrong.
pub fn sftp_puts_and_gets(stage: &Stage) -> Result<()> {
    if !peers::met("sftp_puts_and_gets", PROGRAMS)? {
        return Ok(());
    }
    let upstream = behind(stage, 2222);
    let sshd = Sshd::start(&stage.net.upstream, upstream)?;
    let (relay, front) = relay(stage, upstream)?;
    let [given, kept, got, batch] = ["given", "kept", "got", "batch"].map(|name| sshd.path(name));
    fs::write(&given, Stream::new(1).take(GIVEN))?;
    let text = format!(
        "put {0} {1}\nget {1} {2}\n",
        given.display(),
        kept.display(),
        got.display()
    );
    fs::write(&batch, text)?;
    let mut sftp = sshd.client("sftp", front.port())?;
    sftp.arg("-b").arg(batch);
    as_root(&mut sftp, front);
    run(&stage.net.client, &mut sftp)?;
    same(&kept, GIVEN)?;
    same(&got, GIVEN)?;
    finish(stage, relay, 1)
}

/// A port that ssh forwards: the client ends its direction, and the answer comes after that.
///
/// # Errors
///
/// Fails when a byte is wrong.
pub fn ssh_forwards_a_half_close(stage: &Stage) -> Result<()> {
    if !peers::met("ssh_forwards_a_half_close", PROGRAMS)? {
        return Ok(());
    }
    let upstream = behind(stage, 2222);
    let sshd = Sshd::start(&stage.net.upstream, upstream)?;
    let (relay, front) = relay(stage, upstream)?;
    let far = stage.net.at_upstream();
    let far = stage.net.upstream.enter(|| Listener::bind(&far))?;
    let near = SocketAddr::from((Ipv4Addr::LOCALHOST, 7000));
    let mut ssh = sshd.client("ssh", front.port())?;
    ssh.arg("-N")
        .arg("-L")
        .arg(format!("{near}:{}", far.address()));
    as_root(&mut ssh, front);
    ssh.stdin(Stdio::null());
    let mut ssh = stage.net.client.enter(|| Ok(ssh.spawn()?))?;
    let told = exchange(stage, &far, near);
    ssh.kill()?;
    ssh.wait()?;
    told?;
    finish(stage, relay, 1)
}

fn exchange(stage: &Stage, far: &Listener, near: SocketAddr) -> Result<()> {
    let near = Address::Ip(near);
    let client = patience::until("ssh to listen", || {
        Ok(stage.net.client.enter(|| Peer::connect(&near)).ok())
    })?;
    let upstream = far.accept()?;
    let (length, mut sent, mut came) = (GIVEN as u64, Stream::new(1), Stream::new(1));
    crate::peer::both(
        || {
            client.send_stream(&mut sent, length)?;
            client.finish()
        },
        || {
            upstream.expect(&mut came, length)?;
            upstream.expect_end()
        },
    )?;
    let (mut sent, mut came) = (Stream::new(2), Stream::new(2));
    crate::peer::both(
        || {
            upstream.send_stream(&mut sent, length)?;
            upstream.finish()
        },
        || {
            client.expect(&mut came, length)?;
            client.expect_end()
        },
    )
}
