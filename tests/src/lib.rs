//! The harness: starts the `relay` binary, puts peers on both sides of it, and tells what happened to the bytes.
//!
//! A [`scenario`] is one thing that can happen to a connection, told once; [`matrix`] runs it under every engine. A
//! [`topology`] says where the peers live, [`relay`] starts the binary and reads its log, a [`peer`] sends and checks
//! [`payload`], [`dns`] names its upstreams, [`census`] counts what must not leak, and [`needs`] says what a test cannot do without.

pub mod matrix;

pub mod scenario;

pub mod needs;

pub mod topology;

pub mod netns;

pub mod steer;

pub mod relay;

pub mod record;

pub mod docker;

pub mod systemd;

pub mod census;

pub mod desk;

pub mod peer;

pub mod peers;

pub mod payload;

pub mod dns;

pub mod patience;

pub mod rawtcp;
