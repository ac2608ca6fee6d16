//! What was picked for other brokers' members of share groups, as long as these have not dealt with it; and when it is picked again.
//!
//! Kept are numbers: for each broker, lane and QoS the last id that was picked for it. The messages are in our own ring.
//!
//! | what has happened to the broker | what is picked again |
//! |---|---|
//! | messages have not reached it for [`PICK_PATIENCE`] | QoS 1: it may come twice. QoS 2 waits for it in the logs |
//! | it has another log: it has lost what it had, its sessions too | all |
//! | it is no member any more | all; of QoS 2 that is counted |
//!
//! What nobody else can take stays picked as it was, and is tried again when share groups have changed. Of a message for several groups of which some are served, the others'
//! copies are given up, and counted. What our own ring no longer has cannot be picked again, and is not counted: a broker is a member for longer after its death than the ring
//! holds messages, so QoS 2 that it had not dealt with goes to others only as far as it was published since.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use super::block::Content;
use super::lane::Lane;
use super::ring::Read;
use super::sync::{AtomicBool, Mutex, Ordering};
use super::{Block, Deliver, MeshMessage, Replication};
use crate::codec::QoS;
use crate::frame::lane::{Entry, Messages};
use crate::ids::{BrokerId, LaneId, LogId};
use crate::interest::Interest;
use crate::limits::{PICK_PATIENCE, PICKS_UNPLACED_MAX, UNDECIDED_MESSAGES_MAX};

/// See the module's page.
#[derive(Debug, Default)]
pub(super) struct Picked {
    is_any: AtomicBool,
    books: Mutex<BTreeMap<BrokerId, Book>>,
}

/// Of one broker.
#[derive(Debug, Default)]
struct Book {
    /// Its log, as far as it is known.
    log: Option<LogId>,
    /// The one before, if what was picked for it while it had that is still to be picked again.
    lost_log: Option<LogId>,
    /// Since when messages have not reached it.
    gone_since: Option<Instant>,
    spans: BTreeMap<SpanKey, Span>,
    /// The generation of share groups at which it was tried last.
    tried_at: u64,
}

/// A lane, and whether it is QoS 2.
type SpanKey = (LaneId, bool);

/// Of one lane and QoS.
#[derive(Clone, Debug)]
struct Span {
    /// Nothing before this id counts.
    from: u64,
    /// The last id that was picked for it.
    to: u64,
    /// The last one that was while it had the log that it has lost.
    lost_to: u64,
    /// Up to here all was picked again, but for `unplaced`.
    again: u64,
    /// Where to go on; 0: from the beginning.
    next: u64,
    unplaced: BTreeSet<u64>,
}

impl Span {
    fn new() -> Self {
        Self { from: u64::MAX, to: 0, lost_to: 0, again: 0, next: 0, unplaced: BTreeSet::new() }
    }

    fn is_open(&self, dealt: u64) -> bool {
        self.to > dealt.max(self.again) || self.lost_to > self.again || self.unplaced.last().is_some_and(|last| *last > dealt)
    }
}

impl Book {
    /// What its log is.
    fn see(&mut self, log: Option<LogId>) {
        let Some(old) = log.and_then(|log| self.log.replace(log)).filter(|old| Some(*old) != log) else { return };
        self.lost_log = Some(old);
        self.spans.values_mut().for_each(|span| span.lost_to = span.to);
    }
}

/// Of each span: the id from which on it was not looked at for want of time; up to where it was to be; which ids nobody takes.
type Unplaced = BTreeMap<SpanKey, (Option<u64>, u64, BTreeSet<u64>)>;

/// Why something is picked again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cause {
    Gone,
    OtherLog,
    Left,
}

/// What is to be picked again of one span: up to where, and from behind which ids.
#[derive(Debug)]
struct Due {
    to: u64,
    dealt: u64,
    span: Span,
}

impl Due {
    fn begin(&self) -> u64 {
        let first = self.span.unplaced.first().copied().unwrap_or(u64::MAX);
        first.min(self.span.again.saturating_add(1)).max(self.dealt.saturating_add(1)).max(self.span.from).max(self.span.next)
    }

    fn has(&self, sequence: u64) -> bool {
        sequence > self.dealt
            && sequence >= self.span.from
            && (sequence > self.span.again || self.span.unplaced.contains(&sequence))
    }
}

impl Picked {
    /// Messages up to `sequence` of our own log were picked for these.
    pub(super) fn note(&self, lane: LaneId, sequence: u64, picked: &[(BrokerId, QoS)], interest: &Interest) {
        let mut books = self.books.lock();
        let own = interest.own_id();
        for (broker, qos) in picked.iter().filter(|(broker, qos)| *qos != QoS::AtMostOnce && *broker != own) {
            let book = books.entry(*broker).or_default();
            book.see(interest.standing(*broker).and_then(|standing| standing.log));
            let span = book.spans.entry((lane, *qos == QoS::ExactlyOnce)).or_insert_with(Span::new);
            span.from = span.from.min(Lane::block_begin(sequence));
            span.to = span.to.max(sequence);
        }
        self.is_any.store(!books.is_empty(), Ordering::Release);
    }

    /// Likewise, of a block of an earlier life, if the broker is one of `members`.
    pub(super) fn restore(&self, lane: LaneId, block: &Block, members: &[BrokerId], interest: &Interest) {
        let Content::Messages(body) = &block.content else { return };
        for (sequence, entry) in Messages::new(block.first, body).flatten() {
            let picks = entry.picks();
            let known = picks.chosen().filter(|pick| members.contains(&pick.broker));
            let picked: Vec<_> = known.map(|pick| (pick.broker, entry.qos())).collect();
            if !picked.is_empty() {
                self.note(lane, sequence, &picked, interest);
            }
        }
    }
}

impl Replication {
    /// Whether something was picked for another broker that may not have dealt with it.
    #[must_use]
    pub fn awaits_dealt(&self) -> bool {
        self.picked.is_any.load(Ordering::Acquire)
    }

    /// Picks again what was picked for brokers that will not deal with it, by `deliver`: so much of it that others need not wait. Whether there is more. To be called
    /// once a second or so, and again soon where there is more.
    pub fn pick_again(&self, now: Instant, deliver: &mut dyn Deliver) -> bool {
        if !self.awaits_dealt() {
            return false;
        }
        let mut budget = UNDECIDED_MESSAGES_MAX;
        for (broker, cause, due) in self.due(now) {
            // From the first delivery to the rings.
            let _shared = self.quiesce.enter(self.quiesce.shard());
            let (mut counts, mut unplaced, mut lost) = ([0_u64; 2], BTreeMap::new(), 0_u64);
            for (key, due) in due {
                let Some(lane) = self.lane(key.0) else { continue };
                let mut left = BTreeSet::new();
                let next = lane.own_messages(due.begin(), due.to, now, &mut budget, |sequence, message| {
                    let is_exactly_once = message.qos == QoS::ExactlyOnce;
                    if is_exactly_once != key.1 || !due.has(sequence) || !message.picks.name(broker) {
                        return;
                    }
                    let copies = message.picks.chosen().filter(|pick| pick.broker == broker).count() as u64;
                    let placed = deliver.pick_again(message, broker, cause == Cause::OtherLog) as u64;
                    if placed > 0 {
                        let [qos_1, qos_2] = &mut counts;
                        *if is_exactly_once { qos_2 } else { qos_1 } += 1;
                    }
                    // Of several groups those that nobody takes are given up where others were served: once more would be twice for these.
                    if placed == 0 && left.len() < PICKS_UNPLACED_MAX && cause != Cause::Left {
                        left.insert(sequence);
                    } else {
                        lost += copies.saturating_sub(placed);
                    }
                });
                unplaced.insert(key, (next, due.to, left));
            }
            // What is picked again is in the log before it is forgotten here.
            deliver.flush();
            self.settle(broker, cause, unplaced);
            let [qos_1, qos_2] = counts;
            self.counters.picks_again.add(qos_1 + qos_2);
            self.counters.picks_abandoned.add(qos_2);
            self.counters.picks_lost.add(lost);
            if qos_1 + qos_2 > 0 || lost > 0 {
                tracing::warn!(%broker, ?cause, qos_1, qos_2, lost, "messages of share groups go to others: the broker picked for them has not dealt with them");
            }
        }
        budget == 0
    }

    /// What is to be picked again now.
    fn due(&self, now: Instant) -> Vec<(BrokerId, Cause, BTreeMap<SpanKey, Due>)> {
        let (own, interest) = (self.own_log(), &self.interest);
        let generation = interest.generation();
        let mut due = Vec::new();
        let mut books = self.picked.books.lock();
        books.retain(|broker, book| {
            let standing = interest.standing(*broker);
            book.see(standing.and_then(|standing| standing.log));
            let dealt = |lane| interest.dealt_by(*broker, own, lane);
            book.spans.retain(|(lane, _), span| span.is_open(dealt(*lane)));
            if book.spans.is_empty() {
                return false;
            }
            if let Some(lost) = book.lost_log {
                let of_span = |(key, span): (&SpanKey, &Span)| {
                    let dealt = interest.dealt_while(*broker, lost, own, key.0);
                    (*key, Due { to: span.lost_to, dealt, span: span.clone() })
                };
                due.push((*broker, Cause::OtherLog, book.spans.iter().map(of_span).collect()));
                return true;
            }
            let cause = match standing {
                None => Cause::Left,
                Some(standing) if standing.is_reached => {
                    book.gone_since = None;
                    return true;
                }
                Some(_) => {
                    let since = *book.gone_since.get_or_insert(now);
                    // Nothing is known of how far it has dealt with anything before its register is.
                    if now.saturating_duration_since(since) < PICK_PATIENCE || book.log.is_none() {
                        return true;
                    }
                    Cause::Gone
                }
            };
            let is_concerned = |is_exactly_once: bool| cause == Cause::Left || !is_exactly_once;
            let has_news =
                book.spans.iter().any(|((_, qos_2), span)| is_concerned(*qos_2) && (span.to > span.again || span.next > 0));
            if has_news || book.tried_at != generation {
                book.tried_at = generation;
                let of_cause = |((_, qos_2), _): &(&SpanKey, &Span)| is_concerned(*qos_2);
                let of_span = |(key, span): (&SpanKey, &Span)| (*key, Due { to: span.to, dealt: dealt(key.0), span: span.clone() });
                due.push((*broker, cause, book.spans.iter().filter(of_cause).map(of_span).collect()));
            }
            true
        });
        self.picked.is_any.store(!books.is_empty(), Ordering::Release);
        due
    }

    /// What was due has been picked again, but for what nobody takes.
    fn settle(&self, broker: BrokerId, cause: Cause, unplaced: Unplaced) {
        let mut books = self.picked.books.lock();
        let Some(book) = books.get_mut(&broker) else { return };
        if cause == Cause::OtherLog && unplaced.values().all(|(next, ..)| next.is_none()) {
            book.lost_log = None;
        }
        for (key, (next, to, left)) in unplaced {
            let Some(span) = book.spans.get_mut(&key) else { continue };
            // Ids from here on were not looked at.
            let end = next.unwrap_or_else(|| to.saturating_add(1));
            let begin = span.next;
            span.next = next.unwrap_or(0);
            span.again = span.again.max(end.saturating_sub(1));
            span.unplaced.retain(|id| *id < begin || *id >= end);
            span.unplaced.extend(left);
            while span.unplaced.len() > PICKS_UNPLACED_MAX {
                self.counters.picks_lost.add(u64::from(span.unplaced.pop_first().is_some()));
            }
        }
    }
}

impl Lane {
    /// Calls `visit` for the messages of our own log that the ring has with these sequences, and that have not expired, until the `budget` (messages, or KiB) is used up:
    /// then gives where to go on.
    pub(super) fn own_messages(
        &self,
        from: u64,
        to: u64,
        now: Instant,
        budget: &mut usize,
        mut visit: impl FnMut(u64, &MeshMessage<'_>),
    ) -> Option<u64> {
        // Of an earlier life ids and positions are not one.
        let begin = self.own.position_of(from).unwrap_or_else(|| Self::position_of(from));
        for position in begin.max(self.ring.tail())..self.ring.next() {
            let Read::Block(block) = self.ring.read(position) else { continue };
            let Content::Messages(body) = &block.content else { continue };
            if !std::sync::Arc::ptr_eq(&block.stream, &self.own) || block.last < from {
                continue;
            }
            if block.first > to {
                return None;
            }
            if *budget == 0 {
                return Some(block.first.max(from));
            }
            *budget = budget.saturating_sub(body.len() / 1024);
            let age = Duration::from_millis(block.age_ms(now)).as_secs();
            for (sequence, entry) in
                Messages::new(block.first, body).flatten().filter(|(sequence, _)| (from..=to).contains(sequence))
            {
                let Entry::Message(mut message) = entry else { continue };
                match message.expiry_seconds {
                    Some(seconds) if u64::from(seconds) <= age => continue,
                    // In range: less than the u32 it is taken from.
                    seconds => message.expiry_seconds = seconds.map(|seconds| seconds - age as u32),
                }
                *budget = budget.saturating_sub(1);
                visit(sequence, &message);
            }
        }
        None
    }
}
