//! Random conversations: every byte arrives once and in order, and so does every end, under both engines.

use std::time::Duration;

use proptest::{collection::vec, prelude::*};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::TcpStream,
    time::sleep,
};

use super::rig::{Rig, Under, pattern, within};
use crate::{close::How, plan::Limits};

/// Under one segment of the loopback, so that windows close; a few kilobytes would be a test of TCP's persist timer.
const SMALL: usize = 32 << 10;

/// What one peer does: pieces that it writes and then ends, and how it reads, each with the pause before, in ms.
#[derive(Clone, Debug)]
struct Script {
    writes: Vec<(usize, u64)>,
    reads: Vec<(usize, u64)>,
    /// It ends its direction only when it has seen the other's end.
    ends_last: bool,
    small_buffers: bool,
}

fn script() -> impl Strategy<Value = Script> {
    let piece = prop_oneof![
        4 => 1_usize..64,
        3 => 64_usize..20_000,
        1 => 20_000_usize..200_000,
    ];
    let pause = prop_oneof![6 => Just(0_u64), 2 => 1_u64..3, 1 => 10_u64..30];
    let reads = vec((1_usize..300_000, pause.clone()), 1..6);
    let writes = vec((piece, pause), 0..12);
    (writes, reads, any::<bool>(), any::<bool>()).prop_map(
        |(writes, reads, ends_last, small_buffers)| Script {
            writes,
            reads,
            ends_last,
            small_buffers,
        },
    )
}

impl Script {
    fn length(&self) -> usize {
        self.writes.iter().map(|(piece, _)| piece).sum()
    }

    async fn write(&self, seed: u64, to: &mut (impl AsyncWrite + Unpin)) {
        let mut rest = &pattern(seed, self.length())[..];
        for (piece, pause) in &self.writes {
            wait(*pause).await;
            let (now, later) = rest.split_at(*piece);
            to.write_all(now).await.unwrap();
            rest = later;
        }
    }

    async fn read(&self, from: &mut (impl AsyncRead + Unpin)) -> Vec<u8> {
        let mut all = Vec::new();
        let mut reads = self.reads.iter();
        loop {
            // After the script the rest is read without pauses, so that a case is over soon.
            let (size, pause) = *reads.next().unwrap_or(&(300_000, 0));
            wait(pause).await;
            let mut some = vec![0; size];
            match from.read(&mut some).await.unwrap() {
                0 => return all,
                bytes => all.extend_from_slice(&some[..bytes]),
            }
        }
    }

    /// Acts it out; gives what was read.
    async fn act(&self, seed: u64, stream: TcpStream) -> Vec<u8> {
        let (mut from, mut to) = stream.into_split();
        let write = async {
            self.write(seed, &mut to).await;
            if !self.ends_last {
                to.shutdown().await.unwrap();
            }
        };
        let (read, ()) = tokio::join!(self.read(&mut from), write);
        to.shutdown().await.unwrap();
        read
    }
}

async fn wait(ms: u64) {
    if ms > 0 {
        sleep(Duration::from_millis(ms)).await;
    }
}

async fn converse(under: &Under, client: &Script, upstream: &Script) {
    let mut rig = Rig::tcp(under, Limits::default());
    for (script, peer) in [(client, &rig.client), (upstream, &rig.upstream)] {
        if script.small_buffers {
            let peer = socket2::SockRef::from(peer);
            peer.set_send_buffer_size(SMALL).unwrap();
            peer.set_recv_buffer_size(SMALL).unwrap();
        }
    }
    let conversation =
        async { tokio::join!(client.act(1, rig.client), upstream.act(2, rig.upstream)) };
    let (down, up) = within(conversation).await;
    assert!(up == pattern(1, client.length()), "up");
    assert!(down == pattern(2, upstream.length()), "down");
    let end = within(rig.ended.recv()).await.unwrap();
    assert_eq!(end.outcome.how, How::End);
    assert_eq!(end.bytes, [up.len() as u64, down.len() as u64]);
    assert!(end.declined.is_empty());
}

fn conversations(under: Under) {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    let config = ProptestConfig {
        cases: 32,
        failure_persistence: None,
        max_shrink_time: 30_000,
        ..ProptestConfig::default()
    };
    // Both waiting for the other to end first would be no conversation.
    let scripts = (script(), script()).prop_map(|(client, mut upstream)| {
        upstream.ends_last &= !client.ends_last;
        (client, upstream)
    });
    proptest!(config, |((client, upstream) in scripts)| {
        runtime.block_on(converse(&under, &client, &upstream));
    });
}

#[test]
fn splice_delivers_every_byte_once_and_in_order() {
    conversations(Under::splice());
}

#[test]
fn copy_delivers_every_byte_once_and_in_order() {
    conversations(Under::copy());
}
