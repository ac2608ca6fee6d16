//! A neighbour: how far it has the registers, as far as we know, and what it is still to be told.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use super::DeltaHead;
use crate::ids::{BrokerId, Incarnation, PortId};
use crate::limits::BROKERS_MAX;
use crate::shared::SignedRecord;

/// Life and version: of one owner the later is greater.
pub(super) type Place = (Incarnation, u64);

#[derive(Debug, Default)]
pub(super) struct Port {
    pub(super) has: BTreeMap<BrokerId, Known>,
    /// Registers that it was asked for and has not answered.
    pub(super) wants: usize,
    /// Of these it is to be told what we have.
    pub(super) untold: Vec<BrokerId>,
    /// Deltas that are news to it.
    pub(super) news: Vec<Arc<SignedRecord>>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Known {
    pub(super) place: Place,
    /// When the owner was heard of last, as far as the neighbour knows.
    pub(super) seen: Instant,
}

impl Port {
    pub(super) fn place_of(&self, owner: BrokerId) -> Place {
        self.has.get(&owner).map_or_else(Place::default, |known| known.place)
    }

    /// It has so much of a register.
    pub(super) fn note(&mut self, owner: BrokerId, place: Place, seen: Instant) {
        if let Some(known) = self.has.get_mut(&owner) {
            known.place = known.place.max(place);
            known.seen = known.seen.max(seen);
        } else if self.has.len() < BROKERS_MAX {
            self.has.insert(owner, Known { place, seen });
        }
    }

    /// What it says now of a register counts, whatever was known.
    pub(super) fn correct(&mut self, owner: BrokerId, place: Place, seen: Instant) {
        self.has.remove(&owner);
        if place.1 > 0 {
            self.note(owner, place, seen);
        }
    }

    fn hear(&mut self, head: &DeltaHead, signed: &Arc<SignedRecord>, now: Instant) {
        let (incarnation, version) = self.place_of(head.owner);
        if (incarnation, version) >= head.place() {
            return;
        }
        if head.version == if incarnation == head.incarnation { version + 1 } else { 1 } {
            self.news.push(Arc::clone(signed));
            self.note(head.owner, head.place(), now);
        } else {
            self.untold.push(head.owner);
        }
    }
}

/// A delta is news: neighbours get it that it brings further, but for the one from which it came; others are told that there is more.
pub(super) fn pass_on(
    ports: &mut BTreeMap<PortId, Port>,
    from: Option<PortId>,
    head: &DeltaHead,
    signed: &Arc<SignedRecord>,
    now: Instant,
) {
    ports.iter_mut().filter(|(id, _)| from != Some(**id)).for_each(|(_, port)| port.hear(head, signed, now));
}
