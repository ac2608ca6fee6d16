//! An application message: borrowed while it is routed, owned where it has to wait.

use std::time::{Duration, Instant};

use bytes::Bytes;

use crate::codec::QoS;

/// A message on its way through the router: slices of the publisher's read buffer or of a mesh frame.
#[derive(Clone, Copy, Debug)]
pub struct Message<'a> {
    /// Checked topic name.
    pub topic: &'a str,
    /// Whatever the application sent.
    pub payload: &'a [u8],
    /// As published; a subscription may lower it [MQTT-3.8.4-8].
    pub qos: QoS,
    /// The publisher's RETAIN flag.
    pub retain: bool,
    /// When it is no longer to be sent [MQTT-3.3.2-5].
    pub expires_at: Option<Instant>,
    /// MQTT 5 properties that are forwarded unchanged, encoded, without their length.
    pub properties: &'a [u8],
}

impl Message<'_> {
    /// Bytes that it takes where it has to be kept.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.topic.len() + self.payload.len() + self.properties.len()
    }
}

/// What is left of a Message Expiry Interval, in seconds, rounded up, so that a copy that is sent never says 0 [MQTT-3.3.2-6].
#[must_use]
pub fn remaining_seconds(expires_at: Instant, now: Instant) -> u32 {
    let rest = expires_at.saturating_duration_since(now);
    let seconds = rest.as_secs() + u64::from(rest.subsec_nanos() > 0);
    u32::try_from(seconds).unwrap_or(u32::MAX).max(1)
}

/// A message that waits: in a queue, in flight, as a will. Shared by all sessions in which it waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredMessage {
    /// See [`Message::topic`].
    pub topic: Box<str>,
    /// See [`Message::payload`].
    pub payload: Bytes,
    /// See [`Message::qos`].
    pub qos: QoS,
    /// See [`Message::retain`].
    pub retain: bool,
    /// See [`Message::expires_at`].
    pub expires_at: Option<Instant>,
    /// See [`Message::properties`].
    pub properties: Bytes,
}

impl StoredMessage {
    /// As it goes through the router.
    #[must_use]
    pub fn borrow(&self) -> Message<'_> {
        Message {
            topic: &self.topic,
            payload: &self.payload,
            qos: self.qos,
            retain: self.retain,
            expires_at: self.expires_at,
            properties: &self.properties,
        }
    }

    /// Bytes that it keeps.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.borrow().bytes()
    }
}

/// How one message reaches one subscriber.
#[derive(Clone, Copy, Debug)]
pub struct Delivery<'a> {
    /// The lower of the published and the granted QoS [MQTT-3.8.4-8].
    pub qos: QoS,
    /// The RETAIN flag to send [MQTT-3.3.1-12, -13].
    pub retain: bool,
    /// The client may have had it from an earlier life of this broker, which did not write that down: the DUP flag to send [MQTT-3.3.1-1].
    pub dup: bool,
    /// Identifiers of all matching subscriptions [MQTT-3.3.4-3].
    pub subscription_ids: &'a [u32],
}

/// What is published when a client is lost (MQTT 5.0 section 3.1.2.5).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Will {
    /// Its expiry counts from publication; until then `expires_at` is none.
    pub message: StoredMessage,
    /// Message Expiry Interval of the will.
    pub message_expiry: Option<Duration>,
    /// Will Delay Interval.
    pub delay: Duration,
}
