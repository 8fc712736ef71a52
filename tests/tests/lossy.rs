//! What can happen to a connection on a wire with delay and loss: needs a kernel with netem.

relay_tests::matrix! { Lossy:
    bytes_at_every_moment_of_the_start,
    client_resets_in_mid_transfer,
    closed_behind_bytes_for_a_late_reader,
    fin_behind_bytes_for_a_slow_reader,
    tiny_segments_to_a_late_reader,
    upstream_resets_in_mid_transfer,
}
