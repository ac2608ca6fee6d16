//! Raw bytes over TCP against a real broker: each test is named by the statement of the specification that it checks.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a test fails by panicking, and is not the broker: it reads the clock and starts threads as it likes"
)]
