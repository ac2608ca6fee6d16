//! What is counted: plain atomics, added to once a batch, read by `admin`. Counters never go down; gauges do.
//!
//! No labels for clients or topics: what a stranger can choose does not multiply what is kept.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

/// A number that only grows.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds `n`.
    pub fn add(&self, n: u64) {
        if n > 0 {
            self.0.fetch_add(n, Ordering::Relaxed);
        }
    }

    /// The sum so far.
    #[must_use]
    pub fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A number that goes up and down.
#[derive(Debug, Default)]
pub struct Gauge(AtomicI64);

impl Gauge {
    /// Changes the value by `n`.
    pub fn change(&self, n: i64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    /// The value now.
    #[must_use]
    pub fn value(&self) -> i64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The counters of one broker's client side. The mesh keeps its own beside its state.
#[derive(Debug, Default)]
pub struct Metrics {
    /// Client connections open now.
    pub connections: Gauge,
    /// Client connections accepted since start.
    pub connections_accepted: Counter,
    /// Client connections refused before or with CONNACK.
    pub connections_refused: Counter,
    /// Connections ended because of what the client sent.
    pub protocol_errors: Counter,
    /// Control packets that clients sent.
    pub packets_received: Counter,
    /// Bytes that clients sent.
    pub bytes_received: Counter,
    /// Bytes written to clients.
    pub bytes_sent: Counter,
    /// Writes to clients' sockets: `bytes_sent / writes` is the mean batch.
    pub writes: Counter,
    /// PUBLISH packets that clients sent, repeats of QoS 2 apart.
    pub messages_received: Counter,
    /// Messages handed to subscribers' outboxes.
    pub messages_sent: Counter,
    /// QoS 0 messages that a slow subscriber's full outbox refused.
    pub dropped_qos0: Counter,
    /// QoS 1 and 2 messages that a session's full queue refused.
    pub dropped_queue_full: Counter,
    /// Messages not sent because they exceed the client's Maximum Packet Size [MQTT-3.1.2-24].
    pub dropped_too_large: Counter,
    /// Messages that expired before they could be sent [MQTT-3.3.2-5].
    pub dropped_expired: Counter,
    /// Sessions kept, connected or not.
    pub sessions: Gauge,
    /// Subscriptions of all sessions.
    pub subscriptions: Gauge,
    /// Times that a publisher's acknowledgements waited for the mesh.
    pub acknowledgements_held: Counter,
}
