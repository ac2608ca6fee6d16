//! Raw bytes over TCP against a real broker: each test is named by the statement of the specification that it checks.

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
mod alias;
mod attacks;
mod auth;
mod bounds;
mod broker;
mod client;
mod connect;
mod exchange;
mod flow;
mod keep_alive;
mod malformed;
mod manifest;
mod operation;
mod publish;
mod retained;
mod session;
mod shared;
mod subscribe;
mod system;
mod will;
mod wire;
