//! `to` as typed in a file: one upstream, or a list of them.

use std::fmt;

use relay::plan::{Target, To, Upstream};
use serde::{
    Deserialize, Deserializer,
    de::{self, MapAccess, SeqAccess, Visitor, value::MapAccessDeserializer},
};

/// The upstreams of a route.
#[derive(Clone, Debug)]
pub(crate) struct Tos(pub(crate) To);

impl<'de> Deserialize<'de> for Tos {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(All)
    }
}

/// Visitors and not an untagged enum, whose faults name neither cause nor place.
struct All;

impl<'de> Visitor<'de> for All {
    type Value = Tos;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an address, { addr = \"…\" }, or a list of them")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Tos, E> {
        Ok(Tos(To(vec![One.visit_str(text)?.0])))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Tos, A::Error> {
        Ok(Tos(To(vec![One.visit_map(map)?.0])))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut all: A) -> Result<Tos, A::Error> {
        let mut upstreams = Vec::new();
        while let Some(Entry(upstream)) = all.next_element()? {
            upstreams.push(upstream);
        }
        match upstreams.is_empty() {
            true => Err(de::Error::custom("an empty list: name an upstream")),
            false => Ok(Tos(To(upstreams))),
        }
    }
}

struct Entry(Upstream);

impl<'de> Deserialize<'de> for Entry {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(One)
    }
}

struct One;

impl<'de> Visitor<'de> for One {
    type Value = Entry;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an address or { addr = \"…\", weight = 1, backup = false }")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Entry, E> {
        let target: Target = text.parse().map_err(E::custom)?;
        Ok(Entry(target.into()))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Entry, A::Error> {
        let table = Table::deserialize(MapAccessDeserializer::new(map))?;
        if table.weight == 0 {
            return Err(de::Error::custom(
                "weight is from 1 to 65535; leave out an upstream that shall take nobody",
            ));
        }
        Ok(Entry(Upstream {
            at: table.addr,
            weight: table.weight,
            backup: table.backup,
        }))
    }
}

/// An upstream with its own terms.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    addr: Target,
    #[serde(default = "one")]
    weight: u16,
    #[serde(default)]
    backup: bool,
}

fn one() -> u16 {
    1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Deserialize)]
    struct File {
        to: Tos,
    }

    fn read(to: &str) -> Result<To, String> {
        let file = toml::from_str::<File>(&format!("to = {to}"));
        file.map(|file| file.to.0)
            .map_err(|error| error.message().to_owned())
    }

    #[test]
    fn one_or_a_list_with_or_without_terms() {
        assert_eq!(read(r#""a:1""#).unwrap().to_string(), "a:1");
        assert_eq!(
            read(r#"["a:1", "srv:b"]"#).unwrap().to_string(),
            "a:1, srv:b"
        );
        let To(all) = read(r#"["a:1", { addr = "b:2", weight = 3, backup = true }]"#).unwrap();
        assert_eq!((all[0].weight, all[0].backup), (1, false));
        assert_eq!((all[1].weight, all[1].backup), (3, true));
        assert_eq!(
            read(r#"{ addr = "a:1", weight = 2 }"#).unwrap().0[0].weight,
            2
        );
    }

    #[test]
    fn faults_say_what_would_be_right() {
        for (to, told) in [
            ("5", "an address"),
            ("[]", "name an upstream"),
            (r#"["80"]"#, "no port"),
            (r#"[{ addr = "a:1", weight = 0 }]"#, "from 1 to 65535"),
            (r#"[{ adr = "a:1" }]"#, "unknown field `adr`"),
            ("[{ weight = 1 }]", "missing field `addr`"),
        ] {
            let fault = read(to).unwrap_err();
            assert!(fault.contains(told), "{to}: {fault}");
        }
    }
}
