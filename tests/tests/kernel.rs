//! What the kernel refuses, and the rung of the ladder that carries then: needs root, to have something to lose.

use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result, ensure};
use relay_tests::{
    census::{self, Census},
    needs::{self, Need},
    payload::Stream,
    peer::{Address, Listener, Peer, both},
    record::{Engine, Record},
    relay::{Launch, Relay},
};
use rustix::{
    pipe::{PipeFlags, fcntl_setpipe_size, pipe_with},
    thread::CapabilitySet,
};

const NOBODY: u32 = 65534;
const BYTES: u64 = 5 << 20;

/// Pages of pipes are counted for each user, and the others here run as users with pipes, too.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn anywhere() -> Result<Address> {
    Address::parse("127.0.0.1:0")
}

/// Bytes both ways through relay as `launch` prepares it; the record of that.
fn carry(prepare: impl FnOnce(Launch) -> Launch) -> Result<Record> {
    let listener = Listener::bind(&anywhere()?)?;
    let relay = prepare(Launch::forward(&anywhere()?, listener.address())).start()?;
    let client = Peer::connect(relay.address())?;
    exchange(&client, &listener.accept()?)?;
    let record = relay.finish(1)?.pop().context("no record")?;
    record.ended("client", "end")?.moved(BYTES, BYTES)?;
    Ok(record)
}

fn exchange(client: &Peer, upstream: &Peer) -> Result<()> {
    both(
        || client.send_stream(&mut Stream::new(1), BYTES),
        || upstream.expect(&mut Stream::new(1), BYTES),
    )?;
    both(
        || upstream.send_stream(&mut Stream::new(2), BYTES),
        || client.expect(&mut Stream::new(2), BYTES),
    )?;
    client.finish()?;
    upstream.expect_end()?;
    upstream.finish()?;
    client.expect_end()
}

#[test]
fn without_capabilities_splice_carries() -> Result<()> {
    if !needs::met("kernel::without_capabilities_splice_carries", &[Need::Root])? {
        return Ok(());
    }
    let _alone = alone();
    let record = carry(|launch| launch.user(NOBODY))?;
    record.carried_by(Engine::Splice)?;
    let why = record.why_not(Engine::Sockmap)?;
    ensure!(why.contains("CAP_BPF"), "{why}");
    Ok(())
}

#[test]
fn without_bpf_splice_carries() -> Result<()> {
    if !needs::met("kernel::without_bpf_splice_carries", &[Need::Root])? {
        return Ok(());
    }
    let _alone = alone();
    let record = carry(|launch| launch.refuse(libc::SYS_bpf))?;
    record.carried_by(Engine::Splice)?;
    let why = record.why_not(Engine::Sockmap)?;
    ensure!(!why.is_empty(), "no reason");
    Ok(())
}

#[test]
fn without_bpf_and_splice_copy_carries() -> Result<()> {
    if !needs::met("kernel::without_bpf_and_splice_copy_carries", &[Need::Root])? {
        return Ok(());
    }
    let _alone = alone();
    let record = carry(|launch| launch.refuse(libc::SYS_bpf).refuse(libc::SYS_splice))?;
    record.carried_by(Engine::Copy)?;
    let why = record.why_not(Engine::Splice)?;
    ensure!(why.contains("splice"), "{why}");
    Ok(())
}

#[test]
fn forced_sockmap_without_privileges_is_one_clear_line() -> Result<()> {
    let name = "kernel::forced_sockmap_without_privileges_is_one_clear_line";
    if !needs::met(name, &[Need::Root])? {
        return Ok(());
    }
    let _alone = alone();
    let launch = Launch::new(["--listen", "127.0.0.1:0", "--to", "127.0.0.1:9"]);
    let launch = launch.with(["--engine", "sockmap"]).user(NOBODY);
    launch.run()?.failed(1, &["--engine sockmap", "CAP_BPF"])
}

#[test]
fn forced_splice_that_is_refused_is_one_clear_line() -> Result<()> {
    let name = "kernel::forced_splice_that_is_refused_is_one_clear_line";
    if !needs::met(name, &[Need::Root])? {
        return Ok(());
    }
    let _alone = alone();
    let launch = Launch::new(["--listen", "127.0.0.1:0", "--to", "127.0.0.1:9"]);
    let launch = launch.with(["--engine", "splice"]).refuse(libc::SYS_splice);
    launch.run()?.failed(1, &["--engine splice", "splice"])
}

#[test]
fn check_names_what_is_missing() -> Result<()> {
    if !needs::met("kernel::check_names_what_is_missing", &[Need::Root])? {
        return Ok(());
    }
    let _alone = alone();
    let finished = Launch::new(["check"]).user(NOBODY).run()?;
    ensure!(finished.status.success(), "{finished:?}");
    for word in ["sockmap", "CAP_BPF", "CAP_NET_ADMIN", "CAP_PERFMON"] {
        ensure!(finished.stdout.contains(word), "no {word}: {finished:?}");
    }
    Ok(())
}

/// A connection that needs its first pipe when there is none to be had is copied.
#[test]
fn without_a_pipe_copy_carries() -> Result<()> {
    if !needs::met("kernel::without_a_pipe_copy_carries", &[Need::Root])? {
        return Ok(());
    }
    let _alone = alone();
    let listener = Listener::bind_with(&anywhere()?, 16, Some(64 << 10))?;
    let launch = Launch::forward(&anywhere()?, listener.address());
    let relay = launch.refuse(libc::SYS_bpf).start()?;
    let join = || -> Result<(Peer, Peer)> {
        let client = Peer::connect_buffered(relay.address(), 64 << 10)?;
        Ok((client, listener.accept()?))
    };
    // Descriptors for two connections; the one pipe that relay has kept is then stuck in the first.
    let open = Census::of(relay.process())?;
    let open = open.sockets + open.pipes + open.others;
    relay.limit_descriptors(u64::try_from(open + 4)?)?;
    let (stuck, late) = join()?;
    let went = stuck.stuff(&mut Stream::new(9))?;
    let (client, upstream) = join()?;
    exchange(&client, &upstream)?;
    let record = relay.record_of(&client.local()?)?;
    record.carried_by(Engine::Copy)?.moved(BYTES, BYTES)?;
    let why = record.why_not(Engine::Splice)?;
    ensure!(why.contains("no pipe"), "{why}");
    late.expect(&mut Stream::new(9), went)?;
    stuck.finish()?;
    late.expect_end()?;
    late.finish()?;
    stuck.expect_end()?;
    relay
        .record_of(&stuck.local()?)?
        .carried_by(Engine::Splice)?
        .moved(went, 0)?;
    relay.finish(2).map(drop)
}

/// The user's pages for pipes are used up by somebody else: relay's pipes are then as small as can be.
#[test]
fn small_pipes_when_the_user_has_too_many() -> Result<()> {
    let name = "kernel::small_pipes_when_the_user_has_too_many";
    if !needs::met(name, &[Need::Root])? {
        return Ok(());
    }
    let _alone = alone();
    let number =
        |path: &str| -> Result<usize> { Ok(std::fs::read_to_string(path)?.trim().parse()?) };
    let pages = number("/proc/sys/fs/pipe-user-pages-soft")?;
    let largest = number("/proc/sys/fs/pipe-max-size")?;
    let page = rustix::param::page_size();
    let mut hoard = Vec::new();
    let mut taken = 0;
    while taken <= pages {
        let pipe = pipe_with(PipeFlags::CLOEXEC)?;
        taken += fcntl_setpipe_size(&pipe.0, largest)? / page;
        hoard.push(pipe);
    }
    let listener = Listener::bind(&anywhere()?)?;
    let launch = Launch::forward(&anywhere()?, listener.address()).with(["--engine", "splice"]);
    // With either of these the limit does not hold.
    let launch = launch.without(CapabilitySet::SYS_RESOURCE);
    let relay = launch.without(CapabilitySet::SYS_ADMIN).start()?;
    let client = Peer::connect(relay.address())?;
    exchange(&client, &listener.accept()?)?;
    relay.records(1)?;
    let sizes = small_ones(&relay, page)?;
    // Without a limit (0) there is nothing to see, but the bytes were right.
    ensure!(
        pages == 0 || sizes > 0,
        "no small pipe: {:?}",
        census::pipe_sizes(relay.process())
    );
    drop(hoard);
    relay.finish(1)?[0]
        .carried_by(Engine::Splice)?
        .moved(BYTES, BYTES)?;
    Ok(())
}

fn small_ones(relay: &Relay, page: usize) -> Result<usize> {
    let sizes = census::pipe_sizes(relay.process())?;
    Ok(sizes.into_iter().filter(|size| *size <= 2 * page).count())
}
