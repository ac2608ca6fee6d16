//! What the broker says of itself below `$SYS`: to its own clients only, kept apart from what clients retain, so that neither takes the
//! other's room and no count that an operator reads as his clients' has it in it. What is said there is `sys`'s business.
//!
//! Specification: MQTT 5.0 section 4.7.2. That clients cannot publish there is the connection's to see to; a filter that begins with a
//! wildcard does not match it [MQTT-4.7.2-1], which is the tries'.

use std::time::Instant;

use super::publish::{Batch, Ingress};
use super::route::RouteCache;
use super::{RetainedStore, Router};
use crate::codec::QoS;
use crate::session::Message;

/// Whether a topic is the broker's own, or a filter matches nothing but such topics.
#[must_use]
pub fn is_system(topic: &str) -> bool {
    topic.strip_prefix("$SYS").is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Whether this is what a client may say below `$SYS`: whether it, a bridge, is connected, in one letter or none. Mosquitto's bridges do, in the will of
/// their CONNECT.
#[must_use]
pub fn is_own_state(topic: &str, payload: &[u8], client_id: &str) -> bool {
    let rest = topic.strip_prefix("$SYS/broker/connection/").and_then(|rest| rest.strip_suffix("/state"));
    payload.len() <= 1 && rest.is_some_and(|rest| rest == client_id)
}

impl Router {
    /// Tells local clients something below `$SYS`. With `retain` it is kept for those to come, and an empty payload forgets it. Ends with
    /// [`Router::finish`], like every batch.
    pub fn publish_system(&self, batch: &mut Batch, topic: &str, payload: &[u8], retain: bool, now: Instant) {
        let message = Message { topic, payload, qos: QoS::AtMostOnce, retain, expires_at: None, properties: &[] };
        self.publish(batch, &mut RouteCache::default(), &message, Ingress::System, now);
    }

    /// What is retained of topics like this, or for a filter like this.
    pub(super) fn retained_for(&self, topic: &str) -> &RetainedStore {
        if is_system(topic) { &self.system } else { &self.retained }
    }
}
