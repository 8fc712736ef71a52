//! Programs that people really run, with relay between them: client, relay and upstream in namespaces joined by veth.

relay_tests::matrix! { Veth:
    a_hundred_reloads_under_load,
    git_clones_and_pushes,
    haproxy_in_the_chain,
    iperf3_both_ways,
    nginx_and_curl,
    nginx_and_wrk,
    postgresql_and_pgbench,
    postgresql_cancels,
    postgresql_copies,
    redis_and_benchmark,
    redis_keeps_a_large_value,
    redis_subscriber_waits,
    sftp_puts_and_gets,
    ssh_forwards_a_half_close,
    ssh_runs_commands,
}
