//! What a read batch of one connection publishes, until it goes into the rings.

use std::sync::{Arc, OnceLock};

use bytes::Bytes;

use super::quiesce::Shared;
use super::{Published, Replication};
use crate::codec::QoS;
use crate::frame::lane::{MeshMessage, put_message};
use crate::ids::{BrokerId, MessageId};
use crate::limits::{BLOCK_BYTES, BLOCK_MESSAGES_MAX};

/// What a builder may keep between two batches.
const KEPT_BYTES_MAX: usize = 4 * BLOCK_BYTES;

/// Messages on their way into the rings: encoded as they are pushed, given ids by [`Replication::publish`]. Reused from batch to
/// batch, it allocates nothing but the blocks themselves. It belongs to one connection or one worker, and is empty between batches.
#[derive(Debug, Default)]
pub struct LocalBatch {
    /// One a lane, as far as a lane was ever used.
    builders: Vec<Builder>,
    /// From the first delivery to a local session until all of the batch is in the rings.
    shared: Option<Shared>,
    /// Of [`super::Quiesce`].
    shard: Option<usize>,
    /// Where others are waited for: the last ids that were given out, each with its lane.
    pub(super) published: Published,
}

/// The id that a message of a local client is given, once it has one.
pub type Followed = Arc<OnceLock<MessageId>>;

/// The block that is being built for one lane, and those that became full before it.
#[derive(Debug, Default)]
pub(super) struct Builder {
    body: Vec<u8>,
    count: usize,
    /// Where in `body` the last message's topic is.
    topic: std::ops::Range<usize>,
    /// A message of QoS 2 is in it.
    exactly_once: bool,
    /// Which of them somebody wants to know the ids of.
    followed: Vec<(usize, Followed)>,
    /// For whom something in it was picked.
    picked: Vec<(BrokerId, QoS)>,
    pub(super) full: Vec<Sealed>,
}

/// A block that has no ids yet.
#[derive(Debug)]
pub(super) struct Sealed {
    pub(super) body: Bytes,
    pub(super) count: usize,
    /// A message of QoS 2 is in it.
    pub(super) exactly_once: bool,
    /// By their places in it.
    pub(super) followed: Vec<(usize, Followed)>,
    /// For whom something in it was picked.
    pub(super) picked: Vec<(BrokerId, QoS)>,
}

impl LocalBatch {
    /// An empty batch.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// To be called before the first QoS 1 or 2 message of the batch is delivered to local sessions, and before these are looked up: from then on until
    /// [`leave`](Self::leave) nobody is [exclusive](super::Quiesce::exclusively).
    pub fn enter(&mut self, replication: &Replication) {
        if self.shared.is_none() {
            let shard = *self.shard.get_or_insert_with(|| replication.quiesce.shard());
            self.shared = Some(replication.quiesce.enter(shard));
        }
    }

    /// All of it is in the rings, and on its way to the disk: somebody may be exclusive.
    pub fn leave(&mut self) {
        self.shared = None;
    }

    /// Adds a message; it is copied. Order within a topic and QoS class is the order of pushing.
    pub fn push(&mut self, replication: &Replication, message: &MeshMessage<'_>) {
        self.push_followed(replication, message, None);
    }

    /// Likewise; `followed` will say its id.
    pub fn push_followed(&mut self, replication: &Replication, message: &MeshMessage<'_>, followed: Option<Followed>) {
        let lane = replication.lane_for(message.topic, message.qos).index();
        if self.builders.len() <= lane {
            self.builders.resize_with(lane + 1, Builder::default);
        }
        if let Some(builder) = self.builders.get_mut(lane) {
            builder.push(message, followed);
        }
    }

    /// Likewise of many, which have one topic and QoS.
    pub fn push_all<'a>(&mut self, replication: &Replication, messages: impl IntoIterator<Item = MeshMessage<'a>>) {
        let mut messages = messages.into_iter();
        let Some(first) = messages.next() else { return };
        self.push(replication, &first);
        let lane = replication.lane_for(first.topic, first.qos).index();
        if let Some(builder) = self.builders.get_mut(lane) {
            messages.for_each(|message| builder.push(&message, None));
        }
    }

    /// The last id that was given out in each lane of QoS 1 and 2, where it is waited for until others have dealt with it
    /// ([`Replication::acknowledge_in_mesh`]). The next batch begins.
    #[must_use]
    pub fn take_published(&mut self) -> Published {
        std::mem::take(&mut self.published)
    }

    /// The builders with their lanes' places.
    pub(super) fn builders(&mut self) -> impl Iterator<Item = (usize, &mut Builder)> {
        self.builders.iter_mut().enumerate()
    }
}

impl Builder {
    fn push(&mut self, message: &MeshMessage<'_>, followed: Option<Followed>) {
        let bytes = message.topic.len() + message.properties.len() + message.payload.len();
        if self.count == BLOCK_MESSAGES_MAX || (self.count > 0 && self.body.len() + bytes > BLOCK_BYTES) {
            self.seal();
        }
        let same_topic = self.count > 0 && self.body.get(self.topic.clone()) == Some(message.topic.as_bytes());
        let start = self.body.len();
        put_message(&mut self.body, u64::from(self.count > 0), message, same_topic);
        if !same_topic {
            // Step, flags, those of picks, the topic's length, the topic.
            let flags_bytes = if message.picks.is_empty() { 1 } else { 2 };
            let begin = start + 1 + flags_bytes + crate::frame::varint_len(message.topic.len() as u64);
            self.topic = begin..begin + message.topic.len();
        }
        if let Some(followed) = followed {
            self.followed.push((self.count, followed));
        }
        self.count += 1;
        self.exactly_once |= message.qos == QoS::ExactlyOnce;
        if !message.picks.is_empty() {
            let picked = message.picks.chosen().map(|pick| (pick.broker, message.qos));
            picked.for_each(|one| {
                if !self.picked.contains(&one) {
                    self.picked.push(one);
                }
            });
        }
    }

    /// Makes a block of what is there. Copied: a block takes up what it holds, and the builder keeps its buffer.
    pub(super) fn seal(&mut self) {
        if self.count == 0 {
            return;
        }
        let (body, count, exactly_once) = (Bytes::copy_from_slice(&self.body), self.count, self.exactly_once);
        let (followed, picked) = (std::mem::take(&mut self.followed), std::mem::take(&mut self.picked));
        self.full.push(Sealed { body, count, exactly_once, followed, picked });
        (self.count, self.exactly_once) = (0, false);
        self.body.clear();
        self.body.shrink_to(KEPT_BYTES_MAX);
    }
}
