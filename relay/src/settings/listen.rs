//! `listen` as typed in a file: one place, or a list of them; ports may be ranges.

use std::fmt;

use relay::plan::{Listen, Span};
use serde::{
    Deserialize, Deserializer,
    de::{self, SeqAccess, Visitor},
};

/// The listeners of a route, as typed; never empty.
#[derive(Clone, Debug)]
pub(crate) struct Listens(pub(crate) Vec<Span<Listen>>);

impl Listens {
    /// All of them.
    pub(crate) fn all(&self) -> Vec<Listen> {
        let all = self.0.iter().flat_map(|span| span.all());
        all.cloned().collect()
    }

    /// Those at this place of each range, where upstreams have ranges of so many ports.
    pub(crate) fn at(&self, at: usize, ports: usize) -> Result<Vec<Listen>, String> {
        let one = |span: &Span<Listen>| match span.all() {
            all if all.len() == ports => Ok(all[at].clone()),
            all => Err(format!(
                "to has a range of {ports} ports and listen {span} has {}: they go port by port, so give as many",
                all.len()
            )),
        };
        self.0.iter().map(one).collect()
    }

    /// Whether no client can come over a network.
    pub(crate) fn are_unix(&self) -> bool {
        self.0.iter().flat_map(Span::all).all(Listen::is_unix)
    }
}

impl fmt::Display for Listens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = self.0.iter().map(ToString::to_string);
        f.write_str(&Vec::from_iter(all).join(", "))
    }
}

impl<'de> Deserialize<'de> for Listens {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(All)
    }
}

/// A visitor and not an untagged enum, whose faults name neither cause nor place.
struct All;

impl<'de> Visitor<'de> for All {
    type Value = Listens;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an address to listen on, or a list of them")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Listens, E> {
        Ok(Listens(vec![text.parse().map_err(E::custom)?]))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut all: A) -> Result<Listens, A::Error> {
        let mut listens = Vec::new();
        while let Some(One(listen)) = all.next_element()? {
            listens.push(listen);
        }
        match listens.is_empty() {
            true => Err(de::Error::custom(
                "an empty list: say where to listen, or leave the route out",
            )),
            false => Ok(Listens(listens)),
        }
    }
}

#[derive(serde_with::DeserializeFromStr)]
struct One(Span<Listen>);

impl std::str::FromStr for One {
    type Err = relay::plan::AddressError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse().map(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Deserialize)]
    struct File {
        listen: Listens,
    }

    fn read(listen: &str) -> Result<Listens, String> {
        let file = toml::from_str::<File>(&format!("listen = {listen}"));
        file.map(|file| file.listen)
            .map_err(|error| error.message().to_owned())
    }

    #[test]
    fn one_or_a_list_with_or_without_ranges() {
        let listens = read(r#"["0.0.0.0:80-82", "[::]:90-92", "unix:/a"]"#).unwrap();
        assert_eq!(listens.to_string(), "0.0.0.0:80-82, [::]:90-92, unix:/a");
        assert_eq!(listens.all().len(), 7);
        assert!(listens.at(1, 3).is_err(), "the Unix socket is one");
        let listens = read(r#"["0.0.0.0:80-82", "[::]:90-92"]"#).unwrap();
        let second = listens.at(1, 3).unwrap();
        assert_eq!(
            [second[0].to_string(), second[1].to_string()],
            ["0.0.0.0:81", "[::]:91"]
        );
    }

    #[test]
    fn faults_say_what_would_be_right() {
        for (listen, told) in [
            ("5", "an address to listen on"),
            ("[]", "say where to listen"),
            (r#"["80"]"#, "no port"),
            (r#""h:9-8""#, "FROM-TO"),
            (r#""original""#, "cannot be original"),
        ] {
            let fault = read(listen).unwrap_err();
            assert!(fault.contains(told), "{listen}: {fault}");
        }
    }
}
