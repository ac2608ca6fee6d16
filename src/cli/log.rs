//! The log: `tracing` to stderr.

use std::io::{self, IsTerminal};

use anyhow::Context;
use tracing_subscriber::{EnvFilter, reload};

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

/// Puts another filter in the place of the present one.
pub(super) type Refilter = Box<dyn Fn(EnvFilter) -> Result<(), reload::Error>>;

/// Starts logging for the rest of the process's life. What it returns changes the filter.
///
/// # Errors
/// See [`check`].
pub(super) fn start(log: &Log) -> anyhow::Result<Refilter> {
    let builder = tracing_subscriber::fmt().with_env_filter(check(log)?).with_writer(io::stderr);
    let (started, refilter): (_, Refilter) = match log.format {
        LogFormat::Text => {
            let builder = builder.with_ansi(io::stderr().is_terminal()).with_filter_reloading();
            let handle = builder.reload_handle();
            (builder.try_init(), Box::new(move |filter| handle.reload(filter)))
        }
        LogFormat::Json => {
            let builder = builder.json().with_filter_reloading();
            let handle = builder.reload_handle();
            (builder.try_init(), Box::new(move |filter| handle.reload(filter)))
        }
    };
    started.map_err(|error| anyhow::anyhow!("cannot start the log: {error}"))?;
    Ok(refilter)
}
