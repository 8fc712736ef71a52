//! A range of ports as typed, `host:FROM-TO`, and the addresses that it stands for.

use std::{fmt, str::FromStr};

use super::AddressError;

/// One place, or one for each port of a range, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span<T> {
    text: String,
    all: Vec<T>,
}

impl<T> Span<T> {
    /// Whether a range was typed.
    #[must_use]
    pub fn is_range(&self) -> bool {
        self.all.len() > 1
    }

    /// What it stands for; never empty.
    #[must_use]
    pub fn all(&self) -> &[T] {
        &self.all
    }
}

impl<T: fmt::Display> From<T> for Span<T> {
    fn from(only: T) -> Self {
        Self {
            text: only.to_string(),
            all: vec![only],
        }
    }
}

impl<T> fmt::Display for Span<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl<T: FromStr<Err = AddressError>> FromStr for Span<T> {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let range = text.rsplit_once(':').and_then(|(host, ports)| {
            if host.starts_with("unix:") {
                return None;
            }
            let (first, last) = ports.split_once('-')?;
            let are_ports = [first, last]
                .iter()
                .all(|part| part.chars().all(|c| c.is_ascii_digit()));
            // systemd:a-b is a name.
            are_ports.then_some((host, first, last))
        });
        let all = match range {
            None => vec![text.parse()?],
            Some((host, first, last)) => {
                let port = |text: &str| text.parse::<u16>().map_err(|_| AddressError::BadPort);
                let (first, last) = (port(first)?, port(last)?);
                if first == 0 || first >= last {
                    return Err(AddressError::BadRange);
                }
                let one = |port| format!("{host}:{port}").parse();
                (first..=last).map(one).collect::<Result<_, _>>()?
            }
        };
        Ok(Self {
            text: text.to_owned(),
            all,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{super::Listen, *};

    fn read(text: &str) -> Result<Vec<String>, AddressError> {
        let span = text.parse::<Span<Listen>>()?;
        assert_eq!(span.to_string(), text);
        Ok(span.all().iter().map(ToString::to_string).collect())
    }

    #[test]
    fn a_range_is_one_address_for_each_port() {
        let three = ["[::]:8000", "[::]:8001", "[::]:8002"].map(String::from);
        assert_eq!(read("[::]:8000-8002"), Ok(three.to_vec()));
        assert_eq!(read("a-b:1-2").unwrap(), ["a-b:1", "a-b:2"]);
        assert_eq!(read("h:65534-65535").unwrap().len(), 2);
        for single in ["unix:/a:1-2", "unix:/run/a-b", "systemd:a-b", "a-b:80"] {
            assert_eq!(read(single), Ok(vec![single.to_owned()]));
        }
    }

    #[test]
    fn bad_ranges_name_their_fault() {
        for (text, fault) in [
            ("h:9-8", AddressError::BadRange),
            ("h:8-8", AddressError::BadRange),
            ("h:0-8", AddressError::BadRange),
            ("h:1-65536", AddressError::BadPort),
            ("h:-8", AddressError::BadPort),
            ("h:8-", AddressError::BadPort),
            ("h:a-b", AddressError::BadPort),
            ("::1:8-9", AddressError::BareV6),
            (":8-9", AddressError::NoHost),
            ("*:8-9", AddressError::NoHost),
        ] {
            assert_eq!(read(text), Err(fault), "{text}");
        }
    }
}
