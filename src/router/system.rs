//! What the broker says of itself below `$SYS`: to its own clients only, kept apart from what clients retain, so that neither takes the
//! other's room and no count that an operator reads as his clients' has it in it. What is said there is `sys`'s business.
//!
//! Specification: MQTT 5.0 section 4.7.2. That clients cannot publish there is the connection's to see to; a filter that begins with a
//! wildcard does not match it [MQTT-4.7.2-1], which is the tries'.

use std::collections::HashMap;
use std::time::Instant;

use parking_lot::Mutex;

use super::publish::{Batch, Ingress};
use super::route::RouteCache;
use super::{RetainedStore, Router};
use crate::codec::QoS;
use crate::limits::{CLIENT_STATE_ID_BYTES_MAX, CLIENT_STATES_MAX};
use crate::session::{Message, Subscriber};

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

/// Whose states are retained, or are only this broker's to say.
#[derive(Debug, Default)]
pub(super) struct States(Mutex<HashMap<Box<str>, Saying>>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Saying {
    /// A bridge of this broker is known by this client id elsewhere.
    Reserved,
    /// The client with this id has said it, and it is retained.
    Client,
}

fn state_topic(client_id: &str) -> String {
    format!("$SYS/broker/connection/{client_id}/state")
}

impl Router {
    /// From now on no client says what the state of `client_id` is: it is that of a bridge of this broker.
    pub fn reserve_state(&self, client_id: &str) {
        self.states.0.lock().insert(client_id.into(), Saying::Reserved);
    }

    /// There is no such bridge any more, and nothing to be said of it.
    pub fn release_state(&self, client_id: &str) {
        self.states.0.lock().remove(client_id);
        self.system.forget(&state_topic(client_id));
    }

    /// Tells local clients what this one says of itself ([`is_own_state`]). It is retained as long as there is its session, and of so many clients.
    /// `false`: it is not the client's to say.
    pub fn publish_state(&self, batch: &mut Batch, client: &Subscriber, payload: &[u8], retain: bool, now: Instant) -> bool {
        let id = &*client.client_id;
        let has_ended = client.lock().ended;
        let mut states = self.states.0.lock();
        let saying = states.get(id).copied();
        if saying == Some(Saying::Reserved) {
            return false;
        }
        let mut is_retained = retain && !has_ended;
        if is_retained && payload.is_empty() {
            states.remove(id);
        } else if is_retained && saying.is_none() {
            is_retained = states.len() < CLIENT_STATES_MAX && id.len() <= CLIENT_STATE_ID_BYTES_MAX;
            if is_retained {
                states.insert(id.into(), Saying::Client);
            } else {
                self.metrics.dropped_retained_full.add(1);
            }
        }
        drop(states);
        self.publish_system(batch, &state_topic(id), payload, is_retained, now);
        true
    }

    /// The client's session is over.
    pub(super) fn forget_state(&self, client_id: &str) {
        let mut states = self.states.0.lock();
        if states.get(client_id) == Some(&Saying::Client) {
            states.remove(client_id);
            drop(states);
            self.system.forget(&state_topic(client_id));
        }
    }

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
