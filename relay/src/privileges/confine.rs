//! Landlock: no file is written, made, removed or executed any more, but Unix sockets where they are asked for.

use std::{fmt, path::Path, path::PathBuf};

use landlock::{
    ABI, AccessFs, Ruleset, RulesetAttr, RulesetCreatedAttr, RulesetError, RulesetStatus,
    path_beneath_rules,
};

/// The newest rules that are asked for; an older kernel (Landlock came with Linux 5.13) enforces those that it knows.
const NEWEST: ABI = ABI::V5;

/// What came of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Confined {
    how: Result<&'static str, String>,
    sockets: Vec<PathBuf>,
}

/// Confines the calling thread and all that it will make. Reading stays with the permissions of files; so does
/// connecting to Unix sockets.
pub(super) fn confine(sockets: &[&Path]) -> Confined {
    let how = match restrict(sockets) {
        Ok(RulesetStatus::FullyEnforced) => Ok("enforced"),
        Ok(RulesetStatus::PartiallyEnforced) => Ok("enforced as far as this kernel knows it"),
        Ok(RulesetStatus::NotEnforced) => Err("this kernel has it not, or switched off".to_owned()),
        Err(error) => Err(error.to_string()),
    };
    Confined {
        how,
        sockets: sockets.iter().map(|path| path.to_path_buf()).collect(),
    }
}

fn restrict(sockets: &[&Path]) -> Result<RulesetStatus, RulesetError> {
    let denied = AccessFs::from_write(NEWEST) | AccessFs::Execute;
    let ruleset = Ruleset::default().handle_access(denied)?.create()?;
    let ruleset = ruleset.add_rules(path_beneath_rules(
        sockets,
        AccessFs::MakeSock | AccessFs::RemoveFile,
    ))?;
    Ok(ruleset.restrict_self()?.ruleset)
}

impl Confined {
    /// What cannot be done any more because of it.
    pub(super) fn lost(&self) -> Option<String> {
        self.how.is_ok().then(|| match self.sockets.as_slice() {
            [] => "make Unix sockets (Landlock)".to_owned(),
            some => {
                let some = Vec::from_iter(some.iter().map(|path| path.display().to_string()));
                format!("make Unix sockets outside {} (Landlock)", some.join(", "))
            }
        })
    }
}

impl fmt::Display for Confined {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.how {
            Ok(how) => f.write_str(how),
            Err(why) => write!(f, "not enforced: {why}"),
        }
    }
}
