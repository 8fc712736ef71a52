//! What can happen to a connection, on the loopback, under every engine: needs no namespaces.

relay_tests::matrix! { Loopback:
    a_thousand_patterns,
    accept_outlives_a_lack_of_descriptors,
    bytes_at_every_moment_of_the_start,
    bytes_before_accept,
    drain_lets_connections_finish,
    drain_resets_what_is_left,
    fin_at_every_moment_of_the_start,
    fin_before_accept,
    gone_before_accept,
    half_closed_and_silent_is_ended,
    half_closed_and_slow_lives,
    ipv4_to_ipv6,
    ipv6_to_ipv4,
    ipv6_to_ipv6,
    killed_in_mid_transfer,
    mptcp_client,
    one_word_at_every_moment_of_the_start,
    ping_pong_without_steps_or_spin,
    refused_upstream_is_a_reset,
    silence_is_ended,
    silent_upstream_is_a_reset,
    slow_traffic_is_not_idle,
    tcp_to_unix,
    thousands_come_and_go,
    unix_to_tcp,
    unix_to_unix;
    sockmap only:
    goes_on_while_relay_is_stopped,
    round_trips_wake_nobody,
}
