//! Retained messages beyond this broker: what neighbours are told of them, and what is taken from them.
//!
//! The exchange is `shared::retained`'s. Nothing here reaches a subscriber: who was to get a message live gets it through a lane.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::{Router, is_system};
use crate::codec::QoS;
use crate::frame::bulk::{self, TopicKey};
use crate::frame::lane::{MeshMessage, put_message};
use crate::ids::Stamp;
use crate::pressure::Level;
use crate::session::{StoredMessage, remaining_seconds};
use crate::shared::ClockWord;
use crate::shared::retained::{RetainedCopies, Taken, Turn, Written};

/// Whose turn it is where there is no mesh: nobody asks.
static NO_TURN: Turn = Turn::new();

impl RetainedCopies for Router {
    fn sums(&self) -> Vec<u64> {
        self.retained.sums()
    }

    fn stamps(&self, from: TopicKey, to: TopicKey, count_max: usize) -> Vec<(TopicKey, Stamp)> {
        self.retained.stamps(from, to, count_max)
    }

    fn unseen(&self, from: TopicKey, to: TopicKey) -> BTreeSet<TopicKey> {
        self.retained.unseen(from, to)
    }

    fn put_messages(&self, keys: &mut BTreeSet<TopicKey>, bytes: usize, out: &mut Vec<u8>, now: Instant) {
        let writes = self.retained.last_writes(keys, bytes);
        if writes.is_empty() {
            return;
        }
        let mut body = Vec::with_capacity(bytes);
        for (step, (stamp, written)) in writes.iter().enumerate() {
            put_message(&mut body, u64::from(step > 0), &on_the_wire(*stamp, written, now), false);
        }
        bulk::put_messages(out, &body);
    }

    fn take(&self, message: &MeshMessage<'_>, now: Instant) -> Taken {
        let Some(stamp) = message.stamp.filter(|_| !is_system(message.topic)) else { return Taken::Refused };
        let Ok(Some(stamp)) = self.retained.stamp(Some(stamp), now) else { return Taken::Refused };
        let stored = (!message.payload.is_empty()).then(|| stored(message, now));
        if stored.is_some() && self.pressure.level() == Level::Full {
            self.metrics.dropped_retained_full.add(1);
            self.retained.outdate(message.topic, stamp, now);
            return Taken::Refused;
        }
        match self.retained.merge(message.topic, stamp, stored, now) {
            Ok(true) => {
                if let Some(counts) = self.retained.mesh_counts() {
                    counts.taken.add(1);
                }
                Taken::News
            }
            Ok(false) => Taken::Known,
            Err(_) => {
                self.metrics.dropped_retained_full.add(1);
                Taken::Refused
            }
        }
    }

    fn taken(&self) {
        if let Some(journal) = &self.journal {
            journal.kick();
        }
    }

    fn is_behind(&self) -> bool {
        self.journal.as_ref().is_some_and(|journal| journal.is_behind() && !journal.is_failing())
    }

    fn news(&self) -> u64 {
        self.retained.news()
    }

    fn turn(&self) -> &Turn {
        self.retained.shared().map_or(&NO_TURN, |shared| &shared.turn)
    }

    fn room(&self) -> usize {
        if self.pressure.level() == Level::Full { 0 } else { self.retained.room() }
    }

    fn clock_ms(&self, now: Instant) -> u64 {
        self.retained.clock().map_or(0, |clock| clock.say(now))
    }

    fn hear_clock(&self, unix_ms: u64, now: Instant) -> ClockWord {
        self.retained.clock().map_or(ClockWord::Fine, |clock| clock.hear(unix_ms, now))
    }
}

/// What has expired and was not swept yet goes as the deletion that it will be.
fn on_the_wire<'a>(stamp: Stamp, written: &'a Written<Arc<StoredMessage>>, now: Instant) -> MeshMessage<'a> {
    let deleted = |topic: &'a str| MeshMessage {
        topic,
        payload: &[],
        qos: QoS::AtMostOnce,
        retain: true,
        expiry_seconds: None,
        properties: &[],
        stamp: Some(stamp),
        picks: Default::default(),
    };
    match written {
        Written::Deleted(topic, _) => deleted(topic),
        Written::Message(message) if message.expires_at.is_some_and(|at| at <= now) => deleted(&message.topic),
        Written::Message(message) => MeshMessage {
            topic: &message.topic,
            payload: &message.payload,
            qos: message.qos,
            retain: true,
            expiry_seconds: message.expires_at.map(|at| remaining_seconds(at, now)),
            properties: &message.properties,
            stamp: Some(stamp),
            picks: Default::default(),
        },
    }
}

fn stored(message: &MeshMessage<'_>, now: Instant) -> Arc<StoredMessage> {
    let expires_at = message.expiry_seconds.and_then(|seconds| now.checked_add(Duration::from_secs(u64::from(seconds))));
    Arc::new(StoredMessage {
        topic: message.topic.into(),
        payload: Bytes::copy_from_slice(message.payload),
        qos: message.qos,
        retain: true,
        expires_at,
        properties: Bytes::copy_from_slice(message.properties),
    })
}
