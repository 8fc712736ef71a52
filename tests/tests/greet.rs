//! What is said on a connection before its bytes, and that the bytes right behind it are carried whole.

#[path = "greet/ask.rs"]
mod ask;
#[path = "greet/proxy.rs"]
mod proxy;

use anyhow::Result;
use relay_tests::{
    matrix::{Scenario, play},
    record::Engine,
    topology::Wire,
};

/// Plays `scenario` under each engine in turn.
fn under_each(name: &str, wire: Wire, scenario: Scenario) -> Result<()> {
    [Engine::Sockmap, Engine::Splice, Engine::Copy]
        .into_iter()
        .try_for_each(|engine| {
            let name = format!("{}::{name}", engine.name());
            play(&name, engine, wire, scenario)
        })
}
