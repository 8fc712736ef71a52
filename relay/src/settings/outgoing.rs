//! relay's own end of connections to upstreams, out of the settings of a route.

use std::{
    fmt,
    marker::PhantomData,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use relay::plan::Outgoing;
use serde::{
    Deserialize, Deserializer,
    de::{self, IntoDeserializer, SeqAccess, Visitor, value::SeqAccessDeserializer},
};

use super::Settings;

impl Settings {
    /// What these settings, complete, say of it.
    pub(super) fn outgoing(&mut self) -> Result<Outgoing, String> {
        let (mut v4, mut v6) = (Vec::<Ipv4Addr>::new(), Vec::<Ipv6Addr>::new());
        for source in self.source.take().unwrap_or_default() {
            match source {
                IpAddr::V4(ip) => v4.push(ip),
                IpAddr::V6(ip) => v6.push(ip),
            }
        }
        if v4.len() > 1 || v6.len() > 1 {
            return Err("source takes one IPv4 and one IPv6 address at most".into());
        }
        let any = |ip: &IpAddr| ip.is_unspecified() || ip.is_multicast();
        let given = v4.iter().copied().map(IpAddr::V4);
        if let Some(wrong) = given.chain(v6.iter().copied().map(IpAddr::V6)).find(any) {
            return Err(format!(
                "source {wrong} is no address of a host: leave source out for the one that routes say"
            ));
        }
        Ok(Outgoing {
            v4: v4.pop(),
            v6: v6.pop(),
            interface: self.interface.take(),
            mark: self.mark.filter(|mark| *mark != 0),
            transparent: self.transparent_source.unwrap_or(false),
        })
    }
}

/// The longest name of a network interface, bytes; `IFNAMSIZ` less the end of the string.
const LONGEST_NAME: usize = 15;

/// The name of a network interface.
pub(super) fn interface(name: &str) -> Result<String, String> {
    let fits = (1..=LONGEST_NAME).contains(&name.len());
    match fits && !name.contains(['/', '\0', ' ']) {
        true => Ok(name.to_owned()),
        false => Err("not the name of a network interface: write eth1 or the like".into()),
    }
}

/// A mark, decimal or hexadecimal.
pub(super) fn mark(text: &str) -> Result<u32, String> {
    let mark = match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16),
        None => text.parse(),
    };
    mark.map_err(|_| "not a mark: write 16 or 0x10, up to 0xffffffff".into())
}

/// The key that [`interface`] reads.
pub(super) fn interface_key<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<String>, D::Error> {
    let name = String::deserialize(deserializer)?;
    interface(&name).map(Some).map_err(de::Error::custom)
}

/// A key that takes one value or a list of them.
pub(super) fn one_or_more<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Vec<T>>, D::Error> {
    deserializer
        .deserialize_any(OneOrMore(PhantomData))
        .map(Some)
}

/// A visitor and not an untagged enum, whose faults name no cause.
struct OneOrMore<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for OneOrMore<T> {
    type Value = Vec<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string or a list of strings")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Vec<T>, E> {
        Ok(vec![T::deserialize(text.into_deserializer())?])
    }

    fn visit_seq<A: SeqAccess<'de>>(self, all: A) -> Result<Vec<T>, A::Error> {
        Vec::deserialize(SeqAccessDeserializer::new(all))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outgoing(keys: &str) -> Result<Outgoing, String> {
        let settings = toml::from_str::<Settings>(keys);
        let mut settings = settings.map_err(|error| error.message().to_owned())?;
        settings.outgoing()
    }

    #[test]
    fn one_source_for_each_family() {
        assert_eq!(outgoing("").unwrap(), Outgoing::default());
        let one = outgoing("source = \"192.0.2.1\"").unwrap();
        assert_eq!((one.v4, one.v6), (Some([192, 0, 2, 1].into()), None));
        let both = outgoing("source = [\"2001:db8::1\", \"192.0.2.1\"]").unwrap();
        assert!(both.v4.is_some() && both.v6.is_some());
        let more = outgoing("mark = 0x10\ninterface = \"eth1\"\ntransparent-source = true");
        let more = more.unwrap();
        assert_eq!((more.mark, more.transparent), (Some(16), true));
        assert_eq!(outgoing("mark = 0").unwrap(), Outgoing::default());
    }

    #[test]
    fn faults_say_what_would_be_right() {
        for (keys, told) in [
            ("source = [\"192.0.2.1\", \"192.0.2.2\"]", "one IPv4"),
            ("source = \"192.0.2.1:80\"", "IP address"),
            ("source = \"0.0.0.0\"", "leave source out"),
            ("source = 5", "a string or a list"),
            ("interface = \"a name too long for it\"", "eth1"),
            ("mark = 0x100000000", "u32"),
        ] {
            let fault = outgoing(keys).unwrap_err();
            assert!(fault.contains(told), "{keys}: {fault}");
        }
        assert_eq!(mark("0xff"), Ok(255));
        assert_eq!(mark("10"), Ok(10));
        for text in ["", "0x", "-1", "ten"] {
            assert!(mark(text).is_err(), "{text}");
        }
    }
}
