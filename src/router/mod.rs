//! Who gets a message: the registry of sessions, their subscriptions, what is retained, and `publish` itself.
//!
//! A publish is a plain call in the publisher's own task. It looks the route up (a cache by generation), appends to each subscriber's
//! outbox under that subscriber's lock alone, and hands the message to the mesh's lane; [`Router::finish`] ends the batch: blocks go to
//! the lane rings, then every touched owner is woken once.
//!
//! The router knows no socket and no clock. Lock order: registry entry, subscriptions, subscriber; at most one subscriber at a time.

mod claims;
mod connect;
mod copies;
mod deadlines;
mod drain;
mod gather;
mod handover;
mod orphans;
mod picks;
mod presence;
mod publish;
mod replica;
mod restore;
mod retained;
mod route;
mod share;
mod subscribe;
mod system;
#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::Waker;
use std::time::{Duration, Instant};

use dashmap::DashMap;
use parking_lot::RwLock;

pub use connect::{ConnectRequest, Connection, Farewell, NoSession};
pub use drain::{Census, Judge, Passing};
pub use handover::{Fetch, Verdict};
pub use publish::{Arrival, Batch, Ingress, LinkDelivery, Routed};
pub use retained::{MeshCounts, RetainedFull, RetainedStore, Unbelievable};
pub use route::RouteCache;
pub use subscribe::{Subscribe, SubscribeError};
pub use system::{is_own_state, is_system};

use self::claims::{Claims, Rivals};
use self::deadlines::Deadlines;
use self::drain::{Drain, Judged};
use self::handover::Handover;
use self::orphans::Orphans;
use self::route::Subscriptions;
use crate::config::SharedStrategy;
use crate::log_rate::LogRate;
use crate::metrics::Metrics;
use crate::pressure::Pressure;
use crate::replication::Replication;
use crate::session::{Journal, OutboundLimits, Subscriber};
use crate::shared::register::{Follow, Registers};
use crate::shared::trace::{Audience, Subscribed};
use crate::shared::{Post, StampClock};

/// Bounds of the sessions that this router makes.
#[derive(Clone, Copy, Debug)]
pub struct RouterLimits {
    /// Of each session.
    pub outbound: OutboundLimits,
    /// Which member of a shared subscription gets a message.
    pub shared: SharedStrategy,
}

/// See the module's page.
#[derive(Debug)]
pub struct Router {
    registry: DashMap<Arc<str>, Arc<Subscriber>, ahash::RandomState>,
    subscriptions: RwLock<Subscriptions>,
    /// Changes with every subscription: what was cached under another is void.
    generation: AtomicU64,
    retained: RetainedStore,
    /// The same for topics below `$SYS`.
    system: RetainedStore,
    states: system::States,
    deadlines: Deadlines,
    subscribers_made: AtomicU64,
    /// Sessions with numbers up to this one were read from disk.
    last_restored: AtomicU64,
    mesh: OnceLock<Arc<Replication>>,
    /// Where all brokers of the mesh tell each other what their clients want.
    registers: OnceLock<Arc<Registers>>,
    /// By which one broker speaks to one other.
    post: OnceLock<Arc<Post>>,
    claims: Arc<Claims>,
    rivals: Rivals,
    handover: Handover,
    drain: Drain,
    orphans: Orphans,
    /// What those may do whose sessions come without them.
    judge: OnceLock<Judged>,
    /// Where it is written down what outlives the broker; none: nothing does.
    journal: Option<Arc<Journal>>,
    metrics: Arc<Metrics>,
    pressure: Pressure,
    log_rate: LogRate,
    limits: RouterLimits,
    /// Zero of the milliseconds by which sessions remember when they were heard.
    started_at: Instant,
}

impl Router {
    /// A router without sessions. `now` becomes the zero of its own clock. With a journal, what is to outlive the broker is written down there.
    #[must_use]
    pub fn new(limits: RouterLimits, metrics: Arc<Metrics>, journal: Option<Arc<Journal>>, now: Instant) -> Self {
        Self {
            registry: DashMap::default(),
            subscriptions: RwLock::default(),
            generation: AtomicU64::new(1),
            retained: RetainedStore::durable(journal.clone()),
            system: RetainedStore::default(),
            states: system::States::default(),
            deadlines: Deadlines::default(),
            subscribers_made: AtomicU64::new(0),
            last_restored: AtomicU64::new(0),
            mesh: OnceLock::new(),
            registers: OnceLock::new(),
            post: OnceLock::new(),
            claims: Arc::default(),
            rivals: Rivals::default(),
            handover: Handover::default(),
            drain: Drain::default(),
            orphans: Orphans::default(),
            judge: OnceLock::new(),
            journal,
            metrics,
            pressure: Pressure::default(),
            log_rate: LogRate::default(),
            limits,
            started_at: now,
        }
    }

    /// From now on publishes of local clients go to the mesh as well. The first call counts.
    pub fn join_mesh(&self, replication: Arc<Replication>) {
        // A second mesh cannot be joined; the server calls this once.
        let _ = self.mesh.set(replication);
    }

    /// From now on other brokers are told what the clients of this one want. To be called before there are any. The first call counts.
    pub fn join_registers(&self, registers: Arc<Registers>) {
        registers.follow(Arc::clone(&self.claims) as Arc<dyn Follow>);
        // As above.
        let _ = self.registers.set(registers);
    }

    /// What the brokers of the mesh tell each other, where there is one.
    #[must_use]
    pub fn registers(&self) -> Option<&Arc<Registers>> {
        self.registers.get()
    }

    /// The mesh's side of a publish, where there is one.
    #[must_use]
    pub fn mesh(&self) -> Option<&Arc<Replication>> {
        self.mesh.get()
    }

    /// Where it is written down what outlives the broker.
    #[must_use]
    pub fn journal(&self) -> Option<&Arc<Journal>> {
        self.journal.as_ref()
    }

    /// What is counted.
    #[must_use]
    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// How much memory is taken; whoever measures says it here.
    #[must_use]
    pub fn pressure(&self) -> &Pressure {
        &self.pressure
    }

    /// From now on, and before anything is retained, all that clients retain is shared with the brokers of the mesh, and it is remembered for
    /// so long what was deleted. The first call counts.
    pub fn share_retained(&self, clock: StampClock, tombstone_age: Duration) {
        self.retained.share(clock, tombstone_age);
    }

    /// What clients retain.
    #[must_use]
    pub fn retained(&self) -> &RetainedStore {
        &self.retained
    }

    /// `now` on the router's own clock.
    #[must_use]
    pub fn millis(&self, now: Instant) -> u64 {
        u64::try_from(now.saturating_duration_since(self.started_at).as_millis()).unwrap_or(u64::MAX)
    }

    /// When [`Router::expire`] has something to do next; `sleeper` is woken if that becomes earlier.
    pub fn next_deadline(&self, sleeper: &Waker) -> Option<Instant> {
        self.deadlines.next(sleeper)
    }

    fn subscriptions_changed(&self, by: i64) {
        self.generation.fetch_add(1, Ordering::Release);
        self.metrics.subscriptions.change(by);
    }
}

impl Subscribed for Router {
    fn audience(&self, topic: &str) -> Audience {
        // What a broker says below `$SYS` it says to its own clients, which is nobody else's business.
        if is_system(topic) { Audience::default() } else { self.subscriptions.read().audience(topic) }
    }
}
