//! A target under libFuzzer. Which one it is, the variable `RELAY_FUZZ` says: so all of them are linked once.
#![cfg_attr(fuzzing, no_main)]

#[cfg(not(fuzzing))]
fn main() {
    for target in &relay_fuzz::TARGETS {
        println!("{}", target.name);
    }
    eprintln!("this program is of use when `cargo xtask fuzz` builds it");
}

#[cfg(fuzzing)]
mod driven {
    use std::{process::exit, sync::OnceLock};

    use libfuzzer_sys::fuzz_target;
    use relay_fuzz::{Target, find};

    static TARGET: OnceLock<&Target> = OnceLock::new();

    fn chosen() -> &'static Target {
        let name = std::env::var("RELAY_FUZZ").unwrap_or_default();
        find(&name).unwrap_or_else(|| {
            eprintln!("RELAY_FUZZ={name}: no such target");
            exit(2)
        })
    }

    fuzz_target!(|data: &[u8]| (TARGET.get_or_init(chosen).run)(data));
}
