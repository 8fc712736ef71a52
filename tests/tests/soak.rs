//! What takes a minute or thousands of descriptors: `cargo xtask test -- --ignored`, or by name.

relay_tests::matrix! { [#[ignore = "takes minutes"]] Veth:
    silence_costs_little,
    stalled_reader_holds_little_for_a_minute,
    ten_thousand_come_and_go,
}
