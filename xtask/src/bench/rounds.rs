//! Rounds: every contestant has its turn in each, and another begins each time, so that whatever else happens on the machine
//! happens to all.

use std::{cell::RefCell, collections::HashMap, path::Path, time::Duration};

use anyhow::{Context, Error, Result, ensure};
use indicatif::{ProgressBar, ProgressStyle};

use super::{
    contestant::{Built, Contestant, Program, Way, proof},
    ends::Ends,
    interrupt,
    lab::{Lab, Server},
    profile::Profiler,
    results::{Row, Table},
    workload::{Turn, Values, Workload, pingpong::micros},
};
use crate::load::{pingpong::Latency, talk};

/// Of all rounds together; a chart of them tells more than three figures.
const QUANTILES: &[f64] = &[
    0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.995, 0.999, 0.9995, 0.9999, 1.0,
];

/// Who plays, how often and how long.
pub(super) struct Kit {
    pub(super) built: Built,
    pub(super) contestants: Vec<Contestant>,
    pub(super) rounds: usize,
    pub(super) time: Duration,
    /// What was seen to move the bytes of each between such ends; to see it once is enough.
    pub(super) proofs: RefCell<HashMap<(&'static str, Ends), String>>,
    /// Where flame graphs are wanted.
    pub(super) profiler: Option<Profiler>,
}

/// A contestant and what is known of it so far.
struct Player {
    row: Row,
    /// None when it is missing, or out.
    program: Option<Program>,
    latency: Option<Latency>,
}

impl Kit {
    /// A bar over all turns, with the time that is left.
    pub(super) fn progress(&self, workloads: &[Workload]) -> ProgressBar {
        let turns = workloads.iter().map(|workload| self.turns(workload)).sum();
        let template = "{elapsed_precise} [{wide_bar}] {pos} of {len}, {eta} left: {msg}";
        let style = ProgressStyle::with_template(template);
        let style = style.unwrap_or_else(|_| ProgressStyle::default_bar());
        ProgressBar::new(turns).with_style(style)
    }

    fn turns(&self, workload: &Workload) -> u64 {
        let rounds = self.rounds.min(workload.rounds) + usize::from(self.drawn(workload).is_some());
        (rounds * (workload.contestants)(&self.contestants).len()) as u64
    }

    /// Who draws it: of what is counted once, rather than done again and again, there is nothing to see.
    fn drawn(&self, workload: &Workload) -> Option<&Profiler> {
        self.profiler.as_ref().filter(|_| workload.rounds > 1)
    }

    /// Plays one workload with all of them. A contestant that fails is out, and the rest go on.
    pub(super) fn play(&self, workload: &Workload, progress: &ProgressBar) -> Result<Table> {
        let mut lab = Lab::new(workload.server)?;
        let mut players = Vec::new();
        for contestant in (workload.contestants)(&self.contestants) {
            progress.set_message(format!("{}: {} starts", workload.name, contestant.name));
            players.push(self.enter(&mut lab, contestant, workload.ends));
        }
        let rounds = self.rounds.min(workload.rounds);
        for round in 0..rounds {
            for turn in 0..players.len() {
                let at = (turn + round) % players.len();
                let player = &mut players[at];
                if interrupt::came() {
                    continue;
                }
                progress.set_message(format!(
                    "{}: {}, round {} of {rounds}",
                    workload.name,
                    player.row.contestant,
                    round + 1
                ));
                player.turn(workload, &lab, self.time);
                progress.inc(1);
            }
        }
        if let Some(profiler) = self.drawn(workload) {
            for player in players.iter_mut().filter(|_| !interrupt::came()) {
                progress.set_message(format!(
                    "{}: {}, flame graph",
                    workload.name, player.row.contestant
                ));
                if let Err(error) = self.profile(profiler, workload, &mut lab, player) {
                    let name = &player.row.contestant;
                    progress.suspend(|| eprintln!("no flame graph of {name}: {error:#}"));
                }
                progress.inc(1);
            }
        }
        let rows = players.into_iter().map(Player::leave);
        Ok(Table {
            workload: workload.name.clone(),
            about: workload.about.clone(),
            metrics: workload.metrics.clone(),
            rows: rows.collect(),
        })
    }

    /// One more turn, in no figure, of a forwarder started for it.
    fn profile(
        &self,
        profiler: &Profiler,
        workload: &Workload,
        lab: &mut Lab,
        player: &mut Player,
    ) -> Result<()> {
        let Some(measured) = player.program.take() else {
            return Ok(());
        };
        let contestant = measured.contestant;
        measured.stop()?;
        let path = match profiler.program(contestant) {
            Some(path) => path,
            None => contestant.find(&self.built).map_err(Error::msg)?,
        };
        let threads = std::thread::available_parallelism()?.into();
        let mut program = Program::start(lab, contestant, &path, workload.ends, threads)?;
        let mut turn = |time| {
            let (lab, program) = (&*lab, &mut program);
            (workload.run)(&mut Turn { lab, program, time })
        };
        // It may still be starting although it listens.
        turn(self.time.min(Duration::from_millis(100)))?;
        let profile = profiler.watch(&workload.name, contestant.name, || turn(self.time));
        program.stop()?;
        player.row.profile = Some(profile?);
        Ok(())
    }

    fn enter(&self, lab: &mut Lab, contestant: Contestant, ends: Ends) -> Player {
        let mut player = Player {
            row: Row::of(contestant.name),
            program: None,
            latency: None,
        };
        let way = match contestant.between(ends) {
            Ok(way) => way,
            Err(why) => {
                player.row.absent = Some(why.to_owned());
                return player;
            }
        };
        let path = match contestant.find(&self.built) {
            Ok(path) => path,
            Err(missing) => {
                player.row.fault = Some(missing);
                return player;
            }
        };
        player.row.version = contestant.version(&path);
        match self.start(lab, contestant, &path, (ends, way)) {
            Ok((program, proof)) => {
                player.row.moved_by = proof;
                player.program = Some(program);
            }
            Err(error) => player.row.fault = Some(format!("{error:#}")),
        }
        player
    }

    fn start(
        &self,
        lab: &mut Lab,
        contestant: Contestant,
        path: &Path,
        (ends, way): (Ends, Way),
    ) -> Result<(Program, Option<String>)> {
        let threads = std::thread::available_parallelism()?.into();
        let mut program = Program::start(lab, contestant, path, ends, threads)?;
        let of = (contestant.name, ends);
        let known = self.proofs.borrow().get(&of).cloned();
        // Another server answers no probe.
        if known.is_some() || lab.server != Server::Ours {
            return Ok((program, known));
        }
        let proof = proof::prove(lab, &program, way).map_err(|error| program.explain(error))?;
        self.proofs.borrow_mut().insert(of, proof.clone());
        Ok((program, Some(proof)))
    }
}

impl Player {
    fn turn(&mut self, workload: &Workload, lab: &Lab, time: Duration) {
        let Some(program) = &mut self.program else {
            self.row.rounds.push(None);
            return;
        };
        let done = (workload.run)(&mut Turn { lab, program, time });
        // What the upstream saw is the cause, when there is one.
        let done = done.and_then(|values| lab.faultless(&program.place).map(|()| values));
        let done = done.and_then(|values| program.check().map(|()| values));
        match done.and_then(|values| self.note(values)) {
            Ok(()) => (),
            Err(error) => {
                let error = match &mut self.program {
                    Some(program) => program.explain(error),
                    None => error,
                };
                self.row.fault = Some(format!("round {}: {error:#}", self.row.rounds.len() + 1));
                self.row.rounds.push(None);
                self.program = None;
            }
        }
    }

    fn note(&mut self, values: Values) -> Result<()> {
        if let Some(latency) = values.latency {
            let all = match &mut self.latency {
                Some(all) => all,
                none => none.insert(talk::latency()?),
            };
            all.add(latency).context("a histogram")?;
        }
        // JSON has no place for what comes of a division by nothing.
        let finite = values.samples.iter().all(|sample| sample.is_finite());
        ensure!(finite, "nothing was done in the time");
        self.row.rounds.push(Some(values.samples));
        Ok(())
    }

    fn leave(mut self) -> Row {
        if let Some(program) = self.program
            && let Err(error) = program.stop()
        {
            self.row
                .fault
                .get_or_insert(format!("at the end: {error:#}"));
        }
        if let Some(latency) = self.latency {
            let point = |quantile: &f64| (*quantile, micros(&latency, *quantile));
            self.row.latency = QUANTILES.iter().map(point).collect();
        }
        self.row
    }
}
