//! `cargo xtask check`: the rules of this tree that the compiler does not know.

mod crates;
mod files;
mod imports;
mod layers;
mod source;

use std::process::ExitCode;

use anyhow::Result;

use self::source::Source;
use crate::host;

/// Something that breaks a rule.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Finding {
    path: String,
    line: usize,
    message: String,
}

pub(crate) fn run() -> Result<ExitCode> {
    let sources = source::read(host::root()?)?;
    let findings = findings(&sources);
    for Finding {
        path,
        line,
        message,
    } in &findings
    {
        println!("{path}:{line}: {message}");
    }
    if findings.is_empty() {
        println!("{} files keep the rules", sources.len());
        return Ok(ExitCode::SUCCESS);
    }
    println!("{} findings in {} files", findings.len(), sources.len());
    Ok(ExitCode::FAILURE)
}

fn findings(sources: &[Source]) -> Vec<Finding> {
    let mut findings = layers::check(sources);
    for source in sources {
        findings.extend(crates::check(source));
        findings.extend(files::check(source));
    }
    findings.sort();
    findings.dedup();
    findings
}
