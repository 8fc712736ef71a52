//! `to` as typed in a file: one upstream, or a list of them.

use std::fmt;

use relay::plan::{AddressError, Span, Target, To, Upstream};
use serde::{
    Deserialize, Deserializer,
    de::{self, MapAccess, SeqAccess, Visitor, value::MapAccessDeserializer},
};

/// The upstreams of a route, as typed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tos(Vec<Entry>);

impl Tos {
    /// How many ports their ranges have; none where there is no range.
    pub(crate) fn ports(&self) -> Result<Option<usize>, String> {
        let mut ranges = self.0.iter().filter(|entry| entry.at.is_range());
        let Some(first) = ranges.next() else {
            return Ok(None);
        };
        let ports = first.at.all().len();
        match ranges.find(|entry| entry.at.all().len() != ports) {
            None => Ok(Some(ports)),
            Some(other) => Err(format!(
                "to has ranges of {ports} ports, {}, and of {}, {}: they go port by port, so give as many",
                first.at,
                other.at.all().len(),
                other.at
            )),
        }
    }

    /// Those at this place of each range, and those without a range.
    pub(crate) fn at(&self, at: usize) -> To {
        let one = |entry: &Entry| {
            let all = entry.at.all();
            let at = all.get(at).or_else(|| all.first())?;
            Some(Upstream {
                at: at.clone(),
                weight: entry.weight,
                backup: entry.backup,
            })
        };
        To(self.0.iter().filter_map(one).collect())
    }
}

impl From<Vec<Span<Target>>> for Tos {
    fn from(all: Vec<Span<Target>>) -> Self {
        Self(all.into_iter().map(Entry::from).collect())
    }
}

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
        Ok(Tos(vec![One.visit_str(text)?]))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Tos, A::Error> {
        Ok(Tos(vec![One.visit_map(map)?]))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut all: A) -> Result<Tos, A::Error> {
        let mut upstreams = Vec::new();
        while let Some(entry) = all.next_element()? {
            upstreams.push(entry);
        }
        match upstreams.is_empty() {
            true => Err(de::Error::custom("an empty list: name an upstream")),
            false => Ok(Tos(upstreams)),
        }
    }
}

/// One of them, with its own terms.
#[derive(Clone, Debug)]
struct Entry {
    at: Span<Target>,
    weight: u16,
    backup: bool,
}

impl From<Span<Target>> for Entry {
    fn from(at: Span<Target>) -> Self {
        Self {
            at,
            weight: 1,
            backup: false,
        }
    }
}

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
        let at: Span<Target> = text.parse().map_err(E::custom)?;
        Ok(at.into())
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Entry, A::Error> {
        let table = Table::deserialize(MapAccessDeserializer::new(map))?;
        if table.weight == 0 {
            return Err(de::Error::custom(
                "weight is from 1 to 65535; leave out an upstream that shall take nobody",
            ));
        }
        Ok(Entry {
            at: table.addr.0,
            weight: table.weight,
            backup: table.backup,
        })
    }
}

/// An upstream with its own terms.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    addr: Place,
    #[serde(default = "one")]
    weight: u16,
    #[serde(default)]
    backup: bool,
}

#[derive(serde_with::DeserializeFromStr)]
struct Place(Span<Target>);

impl std::str::FromStr for Place {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        text.parse().map(Self)
    }
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
        file.map(|file| file.to.at(0))
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
    fn ranges_go_port_by_port() {
        let read = |to: &str| toml::from_str::<File>(&format!("to = {to}")).unwrap().to;
        let to = read(r#"["a:1-3", "b:9", { addr = "c:4-6", backup = true }]"#);
        assert_eq!(to.ports(), Ok(Some(3)));
        assert_eq!(to.at(2).to_string(), "a:3, b:9, c:6");
        assert!(read(r#"["a:1-3", "b:1-2"]"#).ports().is_err());
        assert_eq!(read(r#""a:1""#).ports(), Ok(None));
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
