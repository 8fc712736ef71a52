//! What can happen to a connection where the wire matters: client, relay and upstream in namespaces joined by veth.

relay_tests::matrix! { Veth:
    bulk_both_ways,
    bytes_at_every_moment_of_the_start,
    client_resets_in_mid_transfer,
    closed_behind_bytes_for_a_late_reader,
    fin_behind_bytes_for_a_slow_reader,
    half_close_then_long_reply,
    killed_in_mid_transfer,
    no_stall_at_the_tail_of_a_response,
    one_word_at_every_moment_of_the_start,
    stalled_reader_holds_little,
    thousands_come_and_go,
    tiny_segments_to_a_late_reader,
    upstream_resets_in_mid_transfer,
}
