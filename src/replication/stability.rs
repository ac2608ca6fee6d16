//! How far brokers have dealt with each other's logs: what is told to those who ask, and what others have told of ours.
//!
//! A broker has **dealt with** an id when all of its subscribers whom the message is for have been given it, and that is on its disk where there is one. Told is
//! one number a lane, its cover less what waits for payloads; and only after the journal has taken in all that was written down before it.
//!
//! It is not: how the word travels (`interest` and the registers), nor who waits for it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::task::{Context, Poll};

use super::Replication;
use super::gate::Gate;
use super::lane::Lane;
use super::sync::{AtomicBool, AtomicU64, Mutex, Ordering};
use crate::ids::{BrokerId, LaneId, LogId, OriginLane};
use crate::interest::Asked;
use crate::session::Change;

/// See the module's page.
#[derive(Debug, Default)]
pub(super) struct Stability {
    told: Mutex<Dealt>,
    /// For each lane, how far all other members have dealt with our log.
    ours: Box<[AtomicU64]>,
    /// Likewise, the last id that this broker's clients have published.
    published: Box<[AtomicU64]>,
    /// Those who wait for that.
    gate: Gate,
    is_awaited: AtomicBool,
    /// This broker is to leave: it wants to know, without anybody waiting for it.
    is_leaving: AtomicBool,
}

/// What is told to others.
#[derive(Debug, Default)]
struct Dealt {
    told: BTreeMap<OriginLane, u64>,
    /// Not yet safe: up to change number so and so.
    pending: Option<(u64, Vec<(OriginLane, u64)>)>,
}

impl Stability {
    pub(super) fn new(lanes: usize) -> Self {
        let of_lanes = || (0..lanes).map(|_| AtomicU64::new(0)).collect();
        Self { ours: of_lanes(), published: of_lanes(), ..Self::default() }
    }

    /// Local clients have published this, and maybe more.
    pub(super) fn published(&self, lane: LaneId, last: u64) {
        if let Some(known) = self.published.get(lane.index()) {
            known.fetch_max(last, Ordering::AcqRel);
        }
    }
}

/// Ids of this broker's own log, each with its lane.
pub type Published = Vec<(LaneId, u64)>;

/// A task that waits until all members have dealt with something of this broker's log.
#[derive(Debug)]
pub struct StableWaiter {
    replication: Arc<Replication>,
    number: u64,
}

impl StableWaiter {
    /// Ready once all members have dealt with these; until then the task is woken when that may be so.
    pub fn poll(&self, published: &[(LaneId, u64)], context: &mut Context<'_>) -> Poll<()> {
        let replication = &self.replication;
        let is_stable = || published.iter().all(|(lane, sequence)| replication.stable(*lane) >= *sequence);
        if is_stable() {
            return Poll::Ready(());
        }
        replication.stability.gate.wait(self.number, context.waker());
        if is_stable() { Poll::Ready(()) } else { Poll::Pending }
    }
}

impl Drop for StableWaiter {
    fn drop(&mut self) {
        self.replication.stability.gate.leave(self.number);
    }
}

impl Replication {
    /// From now on what local clients publish at QoS 1 and 2 is acknowledged when all members of the mesh have dealt with it.
    pub fn acknowledge_in_mesh(&self) {
        for lane in self.lanes.iter().filter(|lane| lane.reliable) {
            self.stability.published(lane.id, lane.last_published().unwrap_or(0));
        }
        self.stability.is_awaited.store(true, Ordering::Release);
        self.dealt_progress();
    }

    /// Whether that is so.
    #[must_use]
    pub fn acknowledges_in_mesh(&self) -> bool {
        self.stability.is_awaited.load(Ordering::Acquire)
    }

    /// Whether this broker is to leave the mesh: others are asked how far they have dealt with its log.
    pub fn set_leaving(&self, is_leaving: bool) {
        self.stability.is_leaving.store(is_leaving, Ordering::Release);
    }

    /// Whether others are to say at once how far they have dealt with this broker's log.
    #[must_use]
    pub fn asks_urgently(&self) -> bool {
        self.acknowledges_in_mesh() || self.stability.is_leaving.load(Ordering::Acquire)
    }

    /// Members that have not dealt with all that this broker's log has: [`Interest::behind`](crate::interest::Interest::behind). Looks through the rings: not for each message.
    #[must_use]
    pub fn behind(&self) -> Vec<BrokerId> {
        let reliable = self.lanes.iter().filter(|lane| lane.reliable);
        let lanes: Vec<_> = reliable.filter_map(|lane| Some((lane.id, lane.last_published()?))).collect();
        self.interest.behind(self.own_log(), &lanes)
    }

    /// The last ids of this broker's log, each with its lane, where others are waited for: whoever repeats a message does not know which it was.
    #[must_use]
    pub fn published_so_far(&self) -> Published {
        let lanes = self.lanes.iter().zip(&self.stability.published);
        lanes.map(|(lane, last)| (lane.id, last.load(Ordering::Acquire))).filter(|(_, last)| *last > 0).collect()
    }

    /// This broker's log of QoS 1 and 2.
    #[must_use]
    pub fn own_log(&self) -> LogId {
        self.lanes.iter().rfind(|lane| lane.reliable).map_or(self.config.log, |lane| lane.own.key().1)
    }

    /// What is to be told of the logs of those who ask, of each lane that which is news. To be called a few times a second, as long as somebody asks: on a broker with a
    /// disk what is found the first time is told when it is safe.
    #[must_use]
    pub fn dealt(&self, asked: &[Asked]) -> Vec<(OriginLane, u64)> {
        let mut dealt = self.stability.told.lock();
        let journal = self.lanes.iter().find_map(|lane| lane.log.as_ref()).map(|log| log.journal());
        let mut news = Vec::new();
        match (dealt.pending.take(), journal) {
            (Some(pending), Some(journal)) if pending.0 > journal.committed() => {
                dealt.pending = Some(pending);
                return news;
            }
            (pending, _) => news.extend(pending.into_iter().flat_map(|(_, news)| news)),
        }
        dealt.told.retain(|stream, _| asked.iter().any(|one| (one.origin, one.log) == (stream.origin, stream.log)));
        dealt.told.extend(news.iter().copied());
        let mut found = Vec::new();
        let mut number = 0;
        for lane in self.lanes.iter().filter(|lane| lane.reliable) {
            // What is written down of a lane's sessions and covers is in one order, and the covers come last.
            let _receiving = lane.log.as_ref().map(|_| lane.receiving.lock());
            for (stream, sequence) in lane.dealt(asked) {
                if dealt.told.get(&stream).is_some_and(|told| *told >= sequence) {
                    continue;
                }
                found.push((stream, sequence));
                number = journal.map_or(0, |journal| journal.push(Change::Cover(stream, sequence)));
            }
        }
        if let Some(journal) = journal.filter(|_| !found.is_empty()) {
            journal.kick();
            dealt.pending = Some((number, found));
        } else {
            dealt.told.extend(found.iter().copied());
            news.extend(found);
        }
        news
    }

    /// How far all other members have dealt with our log in this lane.
    pub(super) fn stable(&self, lane: LaneId) -> u64 {
        self.stability.ours.get(lane.index()).map_or(u64::MAX, |stable| stable.load(Ordering::Acquire))
    }

    /// Members have come or gone, or have told something: those who wait for it look again.
    pub fn dealt_progress(&self) {
        if !self.acknowledges_in_mesh() {
            return;
        }
        let log = self.own_log();
        let mut has_grown = false;
        for (lane, stable) in self.lanes.iter().zip(&self.stability.ours).filter(|(lane, _)| lane.reliable) {
            let dealt = self.interest.dealt_by_all(log, lane.id);
            has_grown |= stable.swap(dealt, Ordering::AcqRel) < dealt;
        }
        if has_grown {
            self.stability.gate.progress(|| false);
        }
    }

    /// For one task that waits until all members have dealt with something.
    #[must_use]
    pub fn stable_waiter(self: &Arc<Self>) -> StableWaiter {
        StableWaiter { replication: Arc::clone(self), number: self.stability.gate.number() }
    }
}

impl Lane {
    /// How far this broker has dealt with these logs.
    fn dealt(&self, asked: &[Asked]) -> impl Iterator<Item = (OriginLane, u64)> {
        let others = asked.iter().filter(|one| (one.origin, one.log) != self.own.key());
        let streams = others
            .filter_map(|one| self.known_stream(&(one.origin, one.log)).filter(|stream| one.is_urgent || stream.has_picked_us()));
        streams
            .map(|stream| (stream.id(), stream.dealt_with().max(stream.delivered_of(stream.cover()))))
            .filter(|(_, sequence)| *sequence > 0)
    }
}
