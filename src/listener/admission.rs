//! How many clients come in at once and how fast: a listener asks here before it accepts one. Who has to wait waits in the kernel, where it costs
//! nothing, and is let in later; nobody is refused here.

use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::clock;
use crate::limits::{CONNECT_TIMEOUT, CONNECT_TIMEOUT_BUSY, HANDSHAKES_MAX};
use crate::pace::Bucket;
use crate::router::Router;

/// Connections of which no whole CONNECT is there yet, of all listeners.
#[derive(Clone, Debug)]
pub struct Handshakes {
    places: Arc<Semaphore>,
}

impl Default for Handshakes {
    /// None yet.
    fn default() -> Self {
        Self { places: Arc::new(Semaphore::new(HANDSHAKES_MAX)) }
    }
}

/// One of [`Handshakes`]; counts until it is dropped.
#[derive(Debug)]
pub(super) struct Handshake {
    router: Arc<Router>,
    /// How long it may take.
    pub(super) patience: Duration,
    _place: Option<OwnedSemaphorePermit>,
}

impl Handshake {
    /// Whether there are so many that they get less time than usual.
    pub(super) fn is_busy(&self) -> bool {
        self.patience < CONNECT_TIMEOUT
    }
}

impl Drop for Handshake {
    fn drop(&mut self) {
        self.router.metrics().handshakes.change(-1);
    }
}

/// See the module's page.
#[derive(Debug)]
pub(super) struct Admission {
    handshakes: Handshakes,
    rate: Option<Bucket>,
    /// Nobody is accepted before.
    resume_at: Option<Instant>,
}

impl Admission {
    /// `rate`: connections a second; none: any.
    pub(super) fn new(handshakes: Handshakes, rate: Option<NonZeroU64>) -> Self {
        Self { handshakes, rate: rate.map(Bucket::new), resume_at: None }
    }

    /// Waits until one more may be accepted.
    pub(super) async fn turn(&mut self) -> Turn {
        if let Some(at) = self.resume_at {
            tokio::time::sleep_until(at.into()).await;
            self.resume_at = None;
        }
        // It is never closed.
        let place = Arc::clone(&self.handshakes.places).acquire_owned().await.ok();
        Turn { place }
    }

    /// One was accepted on its turn.
    pub(super) fn accepted(&mut self, turn: Turn, router: &Arc<Router>) -> Handshake {
        if let Some(rate) = &mut self.rate {
            let now = clock::now();
            let wait = rate.charge(1, now);
            self.resume_at = (!wait.is_zero()).then(|| now + wait);
        }
        router.metrics().handshakes.change(1);
        let is_busy = self.handshakes.places.available_permits() < HANDSHAKES_MAX / 2;
        let patience = if is_busy { CONNECT_TIMEOUT_BUSY } else { CONNECT_TIMEOUT };
        Handshake { router: Arc::clone(router), patience, _place: turn.place }
    }

    /// Nobody is accepted for `time`.
    pub(super) fn pause(&mut self, time: Duration) {
        self.resume_at = Some(clock::now() + time);
    }
}

/// The right to accept one connection.
pub(super) struct Turn {
    place: Option<OwnedSemaphorePermit>,
}
