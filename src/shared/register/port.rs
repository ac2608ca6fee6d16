//! A neighbour: how far it has the registers, as far as we know, and what it is still to be told.
//!
//! Deltas that are news to it are sent unasked as long as not too many are on their way; beyond that it is only told what there is, and asks.
//! That they have arrived it says in answer to a question about our own register, in which there is nothing to be answered: a link keeps its
//! order.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

use super::DeltaHead;
use crate::ids::{BrokerId, Incarnation, PortId};
use crate::limits::{BROKERS_MAX, REGISTER_PUSHED_BYTES};
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
    /// Of these it is to be told what we have as soon as what it was sent unasked has arrived.
    pub(super) late: BTreeSet<BrokerId>,
    /// Bytes of deltas that it was sent unasked, and of which it is not known that they have arrived.
    pub(super) pushed_bytes: usize,
    /// It was asked to say that they have: so many of them.
    pub(super) probed_bytes: Option<usize>,
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

    fn hear(&mut self, head: &DeltaHead, signed: &Arc<SignedRecord>, seen: Instant) {
        let (incarnation, version) = self.place_of(head.owner);
        if (incarnation, version) >= head.place() {
            return;
        }
        let is_next = head.version == if incarnation == head.incarnation { version + 1 } else { 1 };
        let pushed_bytes = self.pushed_bytes + signed.wire.len();
        if is_next && (self.pushed_bytes == 0 || pushed_bytes <= REGISTER_PUSHED_BYTES) {
            self.pushed_bytes = pushed_bytes;
            self.news.push(Arc::clone(signed));
            self.note(head.owner, head.place(), seen);
        } else {
            self.late.insert(head.owner);
        }
    }

    /// Whether it is to be asked now to say that what it was sent unasked has arrived.
    pub(super) fn probe(&mut self) -> bool {
        let is_due = self.probed_bytes.is_none() && (self.pushed_bytes > REGISTER_PUSHED_BYTES / 2 || !self.late.is_empty());
        if is_due {
            self.probed_bytes = Some(self.pushed_bytes);
        }
        is_due
    }

    /// It has said so.
    pub(super) fn arrived(&mut self) {
        let Some(bytes) = self.probed_bytes.take() else { return };
        self.pushed_bytes = self.pushed_bytes.saturating_sub(bytes);
        self.untold.extend(std::mem::take(&mut self.late));
    }
}

/// A delta is news: neighbours get it that it brings further, but for the one from which it came; others are told that there is more.
/// `seen`: when its owner was heard of last.
pub(super) fn pass_on(
    ports: &mut BTreeMap<PortId, Port>,
    from: Option<PortId>,
    head: &DeltaHead,
    signed: &Arc<SignedRecord>,
    seen: Instant,
) {
    ports.iter_mut().filter(|(id, _)| from != Some(**id)).for_each(|(_, port)| port.hear(head, signed, seen));
}
