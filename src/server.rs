//! One broker: starts the shell's modules in order, stops them in reverse.
//!
//! Order of the start: router, mesh, listeners, timer. What can fail because of the operator (a port in use, a certificate) fails
//! before the first client is served.

use std::future::poll_fn;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::Serialize;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::codec::ReasonCode;
use crate::config::{Config, Listener};
use crate::connection::Terms;
use crate::listener::{self, ConnectionLimits, ListenError};
use crate::metrics::Metrics;
use crate::router::{Batch, Router, RouterLimits};
use crate::session::OutboundLimits;
use crate::{clock, task};

/// Connections get this long to write what waits when the broker stops.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(3);
/// Retained messages that have expired are freed at least this often.
const SWEEP_INTERVAL: Duration = Duration::from_secs(5);

/// A broker that cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// An MQTT address.
    #[error(transparent)]
    Listen(#[from] ListenError),
}

/// Where a broker can be reached; what `--ready-file` holds.
#[derive(Clone, Debug, Serialize)]
pub struct Addresses {
    /// The listeners for clients, in the order of the configuration.
    pub mqtt: Vec<SocketAddr>,
}

/// A running broker. Dropping it ends it without a good-bye, as a crash would.
#[derive(Debug)]
pub struct Server {
    router: Arc<Router>,
    addresses: Addresses,
    stop: watch::Sender<bool>,
    listeners: Vec<JoinHandle<()>>,
    timer: JoinHandle<()>,
}

impl Server {
    /// Starts a broker on the current runtime.
    ///
    /// # Errors
    /// See [`StartError`]: nothing is left running then.
    pub async fn start(config: &Config) -> Result<Self, StartError> {
        let metrics = Arc::new(Metrics::default());
        let limits = RouterLimits {
            outbound: OutboundLimits {
                inflight_max: config.limits.max_inflight_messages,
                queued_messages_max: config.limits.max_queued_messages,
                queued_bytes_max: config.limits.max_queued_bytes,
            },
        };
        let router = Arc::new(Router::new(limits, metrics, clock::now()));
        let bound: Vec<_> = config.listeners.iter().map(|one| listener::bind(one.bind)).collect::<Result<_, _>>()?;
        let mqtt = bound.iter().zip(&config.listeners).map(|(bound, one)| bound.local_addr().unwrap_or(one.bind)).collect();

        let (stop, stopped) = watch::channel(false);
        let listeners = bound
            .into_iter()
            .zip(&config.listeners)
            .map(|(bound, one)| {
                let connections =
                    ConnectionLimits { here: one.max_connections.unwrap_or(usize::MAX), everywhere: config.limits.max_connections };
                let terms = Arc::new(terms(config, one));
                task::spawn("listener", listener::run(bound, Arc::clone(&router), terms, connections, stopped.clone()))
            })
            .collect();
        let timer = task::spawn("timer", run_timer(Arc::clone(&router)));
        Ok(Self { router, addresses: Addresses { mqtt }, stop, listeners, timer })
    }

    /// Where it can be reached.
    #[must_use]
    pub fn addresses(&self) -> &Addresses {
        &self.addresses
    }

    /// What it counts.
    #[must_use]
    pub fn metrics(&self) -> &Metrics {
        self.router.metrics()
    }

    /// Stops in order: no new clients, the present ones are told and get a moment to take what waits.
    pub async fn shutdown(mut self) {
        // The listeners hold the receivers; if all are gone there is nothing to stop.
        let _ = self.stop.send(true);
        let mut batch = Batch::default();
        self.router.close_all(&mut batch, ReasonCode::ServerShuttingDown);
        self.router.finish(&mut batch, clock::now());
        let listeners = std::mem::take(&mut self.listeners);
        let deadline = tokio::time::Instant::from_std(clock::now() + SHUTDOWN_GRACE);
        for mut listener in listeners {
            if tokio::time::timeout_at(deadline, &mut listener).await.is_err() {
                tracing::warn!("some clients did not take their last bytes in time");
                listener.abort();
            }
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.listeners.iter().for_each(JoinHandle::abort);
        self.timer.abort();
    }
}

fn terms(config: &Config, listener: &Listener) -> Terms {
    Terms {
        allow_anonymous: listener.allow_anonymous,
        packet_bytes_max: listener.max_packet_size.unwrap_or(config.limits.max_packet_size),
        inflight_max: config.limits.max_inflight_messages,
        keep_alive_max_seconds: config.limits.max_keepalive,
    }
}

/// Does what is due, when it is due: keep alives, wills, expired sessions and messages.
async fn run_timer(router: Arc<Router>) {
    let mut batch = Batch::default();
    loop {
        let now = clock::now();
        router.expire(&mut batch, now);
        router.finish(&mut batch, now);
        sleep_until_due(&router, now + SWEEP_INTERVAL).await;
    }
}

/// Until the next deadline, however often an earlier one comes up, or `latest`.
async fn sleep_until_due(router: &Router, latest: Instant) {
    let mut sleep = std::pin::pin!(tokio::time::sleep_until(latest.into()));
    poll_fn(|cx| {
        let due = router.next_deadline(cx.waker()).map_or(latest, |due| due.min(latest));
        if sleep.deadline().into_std() != due {
            sleep.as_mut().reset(due.into());
        }
        sleep.as_mut().poll(cx)
    })
    .await;
}
