//! A block, and the origin-lane that it belongs to.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::own::Safe;
use super::pull::Held;
use super::ring::Entry;
use super::sync::{AtomicBool, AtomicU64, Mutex, Ordering};
use crate::ids::{BrokerId, LogId, OriginLane};
use bytes::Bytes;

/// What a block takes up besides its messages, for the ring's bound in bytes: its own fields and two allocations.
const BLOCK_OVERHEAD_BYTES: usize = 160;

/// An origin-lane without its lane, which is the ring's.
pub(super) type StreamKey = (BrokerId, LogId);

/// What this broker knows of one origin-lane.
#[derive(Debug)]
pub(super) struct Stream {
    id: OriginLane,
    /// Every id up to here is known. Written under `turn`; of our own origin-lane, not at all: there the ring's position says it.
    cover: AtomicU64,
    /// Nothing up to here is promised to be in the ring.
    floor: AtomicU64,
    /// When the newest of that was published, in milliseconds from `known_since` on.
    floor_ms: AtomicU64,
    known_since: Instant,
    /// The cover that this broker joined at: what it never gets of the ids up to here is no loss to it.
    joined_at: AtomicU64,
    /// Ids up to here were dealt with in an earlier life of this broker: they are passed on to whoever lacks them, and not delivered again.
    dealt_with: u64,
    /// Local subscribers have been given something of it.
    delivered: AtomicBool,
    /// The origin-lane's lock: held from the check of the cover to the last local delivery, so that order holds whichever port a
    /// block comes from. Says when the cover was last raised.
    pub(super) turn: Mutex<Instant>,
    /// Local delivery, where it waits for payloads. Changed under `turn`.
    pub(super) held: Mutex<Option<Box<Held>>>,
    /// The first sequence that is not delivered; 0: nothing is held.
    held_from: AtomicU64,
    /// The last id and the position of each of its blocks that the ring may have. Of our own, of those of an earlier life only: of others the position
    /// follows from the id.
    index: Mutex<VecDeque<(u64, u64)>>,
    /// The number of the port that brought the newest block.
    upstream: AtomicU64,
    /// Its broker has begun another log of this class since.
    outlived: AtomicBool,
    /// Something of it was picked for this broker, or may have been in an earlier life.
    picks_us: AtomicBool,
}

impl Stream {
    /// An origin-lane known up to `cover`, of which the ring holds nothing yet.
    pub(super) fn new(id: OriginLane, cover: u64, now: Instant) -> Self {
        let (cover, floor, joined_at) = (AtomicU64::new(cover), AtomicU64::new(cover), AtomicU64::new(0));
        Self {
            id,
            cover,
            floor,
            floor_ms: AtomicU64::new(0),
            known_since: now,
            joined_at,
            dealt_with: 0,
            delivered: AtomicBool::new(false),
            turn: Mutex::new(now),
            held: Mutex::default(),
            held_from: AtomicU64::new(0),
            index: Mutex::default(),
            upstream: AtomicU64::new(0),
            outlived: AtomicBool::new(false),
            picks_us: AtomicBool::new(false),
        }
    }

    /// An origin-lane of which this broker, in an earlier life, dealt with the ids up to `dealt_with`. Its ring holds nothing of it.
    pub(super) fn restored(id: OriginLane, dealt_with: u64, now: Instant) -> Self {
        Self { dealt_with, delivered: AtomicBool::new(true), picks_us: AtomicBool::new(true), ..Self::new(id, 0, now) }
    }

    pub(super) fn id(&self) -> OriginLane {
        self.id
    }

    pub(super) fn dealt_with(&self) -> u64 {
        self.dealt_with
    }

    /// Likewise, of our own origin-lane: what an earlier life has trimmed.
    pub(super) fn raise_floor(&self, floor: u64) {
        self.floor.fetch_max(floor, Ordering::AcqRel);
    }

    pub(super) fn key(&self) -> StreamKey {
        (self.id.origin, self.id.log)
    }

    pub(super) fn cover(&self) -> u64 {
        self.cover.load(Ordering::Acquire)
    }

    /// To be called under `turn`.
    pub(super) fn set_cover(&self, cover: u64) {
        self.cover.store(cover, Ordering::Release);
    }

    pub(super) fn floor(&self) -> u64 {
        self.floor.load(Ordering::Acquire)
    }

    /// Milliseconds since the newest of what the ring no longer has was published; less where that is longer ago than anything is known of it.
    pub(super) fn floor_age_ms(&self, now: Instant) -> u64 {
        millis(now.saturating_duration_since(self.known_since)).saturating_sub(self.floor_ms.load(Ordering::Acquire))
    }

    pub(super) fn joined_at(&self) -> u64 {
        self.joined_at.load(Ordering::Acquire)
    }

    pub(super) fn is_delivered(&self) -> bool {
        self.delivered.load(Ordering::Relaxed)
    }

    /// From now on whatever is new is delivered: it was published later. To be called under `turn`, as [`is_delivered`](Self::is_delivered).
    pub(super) fn set_delivered(&self) {
        self.delivered.store(true, Ordering::Relaxed);
    }

    /// What of the ids up to `cover` is delivered, or was not for anybody here: what comes behind a message that is waited for is not.
    pub(super) fn delivered_of(&self, cover: u64) -> u64 {
        match self.held_from.load(Ordering::Acquire) {
            0 => cover,
            held_from => cover.min(held_from - 1),
        }
    }

    pub(super) fn is_holding(&self) -> bool {
        self.held_from.load(Ordering::Acquire) > 0
    }

    /// To be called under `turn`.
    pub(super) fn set_held_from(&self, sequence: Option<u64>) {
        self.held_from.store(sequence.unwrap_or(0), Ordering::Release);
    }

    /// A block came from the port of this number and is about to be at this position. What the ring has before `tail` is forgotten. To be called under `turn`.
    pub(super) fn appended(&self, (last, position): (u64, u64), upstream: u64, tail: u64) {
        self.upstream.store(upstream, Ordering::Relaxed);
        self.placed((last, position), tail);
    }

    /// Likewise, of what a block only says that it is lost.
    pub(super) fn placed(&self, (last, position): (u64, u64), tail: u64) {
        let mut index = self.index.lock();
        while index.front().is_some_and(|(_, position)| *position < tail) {
            index.pop_front();
        }
        index.push_back((last, position));
    }

    /// Forgets where its blocks are that the ring no longer has: who has fallen silent keeps nothing. To be called now and then.
    pub(super) fn trim_index(&self, tail: u64) {
        let mut index = self.index.lock();
        let gone = index.partition_point(|(_, position)| *position < tail);
        index.drain(..gone);
        // What grows and shrinks all the time is left as it is.
        if index.capacity() > 4 * index.len() {
            index.shrink_to_fit();
        }
    }

    /// Where the block is that may have this sequence.
    pub(super) fn position_of(&self, sequence: u64) -> Option<u64> {
        let index = self.index.lock();
        let place = index.partition_point(|(last, _)| *last < sequence);
        index.get(place).map(|(_, position)| *position)
    }

    /// Whether this broker's dealing with it is of interest to its origin.
    pub(super) fn has_picked_us(&self) -> bool {
        self.picks_us.load(Ordering::Relaxed)
    }

    pub(super) fn set_picks_us(&self) {
        self.picks_us.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_outlived(&self) -> bool {
        self.outlived.load(Ordering::Relaxed)
    }

    pub(super) fn set_outlived(&self, outlived: bool) {
        self.outlived.store(outlived, Ordering::Relaxed);
    }

    pub(super) fn upstream(&self) -> u64 {
        self.upstream.load(Ordering::Relaxed)
    }

    /// To be called under `turn`.
    pub(super) fn join_at(&self, cover: u64) {
        self.joined_at.fetch_max(cover, Ordering::AcqRel);
    }
}

/// Some messages of one origin-lane, encoded, immutable, shared by all cursors.
#[derive(Debug)]
pub(super) struct Block {
    pub(super) stream: Arc<Stream>,
    /// In this broker's ring.
    pub(super) position: u64,
    /// The first message's sequence.
    pub(super) first: u64,
    /// The last one's.
    pub(super) last: u64,
    /// Links passed so far; 0 at the origin.
    pub(super) hops: u8,
    /// Milliseconds spent in other brokers and, as far as that is known, on the way between them ([`super::travel`]).
    pub(super) age_ms: u64,
    pub(super) appended_at: Instant,
    /// When others may see it.
    pub(super) safe: Safe,
    pub(super) content: Content,
}

pub(super) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[derive(Debug)]
pub(super) enum Content {
    /// As on the wire: [`crate::frame::lane::Messages`].
    Messages(Bytes),
    /// The ids up to the block's last are lost to this broker, and so to everybody who hears it from us.
    Lost,
}

impl Block {
    /// Its messages; none if they are lost.
    pub(super) fn messages(&self) -> &[u8] {
        if let Content::Messages(body) = &self.content { body } else { &[] }
    }

    /// Milliseconds since the origin published it, as far as they are known.
    pub(super) fn age_ms(&self, now: Instant) -> u64 {
        self.age_ms.saturating_add(millis(now.saturating_duration_since(self.appended_at)))
    }
}

impl Entry for Block {
    fn position(&self) -> u64 {
        self.position
    }

    fn bytes(&self) -> usize {
        BLOCK_OVERHEAD_BYTES
            + match &self.content {
                Content::Messages(body) => body.len(),
                Content::Lost => 0,
            }
    }

    fn retire(&self) {
        let stream = &self.stream;
        let published_ms = millis(self.appended_at.saturating_duration_since(stream.known_since)).saturating_sub(self.age_ms);
        stream.floor_ms.fetch_max(published_ms, Ordering::AcqRel);
        stream.raise_floor(self.last);
    }
}
