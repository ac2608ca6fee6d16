//! What a port's far side needs and our ring no longer has, though others' may: asked for hop by hop, and streamed through.
//!
//! A broker whose ring holds less than its neighbours' cannot give one that was away all that it lacks. Instead of telling a gap it asks where the origin-lane comes
//! from (FILL), a bounded piece at a time; who is asked answers with what it still has (FILLED), and asks on for what that does not reach, at last the origin, which alone
//! says that ids are lost. What comes is for the far side alone: it enters no ring and no cover of ours. Meanwhile the port's cursor passes over that origin-lane, so
//! that order holds; what it passed is given from the ring behind what was fetched, until the cursor is reached.
//!
//! Who has it most likely is asked first: who answered last, else where the origin-lane comes from. Where that is late others are asked as well, ever more of them, and whoever
//! answers first is heard, however late. Only the origin says that something is lost; whoever is asked and finds nobody who has it says nothing.
//!
//! Invariants: a port asks for [`FILLS_AT_ONCE`] ranges at once, each in its turn, besides those that nobody has answered for long; of what came it keeps as many times
//! [`FILL_BYTES`], and a block, in all. What others ask for is bounded by [`FILLS_MAX`]. An answer says nothing of what the asker has itself: such is refused. What
//! would be too old to be sent is not asked for; what nobody answers for as long as subscribers here wait for messages is a gap, and sooner where its broker has left, or
//! has lost that log, and everybody else is in reach. A far side that is new to the mesh is told gaps as ever of what it has not begun with: it is owed nothing from before.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::block::{Block, Content, StreamKey};
use super::counters::Counters;
use super::former::After;
use super::lane::Lane;
use crate::frame::lane::Filled;
use crate::ids::{BrokerId, LogId};
use crate::interest::Interest;
use crate::limits::{FILL_BYTES, FILL_PATIENCE, FILLS_AT_ONCE, FILLS_MAX, PULL_REPEAT};

/// For whom a range is filled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Purpose {
    /// The far side lacks it.
    Lacked,
    /// The far side asks for it, for somebody behind it.
    Asked,
}

/// The ranges that one port's lane is to be given.
#[derive(Debug)]
pub(super) struct Fills {
    fills: BTreeMap<(StreamKey, Purpose), Fill>,
    /// The last for which others were asked: the next in turn is behind it.
    asked_last: (StreamKey, Purpose),
    /// What other ports are to be asked for: not while this one's sender is locked.
    pub(super) asks: Vec<Ask>,
    /// How long the far side waits for what it lacks.
    patience: Duration,
}

impl Default for Fills {
    fn default() -> Self {
        let first = ((BrokerId(0), LogId(0)), Purpose::Lacked);
        Self { fills: BTreeMap::new(), asked_last: first, asks: Vec::new(), patience: FILL_PATIENCE }
    }
}

/// Where a port stands, and what its fills hold to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place<'a> {
    /// The port's number.
    pub(super) port: u64,
    /// The position that its cursor reads next: what is there goes the usual way.
    pub(super) reached: u64,
    /// What is older is not sent.
    pub(super) age_ms_max: u64,
    /// Knows whose logs nobody brings any more.
    pub(super) interest: &'a Interest,
}

/// A question to the port of that number.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ask {
    pub(super) port: u64,
    pub(super) key: StreamKey,
    pub(super) from: u64,
    pub(super) to: u64,
    pub(super) bytes_max: u64,
}

/// The ids above `from` of one origin-lane.
#[derive(Debug)]
struct Fill {
    /// Where it began.
    begin: u64,
    from: u64,
    /// The last that is asked for. What is lacked ends where the port's cursor stands.
    to: u64,
    /// Bytes that are still to be given; what is lacked is given whole.
    bytes_left: u64,
    asked: Option<Asked>,
    came: VecDeque<Came>,
    came_bytes: usize,
}

#[derive(Debug)]
struct Asked {
    /// Who was.
    ports: Vec<u64>,
    /// Who answered last; 0: nobody.
    answered: u64,
    /// Without an answer.
    attempts: usize,
    at: Instant,
    /// When something came last.
    since: Instant,
    /// More of the answer is to come.
    is_open: bool,
    /// No answer says anything of ids above.
    limit: u64,
}

impl Asked {
    /// Nobody answers: others are not kept waiting for that.
    fn is_stale(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.since) >= FILL_PATIENCE
    }

    /// It was asked a moment ago.
    fn is_fresh(&self, now: Instant) -> bool {
        self.is_open && now.saturating_duration_since(self.at) < PULL_REPEAT
    }
}

/// Who of `count` is asked at this attempt, after the first: each time the first, for its answer may have been lost, and twice as many others, until all were; then
/// one other in turn.
pub(super) fn who_is_asked(attempt: usize, count: usize) -> impl Iterator<Item = usize> {
    let others = match attempt.checked_sub(1).map(|doublings| u32::try_from(doublings).ok().and_then(|d| 1_usize.checked_shl(d))) {
        None => 0..0,
        Some(Some(begin)) if begin < count => begin..count.min(2 * begin),
        Some(_) if count > 1 => {
            let other = 1 + attempt % (count - 1);
            other..other + 1
        }
        Some(_) => 0..0,
    };
    (0..count.min(1)).chain(others)
}

/// A part of an answer. Without a body: these ids are lost to everybody.
#[derive(Debug)]
pub(super) struct Came {
    pub(super) to: u64,
    pub(super) first: u64,
    pub(super) hops: u8,
    pub(super) age_ms: u64,
    pub(super) at: Instant,
    pub(super) body: Bytes,
}

/// What is to be done next.
#[derive(Debug)]
pub(super) enum Step {
    /// The far side gets this, which is here still: in our ring, or beside it ([`super::former`]).
    Block(Arc<Block>),
    /// Or what came for it.
    Came(Came),
    /// Or is told that it gets nothing up to this id.
    Lost(u64),
    /// It has everything up to this id. The range is forgotten.
    Over(u64),
}

/// One step of one range.
#[derive(Debug)]
pub(super) struct Next {
    pub(super) key: StreamKey,
    pub(super) purpose: Purpose,
    /// The far side has everything up to here, before this step.
    pub(super) from: u64,
    /// The answer ends with this step.
    pub(super) is_last: bool,
    pub(super) step: Step,
}

impl Fills {
    pub(super) fn is_empty(&self) -> bool {
        self.fills.is_empty()
    }

    pub(super) fn clear(&mut self) {
        self.fills.clear();
        self.asks.clear();
    }

    /// From now on the far side waits so long for what nobody has.
    pub(super) fn set_patience(&mut self, patience: Duration) {
        self.patience = patience;
    }

    /// Whether the far side lacks a range of this origin-lane: then it gets nothing of it out of the ring.
    pub(super) fn holds(&self, key: StreamKey) -> bool {
        !self.fills.is_empty() && self.fills.contains_key(&(key, Purpose::Lacked))
    }

    /// The far side has everything up to `from`, and lacks what follows.
    pub(super) fn lack(&mut self, key: StreamKey, from: u64) {
        self.fills.entry((key, Purpose::Lacked)).or_insert_with(|| Fill::new(from, u64::MAX, u64::MAX));
    }

    /// The far side has everything up to `known`, from elsewhere.
    pub(super) fn has(&mut self, key: StreamKey, known: u64) {
        if let Some(fill) = self.fills.get_mut(&(key, Purpose::Lacked)) {
            fill.from = fill.from.max(known);
        }
    }

    /// The far side asks. It asks again if it gets no answer; what others are being asked for is not asked for anew.
    pub(super) fn ask(&mut self, key: StreamKey, (from, to): (u64, u64), bytes_max: u64) {
        let known = self.fills.get(&(key, Purpose::Asked));
        // Some of the answer may be on its way already.
        let is_repeat = known.is_some_and(|fill| (fill.begin, fill.to) == (from, to));
        let has_room = || self.fills.keys().filter(|(_, purpose)| *purpose == Purpose::Asked).count() < FILLS_MAX;
        if !is_repeat && (known.is_some() || has_room()) {
            self.fills.insert((key, Purpose::Asked), Fill::new(from, to, bytes_max.min(FILL_BYTES)));
        }
    }

    /// The port of that number has answered. Whether that was asked for.
    pub(super) fn take(&mut self, port: u64, key: StreamKey, filled: &Filled<'_>, now: Instant, counters: &Counters) -> bool {
        // Of many that were asked long ago all may answer at once. What has no room is asked for again.
        if self.fills.values().map(|fill| fill.came_bytes as u64).sum::<u64>() >= FILLS_AT_ONCE as u64 * FILL_BYTES {
            return false;
        }
        let purposes = [Purpose::Lacked, Purpose::Asked];
        let mut take = |purpose| self.fills.get_mut(&(key, purpose)).is_some_and(|fill| fill.take(port, filled, now, counters));
        purposes.map(&mut take).contains(&true)
    }

    /// The next step that can be taken.
    pub(super) fn next(&mut self, lane: &Lane, place: Place<'_>, now: Instant) -> Option<Next> {
        let mut busy = self.fills.values().filter(|fill| fill.is_busy(now)).count();
        let turn = self.asked_last;
        let behind = (Bound::Excluded(turn), Bound::Unbounded);
        let (mut found, asks, patience) = (None, &mut self.asks, self.patience);
        'all: for range in [behind, (Bound::Unbounded, Bound::Included(turn))] {
            for ((key, purpose), fill) in self.fills.range_mut(range) {
                let (from, was_busy) = (fill.from, fill.is_busy(now));
                let patience = if *purpose == Purpose::Lacked { patience } else { FILL_PATIENCE };
                let may_ask = was_busy || busy < FILLS_AT_ONCE;
                let step = fill.step(lane, (*key, *purpose), place, (patience, may_ask), now, asks);
                if let Some(step) = step {
                    found = Some(Next { key: *key, purpose: *purpose, from, is_last: fill.is_over(), step });
                    break 'all;
                }
                if !was_busy && fill.is_busy(now) {
                    (busy, self.asked_last) = (busy + 1, (*key, *purpose));
                }
            }
        }
        if let Some(Next { key, purpose, step: Step::Over(_), .. }) = &found {
            self.fills.remove(&(*key, *purpose));
        }
        found
    }
}

impl Fill {
    fn new(from: u64, to: u64, bytes_left: u64) -> Self {
        Self { begin: from, from, to, bytes_left, asked: None, came: VecDeque::new(), came_bytes: 0 }
    }

    fn is_over(&self) -> bool {
        self.from >= self.to || self.bytes_left == 0
    }

    /// Others wait while it is asked for. Not where nobody answers, but for a moment each time.
    fn is_busy(&self, now: Instant) -> bool {
        self.asked.as_ref().is_some_and(|asked| !asked.is_stale(now) || asked.is_fresh(now))
    }

    fn take(&mut self, port: u64, filled: &Filled<'_>, now: Instant, counters: &Counters) -> bool {
        let end = self.came.back().map_or(self.from, |came| came.to);
        let Some(asked) = self.asked.as_mut().filter(|asked| asked.ports.contains(&port) && asked.is_open) else { return false };
        // Somebody else was faster.
        if filled.to <= end {
            return false;
        }
        let block = &filled.block;
        // What goes on to the far side follows what that has: it closes a link on which that is not so.
        let is_in_front = !block.body.is_empty() && block.first <= end;
        if filled.to > asked.limit || is_in_front {
            counters.fills_refused.add(1);
            return false;
        }
        if block.prev > end || self.came_bytes as u64 >= FILL_BYTES {
            return false;
        }
        (asked.at, asked.since, asked.is_open) = (now, now, !filled.is_last);
        // Who breaks off is late already.
        (asked.answered, asked.attempts) = (port, usize::from(!filled.is_last));
        let body = Bytes::copy_from_slice(block.body);
        self.came_bytes += body.len();
        self.came.push_back(Came { to: filled.to, first: block.first, hops: block.hops, age_ms: block.age_ms, at: now, body });
        true
    }

    fn give(&mut self, to: u64, bytes: usize) {
        self.from = self.from.max(to);
        self.bytes_left = self.bytes_left.saturating_sub(bytes as u64);
    }

    /// `patience`: how long it is asked for, where it may be by now.
    fn step(
        &mut self,
        lane: &Lane,
        (key, purpose): (StreamKey, Purpose),
        place: Place<'_>,
        (patience, may_ask): (Duration, bool),
        now: Instant,
        asks: &mut Vec<Ask>,
    ) -> Option<Step> {
        if self.is_over() {
            return Some(Step::Over(self.from));
        }
        if let Some(came) = self.came.pop_front() {
            self.came_bytes -= came.body.len();
            self.asked.iter_mut().for_each(|asked| asked.since = now);
            self.give(came.to, came.body.len());
            return Some(Step::Came(came));
        }
        let Some(stream) = lane.known_stream(&key) else { return Some(Step::Over(self.from)) };
        let is_own = Arc::ptr_eq(&stream, &lane.own);
        let block = lane.next_block(&stream, self.from);
        // Whatever the ring gives up is below the floor by then.
        let (mut floor, mut age_ms) = (stream.floor(), stream.floor_age_ms(now));
        // What was lost on its way here others may have.
        let lost = block.as_ref().filter(|block| !is_own && matches!(block.content, Content::Lost));
        if let Some(lost) = lost {
            (floor, age_ms) = (floor.max(lost.last), lost.age_ms(now));
        }
        floor = floor.min(self.to);
        if floor <= self.from {
            self.asked = None;
            let is_due = |block: &Arc<Block>| purpose == Purpose::Asked || block.position < place.reached;
            let Some(block) = block.filter(is_due) else { return Some(Step::Over(self.from)) };
            self.give(block.last, block.messages().len());
            return Some(Step::Block(block));
        }
        if is_own {
            match lane.former_after(self.from) {
                After::Block(block) if block.first <= floor => {
                    self.give(block.last, block.messages().len());
                    return Some(Step::Block(block));
                }
                After::Lost(to) => floor = floor.min(to),
                After::Block(_) | After::Nothing => {}
            }
        }
        if is_own || (purpose == Purpose::Lacked && age_ms > place.age_ms_max) {
            self.asked = None;
            self.give(floor, 0);
            return Some(Step::Lost(floor));
        }
        // Elsewhere it was waited for before, or everybody who may have it is in reach.
        let is_short = lost.is_some() || place.interest.is_past(key.0, key.1);
        let patience = if is_short { patience.min(FILL_PATIENCE) } else { patience };
        if self.asked.as_ref().is_some_and(|asked| now.saturating_duration_since(asked.since) >= patience) {
            self.asked = None;
            if purpose == Purpose::Asked {
                return Some(Step::Over(self.from));
            }
            self.give(floor, 0);
            return Some(Step::Lost(floor));
        }
        if !may_ask {
            return None;
        }
        let new = || Asked { ports: Vec::new(), answered: 0, attempts: 0, at: now, since: now, is_open: false, limit: 0 };
        let asked = self.asked.get_or_insert_with(new);
        let pause = if asked.is_stale(now) { FILL_PATIENCE } else { PULL_REPEAT };
        if asked.is_open && now.saturating_duration_since(asked.at) < pause {
            return None;
        }
        (asked.at, asked.is_open) = (now, true);
        asked.limit = lane.next_block(&stream, floor).map_or(stream.cover(), |next| next.first.saturating_sub(1)).max(floor);
        let open = lane.whom_to_ask(&stream, place.port, asked.answered);
        asked.ports.retain(|port| open.contains(port));
        let bytes_max = self.bytes_left.min(FILL_BYTES);
        for port in who_is_asked(asked.attempts, open.len()).filter_map(|place| open.get(place).copied()) {
            if !asked.ports.contains(&port) {
                asked.ports.push(port);
            }
            asks.push(Ask { port, key, from: self.from, to: floor, bytes_max });
        }
        asked.attempts += 1;
        None
    }
}
