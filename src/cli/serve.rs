//! `serve`: one broker, from its configuration to its last good-bye.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use clap::Args;

use super::log::{self, Refilter};
use super::notify::{self, State};
use super::settings::Settings;
use super::signals::{Signals, Wish};
use crate::config::Config;
use crate::limits;
use crate::resources;
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
    let refilter = log::start(&config.log)?;
    raise_descriptors(&config);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().context("cannot start the runtime")?;
    let ended = runtime.block_on(serve(&config, arguments, &refilter));
    // What tasks hold, rings of half a million places among it, is not given back piece by piece by a process that ends.
    runtime.shutdown_background();
    ended
}

/// A client takes a descriptor: as many as may be are wanted, and how many clients they are enough for is said.
fn raise_descriptors(config: &Config) {
    let before = resources::descriptors();
    resources::raise_descriptors();
    let Some(limit) = resources::descriptors() else { return };
    let (clients, wanted) = (resources::clients_max(), config.limits.max_connections);
    tracing::info!(limit, before, clients = clients.min(wanted), "descriptors");
    if wanted > clients && wanted != limits::CONNECTIONS_DEFAULT {
        tracing::warn!(
            clients,
            max_connections = wanted,
            "too few descriptors for limits.max_connections: raise their hard limit (ulimit -Hn, LimitNOFILE=)"
        );
    }
}

async fn serve(config: &Config, arguments: &Arguments, refilter: &Refilter) -> anyhow::Result<ExitCode> {
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
    if let Some(path) = &arguments.ready_file {
        write_ready_file(path, addresses)?;
    }
    notify::tell(State::Ready);
    let signal = loop {
        tokio::select! {
            wish = signals.wish() => match wish {
                Wish::Stop(signal) => break signal,
                Wish::Reload => read_anew(&server, arguments, refilter),
            },
            () = server.drained() => break "drained",
            error = server.failed() => return Err(error.into()),
        }
    };
    tracing::info!(cause = signal, "stopping; a signal ends at once");
    notify::tell(State::Stopping);
    tokio::select! {
        () = server.shutdown() => Ok(ExitCode::SUCCESS),
        _ = signals.stop() => Ok(ExitCode::FAILURE),
    }
}

/// Reads the configuration and the files that it names once more. If anything is wrong in them, the broker goes on as it was.
fn read_anew(server: &Server, arguments: &Arguments, refilter: &Refilter) {
    tracing::info!("SIGHUP: reading the configuration anew");
    notify::tell(State::Reloading);
    let done = arguments.settings.load(arguments.config.as_ref()).and_then(|config| {
        let filter = log::check(&config.log)?;
        let need_restart = server.reload(&config)?;
        refilter(filter)?;
        Ok(need_restart)
    });
    match done {
        Ok(keys) if keys.is_empty() => tracing::info!("reloaded"),
        Ok(keys) => tracing::warn!(keys = keys.join(", "), "reloaded, but a changed key needs a restart"),
        // The chain of causes in one line.
        Err(error) => tracing::error!(error = format!("{error:#}"), "not reloaded: the broker goes on as it was"),
    }
    notify::tell(State::Ready);
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
