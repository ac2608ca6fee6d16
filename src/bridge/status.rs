//! What is known and counted of one bridge.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::log_rate::LogRate;
use crate::metrics::{Counter, Sample};

/// See the module's page.
#[derive(Debug)]
pub(super) struct Status {
    name: String,
    is_serving: AtomicBool,
    is_passing: AtomicBool,
    is_connected: AtomicBool,
    is_subscribed: AtomicBool,
    /// Times that the foreign broker has let the bridge in.
    pub(super) connects: Counter,
    /// Attempts that failed, and connections that ended.
    pub(super) failures: Counter,
    /// Messages given to the foreign broker, repeats among them.
    pub(super) sent: Counter,
    /// Messages that came from it, repeats among them.
    pub(super) received: Counter,
    /// Messages that match no topic of the bridge, or that the other side has refused.
    pub(super) refused: Counter,
    /// Messages that waited here when another broker took the bridge over.
    pub(super) dropped: Counter,
    /// Of lines that the foreign broker can cause.
    pub(super) log_rate: LogRate,
}

impl Status {
    pub(super) fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            is_serving: AtomicBool::new(false),
            is_passing: AtomicBool::new(false),
            is_connected: AtomicBool::new(false),
            is_subscribed: AtomicBool::new(false),
            connects: Counter::default(),
            failures: Counter::default(),
            sent: Counter::default(),
            received: Counter::default(),
            refused: Counter::default(),
            dropped: Counter::default(),
            log_rate: LogRate::default(),
        }
    }

    /// Of the bridge.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Whether this broker serves the bridge.
    pub(super) fn is_serving(&self) -> bool {
        self.is_serving.load(Ordering::Relaxed)
    }

    /// Whether its session is to go to another broker.
    pub(super) fn is_passing(&self) -> bool {
        self.is_passing.load(Ordering::Relaxed)
    }

    pub(super) fn set_passing(&self, is_passing: bool) {
        self.is_passing.store(is_passing, Ordering::Relaxed);
    }

    pub(super) fn set_serving(&self, is_serving: bool) {
        self.is_serving.store(is_serving, Ordering::Relaxed);
    }

    /// Whether the foreign broker has let it in.
    pub(super) fn set_connected(&self, is_connected: bool) {
        self.is_connected.store(is_connected, Ordering::Relaxed);
    }

    /// Whether the foreign broker has the subscriptions of this configuration, as long as it has the session: only what is said there from now on
    /// comes to the bridge.
    pub(super) fn set_subscribed(&self, is_subscribed: bool) {
        self.is_subscribed.store(is_subscribed, Ordering::Relaxed);
    }

    /// See [`Self::set_subscribed`].
    pub(super) fn is_subscribed(&self) -> bool {
        self.is_subscribed.load(Ordering::Relaxed)
    }

    pub(super) fn samples(&self) -> impl Iterator<Item = Sample> + use<> {
        let gauge = |name, help, value: &AtomicBool| Sample::gauge(name, help, f64::from(u8::from(value.load(Ordering::Relaxed))));
        let counter = |name, help, counter: &Counter| Sample::counter(name, help, counter.value());
        let name = self.name.clone();
        [
            gauge("bridge_serving", "Whether this broker serves the bridge", &self.is_serving),
            gauge("bridge_connected", "Whether the bridge is connected to its foreign broker", &self.is_connected),
            gauge("bridge_subscribed", "Whether the foreign broker has all subscriptions of the bridge", &self.is_subscribed),
            counter("bridge_connects", "Times that the foreign broker has let the bridge in", &self.connects),
            counter("bridge_failures", "Attempts of the bridge that failed, and connections that ended", &self.failures),
            counter("bridge_messages_sent", "Messages that the bridge gave to its foreign broker", &self.sent),
            counter("bridge_messages_received", "Messages that came from the foreign broker", &self.received),
            counter("bridge_messages_refused", "Messages that did not cross: no topic of the bridge, or refused", &self.refused),
            counter("bridge_messages_dropped", "Messages that waited here when another broker took the bridge over", &self.dropped),
        ]
        .into_iter()
        .map(move |sample| sample.with("bridge", name.clone()))
    }
}
