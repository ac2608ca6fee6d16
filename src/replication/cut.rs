//! How far the sessions of this broker have been given what was published, and what lies between two such points: for a session that goes on at another
//! broker. Of QoS 1 and 2 only.

use std::collections::BTreeMap;

use super::block::Content;
use super::ring::Read;
use super::{MeshMessage, Replication};
use crate::frame::lane::{Entry, Messages};
use crate::ids::OriginLane;

/// Of each origin-lane the last id that sessions were given, or that no session of this broker wants.
pub type Covers = BTreeMap<OriginLane, u64>;

impl Replication {
    /// Up to where sessions here have been given everything. Exact only on the exclusive side of [`Replication::quiesce`].
    #[must_use]
    pub fn delivered(&self) -> Covers {
        self.lanes.iter().filter(|lane| lane.reliable).flat_map(|lane| lane.delivered()).collect()
    }

    /// Whether sessions here have been given everything up to `covers`.
    #[must_use]
    pub fn has_delivered(&self, covers: &Covers) -> bool {
        let delivered = self.delivered();
        covers.iter().all(|(stream, cover)| {
            stream.origin == self.config.origin || *cover == 0 || delivered.get(stream).is_some_and(|delivered| delivered >= cover)
        })
    }

    /// What was published behind `from` and up to `to`, as far as the rings have it, in the order of each origin-lane. Says how many messages are there only by
    /// their topic.
    pub fn between(&self, from: &Covers, to: &Covers, mut visit: impl FnMut(&MeshMessage<'_>)) -> u64 {
        let mut missing = 0;
        for lane in self.lanes.iter().filter(|lane| lane.reliable) {
            for position in lane.ring.tail()..lane.ring.next() {
                let Read::Block(block) = lane.ring.read(position) else { continue };
                let id = block.stream.id();
                let (after, through) = (from.get(&id).copied().unwrap_or(0), to.get(&id).copied().unwrap_or(0));
                let Content::Messages(body) = &block.content else { continue };
                if block.last <= after || block.first > through {
                    continue;
                }
                let wanted = |sequence: &u64| *sequence > after && *sequence <= through;
                for (_, entry) in Messages::new(block.first, body).flatten().filter(|(sequence, _)| wanted(sequence)) {
                    match entry {
                        Entry::Message(message) => visit(&message),
                        Entry::Stub(_) => missing += 1,
                    }
                }
            }
        }
        missing
    }
}
