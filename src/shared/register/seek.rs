//! Asking: who has more of a register than we have is asked for it, one neighbour at a time for each register.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::content::Content;
use super::port::{Place, Port};
use super::{DeltaHead, Key, Want};
use crate::ids::{BrokerId, Incarnation, PortId};
use crate::limits::REGISTER_ON_THE_WAY_BYTES;
use crate::shared::SignedRecord;

/// A neighbour that was asked and says nothing for so long is not waited for.
const ASK_TIME: Duration = Duration::from_secs(5);
/// What led nowhere is tried again after this time, doubled each time.
const RETRY_TIME: Duration = Duration::from_millis(500);
/// So often at most.
const RETRY_DOUBLINGS: u32 = 7;
/// A neighbour is asked for so many registers at once.
const WANTS_PER_PORT: usize = 8;

/// How it stands with one register.
#[derive(Debug, Default)]
pub(super) struct Seek {
    /// A copy that is being made.
    pub(super) copy: Option<Copying>,
    /// What it must add up to, once that is told.
    pub(super) head: Option<(DeltaHead, Arc<SignedRecord>)>,
    asked: Option<Asked>,
    /// Nothing is asked before.
    retry_at: Option<Instant>,
    /// How often in a row it led nowhere.
    failures: u32,
    /// With this neighbour last.
    failed: Option<PortId>,
}

/// A copy that is being made, all of one neighbour.
#[derive(Debug)]
pub(super) struct Copying {
    pub(super) port: PortId,
    pub(super) content: Content,
    /// The last key that came.
    pub(super) behind: Option<Key>,
}

/// A question that is open.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    port: PortId,
    at: Instant,
    pub(super) incarnation: Incarnation,
    /// What we had of that life then.
    pub(super) after: u64,
}

impl Seek {
    pub(super) fn is_asking(&self) -> bool {
        self.asked.is_some()
    }

    pub(super) fn is_answer(&self, from: PortId, incarnation: Incarnation) -> bool {
        self.asked.is_some_and(|asked| asked.port == from && asked.incarnation == incarnation)
    }

    /// The neighbour is gone.
    pub(super) fn lost(&mut self, port: PortId) {
        self.asked.take_if(|asked| asked.port == port);
        self.copy.take_if(|copy| copy.port == port);
    }

    /// The neighbour has answered.
    pub(super) fn answered(&mut self, from: PortId) -> Option<Asked> {
        self.asked.take_if(|asked| asked.port == from)
    }

    /// What came of it.
    pub(super) fn went(&mut self, went_on: bool, port: PortId, now: Instant) {
        if went_on {
            *self = Self { asked: self.asked, copy: self.copy.take(), ..Self::default() };
        } else {
            self.copy = None;
            self.retry_at = Some(now + RETRY_TIME * (1 << self.failures));
            self.failures = (self.failures + 1).min(RETRY_DOUBLINGS);
            self.failed = Some(port);
        }
    }

    /// The neighbour that is not waited for any longer.
    pub(super) fn overdue(&mut self, now: Instant) -> Option<PortId> {
        let asked = self.asked.take_if(|asked| now.saturating_duration_since(asked.at) >= ASK_TIME)?;
        self.went(false, asked.port, now);
        Some(asked.port)
    }
}

/// Whom to ask for what, if anybody has more than `place`.
pub(super) fn seek(
    seek: &mut Seek,
    owner: BrokerId,
    place: Place,
    ports: &mut BTreeMap<PortId, Port>,
    now: Instant,
) -> Option<(PortId, Want)> {
    if seek.is_asking() || seek.retry_at.is_some_and(|at| now < at) {
        return None;
    }
    let copy_of = seek.copy.as_ref().map(|copy| (copy.port, copy.content.incarnation));
    let has_more = ports.iter().filter_map(|(id, port)| Some((*id, port.has.get(&owner)?.place, port.wants)));
    let may_ask = has_more.filter(|(_, known, wants)| *known > place && *wants < WANTS_PER_PORT);
    let best = may_ask.max_by_key(|(id, known, wants)| {
        let goes_on = copy_of == Some((*id, known.0));
        (goes_on, seek.failed != Some(*id), *known, Reverse(*wants))
    });
    let (port, (incarnation, _), wants) = best?;
    seek.copy.take_if(|copy| (copy.port, copy.content.incarnation) != (port, incarnation));
    if let Some(port) = ports.get_mut(&port) {
        port.wants += 1;
    }
    // All questions to one neighbour together stay within the bound.
    let share = if wants == 0 { 2 } else { 2 * WANTS_PER_PORT };
    let bytes = u32::try_from(REGISTER_ON_THE_WAY_BYTES / share).unwrap_or(u32::MAX);
    let after = if place.0 == incarnation { place.1 } else { 0 };
    let behind = seek.copy.as_ref().and_then(|copy| copy.behind.clone());
    seek.asked = Some(Asked { port, at: now, incarnation, after });
    Some((port, Want { owner, incarnation, after, behind, bytes }))
}
