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
    /// Messages that could not be retained because the store is full.
    pub dropped_retained_full: Counter,
    /// Sessions kept, connected or not.
    pub sessions: Gauge,
    /// Subscriptions of all sessions.
    pub subscriptions: Gauge,
    /// Times that a publisher's acknowledgements waited for the mesh.
    pub acknowledgements_held: Counter,
}

/// One line of `/metrics`: what is counted anywhere in the broker takes this form to be shown.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// snake_case with its unit last; without the program's prefix and without `_total`.
    pub name: &'static str,
    /// One sentence without a full stop, the same for all samples of this name.
    pub help: &'static str,
    /// Tells samples of one name apart. Few values each, none of them chosen by a client.
    pub labels: Vec<(&'static str, String)>,
    /// How much.
    pub value: Value,
}

/// What a [`Sample`] says.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value {
    /// Only grows.
    Counter(u64),
    /// Goes up and down.
    Gauge(f64),
}

impl Sample {
    /// A sum without labels.
    #[must_use]
    pub fn counter(name: &'static str, help: &'static str, value: u64) -> Self {
        Self { name, help, labels: Vec::new(), value: Value::Counter(value) }
    }

    /// A level without labels.
    #[must_use]
    pub fn gauge(name: &'static str, help: &'static str, value: f64) -> Self {
        Self { name, help, labels: Vec::new(), value: Value::Gauge(value) }
    }

    /// The same with one label more.
    #[must_use]
    pub fn with(mut self, label: &'static str, value: impl Into<String>) -> Self {
        self.labels.push((label, value.into()));
        self
    }
}

impl Metrics {
    /// Everything counted here, as it stands now.
    #[must_use]
    pub fn samples(&self) -> Vec<Sample> {
        let counter = |name, help, counter: &Counter| Sample::counter(name, help, counter.value());
        let gauge = |name, help, gauge: &Gauge| Sample::gauge(name, help, gauge.value() as f64);
        let dropped = |reason, dropped: &Counter| {
            counter("messages_dropped", "Messages not delivered to a client", dropped).with("reason", reason)
        };
        vec![
            gauge("connections", "Client connections open now", &self.connections),
            counter("connections_accepted", "Client connections accepted", &self.connections_accepted),
            counter("connections_refused", "Client connections refused before or with CONNACK", &self.connections_refused),
            counter("protocol_errors", "Connections ended because of what the client sent", &self.protocol_errors),
            counter("packets_received", "Control packets that clients sent", &self.packets_received),
            counter("received_bytes", "Bytes that clients sent", &self.bytes_received),
            counter("sent_bytes", "Bytes written to clients", &self.bytes_sent),
            counter("writes", "Writes to clients' sockets", &self.writes),
            counter("messages_received", "PUBLISH packets that clients sent", &self.messages_received),
            counter("messages_sent", "Messages handed to subscribers", &self.messages_sent),
            dropped("outbox_full", &self.dropped_qos0),
            dropped("queue_full", &self.dropped_queue_full),
            dropped("too_large", &self.dropped_too_large),
            dropped("expired", &self.dropped_expired),
            counter("retained_refused", "Messages that could not be retained for want of room", &self.dropped_retained_full),
            gauge("sessions", "Sessions kept, connected or not", &self.sessions),
            gauge("subscriptions", "Subscriptions of all sessions", &self.subscriptions),
            counter("acknowledgements_held", "Times that acknowledgements waited for the mesh", &self.acknowledgements_held),
        ]
    }
}
