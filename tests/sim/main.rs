//! Simulations of the core under virtual time, and the check of the crate's structure. Nothing here opens a socket, sleeps or waits;
//! every random run prints its seed.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    unreachable_pub,
    reason = "a test fails by panicking and prints what it found; no peer reaches this code"
)]

#[path = "../architecture.rs"]
mod architecture;
mod contract;
mod neighbours;
mod register;
mod replication;
mod retained;
mod stp;
