//! Heads of requests, whole, cut short and made up.

use proptest::prelude::*;

use super::*;

fn to(text: &str) -> Option<Result<Address, Refusal>> {
    let head = head(text.as_bytes()).unwrap().unwrap().0;
    head.to
}

#[test]
fn heads_are_taken_whole_and_nothing_behind_them() {
    let text = "CONNECT example.com:443 HTTP/1.1\r\nHost: example.com:443\r\n\
        proxy-authorization: basic bWU6c2U6Y3JldA==\r\n\r\n";
    for end in 0..text.len() {
        assert_eq!(head(&text.as_bytes()[..end]), Ok(None));
    }
    let expected = Head {
        to: Some(Ok("example.com:443".parse().unwrap())),
        authorization: Some(b"me:se:cret".to_vec()),
    };
    let more = format!("{text}payload");
    assert_eq!(head(more.as_bytes()), Ok(Some((expected, text.len()))));
}

#[test]
fn places_are_read_strictly() {
    let of = |place: &str| to(&format!("CONNECT {place} HTTP/1.1\r\n\r\n"));
    assert_eq!(of("[::1]:80"), Some(Ok("[::1]:80".parse().unwrap())));
    assert_eq!(
        of("192.0.2.1:80"),
        Some(Ok("192.0.2.1:80".parse().unwrap()))
    );
    for bad in [
        "example.com",
        "http://a/",
        "a:b",
        "a:+80",
        ":80",
        "a_b/:80",
        "/",
    ] {
        assert_eq!(of(bad), Some(Err(Refusal::Malformed)), "{bad}");
    }
    assert_eq!(to("GET http://example.com/ HTTP/1.1\r\n\r\n"), None);
    assert_eq!(head(b"\x05\x01\x00"), Err(Refusal::Malformed));
}

#[test]
fn other_ways_to_authenticate_are_none() {
    for value in ["Bearer abc", "Basic", "Basic !!!", "Digest x=\"y\""] {
        let text = format!("CONNECT a:1 HTTP/1.1\r\nProxy-Authorization: {value}\r\n\r\n");
        let (head, _) = head(text.as_bytes()).unwrap().unwrap();
        assert_eq!(head.authorization, None, "{value}");
    }
}

proptest! {
    #[test]
    fn no_bytes_panic_and_none_are_taken_that_are_not_there(bytes in any::<Vec<u8>>(), text in "\\PC{0,80}") {
        let begun = [b"CONNECT ", text.as_bytes(), b" HTTP/1.1\r\n", &bytes, b"\r\n\r\n"].concat();
        for bytes in [bytes, begun] {
            if let Ok(Some((_, taken))) = head(&bytes) {
                prop_assert!(taken <= bytes.len() && taken > 0);
            }
        }
    }
}
