//! One log, many cursors: how a message that is published at one broker comes to all others, once each.
//!
//! Every lane has a [ring] of blocks. Local publishers append to it ([`LocalBatch`], [`Replication::publish`]); so does whoever
//! receives blocks over a link ([`LaneReceiver`]). Each tree port follows every ring with a cursor of its own ([`PortLane`]), from
//! which its lane writer is fed. A slow or dead link is a cursor that lags; it slows no local subscriber, and other links only where
//! QoS 1 and 2 would otherwise be lost: publishers wait for their acknowledgements ([`Replication::lagging`]), what comes from other
//! brokers is consumed later ([`PortLane::poll_others`]). What makes this correct is one number an origin-lane, its **cover**: every id up to it is known here, so a block at or below it is
//! dropped, and one above it is new. Trees, ports and links may change as they like.
//!
//! With a disk the broker's own log of QoS 1 and 2 outlives it ([`own`]), and so does how far it has come in the logs of others. A broker that was killed goes on
//! in its log, gives its neighbours what they lack of it, takes theirs from the beginning, because somebody behind it may lack it, and delivers what its
//! sessions have not had. Blocks of others are not written down: those who are alive have them.
//!
//! This module does not decide which ports carry data (`stp` does) and moves no bytes between brokers (`mesh` does); it knows no
//! session (`router` gets messages through [`Deliver`]).
//!
//! # Invariants
//! - A block is appended only above its origin-lane's cover, under that origin-lane's lock, and local subscribers get it under the same
//!   lock: nothing is appended or delivered twice, and order within an origin-lane holds everywhere.
//! - An edge carries data only between two OPENs of one number, and nothing after a CLOSE. A sender starts at the covers in the other
//!   side's OPEN.
//! - QoS 1 and 2: what the ring no longer reaches is asked for of others ([`fill`]); what nobody has is told to the neighbour as a gap, and counted at both ends.
//!   QoS 0: ids have holes.
//! - What a port brought, or was sent, is not sent to it.
//! - Everything that a peer makes us remember is bounded by `limits`.
//!
//! Lock order: a port lane's sender > the table of origin-lanes > an origin-lane > a subscriber. Publishing takes none of the first
//! three.
//!
//! Specification: `ARCHITECTURE.md`, "Replication".

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use thiserror::Error;

mod answer;
mod batch;
mod block;
mod counters;
mod cut;
mod fill;
mod former;
mod gate;
mod lane;
mod own;
mod picked;
mod port;
mod pull;
mod quiesce;
mod receiver;
mod ring;
mod stability;
mod sync;
#[cfg(test)]
mod tests;
mod travel;
mod undecided;
mod wake;
mod want;

pub use batch::{Followed, LocalBatch};
pub use counters::Counters;
pub use cut::{Cover, Covers};
pub use port::{LaneBatch, Port, PortLane};
pub use quiesce::Quiesce;
pub use receiver::{LaneEvent, LaneReceiver};
pub use stability::{Published, StableWaiter};

pub use crate::frame::lane::MeshMessage;
pub use crate::frame::picks::{Pick, PickList, Picks, UNDECIDED};

use crate::codec::{DecodeError, QoS};
use crate::frame::FrameError;
use crate::ids::{BrokerId, LaneId, LogId, MessageId, OriginLane, PortId, ShareId};
use crate::interest::{Interest, Mode, Rules};
use crate::limits::LANES_MAX;
use crate::session::{Change, Journal, LogHead, Logged, RestoredLog, Writes};
use block::Block;
use gate::Gate;
use lane::Lane;
use own::OwnLog;
use picked::Picked;
use ring::{Read, Ring};
use stability::Stability;
use undecided::Undecided;

/// Rings of QoS 0 only bridge what a link needs to breathe or the tree to re-form; they are this much smaller.
const QOS_0_SHARE: usize = 8;

/// What the replication needs to know.
#[derive(Clone, Copy, Debug)]
pub struct ReplicationConfig {
    /// This broker.
    pub origin: BrokerId,
    /// Its log: random, new at every start. Of QoS 1 and 2 only where it does not go on in an old one.
    pub log: LogId,
    /// Lanes of each of the two QoS classes, 1 to [`LANES_MAX`]; the same in the whole mesh.
    pub lanes_per_class: u8,
    /// Blocks that a lane's ring holds at most.
    pub ring_blocks: usize,
    /// Bytes that the rings of QoS 1 and 2 hold at most, together; those of QoS 0 hold an eighth of it on top.
    pub ring_bytes: usize,
    /// Nothing older is sent, and older blocks are trimmed.
    pub ring_age: Duration,
    /// Whether publishers and other links wait for a living link that lags; else the oldest blocks go, counted.
    pub slows_publishers: bool,
    /// A block goes over at most this many links.
    pub hop_max: u8,
    /// The largest message that a peer may send: topic, properties and payload.
    pub message_bytes_max: usize,
}

impl ReplicationConfig {
    fn in_bounds(self) -> Self {
        Self { lanes_per_class: self.lanes_per_class.clamp(1, LANES_MAX), ..self }
    }

    /// Numbers of the lanes of QoS 1 and 2.
    fn reliable_lanes(&self) -> Range<u8> {
        self.lanes_per_class..2 * self.lanes_per_class
    }

    /// An empty lane whose ring begins at position `first`.
    fn lane(&self, lane: LaneId, log: LogId, first: u64, now: Instant) -> Lane {
        let reliable = self.reliable_lanes().contains(&lane.0);
        let class_bytes = if reliable { self.ring_bytes } else { self.ring_bytes / QOS_0_SHARE };
        let ring = Ring::new(self.ring_blocks, class_bytes / usize::from(self.lanes_per_class), first);
        Lane::new(OriginLane { origin: self.origin, log, lane }, reliable, ring, now)
    }
}

/// Where what comes over links is delivered to local subscribers. One for each lane reader.
pub trait Deliver {
    /// Takes one message; called under the origin-lane's lock, in order.
    fn deliver(&mut self, message: &MeshMessage<'_>, id: MessageId);
    /// Likewise one that was published while this broker was down: it is owed to the sessions that it had then, and to nobody else.
    fn catch_up(&mut self, message: &MeshMessage<'_>, id: MessageId) {
        self.deliver(message, id);
    }
    /// Whether a message of this topic, with these picks, would be for somebody here: then it is asked for, if it has not come. Called likewise.
    fn wants(&mut self, topic: &str, picks: Picks<'_>) -> bool {
        let _ = (topic, picks);
        true
    }
    /// A message of this broker's own that was picked for `broker` is to be picked again: for another, or, if it `may_be_same`, for that too. Whether anybody takes
    /// it: for how many groups.
    fn pick_again(&mut self, message: &MeshMessage<'_>, broker: BrokerId, may_be_same: bool) -> usize {
        let _ = (message, broker, may_be_same);
        0
    }
    /// A message of this broker's own was published while share groups were not known: it is to be picked for those that it does not name and that `is_new` says
    /// have not been given it.
    fn share_late(&mut self, message: &MeshMessage<'_>, is_new: &mut dyn FnMut(ShareId) -> bool) {
        let _ = (message, is_new);
    }
    /// All that this broker has published in the lane of this topic has been picked for whom it is: that is to be written there, for a later life.
    fn decided(&mut self, topic: &str) {
        let _ = topic;
    }
    /// Of `stream` everything up to `cover` has been delivered that is to be. Called once for many messages, before [`flush`](Self::flush), and only where the
    /// broker's log is on disk. Who writes nothing down has nothing to do.
    fn covered(&mut self, stream: OriginLane, cover: u64) {
        let _ = (stream, cover);
    }
    /// The batch is over: wake those who were given something.
    fn flush(&mut self);
}

/// Why a link is closed for what came on one of its lanes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum LaneError {
    /// Not the lane format.
    #[error("malformed lane frame: {0}")]
    Frame(#[from] FrameError),
    /// A block or gap before any OPEN of this link.
    #[error("data on a lane that was never opened")]
    NeverOpened,
    /// An alias that the stream has not introduced.
    #[error("alias {0} names no origin")]
    UnknownAlias(u16),
    /// A block without a message.
    #[error("a block without messages")]
    EmptyBlock,
    /// A QoS 1 or 2 block that leaves out ids that this broker does not have.
    #[error("origin {origin} goes on after {prev}, known is {cover}")]
    Hole {
        /// The origin.
        origin: BrokerId,
        /// Where the peer goes on.
        prev: u64,
        /// Up to where we know it.
        cover: u64,
    },
    /// A message on a lane of the other QoS class.
    #[error("QoS {0:?} on a lane of the other class")]
    WrongClass(QoS),
    /// Properties that no subscriber may be given.
    #[error("a message whose properties are malformed: {0}")]
    Properties(#[from] DecodeError),
    /// COVERS without an OPEN that announced them.
    #[error("covers that belong to no OPEN")]
    StrayCovers,
    /// An answer that answers nothing.
    #[error("a stub among payloads")]
    StubAsPayload,
    /// An answer that has messages of which it does not speak.
    #[error("messages {first} to {last} in an answer of {from} to {to}")]
    OutsideRange {
        /// The first message's sequence.
        first: u64,
        /// The last one's.
        last: u64,
        /// The answer speaks of what is above.
        from: u64,
        /// Up to here.
        to: u64,
    },
    /// More covers than a mesh can have origins.
    #[error("more than {0} covers in one OPEN")]
    TooManyCovers(usize),
    /// More origins than a mesh can have, and none silent long enough to be forgotten.
    #[error("more origins than this broker remembers")]
    TooManyOrigins,
}

/// The replication of one broker: its rings and what it knows of everybody's.
pub struct Replication {
    config: ReplicationConfig,
    /// First those of QoS 0, then those of QoS 1 and 2.
    lanes: Box<[Lane]>,
    gate: Gate,
    counters: Counters,
    picked: Picked,
    undecided: Undecided,
    stability: Stability,
    topic_hash: ahash::RandomState,
    interest: Arc<Interest>,
    quiesce: Arc<Quiesce>,
}

/// A task that waits until the replication is not [lagging](Replication::lagging).
#[derive(Debug)]
pub struct Waiter {
    replication: Arc<Replication>,
    number: u64,
}

impl Waiter {
    /// Ready once the replication does not lag; until then the task is woken when that may be so.
    pub fn poll(&self, context: &mut Context<'_>) -> Poll<()> {
        if !self.replication.lagging() {
            return Poll::Ready(());
        }
        self.replication.gate.wait(self.number, context.waker());
        if self.replication.lagging() { Poll::Pending } else { Poll::Ready(()) }
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        self.replication.gate.leave(self.number);
    }
}

impl fmt::Debug for Replication {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Replication").field("config", &self.config).finish_non_exhaustive()
    }
}

impl Replication {
    /// As [`with_interest`](Self::with_interest), with everything going everywhere.
    #[must_use]
    pub fn new(config: ReplicationConfig, now: Instant) -> Arc<Self> {
        let interest = Interest::new(config.origin, Rules::new(Mode::Full, []));
        Self::with_interest(config, Arc::new(interest), now)
    }

    /// Empty rings. From `now` on this broker is new to the mesh, until it has taken over a neighbour's covers or
    /// [`NEWCOMER_TIME`](crate::limits::NEWCOMER_TIME) is over. `interest` says what other brokers want.
    #[must_use]
    pub fn with_interest(config: ReplicationConfig, interest: Arc<Interest>, now: Instant) -> Arc<Self> {
        let config = config.in_bounds();
        let lanes = (0..2 * config.lanes_per_class).map(|id| config.lane(LaneId(id), config.log, 1, now)).collect();
        Self::of(config, lanes, interest)
    }

    /// The same for a broker with a disk: of QoS 1 and 2 its log is written to `journal`, and goes on where `restored` ends, if that is the log of a broker with
    /// as many lanes. What this broker knew of the logs of others it goes on from as well: see the module's page.
    #[must_use]
    pub fn durable(
        config: ReplicationConfig,
        interest: Arc<Interest>,
        journal: &Arc<Journal>,
        restored: RestoredLog,
        now: Instant,
    ) -> Arc<Self> {
        let config = config.in_bounds();
        let RestoredLog { heads, blocks, covers, positions_in_doubt, members } = restored;
        let of_lanes = config.reliable_lanes();
        let old = heads.first().map(|head| head.log).filter(|log| {
            heads.iter().all(|head| head.log == *log) && heads.iter().map(|head| head.lane).eq(of_lanes.clone().map(LaneId))
        });
        if old.is_none() {
            for head in &heads {
                journal.push(Change::LogGone(head.lane));
            }
        }
        let mut heads: BTreeMap<LaneId, LogHead> =
            heads.into_iter().filter(|_| old.is_some()).map(|head| (head.lane, head)).collect();
        let mut held: BTreeMap<LaneId, Vec<Logged>> = BTreeMap::new();
        blocks.into_iter().for_each(|block| held.entry(block.lane).or_default().push(block));
        let lane = |id: u8| {
            let id = LaneId(id);
            if !of_lanes.contains(&id.0) {
                return config.lane(id, config.log, 1, now);
            }
            let Some(head) = heads.remove(&id) else {
                let mut lane = config.lane(id, config.log, 1, now);
                let head = LogHead { lane: id, log: config.log, born: Some(now), reserved: 1, floor: 0 };
                lane.begin_log(OwnLog::new(journal, head));
                return lane;
            };
            let head = LogHead { reserved: head.reserved.saturating_add(positions_in_doubt), ..head };
            let mut lane = config.lane(id, head.log, head.reserved, now);
            lane.resume_log(OwnLog::new(journal, head), &head, held.remove(&id).unwrap_or_default(), now);
            lane
        };
        let lanes: Box<[Lane]> = (0..2 * config.lanes_per_class).map(lane).collect();
        for (stream, cover) in covers {
            if let Some(lane) = lanes.get(stream.lane.index()).filter(|lane| lane.reliable) {
                lane.restore_cover((stream.origin, stream.log), cover, now);
            }
        }
        journal.kick();
        let replication = Self::of(config, lanes, interest);
        replication.restore_picks(&members);
        replication
    }

    fn of(config: ReplicationConfig, lanes: Box<[Lane]>, interest: Arc<Interest>) -> Arc<Self> {
        let topic_hash = ahash::RandomState::with_seeds(1, 2, 3, 4);
        let stability = Stability::new(lanes.len());
        let (gate, counters, picked) = (Gate::default(), Counters::default(), Picked::default());
        let undecided = Undecided::default();
        Arc::new(Self {
            config,
            lanes,
            gate,
            counters,
            picked,
            undecided,
            stability,
            topic_hash,
            interest,
            quiesce: Arc::default(),
        })
    }

    /// The log of an earlier life says what was picked for whom.
    fn restore_picks(&self, members: &[BrokerId]) {
        for lane in self.lanes.iter().filter(|lane| lane.reliable) {
            for position in lane.ring.tail()..lane.ring.next() {
                if let Read::Block(block) = lane.ring.read(position) {
                    self.picked.restore(lane.id, &block, members, &self.interest);
                    self.undecided.restore(lane, &block, &self.topic_hash);
                }
            }
        }
    }

    /// Whether what local clients publish at QoS 1 and 2 is written down before it is acknowledged.
    #[must_use]
    pub fn is_durable(&self) -> bool {
        self.lanes.iter().any(|lane| lane.log.is_some())
    }

    /// Lanes of both classes together.
    #[must_use]
    pub fn lanes(&self) -> u8 {
        2 * self.config.lanes_per_class
    }

    /// A moment in which sessions and rings say the same.
    #[must_use]
    pub fn quiesce(&self) -> &Quiesce {
        &self.quiesce
    }

    /// What other brokers want.
    #[must_use]
    pub fn interest(&self) -> &Arc<Interest> {
        &self.interest
    }

    /// What is counted.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// The log that this broker's messages of QoS 0 are numbered in.
    #[must_use]
    pub fn log(&self) -> LogId {
        self.config.log
    }

    /// Another broker has said in which log its messages of QoS 0 are numbered now. What others of its logs still bring is of an earlier life, and is dropped: it would
    /// come out of order [MQTT-4.6.0]. What it published at QoS 1 and 2 is owed, however late.
    pub fn log_begun(&self, origin: BrokerId, log: LogId) {
        self.lanes.iter().filter(|lane| !lane.reliable).for_each(|lane| lane.log_begun(origin, log));
    }

    /// The lane of a local publish: messages of one topic and QoS class share a lane, and so keep their order [MQTT-4.6.0].
    #[must_use]
    pub fn lane_for(&self, topic: &str, qos: QoS) -> LaneId {
        let lanes = self.config.lanes_per_class;
        // Below `lanes`, which is a u8.
        let lane = (self.topic_hash.hash_one(topic) % u64::from(lanes)) as u8;
        LaneId(if qos == QoS::AtMostOnce { lane } else { lanes + lane })
    }

    /// Moves the batch into the rings and wakes the lane writers that sleep, each once. Afterwards a QoS 1 or 2 message may be
    /// acknowledged, unless the replication is [`lagging`](Self::lagging). What is to be safe before that goes to `writes`.
    pub fn publish(&self, batch: &mut LocalBatch, writes: &mut Writes, now: Instant) {
        let is_awaited = self.acknowledges_in_mesh();
        let mut published = std::mem::take(&mut batch.published);
        for (place, builder) in batch.builders() {
            builder.seal();
            let Some(lane) = self.lanes.get(place).filter(|_| !builder.full.is_empty()) else { continue };
            for sealed in builder.full.drain(..) {
                self.counters.messages_published.add(sealed.count as u64);
                let mut sealed = sealed;
                let picked = std::mem::take(&mut sealed.picked);
                let last = lane.publish(sealed, writes, now);
                if !picked.is_empty() {
                    self.picked.note(lane.id, last, &picked, &self.interest);
                    if lane.reliable && picked.iter().any(|(broker, _)| *broker == self.config.origin) {
                        self.undecided.note(lane.id, last);
                    }
                }
                if is_awaited && lane.reliable {
                    self.stability.published(lane.id, last);
                    match published.iter_mut().find(|(id, _)| *id == lane.id) {
                        Some((_, known)) => *known = last,
                        None => published.push((lane.id, last)),
                    }
                }
            }
            lane.wake();
        }
        batch.published = published;
    }

    /// Whether a live cursor of a QoS 1 or 2 lane lags by half its ring: then acknowledgements to local publishers wait.
    #[must_use]
    pub fn lagging(&self) -> bool {
        self.config.slows_publishers && self.lanes.iter().any(|lane| lane.reliable && lane.lags())
    }

    /// For one task that waits until the replication is not [`lagging`](Self::lagging).
    #[must_use]
    pub fn waiter(self: &Arc<Self>) -> Waiter {
        Waiter { replication: Arc::clone(self), number: self.gate.number() }
    }

    /// A link came up: its cursors, all closed.
    #[must_use]
    pub fn add_port(self: &Arc<Self>, id: PortId) -> Arc<Port> {
        Arc::new(Port::new(id, self))
    }

    /// Forgets blocks that are too old. To be called once a second or so; what is sent obeys the age anyway.
    pub fn trim(&self, now: Instant) {
        let age_ms_max = self.ring_age_ms();
        self.lanes.iter().for_each(|lane| lane.trim(age_ms_max, now));
    }

    /// Asks neighbours once more for all messages that are waited for here, and gives up those that were waited for in vain for longer than
    /// `patience`: what waits behind them goes to `deliver`. To be called once in [`PULL_REPEAT`](crate::limits::PULL_REPEAT).
    pub fn repeat_pulls(&self, patience: Duration, now: Instant, deliver: &mut dyn Deliver) {
        let _shared = self.quiesce.enter(0);
        self.lanes.iter().filter(|lane| lane.reliable).for_each(|lane| lane.repeat_pulls(patience, now, deliver, &self.counters));
    }

    /// Bytes that all rings hold.
    #[must_use]
    pub fn ring_bytes(&self) -> u64 {
        self.lanes.iter().map(|lane| lane.ring.held_bytes()).sum()
    }

    fn lane(&self, id: LaneId) -> Option<&Lane> {
        self.lanes.get(id.index())
    }

    fn ring_age_ms(&self) -> u64 {
        u64::try_from(self.config.ring_age.as_millis()).unwrap_or(u64::MAX)
    }

    /// Silence after which an origin-lane may be forgotten: nobody sends anything of it any more.
    fn silence(&self) -> Duration {
        2 * self.config.ring_age
    }

    /// A cursor went on or went away.
    fn progress(&self) {
        self.gate.progress(|| self.lagging());
    }
}
