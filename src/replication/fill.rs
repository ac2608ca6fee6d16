//! What a port's far side needs and our ring no longer has, though others' may: asked for hop by hop, and streamed through.
//!
//! A broker whose ring holds less than its neighbours' cannot give one that was away all that it lacks. Instead of telling a gap it asks where the origin-lane comes
//! from (FILL), a bounded piece at a time; who is asked answers out of its ring (FILLED), and asks on for what that does not reach, at last the origin, which alone
//! says that ids are lost. What comes is for the far side alone: it enters no ring and no cover of ours. Meanwhile nothing of that origin-lane goes over the port
//! out of the ring, so that order holds; then the port's cursor goes through the ring once more.
//!
//! Invariants: a port waits for what came of [`FILLS_AT_ONCE`] ranges at most, of each [`FILL_BYTES`] and a block; what others ask for is bounded by [`FILLS_MAX`]. Where
//! nobody answers for [`FILL_PATIENCE`] it is a gap. A far side that is new to the mesh, or has never heard of the origin-lane, is told gaps as ever: it is owed
//! nothing from before.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;

use super::block::{Block, StreamKey};
use super::lane::Lane;
use crate::frame::lane::Filled;
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
#[derive(Debug, Default)]
pub(super) struct Fills {
    fills: BTreeMap<(StreamKey, Purpose), Fill>,
    /// What other ports are to be asked for: not while this one's sender is locked.
    pub(super) asks: Vec<Ask>,
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

/// The ids in `from + 1 ..= to` of one origin-lane.
#[derive(Debug)]
struct Fill {
    from: u64,
    to: u64,
    /// Bytes that are still to be given; what is lacked is given whole.
    bytes_left: u64,
    asked: Option<Asked>,
    came: VecDeque<Came>,
    came_bytes: usize,
}

#[derive(Debug)]
struct Asked {
    port: u64,
    attempts: usize,
    at: Instant,
    /// When something came last.
    since: Instant,
    /// More of the answer is to come.
    is_open: bool,
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
    /// The far side gets this out of our ring.
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
        *self = Self::default();
    }

    /// Whether the far side lacks a range of this origin-lane: then it gets nothing of it out of the ring.
    pub(super) fn holds(&self, key: StreamKey) -> bool {
        !self.fills.is_empty() && self.fills.contains_key(&(key, Purpose::Lacked))
    }

    /// The far side has everything up to `from`, and lacks what follows up to `to`.
    pub(super) fn lack(&mut self, key: StreamKey, from: u64, to: u64) {
        self.fills.entry((key, Purpose::Lacked)).or_insert_with(|| Fill::new(from, to, u64::MAX)).to = to;
    }

    /// The far side asks. It asks again if it gets no answer.
    pub(super) fn ask(&mut self, key: StreamKey, (from, to): (u64, u64), bytes_max: u64) {
        if self.fills.len() < FILLS_MAX || self.fills.contains_key(&(key, Purpose::Asked)) {
            self.fills.insert((key, Purpose::Asked), Fill::new(from, to, bytes_max.min(FILL_BYTES)));
        }
    }

    /// The port of that number has answered. Whether that was asked for.
    pub(super) fn take(&mut self, port: u64, key: StreamKey, filled: &Filled<'_>, now: Instant) -> bool {
        let purposes = [Purpose::Lacked, Purpose::Asked];
        let fills = purposes.map(|purpose| self.fills.get_mut(&(key, purpose)).is_some_and(|fill| fill.take(port, filled, now)));
        fills.contains(&true)
    }

    /// The next step that can be taken for the port of that number.
    pub(super) fn next(&mut self, lane: &Lane, port: u64, now: Instant) -> Option<Next> {
        let mut asked = self.fills.values().filter(|fill| fill.asked.is_some()).count();
        let (mut found, asks) = (None, &mut self.asks);
        for ((key, purpose), fill) in &mut self.fills {
            let (from, was_asked) = (fill.from, fill.asked.is_some());
            let may_ask = was_asked || asked < FILLS_AT_ONCE;
            found = fill.step(lane, (*key, *purpose), port, may_ask, now, asks).map(|step| Next {
                key: *key,
                purpose: *purpose,
                from,
                is_last: fill.is_over(),
                step,
            });
            if found.is_some() {
                break;
            }
            asked += usize::from(!was_asked && fill.asked.is_some());
        }
        if let Some(Next { key, purpose, step: Step::Over(_), .. }) = &found {
            self.fills.remove(&(*key, *purpose));
        }
        found
    }
}

impl Fill {
    fn new(from: u64, to: u64, bytes_left: u64) -> Self {
        Self { from, to, bytes_left, asked: None, came: VecDeque::new(), came_bytes: 0 }
    }

    fn is_over(&self) -> bool {
        self.from >= self.to || self.bytes_left == 0
    }

    fn take(&mut self, port: u64, filled: &Filled<'_>, now: Instant) -> bool {
        let end = self.came.back().map_or(self.from, |came| came.to);
        let Some(asked) = self.asked.as_mut().filter(|asked| asked.port == port && asked.is_open) else { return false };
        let block = &filled.block;
        if block.prev > end || filled.to <= end || self.came_bytes as u64 >= FILL_BYTES {
            return false;
        }
        (asked.at, asked.since, asked.is_open) = (now, now, !filled.is_last);
        if filled.is_last {
            asked.attempts = 0;
        }
        let body = Bytes::copy_from_slice(block.body);
        self.came_bytes += body.len();
        self.came.push_back(Came { to: filled.to, first: block.first, hops: block.hops, age_ms: block.age_ms, at: now, body });
        true
    }

    fn give(&mut self, to: u64, bytes: usize) {
        self.from = self.from.max(to);
        self.bytes_left = self.bytes_left.saturating_sub(bytes as u64);
    }

    fn step(
        &mut self,
        lane: &Lane,
        (key, purpose): (StreamKey, Purpose),
        port: u64,
        may_ask: bool,
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
        let block = lane.next_block(&stream, self.from);
        // Whatever the ring gives up is below the floor by then.
        let floor = stream.floor().min(self.to);
        if floor <= self.from {
            self.asked = None;
            let Some(block) = block else { return Some(Step::Over(self.from)) };
            self.give(block.last, block.messages().len());
            return Some(Step::Block(block));
        }
        if Arc::ptr_eq(&stream, &lane.own) {
            self.give(floor, 0);
            return Some(Step::Lost(floor));
        }
        if !may_ask {
            return None;
        }
        let asked = self.asked.get_or_insert(Asked { port: 0, attempts: 0, at: now, since: now, is_open: false });
        if now.saturating_duration_since(asked.since) >= FILL_PATIENCE {
            self.asked = None;
            if purpose == Purpose::Asked {
                return Some(Step::Over(self.from));
            }
            self.give(floor, 0);
            return Some(Step::Lost(floor));
        }
        if asked.is_open && now.saturating_duration_since(asked.at) < PULL_REPEAT {
            return None;
        }
        (asked.at, asked.is_open) = (now, true);
        asked.port = lane.whom_to_ask(&stream, port, asked.attempts).unwrap_or(0);
        asked.attempts += 1;
        let bytes_max = self.bytes_left.min(FILL_BYTES);
        asks.push(Ask { port: asked.port, key, from: self.from, to: floor, bytes_max });
        None
    }
}
