//! The log: `tracing` to stderr.

use std::io::{self, IsTerminal};

use anyhow::Context;
use tracing_subscriber::EnvFilter;

use crate::config::{Log, LogFormat};

/// Whether `log.filter` is one that [`start`] can use.
///
/// # Errors
/// Naming the key and what is wrong in it.
pub(super) fn check(log: &Log) -> anyhow::Result<EnvFilter> {
    EnvFilter::try_new(&log.filter).with_context(|| {
        format!(
            "log.filter: `{}` is not a tracing filter; write for example \"info\" or \"info,mqtt_st_quic::stp=debug\"",
            log.filter
        )
    })
}

/// Starts logging for the rest of the process's life.
///
/// # Errors
/// See [`check`].
pub(super) fn start(log: &Log) -> anyhow::Result<()> {
    let builder = tracing_subscriber::fmt().with_env_filter(check(log)?).with_writer(io::stderr);
    let started = match log.format {
        LogFormat::Text => builder.with_ansi(io::stderr().is_terminal()).try_init(),
        LogFormat::Json => builder.json().try_init(),
    };
    started.map_err(|error| anyhow::anyhow!("cannot start the log: {error}"))
}
