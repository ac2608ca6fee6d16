//! What a broker in a mesh writes down of its replication: its own log of QoS 1 and 2, and how far it has come in the logs of others.
//!
//! Values, made by `replication` and kept by the store, with the same journal as the sessions: so a block is safe together with the identifiers under which
//! its messages came, and a cover together with what the sessions got of it. Nothing here knows a ring or a file.

use std::time::Instant;

use bytes::Bytes;

use crate::ids::{BrokerId, LaneId, LogId, OriginLane};

/// The broker's own log in one lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogHead {
    /// Which lane; of QoS 1 and 2.
    pub lane: LaneId,
    /// The log's name, the same in all lanes.
    pub log: LogId,
    /// When the log began: what is older was never owed to this broker. None: so long ago that no clock tells.
    pub born: Option<Instant>,
    /// Nothing at this position of the ring or above it has been seen by others. Only grows.
    pub reserved: u64,
    /// Ids up to here are no longer kept. Only grows.
    pub floor: u64,
}

/// A block of messages that local clients have published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Logged {
    /// Which lane.
    pub lane: LaneId,
    /// The first message's sequence.
    pub first: u64,
    /// The last one's.
    pub last: u64,
    /// When they were published.
    pub published: Instant,
    /// As on the wire; shared with the ring.
    pub body: Bytes,
}

/// What a restarted broker has read of all this.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RestoredLog {
    /// One a lane.
    pub heads: Vec<LogHead>,
    /// In the order of their lanes and sequences.
    pub blocks: Vec<Logged>,
    /// Of every origin-lane of others: ids up to here were dealt with.
    pub covers: Vec<(OriginLane, u64)>,
    /// The other members of the mesh.
    pub members: Vec<BrokerId>,
    /// So many positions above what is reserved are not to be used: of what was written last something may be lost.
    pub positions_in_doubt: u64,
}
