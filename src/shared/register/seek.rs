//! Asking: who has more of a register than we have is asked for it, one neighbour at a time for each register.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::content::Content;
use super::port::{Place, Port};
use super::{DeltaHead, Key, Page, Want};
use crate::ids::{BrokerId, Incarnation, PortId};
use crate::limits::{REGISTER_ON_THE_WAY_BYTES, REGISTERS_BYTES_MAX};
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
    /// How large it is and what it must add up to, with the next part.
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

/// What other registers take, bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Room {
    /// What is known.
    pub(super) members: usize,
    /// Other copies that are being made.
    pub(super) copies: usize,
}

/// What has become of a copy.
#[derive(Debug)]
pub(super) enum Copied {
    /// There is more of it.
    GoesOn,
    /// It is what its owner says.
    IsWhole(Box<Content>),
    /// It misses what came live, or others are being made that leave it no room: it is begun anew.
    Ends,
    /// There is no room for it beside what is known.
    HasNoRoom,
    /// The neighbour that gives it lies.
    IsNotWhatWasSaid,
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

    /// Part of a copy has come, all of which is at `place`.
    pub(super) fn copied(&mut self, from: PortId, place: Place, page: Page, room: &Room) -> Copied {
        let head = self.head.take().filter(|(head, _)| head.place() == place);
        if self.copy.is_none() {
            // It begins with its owner's word on how large it is.
            let Some((head, signed)) = &head else { return Copied::Ends };
            let content = Content::copied(head, Arc::clone(signed));
            let bytes = room.members.saturating_add(content.told_bytes());
            if bytes > REGISTERS_BYTES_MAX {
                return Copied::HasNoRoom;
            }
            if bytes.saturating_add(room.copies) > REGISTERS_BYTES_MAX {
                return Copied::Ends;
            }
            self.copy = Some(Copying { port: from, content, behind: None });
        }
        let Some(copy) = self.copy.as_mut().filter(|copy| copy.content.place() == place) else { return Copied::Ends };
        copy.behind = page.entries.last().map(|(key, _)| key.clone()).or(copy.behind.take());
        if let Some((head, signed)) = head {
            copy.content.head(&head, signed);
        }
        copy.content.fill(page.entries);
        if copy.content.is_larger_than_told() || page.last && !copy.content.adds_up() {
            return Copied::IsNotWhatWasSaid;
        }
        match self.copy.take_if(|_| page.last) {
            Some(copy) => Copied::IsWhole(Box::new(copy.content.settled())),
            None => Copied::GoesOn,
        }
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
