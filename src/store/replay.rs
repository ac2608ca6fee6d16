//! What the disk is to hold of the mesh's logs: the broker's own log of each lane, block by block, and how far it has come in the logs of others, and
//! who these are. A part of the
//! [mirror](super::mirror): the same slots, the same commits.
//!
//! A block goes when the ring has trimmed it, and nothing older is kept beside the ring (`replication::former`). That is said once a lane, by the floor in the log's head: a block that still stands in an old segment and is not
//! above the floor is not read back.

use std::collections::{BTreeMap, HashMap};

use super::clocks::Clocks;
use super::mirror::{Segment, Sink, Slot};
use crate::ids::{BrokerId, LaneId, OriginLane};
use crate::session::record::Record;
use crate::session::{LogHead, Logged};

/// Names one thing that has a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum ReplayKey {
    Log(LaneId),
    /// By its first sequence.
    Block(LaneId, u64),
    Cover(OriginLane),
    Member(BrokerId),
}

/// See the module's page.
#[derive(Debug, Default)]
pub(super) struct Replay {
    lanes: BTreeMap<LaneId, OwnLane>,
    covers: HashMap<OriginLane, (u64, Slot), ahash::RandomState>,
    members: HashMap<BrokerId, Slot, ahash::RandomState>,
    /// Bytes of all blocks.
    bytes: u64,
    blocks: usize,
}

#[derive(Debug)]
struct OwnLane {
    head: LogHead,
    slot: Slot,
    blocks: BTreeMap<u64, (Logged, Slot)>,
}

/// What is to be said besides: names of what became dirty, and of what is gone and stands somewhere.
pub(super) struct Said<'a> {
    pub(super) dirty: &'a mut dyn FnMut(ReplayKey),
    pub(super) gone: &'a mut dyn FnMut(ReplayKey),
}

impl Replay {
    /// The log's head is this one. Blocks up to its floor go.
    pub(super) fn set_head(&mut self, head: LogHead, at: Segment, said: &mut Said<'_>) {
        let lane = head.lane;
        if self.lanes.get(&lane).is_some_and(|own| own.head.log != head.log) {
            self.end(lane, said);
        }
        let own = self.lanes.entry(lane).or_insert_with(|| OwnLane { head, slot: Slot::default(), blocks: BTreeMap::new() });
        let (reserved, floor) = (own.head.reserved.max(head.reserved), own.head.floor.max(head.floor));
        own.head = LogHead { reserved, floor, ..own.head };
        own.slot = own.slot.changed(at, || (said.dirty)(ReplayKey::Log(lane)));
        while let Some(first) = own.blocks.first_entry().filter(|first| first.get().0.last <= floor) {
            let (block, _) = first.remove();
            self.bytes = self.bytes.saturating_sub(block.body.len() as u64);
            self.blocks = self.blocks.saturating_sub(1);
        }
    }

    /// The lane's log is over.
    pub(super) fn end(&mut self, lane: LaneId, said: &mut Said<'_>) {
        let Some(own) = self.lanes.remove(&lane) else { return };
        self.bytes = self.bytes.saturating_sub(own.blocks.values().map(|(block, _)| block.body.len() as u64).sum());
        self.blocks = self.blocks.saturating_sub(own.blocks.len());
        if own.slot.stands() {
            (said.gone)(ReplayKey::Log(lane));
        }
    }

    /// A block of a log that has begun.
    pub(super) fn log(&mut self, block: Logged, at: Segment, said: &mut Said<'_>) {
        let Some(own) = self.lanes.get_mut(&block.lane).filter(|own| own.head.floor < block.last) else { return };
        let (lane, first) = (block.lane, block.first);
        let slot = Slot::default().changed(at, || (said.dirty)(ReplayKey::Block(lane, first)));
        self.bytes += block.body.len() as u64;
        self.blocks += 1;
        own.blocks.insert(first, (block, slot));
    }

    /// Covers only grow.
    pub(super) fn cover(&mut self, stream: OriginLane, cover: u64, at: Segment, said: &mut Said<'_>) {
        let (known, slot) = self.covers.entry(stream).or_default();
        if *known < cover {
            *known = cover;
            *slot = slot.changed(at, || (said.dirty)(ReplayKey::Cover(stream)));
        }
    }

    /// Nothing needs to be known any more.
    pub(super) fn uncover(&mut self, stream: OriginLane, said: &mut Said<'_>) {
        if self.covers.remove(&stream).is_some_and(|(_, slot)| slot.stands()) {
            (said.gone)(ReplayKey::Cover(stream));
        }
    }

    /// The broker is a member. It may be said more than once.
    pub(super) fn join(&mut self, broker: BrokerId, at: Segment, said: &mut Said<'_>) {
        let slot = self.members.entry(broker).or_default();
        if !slot.stands() && !slot.is_dirty {
            *slot = slot.changed(at, || (said.dirty)(ReplayKey::Member(broker)));
        }
    }

    /// It is none any more.
    pub(super) fn leave(&mut self, broker: BrokerId, said: &mut Said<'_>) {
        if self.members.remove(&broker).is_some_and(Slot::stands) {
            (said.gone)(ReplayKey::Member(broker));
        }
    }

    pub(super) fn slot(&self, key: &ReplayKey) -> Option<Slot> {
        match key {
            ReplayKey::Log(lane) => self.lanes.get(lane).map(|own| own.slot),
            ReplayKey::Block(lane, first) => self.lanes.get(lane)?.blocks.get(first).map(|(_, slot)| *slot),
            ReplayKey::Cover(stream) => self.covers.get(stream).map(|(_, slot)| *slot),
            ReplayKey::Member(broker) => self.members.get(broker).copied(),
        }
    }

    pub(super) fn slot_mut(&mut self, key: &ReplayKey) -> Option<&mut Slot> {
        match key {
            ReplayKey::Log(lane) => self.lanes.get_mut(lane).map(|own| &mut own.slot),
            ReplayKey::Block(lane, first) => self.lanes.get_mut(lane)?.blocks.get_mut(first).map(|(_, slot)| slot),
            ReplayKey::Cover(stream) => self.covers.get_mut(stream).map(|(_, slot)| slot),
            ReplayKey::Member(broker) => self.members.get_mut(broker),
        }
    }

    /// Everything, with where it stands.
    pub(super) fn for_each(&self, mut look: impl FnMut(&Slot, ReplayKey)) {
        for (lane, own) in &self.lanes {
            look(&own.slot, ReplayKey::Log(*lane));
            own.blocks.iter().for_each(|(first, (_, slot))| look(slot, ReplayKey::Block(*lane, *first)));
        }
        self.covers.iter().for_each(|(stream, (_, slot))| look(slot, ReplayKey::Cover(*stream)));
        self.members.iter().for_each(|(broker, slot)| look(slot, ReplayKey::Member(*broker)));
    }

    /// What a record takes beside what every record does, bytes.
    pub(super) fn bytes_of(&self, key: &ReplayKey) -> u64 {
        match key {
            ReplayKey::Block(lane, first) => {
                self.lanes.get(lane).and_then(|own| own.blocks.get(first)).map_or(0, |(block, _)| block.body.len() as u64)
            }
            ReplayKey::Log(_) | ReplayKey::Cover(_) | ReplayKey::Member(_) => 0,
        }
    }

    /// How many records all this is, and their bytes.
    pub(super) fn size(&self) -> (usize, u64) {
        (self.lanes.len() + self.blocks + self.covers.len() + self.members.len(), self.bytes)
    }

    /// Hands the record of `key` to `sink` if it is dirty and there is still something.
    ///
    /// # Errors
    /// The sink's.
    pub(super) fn write<S: Sink>(&self, sink: &mut S, key: &ReplayKey, clocks: &Clocks) -> Result<(), S::Error> {
        if !self.slot(key).is_some_and(|slot| slot.is_dirty) {
            return Ok(());
        }
        match key {
            ReplayKey::Log(lane) => match self.lanes.get(lane) {
                Some(OwnLane { head: LogHead { lane, log, born, reserved, floor }, .. }) => sink.put(&Record::Log {
                    lane: lane.0,
                    log: log.0,
                    born_ms: born.map(|born| clocks.unix_ms(born)),
                    reserved: *reserved,
                    floor: *floor,
                }),
                None => Ok(()),
            },
            ReplayKey::Block(lane, first) => match self.lanes.get(lane).and_then(|own| own.blocks.get(first)) {
                Some((Logged { lane, first, last, published, body }, _)) => {
                    let published_ms = clocks.unix_ms(*published);
                    sink.put(&Record::Logged { lane: lane.0, first: *first, last: *last, published_ms, body })
                }
                None => Ok(()),
            },
            ReplayKey::Cover(stream) => match self.covers.get(stream) {
                Some((cover, _)) => {
                    let OriginLane { origin, log, lane } = stream;
                    sink.put(&Record::Cover { lane: lane.0, origin: origin.0, log: log.0, cover: *cover })
                }
                None => Ok(()),
            },
            ReplayKey::Member(broker) => sink.put(&Record::Member { broker: broker.0 }),
        }
    }

    /// Says that what `key` names is gone.
    ///
    /// # Errors
    /// The sink's.
    pub(super) fn write_gone<S: Sink>(sink: &mut S, key: &ReplayKey) -> Result<(), S::Error> {
        match key {
            ReplayKey::Log(lane) => sink.put(&Record::LogGone { lane: lane.0 }),
            ReplayKey::Cover(OriginLane { origin, log, lane }) => {
                sink.put(&Record::CoverGone { lane: lane.0, origin: origin.0, log: log.0 })
            }
            ReplayKey::Member(broker) => sink.put(&Record::MemberGone { broker: broker.0 }),
            // The floor says it.
            ReplayKey::Block(..) => Ok(()),
        }
    }

    pub(super) fn heads(&self) -> impl Iterator<Item = &LogHead> {
        self.lanes.values().map(|own| &own.head)
    }

    pub(super) fn blocks(&self) -> impl Iterator<Item = &Logged> {
        self.lanes.values().flat_map(|own| own.blocks.values().map(|(block, _)| block))
    }

    pub(super) fn members(&self) -> impl Iterator<Item = BrokerId> {
        self.members.keys().copied()
    }

    pub(super) fn covers(&self) -> impl Iterator<Item = (OriginLane, u64)> {
        self.covers.iter().map(|(stream, (cover, _))| (*stream, *cover))
    }
}
