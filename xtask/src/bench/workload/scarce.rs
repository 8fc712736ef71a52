//! Little CPU: a quota as a sidecar has it, and neighbours that never rest.

use std::{
    hint,
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use super::{Workload, bulk, pingpong};
use crate::load::talk::Talk;

/// Of one CPU, percent.
const QUOTA: u64 = 10;

/// Connections of the ping-pong.
const CONNECTIONS: u64 = 16;

pub(super) fn all() -> Vec<Workload> {
    let talk = |turn: &super::Turn<'_>| Talk {
        connections: CONNECTIONS,
        size: 64,
        warmup: pingpong::WARMUP,
        time: turn.time,
    };
    vec![
        Workload {
            name: "quota-pingpong".into(),
            about: format!(
                "64 bytes on {CONNECTIONS} connections, the forwarder's processes limited to {QUOTA} % of one CPU"
            ),
            metrics: pingpong::metrics(),
            run: Box::new(move |turn| {
                turn.program.group.limit(QUOTA)?;
                pingpong::measure(turn, talk(turn))
            }),
            ..Workload::default()
        },
        Workload {
            name: "quota-bulk".into(),
            about: format!("4 streams, the forwarder's processes limited to {QUOTA} % of one CPU"),
            metrics: bulk::metrics(),
            run: Box::new(|turn| {
                turn.program.group.limit(QUOTA)?;
                bulk::measure(turn, 4)
            }),
            ..Workload::default()
        },
        Workload {
            name: "noisy-pingpong".into(),
            about: format!(
                "64 bytes on {CONNECTIONS} connections, beside one busy loop for each CPU"
            ),
            metrics: pingpong::metrics(),
            run: Box::new(move |turn| beside_busy_loops(|| pingpong::measure(turn, talk(turn)))),
            ..Workload::default()
        },
    ]
}

fn beside_busy_loops<T>(act: impl FnOnce() -> T) -> T {
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, Into::into) {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    hint::spin_loop();
                }
            });
        }
        let acted = act();
        done.store(true, Ordering::Relaxed);
        acted
    })
}
