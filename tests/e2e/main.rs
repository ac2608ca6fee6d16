//! Real `mqtt-st-quic` processes on free ports, looked at from outside.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    clippy::disallowed_methods,
    unreachable_pub,
    reason = "a test fails by panicking, and is not the broker: it reads the clock and starts threads as it likes"
)]

mod access;
#[cfg(feature = "auth-sql")]
mod auth_asked;
#[cfg(feature = "auth-sql")]
mod auth_sql;
mod balancer;
mod bounds;
mod bridge;
mod broker;
mod certificates;
#[path = "../conformance/client.rs"]
#[expect(dead_code, reason = "shared with the conformance tests, which use all of it")]
mod client;
mod commands;
mod crash;
mod demo;
mod discovery;
mod drain;
mod durable;
mod foreign;
mod healing;
mod import;
mod ledger;
mod listen;
mod mesh;
mod paths;
mod record;
mod relay;
mod reload;
#[path = "../sim/stp/replay.rs"]
mod replay;
mod replicas;
mod restart;
mod retained;
mod serve;
mod sessions;
mod shared;
mod sight;
mod trace;
mod tunnel;
#[path = "../conformance/wire.rs"]
#[expect(dead_code, reason = "see above")]
mod wire;
