//! Messages of clients, whole, cut short and made up.

use proptest::prelude::*;

use super::*;

fn connect(address: &[u8]) -> Vec<u8> {
    [&[5, 1, 0], address, &[0, 80]].concat()
}

#[test]
fn requests_of_every_kind() {
    for (address, expected) in [
        (&[1, 192, 0, 2, 1][..], "192.0.2.1:80"),
        (
            &[4, 0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1],
            "[2001:db8::1]:80",
        ),
        (b"\x03\x0bexample.com", "example.com:80"),
        (b"\x03\x09192.0.2.1", "192.0.2.1:80"),
        (b"\x03\x03::1", "[::1]:80"),
    ] {
        let mut bytes = connect(address);
        let length = bytes.len();
        for end in 0..length {
            assert_eq!(request(&bytes[..end]), Ok(None), "{end} of {expected}");
        }
        bytes.extend(b"payload");
        let expected = Request::Connect(expected.parse().unwrap());
        assert_eq!(request(&bytes), Ok(Some((expected, length))));
    }
}

#[test]
fn what_is_no_connect_is_told_so() {
    let of = |bytes: &[u8]| request(bytes).map(|said| said.map(|(request, _)| request));
    let mut bind = connect(&[1, 192, 0, 2, 1]);
    bind[1] = 2;
    assert_eq!(of(&bind), Ok(Some(Request::Other(Reply::UnknownCommand))));
    let strange = connect(&[9, 1, 2]);
    let unknown = Request::Other(Reply::UnknownAddress);
    assert_eq!(of(&strange), Ok(Some(unknown)));
    for bad in [&b"\x04\x01\0\x50"[..], b"GET / ", b"\x05\x01\x01\x01"] {
        assert_eq!(of(bad), Err(Refusal::Malformed), "{bad:?}");
    }
    for name in [&b""[..], b"a b", b"a\0b", b"\xff\xff", b"a/b"] {
        let counted = [&[3, name.len() as u8], name].concat();
        assert_eq!(of(&connect(&counted)), Err(Refusal::Malformed), "{name:?}");
    }
}

#[test]
fn ways_and_passwords() {
    assert_eq!(ways(&[5, 2, 0, 2, 5]), Ok(Some((vec![0, 2], 4))));
    assert_eq!(ways(&[5, 2, 0]), Ok(None));
    assert_eq!(ways(&[5, 0]), Err(Refusal::Malformed));
    assert_eq!(ways(&[4]), Err(Refusal::Malformed));
    let said = (b"me".to_vec(), b"secret".to_vec());
    assert_eq!(credentials(b"\x01\x02me\x06secret!"), Ok(Some((said, 11))));
    assert_eq!(credentials(b"\x01\x02me\x06secre"), Ok(None));
    assert_eq!(credentials(b"\x05"), Err(Refusal::Malformed));
}

proptest! {
    #[test]
    fn no_bytes_panic_and_none_are_taken_that_are_not_there(bytes in any::<Vec<u8>>(), begun in any::<bool>()) {
        let bytes = if begun { [&[5, 1, 0], &bytes[..]].concat() } else { bytes };
        for taken in [
            ways(&bytes).map(|said| said.map(|(_, taken)| taken)),
            credentials(&bytes).map(|said| said.map(|(_, taken)| taken)),
            request(&bytes).map(|said| said.map(|(_, taken)| taken)),
        ].into_iter().flatten().flatten() {
            prop_assert!(taken <= bytes.len() && taken > 0);
        }
    }
}
