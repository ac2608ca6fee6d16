//! The programs: arguments in, exit code out. Decides nothing about MQTT or the mesh.
//!
//! stdout is data, stderr is log. Exit codes: 0 good, 1 the thing failed, 2 wrong usage, 130 on Ctrl-C of a one-shot command. An error says
//! what was wrong and what to do.

mod ask;
mod certs;
mod config;
mod demo;
mod drain;
mod drawing;
mod log;
mod notify;
mod output;
mod passwd;
mod serve;
mod settings;
mod signals;
mod topology;
mod trace;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// An MQTT broker whose instances join themselves into a self-healing mesh over QUIC.
#[derive(Debug, Parser)]
#[command(name = "mqtt-st-quic", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a broker
    Serve(serve::Arguments),
    /// See brokers join, heal and deliver: all in this process, with nothing to set up
    Demo(demo::Arguments),
    /// Make and look at the certificates of a mesh
    #[command(subcommand)]
    Certs(certs::Command),
    /// Check a configuration, or show what it comes to
    #[command(subcommand)]
    Config(config::Command),
    /// Make and change password files
    Passwd(passwd::Arguments),
    /// Draw the mesh as a running broker knows it
    Topology(topology::Arguments),
    /// See which way a message would take through the mesh, and why
    Trace(trace::Arguments),
    /// Empty a running broker: its clients and sessions go to others, then it ends
    Drain(drain::Arguments),
}

/// Runs the program with the process's arguments.
#[must_use]
pub fn main() -> ExitCode {
    let result = match Arguments::parse().command {
        Command::Serve(arguments) => serve::run(&arguments),
        Command::Demo(arguments) => demo::run(&arguments),
        Command::Certs(command) => certs::run(command),
        Command::Config(command) => config::run(&command),
        Command::Passwd(arguments) => passwd::run(&arguments),
        Command::Topology(arguments) => topology::run(&arguments),
        Command::Trace(arguments) => trace::run(&arguments),
        Command::Drain(arguments) => drain::run(arguments),
    };
    match result {
        Ok(code) => code,
        Err(error) => {
            output::complain(&error);
            ExitCode::FAILURE
        }
    }
}
