//! The commands for working on relay; each is a file of its own.

mod bench;
mod build_ebpf;
mod check;
mod fuzz;
mod host;
mod load;
mod run;
mod test;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Builds, checks, tests, runs and measures relay.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    BuildEbpf(build_ebpf::Args),
    /// Check the rules of this tree: import directions, crates in their files, an opening sentence per file.
    Check,
    Test(test::Args),
    Fuzz(fuzz::Args),
    Run(run::Args),
    Bench(bench::Args),
}

fn main() -> ExitCode {
    let done = build_ebpf::become_compiler().and_then(|()| execute(Cli::parse().command));
    done.unwrap_or_else(|error| {
        // Without the backtrace that anyhow adds where RUST_BACKTRACE is set: none of these is a bug of xtask.
        eprintln!("error: {error:#}");
        ExitCode::FAILURE
    })
}

fn execute(command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::BuildEbpf(args) => build_ebpf::run(&args),
        Command::Check => check::run(),
        Command::Test(args) => test::run(&args),
        Command::Fuzz(args) => fuzz::run(&args),
        Command::Run(args) => run::run(&args),
        Command::Bench(args) => bench::run(&args),
    }
}
