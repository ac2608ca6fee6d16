//! What is counted: plain atomics, added to once a batch, read by `admin`; where it is rare, a word of ours in front of each. Counters and
//! histograms never go down; gauges do.
//!
//! No labels for clients or topics: what a stranger can choose does not multiply what is kept.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

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

    /// Makes the value this.
    pub fn set(&self, value: i64) {
        self.0.store(value, Ordering::Relaxed);
    }

    /// The value now.
    #[must_use]
    pub fn value(&self) -> i64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// What is counted by reason, of what happens seldom. The reasons are words of the program, so that there is only a handful of them.
#[derive(Debug)]
pub struct ByReason<T>(Mutex<BTreeMap<&'static str, T>>);

impl<T> Default for ByReason<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T: Copy + Default> ByReason<T> {
    /// Changes what stands at `reason`; at first that is nothing.
    pub fn change(&self, reason: &'static str, change: impl FnOnce(&mut T)) {
        change(self.0.lock().entry(reason).or_default());
    }

    /// What stands at each reason that was met, by its word.
    #[must_use]
    pub fn values(&self) -> Vec<(&'static str, T)> {
        self.0.lock().iter().map(|(reason, value)| (*reason, *value)).collect()
    }
}

impl ByReason<u64> {
    /// One more.
    pub fn count(&self, reason: &'static str) {
        self.change(reason, |count| *count += 1);
    }
}

/// How often something took how long.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Histogram {
    /// How often at most the bound of the same place, and above the one before; the last place is for what exceeds them all.
    counts: [u64; Histogram::BOUNDS_MS.len() + 1],
    sum: Duration,
}

impl Histogram {
    /// Upper bounds, milliseconds: fine where detection and healing should be, coarse beyond.
    const BOUNDS_MS: [u32; 14] = [5, 10, 25, 50, 100, 200, 300, 400, 500, 750, 1_000, 2_000, 5_000, 15_000];

    /// Once more, this long.
    pub fn observe(&mut self, time: Duration) {
        let place = Self::BOUNDS_MS.iter().position(|bound| time <= Duration::from_millis(u64::from(*bound)));
        if let Some(count) = self.counts.get_mut(place.unwrap_or(Self::BOUNDS_MS.len())) {
            *count += 1;
        }
        self.sum += time;
    }

    /// How often in all.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// How long in all, seconds.
    #[must_use]
    pub fn sum_seconds(&self) -> f64 {
        self.sum.as_secs_f64()
    }

    /// Upper bounds in seconds, the last one without limit, and how often between the one before and it.
    #[must_use]
    pub fn buckets(&self) -> Vec<(f64, u64)> {
        let bounds = Self::BOUNDS_MS.iter().map(|bound| f64::from(*bound) / 1_000.0);
        bounds.chain([f64::INFINITY]).zip(self.counts).collect()
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
    /// Clients with a session open now.
    pub clients: Gauge,
    /// CONNECT packets, well-formed ones.
    pub connects: Counter,
    /// Control packets that clients sent.
    pub packets_received: Counter,
    /// Control packets sent to clients, PUBLISH apart: their sum with `messages_sent` is all.
    pub answers_sent: Counter,
    /// Bytes that clients sent.
    pub bytes_received: Counter,
    /// Bytes written to clients.
    pub bytes_sent: Counter,
    /// Writes to clients' sockets: `bytes_sent / writes` is the mean batch.
    pub writes: Counter,
    /// PUBLISH packets that clients sent, repeats of QoS 2 apart.
    pub messages_received: Counter,
    /// Bytes of their payloads.
    pub payload_bytes_received: Counter,
    /// Messages handed to subscribers' outboxes.
    pub messages_sent: Counter,
    /// Bytes of their payloads.
    pub payload_bytes_sent: Counter,
    /// QoS 0 messages that a slow subscriber's full outbox refused.
    pub dropped_qos0: Counter,
    /// QoS 1 and 2 messages that a session's full queue refused.
    pub dropped_queue_full: Counter,
    /// Messages not sent because they exceed the client's Maximum Packet Size [MQTT-3.1.2-24].
    pub dropped_too_large: Counter,
    /// Messages that expired before they could be sent [MQTT-3.3.2-5].
    pub dropped_expired: Counter,
    /// Messages that waited for a client which may no longer receive them.
    pub dropped_denied: Counter,
    /// Messages of which a share group got none: nobody took them, here or at another broker.
    pub dropped_unshared: Counter,
    /// Times that a message of a share group was given to another broker's members.
    pub shares_picked: Counter,
    /// Times that a message that was given to this broker's members was given on, for none of them took it.
    pub shares_repicked: Counter,
    /// Messages and wills of clients that may not publish to their topics.
    pub publishes_denied: Counter,
    /// Filters of clients that may receive nothing of what they match.
    pub subscribes_denied: Counter,
    /// Share groups that other brokers could not have been told of, refused.
    pub subscribes_untold: Counter,
    /// Clients that were refused because of who they are or did not prove to be.
    pub logins_refused: Counter,
    /// Messages that could not be retained because the store is full.
    pub dropped_retained_full: Counter,
    /// Messages refused because somebody would have had to be kept waiting without memory.
    pub refused_memory: Counter,
    /// Messages of QoS 1 and 2 that were refused because they could not be written.
    pub refused_store: Counter,
    /// Times that a client was not read from because of a rate.
    pub pauses_rate: Counter,
    /// The same because memory was tight.
    pub pauses_memory: Counter,
    /// Connections of which no whole CONNECT is there yet.
    pub handshakes: Gauge,
    /// Sessions kept, connected or not.
    pub sessions: Gauge,
    /// Sessions that ended because their expiry was over.
    pub sessions_expired: Counter,
    /// Sessions that came from other brokers with their clients.
    pub sessions_fetched: Counter,
    /// Times that a client was refused because its session could not be fetched.
    pub sessions_not_fetched: Counter,
    /// Times that a client's session was begun anew because the broker that has it could not be reached.
    pub sessions_unreachable: Counter,
    /// Times that a session stayed here because the broker to which it was to go did not take it.
    pub sessions_stayed: Counter,
    /// Sessions given up because their clients have newer ones elsewhere.
    pub sessions_yielded: Counter,
    /// Messages of QoS 1 and 2 that waited in these.
    pub dropped_yielded: Counter,
    /// Sessions of this broker that are to have a replica elsewhere and have none at present.
    pub sessions_unreplicated: Gauge,
    /// Replicas here of other brokers' sessions.
    pub sessions_shadowed: Gauge,
    /// Sessions that went on from their replicas, for their brokers could not be reached.
    pub sessions_promoted: Counter,
    /// Times that the broker which had the replicas was given up.
    pub replicas_given_up: Counter,
    /// Wills of other brokers' clients that are kept here in case these brokers die.
    pub wills_kept: Gauge,
    /// Those that were not kept, for want of room.
    pub wills_not_kept: Counter,
    /// Those that were published here, for their brokers could not be reached.
    pub wills_orphaned: Counter,
    /// Wills of this broker's clients that others had dealt with while it could not be reached.
    pub wills_settled: Counter,
    /// Subscriptions of all sessions.
    pub subscriptions: Gauge,
    /// Shared ones among them.
    pub shared_subscriptions: Gauge,
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
    /// How often something took how long.
    Histogram(Histogram),
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

    /// Times without labels.
    #[must_use]
    pub fn histogram(name: &'static str, help: &'static str, value: Histogram) -> Self {
        Self { name, help, labels: Vec::new(), value: Value::Histogram(value) }
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
            gauge("clients", "Clients with a session open now", &self.clients),
            counter("connects", "CONNECT packets, well-formed ones", &self.connects),
            counter("packets_received", "Control packets that clients sent", &self.packets_received),
            counter("answers_sent", "Control packets sent to clients, PUBLISH apart", &self.answers_sent),
            counter("received_bytes", "Bytes that clients sent", &self.bytes_received),
            counter("sent_bytes", "Bytes written to clients", &self.bytes_sent),
            counter("writes", "Writes to clients' sockets", &self.writes),
            counter("messages_received", "PUBLISH packets that clients sent", &self.messages_received),
            counter("payload_received_bytes", "Payloads of PUBLISH packets that clients sent", &self.payload_bytes_received),
            counter("messages_sent", "Messages handed to subscribers", &self.messages_sent),
            counter("payload_sent_bytes", "Payloads of messages handed to subscribers", &self.payload_bytes_sent),
            dropped("outbox_full", &self.dropped_qos0),
            dropped("queue_full", &self.dropped_queue_full),
            dropped("too_large", &self.dropped_too_large),
            dropped("expired", &self.dropped_expired),
            dropped("not_allowed", &self.dropped_denied),
            dropped("not_shared", &self.dropped_unshared),
            dropped("session_elsewhere", &self.dropped_yielded),
            counter(
                "publishes_denied",
                "Messages and wills of clients that may not publish to their topics",
                &self.publishes_denied,
            ),
            counter("subscribes_untold", "Share groups that other brokers could not be told of, refused", &self.subscribes_untold),
            counter("subscribes_denied", "Filters of clients that may receive nothing of them", &self.subscribes_denied),
            counter("logins_refused", "Clients refused because of user name, password or certificate", &self.logins_refused),
            counter(
                "retained_refused",
                "Messages that could not be retained for want of room, or because the disk is behind",
                &self.dropped_retained_full,
            ),
            counter(
                "messages_refused",
                "Messages refused because they would have had to wait without memory",
                &self.refused_memory,
            ),
            counter(
                "store_refused",
                "Messages refused because they would have had to be kept on a disk that takes nothing",
                &self.refused_store,
            ),
            counter("pauses", "Times that a client was read from later", &self.pauses_rate).with("reason", "rate"),
            counter("pauses", "Times that a client was read from later", &self.pauses_memory).with("reason", "memory"),
            gauge("handshakes", "Connections of which no whole CONNECT is there yet", &self.handshakes),
            gauge("sessions", "Sessions kept, connected or not", &self.sessions),
            counter("sessions_expired", "Sessions that ended because their expiry was over", &self.sessions_expired),
            counter("sessions_fetched", "Sessions that came from other brokers with their clients", &self.sessions_fetched),
            counter(
                "sessions_not_fetched",
                "Clients refused because their session could not be fetched from its broker",
                &self.sessions_not_fetched,
            ),
            counter(
                "sessions_unreachable",
                "Sessions begun anew because the broker that has the client's could not be reached",
                &self.sessions_unreachable,
            ),
            gauge(
                "sessions_unreplicated",
                "Sessions that are to have a replica at another broker and have none at present",
                &self.sessions_unreplicated,
            ),
            gauge("sessions_shadowed", "Replicas of other brokers' sessions", &self.sessions_shadowed),
            counter(
                "sessions_promoted",
                "Sessions that went on from their replicas because their brokers could not be reached",
                &self.sessions_promoted,
            ),
            counter("replicas_given_up", "Times that the broker with the replicas was given up", &self.replicas_given_up),
            gauge("wills_kept", "Wills of other brokers' clients that are kept here in case these brokers die", &self.wills_kept),
            counter("wills_not_kept", "Wills of other brokers' clients that there was no room for", &self.wills_not_kept),
            counter(
                "wills_orphaned",
                "Wills of other brokers' clients that were published here because these brokers could not be reached",
                &self.wills_orphaned,
            ),
            counter(
                "wills_settled",
                "Wills of clients here that other brokers dealt with while this one could not be reached",
                &self.wills_settled,
            ),
            counter("sessions_stayed", "Sessions that another broker asked for and did not take", &self.sessions_stayed),
            counter(
                "sessions_yielded",
                "Sessions given up because their clients have newer ones elsewhere",
                &self.sessions_yielded,
            ),
            gauge("subscriptions", "Subscriptions of all sessions", &self.subscriptions),
            gauge("shared_subscriptions", "Shared subscriptions of all sessions", &self.shared_subscriptions),
            counter("shares_picked", "Messages of share groups that were given to members at another broker", &self.shares_picked),
            counter("shares_repicked", "Messages of share groups that no member here took, given on", &self.shares_repicked),
            counter("acknowledgements_held", "Times that acknowledgements waited for the mesh", &self.acknowledgements_held),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_stand_in_their_buckets() {
        let mut histogram = Histogram::default();
        for ms in [5, 6, 10, 20_000] {
            histogram.observe(Duration::from_millis(ms));
        }
        let buckets = histogram.buckets();
        assert_eq!((buckets[0], buckets[1], buckets[2]), ((0.005, 1), (0.01, 2), (0.025, 0)));
        assert_eq!(buckets.last(), Some(&(f64::INFINITY, 1)));
        assert_eq!((histogram.count(), histogram.sum_seconds()), (4, 20.021));
    }
}
