//! How long a test waits for what must happen, and the one way of waiting for it.

use std::{
    sync::OnceLock,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, bail};

/// Far beyond anything a slow, shared machine needs; only what hangs takes this long.
const LIMIT: Duration = Duration::from_secs(90);

/// How long anything may take. `RELAY_PATIENCE` (seconds) overrides it, for emulated machines.
#[must_use]
pub fn limit() -> Duration {
    static SET: OnceLock<Duration> = OnceLock::new();
    *SET.get_or_init(|| {
        let asked = std::env::var("RELAY_PATIENCE").ok();
        asked
            .and_then(|text| text.parse().ok())
            .map_or(LIMIT, Duration::from_secs)
    })
}

/// Asks until there is an answer.
///
/// # Errors
///
/// Fails when there is none within [`limit`], naming `what` was waited for.
pub fn until<T>(what: &str, mut ask: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    let begun = Instant::now();
    let mut pause = Duration::from_millis(1);
    loop {
        if let Some(answer) = ask()? {
            return Ok(answer);
        }
        if begun.elapsed() > limit() {
            bail!("gave up after {:?} waiting for {what}", limit());
        }
        thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(50));
    }
}

/// Waits until something holds.
///
/// # Errors
///
/// Fails when it does not within [`limit`], naming `what` was waited for.
pub fn until_true(what: &str, mut ask: impl FnMut() -> Result<bool>) -> Result<()> {
    until(what, || Ok(ask()?.then_some(())))
}
