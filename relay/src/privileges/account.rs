//! Whom to run as: names or numbers as typed, and what they stand for on this host.

use std::{ffi::CString, fmt, str::FromStr};

use nix::{
    errno::Errno,
    unistd::{self, Group, User},
};
use rustix::process::{Gid, Uid};

/// A user and perhaps a group, as typed: `NAME[:GROUP]`, names or numbers.
#[derive(Clone, Debug, PartialEq, Eq, serde_with::DeserializeFromStr)]
pub struct Account {
    user: String,
    group: Option<String>,
}

/// What an [`Account`] stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Ids {
    pub(super) uid: Uid,
    pub(super) gid: Gid,
    /// Those of the user where no group was typed, else that group alone.
    pub(super) groups: Vec<Gid>,
}

/// Why nobody can run as an account.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum NoAccount {
    /// The name of the user is unknown.
    #[error("no such user on this host")]
    User,
    /// The name of the group is unknown.
    #[error("no such group on this host")]
    Group,
    /// A number that this host knows nothing of.
    #[error("this host knows no groups of user {0}: write {0}:GROUP")]
    NoGroup(u32),
    /// It is root.
    #[error("root would keep its privileges: name another user")]
    Root,
    /// The databases cannot be read.
    #[error("cannot look it up: {0}")]
    Unreadable(String),
}

impl Account {
    /// Looks up the number of the user, and that of the group if one was typed; for a file, which may be root's.
    ///
    /// # Errors
    ///
    /// Fails when this host knows no such user or group.
    pub fn numbers(&self) -> Result<(u32, Option<u32>), NoAccount> {
        let user = match self.user.parse() {
            Ok(number) => number,
            Err(_) => {
                let user = found(User::from_name(&self.user))?;
                user.ok_or(NoAccount::User)?.uid.as_raw()
            }
        };
        Ok((user, self.group.as_deref().map(gid).transpose()?))
    }

    /// Looks it up.
    pub(super) fn resolve(&self) -> Result<Ids, NoAccount> {
        let number = self.user.parse::<u32>().ok();
        // Two numbers say it all; an image without /etc/passwd knows no more.
        let user = match (number, &self.group) {
            (Some(_), Some(_)) => None,
            (Some(number), None) => found(User::from_uid(unistd::Uid::from_raw(number)))?,
            (None, _) => found(User::from_name(&self.user))?,
        };
        let uid = number.or(user.as_ref().map(|user| user.uid.as_raw()));
        let uid = uid.ok_or(NoAccount::User)?;
        if uid == 0 {
            return Err(NoAccount::Root);
        }
        let (gid, groups) = match (&self.group, user) {
            (Some(group), _) => {
                let gid = gid(group)?;
                (gid, vec![gid])
            }
            (None, Some(user)) => (user.gid.as_raw(), groups(&user)?),
            (None, None) => return Err(NoAccount::NoGroup(uid)),
        };
        Ok(Ids {
            uid: Uid::from_raw(uid),
            gid: Gid::from_raw(gid),
            groups: groups.into_iter().map(Gid::from_raw).collect(),
        })
    }
}

fn gid(group: &str) -> Result<u32, NoAccount> {
    if let Ok(number) = group.parse() {
        return Ok(number);
    }
    let group = found(Group::from_name(group))?;
    Ok(group.ok_or(NoAccount::Group)?.gid.as_raw())
}

fn groups(user: &User) -> Result<Vec<u32>, NoAccount> {
    let name = CString::new(user.name.as_str()).map_err(|_| NoAccount::User)?;
    let groups = unistd::getgrouplist(&name, user.gid).map_err(unreadable)?;
    Ok(groups.iter().map(|gid| gid.as_raw()).collect())
}

/// musl fails where there is no file to look in; that, too, is nobody found.
fn found<T>(looked_up: nix::Result<Option<T>>) -> Result<Option<T>, NoAccount> {
    match looked_up {
        Err(Errno::ENOENT) => Ok(None),
        other => other.map_err(unreadable),
    }
}

fn unreadable(errno: Errno) -> NoAccount {
    NoAccount::Unreadable(errno.to_string())
}

impl FromStr for Account {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (user, group) = match text.split_once(':') {
            Some((user, group)) => (user, Some(group)),
            None => (text, None),
        };
        let is_name = |name: &str| !name.is_empty() && !name.contains([':', '\0', '/', '\n']);
        if !is_name(user) || !group.is_none_or(is_name) {
            return Err("write NAME or NAME:GROUP, with names or numbers".into());
        }
        Ok(Self {
            user: user.to_owned(),
            group: group.map(str::to_owned),
        })
    }
}

impl fmt::Display for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.group {
            Some(group) => write!(f, "{}:{group}", self.user),
            None => f.write_str(&self.user),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolved(text: &str) -> Result<(u32, u32, usize), NoAccount> {
        let ids = text.parse::<Account>().unwrap().resolve()?;
        Ok((ids.uid.as_raw(), ids.gid.as_raw(), ids.groups.len()))
    }

    #[test]
    fn numbers_need_no_database() {
        assert_eq!(resolved("4123456:4123457"), Ok((4123456, 4123457, 1)));
        assert_eq!(resolved("4123456"), Err(NoAccount::NoGroup(4123456)));
    }

    #[test]
    fn names_are_looked_up() {
        assert_eq!(resolved("no-such-user-here"), Err(NoAccount::User));
        assert_eq!(
            resolved("4123456:no-such-group-here"),
            Err(NoAccount::Group)
        );
    }

    #[test]
    fn files_may_be_anybodys() {
        let numbers = |text: &str| text.parse::<Account>().unwrap().numbers();
        assert_eq!(numbers("root"), Ok((0, None)));
        assert_eq!(numbers("0:4123457"), Ok((0, Some(4123457))));
        assert_eq!(numbers("4123456:root"), Ok((4123456, Some(0))));
        assert_eq!(numbers("no-such-user-here"), Err(NoAccount::User));
        assert_eq!(numbers("0:no-such-group-here"), Err(NoAccount::Group));
    }

    #[test]
    fn root_is_nobody_to_become() {
        for root in ["0:0", "root:12", "0"] {
            assert_eq!(resolved(root), Err(NoAccount::Root), "{root}");
        }
    }

    #[test]
    fn accounts_are_read_and_printed_alike() {
        for text in ["nobody", "65534", "nobody:nogroup", "1:2"] {
            assert_eq!(text.parse::<Account>().unwrap().to_string(), text);
        }
        for text in ["", ":", "a:", ":b", "a:b:c", "a/b"] {
            assert!(text.parse::<Account>().is_err(), "{text}");
        }
    }
}
