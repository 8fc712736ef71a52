//! relay forwards TCP connections, inside the kernel where the kernel allows it.
//!
//! The modules follow the path of a connection: a [`plan`] says what to forward, [`serve`] accepts a client, connects
//! its upstream, has said what comes before the bytes ([`greet`]), and makes them a [`pair`]; an [`engine`] carries the pair to its end; [`close`] says how it ended,
//! [`drain`] when it has to, and [`stats`] writes it down.

// In path order; the blank lines keep rustfmt from sorting.
pub mod plan;

pub mod probe;

pub mod privileges;

pub mod notify;

pub mod serve;

pub mod handover;

pub mod admin;

pub mod accept;

pub mod upstream;

pub mod connect;

pub mod greet;

pub mod pair;

pub mod decline;

pub mod engine;

pub mod close;

pub mod drain;

pub mod pace;

pub mod stats;

mod sys;

mod tune;
