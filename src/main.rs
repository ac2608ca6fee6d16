//! The program `mqtt-st-quic`: see `mqtt_st_quic::cli`.

use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    mqtt_st_quic::cli::main()
}
