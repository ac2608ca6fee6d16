//! What was published while somebody's share groups were not known, and to whom it goes once they are.
//!
//! A broker that has been restarted, or cannot take in a member's register, knows nothing of the groups that have members there: it picks nobody for them. Such
//! messages say so ([`UNDECIDED`]), and which groups were given them all the same. When a register has become known, they are gone through in our own ring, a part
//! at a time ([`UNDECIDED_MESSAGES_MAX`]), and are published once more for the groups that were not served. When all are known, that is over.
//! Copies that are picked late say so, and so does the log when all before is decided: a broker that is killed meanwhile goes on where it was.
//!
//! It is not: who is picked (`router`). What the ring has trimmed
//! meanwhile, and what matches more groups than one message may name, is not picked later.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Instant;

use super::block::Content;
use super::lane::Lane;
use super::sync::{AtomicBool, Mutex, Ordering};
use super::{Block, Deliver, MeshMessage, Replication};
use crate::frame::lane::{Entry, Messages};
use crate::frame::picks::UNDECIDED;
use crate::ids::{LaneId, ShareId};
use crate::limits::{NEWCOMER_TIME, UNDECIDED_MESSAGES_MAX, UNDECIDED_PICKS_MAX};

/// See the module's page.
#[derive(Debug, Default)]
pub(super) struct Undecided {
    is_any: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    spans: BTreeMap<LaneId, Span>,
    /// What was picked later.
    given: HashSet<(LaneId, u64, ShareId), ahash::RandomState>,
    /// What [`knowings`](crate::interest::Interest::knowings) was when this was looked at last.
    seen: u64,
    /// What it was when all was gone through last.
    done: u64,
    pass: Option<Pass>,
    /// What an earlier life has picked late, by hash of topic and payload, and how often.
    served: HashMap<(u64, ShareId), usize, ahash::RandomState>,
    /// While no member is known at all: when what has been published so far need not be kept for those who come.
    alone_until: Option<Instant>,
}

/// Ids of one lane among which some are undecided.
#[derive(Debug)]
struct Span {
    from: u64,
    to: u64,
    /// What is published before it is over when [`State::alone_until`] is.
    alone_to: u64,
}

/// One time through all that is undecided.
#[derive(Debug)]
struct Pass {
    /// Everybody is known: nothing that is gone through stays undecided.
    is_last: bool,
    /// What is still to be gone through.
    left: Vec<(LaneId, u64, u64)>,
    /// What will have been.
    all: Vec<(LaneId, u64)>,
    /// Of each lane the topic of something undecided.
    topics: BTreeMap<LaneId, String>,
}

impl Undecided {
    /// Among the messages of our own log up to `sequence` are such.
    pub(super) fn note(&self, lane: LaneId, sequence: u64) {
        let mut state = self.state.lock();
        let begin = Lane::block_begin(sequence);
        let span = state.spans.entry(lane).or_insert(Span { from: begin, to: 0, alone_to: 0 });
        span.from = span.from.min(begin);
        span.to = span.to.max(sequence);
        self.is_any.store(true, Ordering::Release);
    }

    /// What a block of an earlier life, in the order of the log, leaves undecided.
    pub(super) fn restore(&self, lane: &Lane, block: &Block, hasher: &ahash::RandomState) {
        let Content::Messages(body) = &block.content else { return };
        for (sequence, entry) in Messages::new(block.first, body).flatten() {
            let Entry::Message(message) = entry else { continue };
            let picks = message.picks;
            if !picks.has(UNDECIDED) {
                continue;
            }
            if !picks.only {
                self.note(lane.id, sequence);
                continue;
            }
            let mut state = self.state.lock();
            let mut is_end = true;
            for pick in picks.chosen().filter(|pick| pick.share != UNDECIDED) {
                is_end = false;
                *state.served.entry((hash(hasher, &message), pick.share)).or_default() += 1;
            }
            if is_end {
                state.spans.remove(&lane.id);
            }
            self.is_any.store(!state.spans.is_empty(), Ordering::Release);
        }
    }
}

fn hash(hasher: &ahash::RandomState, message: &MeshMessage<'_>) -> u64 {
    hasher.hash_one((message.topic, message.payload))
}

impl State {
    /// Nobody is known who may have groups: what was published long before somebody comes is not owed to these.
    fn wait_alone(&mut self, now: Instant) {
        let until = *self.alone_until.get_or_insert(now + NEWCOMER_TIME);
        if until <= now {
            self.alone_until = Some(now + NEWCOMER_TIME);
            for span in self.spans.values_mut() {
                span.from = span.from.max(span.alone_to.saturating_add(1));
                span.alone_to = span.to;
            }
        }
    }

    /// Begins to go through what is undecided, if somebody has become known since the last time.
    fn begin(&mut self, knowings: u64, is_blind: bool) {
        // What was published meanwhile, without knowledge of it, is in the ring by the next time.
        let is_settled = std::mem::replace(&mut self.seen, knowings) == knowings;
        if self.pass.is_some() || !is_settled || (self.done == knowings && is_blind) {
            return;
        }
        self.done = knowings;
        let left = self.spans.iter().map(|(lane, span)| (*lane, span.from, span.to)).collect();
        let all = self.spans.iter().map(|(lane, span)| (*lane, span.to)).collect();
        self.pass = Some(Pass { is_last: !is_blind, left, all, topics: BTreeMap::new() });
    }

    /// All was gone through.
    fn end(&mut self, pass: Pass) {
        if pass.is_last {
            for (lane, to) in pass.all {
                if let Some(span) = self.spans.get_mut(&lane) {
                    span.from = span.from.max(to.saturating_add(1));
                }
            }
            self.spans.retain(|_, span| span.from <= span.to);
            self.given.clear();
            self.served.clear();
        }
    }
}

impl Replication {
    /// Whether something was published that may have to be picked later.
    #[must_use]
    pub fn awaits_undecided(&self) -> bool {
        self.undecided.is_any.load(Ordering::Acquire)
    }

    /// Picks for groups that have become known what was published before, by `deliver`: so much of it that others need not wait. Whether there is more. To be called
    /// once a second or so, and again soon where there is more.
    pub fn share_late(&self, now: Instant, deliver: &mut dyn Deliver) -> bool {
        if !self.awaits_undecided() {
            return false;
        }
        let (mut pass, mut given, mut served) = {
            let mut state = self.undecided.state.lock();
            let knowings = self.interest.knowings();
            if self.interest.members().0 == 0 {
                state.wait_alone(now);
                return false;
            }
            state.alone_until = None;
            state.begin(knowings, self.interest.is_blind());
            let Some(pass) = state.pass.take() else { return false };
            (pass, std::mem::take(&mut state.given), std::mem::take(&mut state.served))
        };
        let mut budget = UNDECIDED_MESSAGES_MAX;
        {
            // From the first delivery to the rings.
            let _shared = self.quiesce.enter(self.quiesce.shard());
            while let Some((id, from, to)) = pass.left.pop() {
                let Some(lane) = self.lane(id) else { continue };
                let next = lane.own_messages(from, to, now, &mut budget, |sequence, message| {
                    if message.picks.only || !message.picks.has(UNDECIDED) {
                        return;
                    }
                    pass.topics.entry(id).or_insert_with(|| message.topic.to_owned());
                    let mut is_new = |share| {
                        let one = (id, sequence, share);
                        let has_room = given.len() < UNDECIDED_PICKS_MAX;
                        if given.contains(&one) || (!pass.is_last && !has_room) {
                            return false;
                        }
                        let earlier =
                            if served.is_empty() { None } else { served.get_mut(&(hash(&self.topic_hash, message), share)) };
                        let is_served = earlier.is_some_and(|times| std::mem::replace(times, times.saturating_sub(1)) > 0);
                        if !pass.is_last || is_served {
                            given.insert(one);
                        }
                        !is_served
                    };
                    deliver.share_late(message, &mut is_new);
                });
                if let Some(next) = next {
                    pass.left.push((id, next, to));
                    break;
                }
            }
            if pass.is_last && pass.left.is_empty() {
                pass.topics.values().for_each(|topic| deliver.decided(topic));
            }
            deliver.flush();
        }
        let mut state = self.undecided.state.lock();
        (state.given, state.served) = (given, served);
        let is_more = !pass.left.is_empty();
        if is_more {
            state.pass = Some(pass);
        } else {
            state.end(pass);
        }
        self.undecided.is_any.store(!state.spans.is_empty(), Ordering::Release);
        is_more
    }
}
