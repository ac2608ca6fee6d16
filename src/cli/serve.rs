//! `serve`: one broker, from its configuration to its last good-bye.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use clap::Args;

use super::{log, settings::Settings, signals::Signals};
use crate::config::Config;
use crate::server::{Addresses, Server};

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// The configuration; without one: MQTT on 127.0.0.1:1883, anonymous clients allowed, no mesh
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Write the addresses on which the broker listens to this file, as JSON, once it is ready
    #[arg(long, value_name = "FILE")]
    ready_file: Option<PathBuf>,
    #[command(flatten)]
    settings: Settings,
}

pub(super) fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let config = arguments.settings.load(arguments.config.as_ref())?;
    log::start(&config.log)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().context("cannot start the runtime")?;
    runtime.block_on(serve(&config, arguments.ready_file.as_deref()))
}

async fn serve(config: &Config, ready_file: Option<&Path>) -> anyhow::Result<ExitCode> {
    // Before the start: a signal that comes during it is not lost, and does not kill us half-way.
    let mut signals = Signals::new().context("cannot catch signals")?;
    let server = Server::start(config, None)?;
    let addresses = server.addresses();
    tracing::info!(
        name = config.name,
        version = env!("CARGO_PKG_VERSION"),
        data_dir = %config.data_dir.display(),
        mqtt = ?addresses.mqtt,
        mesh = ?addresses.mesh,
        admin = ?addresses.admin,
        health = ?addresses.health,
        "ready"
    );
    if let Some(path) = ready_file {
        write_ready_file(path, addresses)?;
    }
    notify(sd_notify::NotifyState::Ready);
    let signal = tokio::select! {
        signal = signals.stop() => signal,
        error = server.failed() => return Err(error.into()),
    };
    tracing::info!(signal, "stopping; once more ends at once");
    notify(sd_notify::NotifyState::Stopping);
    tokio::select! {
        () = server.shutdown() => Ok(ExitCode::SUCCESS),
        _ = signals.stop() => Ok(ExitCode::FAILURE),
    }
}

/// The file appears whole: who waits for it never reads half of it.
fn write_ready_file(path: &Path, addresses: &Addresses) -> anyhow::Result<()> {
    let mut unfinished = path.as_os_str().to_owned();
    unfinished.push(".new");
    let unfinished = PathBuf::from(unfinished);
    let text = serde_json::to_string(addresses)?;
    let written = fs::write(&unfinished, text + "\n").and_then(|()| fs::rename(&unfinished, path));
    written.with_context(|| format!("cannot write --ready-file {}", path.display()))
}

/// Tells systemd, if it asked to be told.
fn notify(state: sd_notify::NotifyState<'_>) {
    if let Err(error) = sd_notify::notify(&[state]) {
        tracing::warn!(%error, "cannot tell the service manager");
    }
}
