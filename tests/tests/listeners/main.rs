//! Where listeners come from: lists and ranges of ports, systemd, another relay.

mod many;
mod passed;
mod restart;

use anyhow::Result;
use relay_tests::{
    matrix::{Scenario, play},
    record::Engine,
    topology::Wire,
};

/// Plays `scenario` under each engine in turn.
fn under_each(name: &str, wire: Wire, scenario: Scenario) -> Result<()> {
    for engine in [Engine::Sockmap, Engine::Splice, Engine::Copy] {
        play(
            &format!("{}::{name}", engine.name()),
            engine,
            wire,
            scenario,
        )?;
    }
    Ok(())
}
