//! Signals, for the programs that run until somebody stops them.

use tokio::signal::unix::{Signal, SignalKind, signal};

/// What other programs and people want of us. Also right as process 1 of a container, where nothing is done unless it is caught.
pub(super) struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hang_up: Signal,
}

impl Signals {
    /// Catches them from now on; needs a runtime.
    ///
    /// # Errors
    /// When the system refuses.
    pub(super) fn new() -> std::io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hang_up: signal(SignalKind::hangup())?,
        })
    }

    /// Waits until somebody wants us to stop, and says by what.
    pub(super) async fn stop(&mut self) -> &'static str {
        loop {
            tokio::select! {
                _ = self.terminate.recv() => return "SIGTERM",
                _ = self.interrupt.recv() => return "SIGINT",
                _ = self.hang_up.recv() => tracing::info!("SIGHUP: the configuration is read at the start only; restart to change it"),
            }
        }
    }
}
