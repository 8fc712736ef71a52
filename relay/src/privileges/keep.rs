//! The capabilities that are not given up, as typed.

use std::str::FromStr;

use caps::{Capability, CapsHashSet};

/// `none`, or names with commas between them, with or without `CAP_`.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde_with::DeserializeFromStr)]
pub struct Keep(pub(super) CapsHashSet);

impl FromStr for Keep {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "none" {
            return Ok(Self::default());
        }
        let names = text.split(',').map(str::trim);
        let capability = |name: &str| {
            let canonical = caps::to_canonical(name);
            let unknown = || {
                format!(
                    "no capability is called {name:?}: write none, or names such as net_bind_service,net_admin"
                )
            };
            canonical.parse::<Capability>().map_err(|_| unknown())
        };
        names.map(capability).collect::<Result<_, _>>().map(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_in_every_way_they_are_written() {
        let both = "CAP_NET_ADMIN,CAP_NET_RAW".parse::<Keep>().unwrap();
        assert_eq!("net_admin, net_raw".parse(), Ok(both.clone()));
        assert_eq!(both.0.len(), 2);
        assert_eq!("none".parse(), Ok(Keep::default()));
        for text in ["", "all", "net_admin,", "cap_"] {
            assert!(text.parse::<Keep>().is_err(), "{text}");
        }
    }
}
