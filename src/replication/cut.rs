//! How far the sessions of this broker have been given what was published: for a session that goes on at another broker. Of QoS 1 and 2 only.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use super::Replication;
use super::lane::Lane;
use crate::ids::{LaneId, OriginLane};

/// Of one origin-lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cover {
    /// The last id that sessions were given, or that none of them wants.
    pub id: u64,
    /// Something of it came in this life of the broker: whoever is in the mesh will have as much. Else that is known from the disk only, and others will have it
    /// as long as its origin may come back with it.
    pub is_live: bool,
}

/// The covers of all origin-lanes of which something is known.
pub type Covers = BTreeMap<OriginLane, Cover>;

impl Replication {
    /// The origin-lane of what local clients publish in a lane.
    #[must_use]
    pub fn own_stream(&self, lane: LaneId) -> Option<OriginLane> {
        self.lane(lane).map(|lane| lane.own.id())
    }

    /// Up to where sessions here have been given everything. Exact only on the exclusive side of [`Replication::quiesce`].
    #[must_use]
    pub fn delivered(&self) -> Covers {
        self.lanes.iter().filter(|lane| lane.reliable).flat_map(Lane::delivered).collect()
    }

    /// Whether sessions here have been given everything up to `covers`, as far as it can still come.
    #[must_use]
    pub fn has_delivered(&self, covers: &Covers) -> bool {
        let has = |stream: &OriginLane, cover: &Cover| {
            let lane = self.lane(stream.lane).filter(|lane| lane.reliable);
            lane.is_none_or(|lane| lane.delivered_of(&(stream.origin, stream.log)) >= cover.id)
        };
        let is_past = |stream: &OriginLane, cover: &Cover| {
            self.is_forgotten(stream)
                && (!cover.is_live || self.lane(stream.lane).is_some_and(|lane| lane.may_have_forgotten(stream)))
        };
        covers.iter().all(|(stream, cover)| has(stream, cover) || is_past(stream, cover))
    }

    /// Whether this log is gone: its broker is no member any more, or has another one.
    fn is_forgotten(&self, stream: &OriginLane) -> bool {
        let standing = self.interest.standing(stream.origin);
        standing.is_none_or(|standing| standing.log.is_some_and(|log| log != stream.log))
    }
}

impl Lane {
    /// Whether this log has made room for later ones of its broker: it was silent for longer than anybody's ring reaches, so all of it was here that could come.
    fn may_have_forgotten(&self, stream: &OriginLane) -> bool {
        self.reliable && self.known_stream(&(stream.origin, stream.log)).is_none() && self.has_many_logs_of(stream.origin)
    }

    fn delivered(&self) -> Vec<(OriginLane, Cover)> {
        let own = (self.own.id(), Cover { id: self.own_last.load(Ordering::Acquire), is_live: true });
        let others = self.streams().into_iter().map(|stream| {
            let cover = stream.cover();
            (stream.id(), Cover { id: stream.delivered_of(cover).max(stream.dealt_with()), is_live: cover > 0 })
        });
        others.chain([own]).filter(|(_, cover)| cover.id > 0).collect()
    }
}
