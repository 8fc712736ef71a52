//! Headers as they are written, cut short, damaged and made up.

use proptest::prelude::*;

use super::*;

fn origin(source: &str, destination: &str) -> Option<Origin> {
    Some(Origin {
        source: source.parse().unwrap(),
        destination: destination.parse().unwrap(),
    })
}

#[test]
fn lines_of_version_1() {
    let told = |text: &str| parse(text.as_bytes());
    for (text, expected) in [
        (
            "PROXY TCP4 10.0.0.1 10.0.0.2 1 65535\r\n",
            origin("10.0.0.1:1", "10.0.0.2:65535"),
        ),
        (
            "PROXY TCP6 2001:db8::1 2001:db8::2 5 80\r\n",
            origin("[2001:db8::1]:5", "[2001:db8::2]:80"),
        ),
        (
            "PROXY TCP6 ::ffff:10.0.0.1 ::ffff:10.0.0.2 5 80\r\n",
            origin("10.0.0.1:5", "10.0.0.2:80"),
        ),
        ("PROXY UNKNOWN\r\n", None),
        ("PROXY UNKNOWN ffff::1 ffff::1 65535 65535\r\n", None),
    ] {
        assert_eq!(told(text), Ok(Some((expected, text.len()))), "{text}");
        let with_more = format!("{text}GET / HTTP/1.1\r\n");
        assert_eq!(told(&with_more), Ok(Some((expected, text.len()))));
        for end in 0..text.len() {
            assert_eq!(told(&text[..end]), Ok(None), "{}", &text[..end]);
        }
    }
    for text in [
        "GET / HTTP/1.1\r\n",
        "PROXY TCP4 10.0.0.1 10.0.0.2 1\r\n",
        "PROXY TCP4 10.0.0.1 10.0.0.2 1 65536\r\n",
        "PROXY TCP4 10.0.0.256 10.0.0.2 1 2\r\n",
        "PROXY TCP4 ::1 ::1 1 2\r\n",
        "PROXY UDP4 10.0.0.1 10.0.0.2 1 2\r\n",
        "proxy unknown\r\n",
        "PROXY\r\n",
    ] {
        assert_eq!(told(text), Err(Refusal::Malformed), "{text}");
    }
    let endless = format!("PROXY TCP4 {}", "1".repeat(200));
    assert_eq!(told(&endless), Err(Refusal::Malformed));
}

#[test]
fn version_2_local_unknown_and_damaged() {
    let mut local = header(ProxyVersion::V2, origin("10.0.0.1:1", "10.0.0.2:2"));
    assert_eq!(local.len(), 28);
    local[12] = 0x20;
    assert_eq!(parse(&local), Ok(Some((None, 28))));
    local[12] = 0x31;
    assert_eq!(parse(&local), Err(Refusal::Malformed));
    local[12] = 0x21;
    local[15] = 11;
    assert_eq!(parse(&local), Err(Refusal::Malformed));
    local[14] = 0xff;
    assert_eq!(parse(&local), Err(Refusal::Malformed));
}

/// Extras of a header belong to it.
#[test]
fn version_2_with_extras_is_taken_whole() {
    let mut bytes = header(ProxyVersion::V2, origin("10.0.0.1:1", "10.0.0.2:2"));
    bytes[15] += 5;
    bytes.extend([0x04, 0, 2, 9, 9]);
    let length = bytes.len();
    bytes.extend(b"payload");
    let (told, taken) = parse(&bytes).unwrap().unwrap();
    assert_eq!((told, taken), (origin("10.0.0.1:1", "10.0.0.2:2"), length));
}

fn addresses() -> impl Strategy<Value = Option<Origin>> {
    let v4 = any::<([u8; 4], u16, [u8; 4], u16)>().prop_map(|(a, p, b, q)| Origin {
        source: (a, p).into(),
        destination: (b, q).into(),
    });
    let v6 = any::<([u8; 16], u16, [u8; 16], u16)>().prop_map(|(a, p, b, q)| Origin {
        source: (a, p).into(),
        destination: (b, q).into(),
    });
    proptest::option::of(prop_oneof![v4, v6])
}

proptest! {
    #[test]
    fn what_is_sent_is_understood(origin in addresses(), more in any::<Vec<u8>>()) {
        for version in [ProxyVersion::V1, ProxyVersion::V2] {
            let mut bytes = header(version, origin);
            let length = bytes.len();
            for end in 0..length {
                prop_assert_eq!(parse(&bytes[..end]), Ok(None));
            }
            bytes.extend(&more);
            prop_assert_eq!(parse(&bytes), Ok(Some((origin.map(canonical), length))));
        }
    }

    #[test]
    fn no_bytes_panic_and_none_are_taken_that_are_not_there(bytes in any::<Vec<u8>>(), version in 0..3) {
        let mut begun = match version {
            0 => b"PROXY ".to_vec(),
            1 => v2::PROTOCOL_PREFIX.to_vec(),
            _ => Vec::new(),
        };
        begun.extend(bytes);
        if let Ok(Some((_, length))) = parse(&begun) {
            prop_assert!(length <= begun.len() && length > 0);
        }
    }
}
