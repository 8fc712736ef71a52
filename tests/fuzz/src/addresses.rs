//! Addresses, upstreams and places: what is read is printed so that it is read alike.

use std::{
    fmt::{Debug, Display},
    str::FromStr,
};

use relay::plan::{Address, Listen, Place, Span, Target};

/// Text in place of an address, of an upstream, of a network.
pub(crate) fn address(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    alike::<Address>(text);
    alike::<Target>(text);
    alike::<Listen>(text);
    alike::<Span<Target>>(text);
    if let Err(fault) = text.parse::<Place>() {
        assert!(!fault.to_string().is_empty());
    }
}

/// What is printed is read as the same.
pub(crate) fn alike<T>(text: &str)
where
    T: FromStr + Debug + Display + PartialEq,
    T::Err: Display,
{
    match text.parse::<T>() {
        Ok(read) => {
            let printed = read.to_string();
            let again = printed.parse::<T>().ok();
            assert_eq!(again, Some(read), "{text:?} is printed as {printed:?}");
        }
        Err(fault) => assert!(!fault.to_string().is_empty(), "{text:?}: no words"),
    }
}
