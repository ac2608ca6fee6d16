//! Signals, for the programs that run until somebody stops them.

use tokio::signal::unix::{Signal, SignalKind, signal};

/// What other programs and people want of us. Also right as process 1 of a container, where nothing is done unless it is caught.
pub(super) struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hang_up: Signal,
}

/// What somebody wants of us.
pub(super) enum Wish {
    /// By this signal.
    Stop(&'static str),
    /// The configuration is to be read anew: SIGHUP.
    Reload,
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

    /// Waits until somebody wants us to stop, and says by what. A hang-up is nothing to those who have nothing to read anew.
    pub(super) async fn stop(&mut self) -> &'static str {
        loop {
            if let Wish::Stop(signal) = self.wish().await {
                return signal;
            }
        }
    }

    /// Waits until somebody wants something of us.
    pub(super) async fn wish(&mut self) -> Wish {
        tokio::select! {
            _ = self.terminate.recv() => Wish::Stop("SIGTERM"),
            _ = self.interrupt.recv() => Wish::Stop("SIGINT"),
            _ = self.hang_up.recv() => Wish::Reload,
        }
    }
}
