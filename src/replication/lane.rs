//! One lane of this broker: its ring, what is known of its origin-lanes, and the cursors that follow it.

use std::collections::{BTreeMap, VecDeque};
use std::ops::RangeBounds;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use bytes::Bytes;
use parking_lot::RwLock;

use super::LaneError;
use super::batch::Sealed;
use super::block::{Block, Content, Stream, StreamKey};
use super::counters::Counters;
use super::former::{After, Former};
use super::gate::Gate;
use super::own::{OwnLog, Safe};
use super::pull::Pulls;
use super::ring::{Read, Ring};
use super::sync::{AtomicBool, AtomicU64, Mutex, Ordering};
use super::wake::{Sleeper, wake_all};
use crate::frame::lane::Cover;
use crate::ids::{BrokerId, LaneId, LogId, MessageId, OriginLane};
use crate::limits::{BLOCK_MESSAGES_MAX, LOGS_PER_ORIGIN_MAX, NEWCOMER_TIME, OWN_POSITIONS_FORESEEN_MAX, STREAMS_PER_LANE_MAX};
use crate::session::{Change, LogHead, Logged, Writes};

/// Bits of a sequence that say which message of its block it is.
const INDEX_BITS: u32 = BLOCK_MESSAGES_MAX.ilog2();

/// Where one tree port stands in one ring. Written by the port's lane writer, read by publishers.
#[derive(Debug, Default)]
pub(super) struct Cursor {
    /// The position that is read next.
    position: AtomicU64,
    /// Bytes of all blocks ever published below it.
    passed_bytes: AtomicU64,
    /// Whether somebody is to be served: the acknowledgement gate counts it.
    live: AtomicBool,
    pub(super) sleeper: Sleeper,
}

impl Cursor {
    pub(super) fn position(&self) -> u64 {
        self.position.load(Ordering::Acquire)
    }

    /// A block of `bytes` has been dealt with.
    pub(super) fn pass(&self, bytes: usize) {
        // Only the writer stores.
        self.passed_bytes.store(self.passed_bytes.load(Ordering::Relaxed) + bytes as u64, Ordering::Relaxed);
        self.position.store(self.position.load(Ordering::Relaxed) + 1, Ordering::Release);
    }

    /// Everything is dealt with: what concurrent producers made imprecise is set right.
    pub(super) fn caught_up(&self, ring: &Ring<Block>) {
        let appended = ring.appended_bytes();
        if self.position() == ring.next() {
            self.passed_bytes.store(appended, Ordering::Relaxed);
        }
    }

    /// To the oldest block that is there.
    pub(super) fn rewind(&self, ring: &Ring<Block>) {
        self.passed_bytes.store(ring.trimmed_bytes(), Ordering::Relaxed);
        self.position.store(ring.tail(), Ordering::Release);
    }

    pub(super) fn is_live(&self) -> bool {
        self.live.load(Ordering::Acquire)
    }

    pub(super) fn set_live(&self, live: bool) {
        self.live.store(live, Ordering::Release);
    }

    /// Whether so many quarters of the ring lie before it.
    fn lags(&self, ring: &Ring<Block>, quarters: u64) -> bool {
        let bytes = ring.appended_bytes().saturating_sub(self.passed_bytes.load(Ordering::Relaxed));
        self.live.load(Ordering::Acquire)
            && (ring.next().saturating_sub(self.position()) > ring.slots() / 4 * quarters
                || bytes > ring.bytes_max() / 4 * quarters)
    }
}

#[derive(Debug)]
pub(super) struct Lane {
    pub(super) id: LaneId,
    /// QoS 1 and 2: what is lost on the way is told and counted. QoS 0: ids have holes, and that is all.
    pub(super) reliable: bool,
    pub(super) ring: Ring<Block>,
    /// What this broker's own clients publish.
    pub(super) own: Arc<Stream>,
    /// The last id that was given out of it; 0: none yet.
    pub(super) own_last: AtomicU64,
    /// All others, by origin and log.
    streams: RwLock<BTreeMap<StreamKey, Arc<Stream>>>,
    /// Replaced when a port comes or goes, read by every publish.
    cursors: ArcSwap<Vec<Arc<Cursor>>>,
    started_at: Instant,
    /// What is older was never owed to this broker; none: it is older than any clock tells.
    born_at: Option<Instant>,
    /// Our own log on disk, where there is one.
    pub(super) log: Option<OwnLog>,
    /// Our own of an earlier life.
    former: Mutex<Former>,
    /// Where there is: held from a receiver's first append to the end of what it delivers, so that what is written down of the sessions and of the covers is
    /// in one order. One thread reads all links: nobody waits for it.
    pub(super) receiving: Mutex<()>,
    /// This broker goes on in an old log: what was published while it was down is owed to its sessions.
    resumed: bool,
    /// Lane readers that wait for other ports' cursors.
    pub(super) transit: Gate,
    pub(super) pulls: Pulls,
    /// It has taken over a neighbour's covers.
    settled: AtomicBool,
}

/// A block as it came over a link, checked.
#[derive(Debug)]
pub(super) struct Arrived<'a> {
    pub(super) stream: &'a Arc<Stream>,
    pub(super) first: u64,
    pub(super) last: u64,
    pub(super) hops: u8,
    pub(super) age_ms: u64,
    pub(super) body: &'a [u8],
    /// The number of the port that it came from.
    pub(super) from: u64,
}

impl Lane {
    pub(super) fn new(own: OriginLane, reliable: bool, ring: Ring<Block>, now: Instant) -> Self {
        Self {
            id: own.lane,
            reliable,
            ring,
            own: Arc::new(Stream::new(own, 0, now)),
            own_last: AtomicU64::new(0),
            streams: RwLock::default(),
            cursors: ArcSwap::default(),
            started_at: now,
            born_at: Some(now),
            log: None,
            former: Mutex::default(),
            receiving: Mutex::new(()),
            resumed: false,
            transit: Gate::default(),
            pulls: Pulls::default(),
            settled: AtomicBool::new(false),
        }
    }

    /// From now on what local clients publish is written down in `log`.
    pub(super) fn begin_log(&mut self, log: OwnLog) {
        self.log = Some(log);
    }

    /// Likewise, in the log of an earlier life: `blocks` are what is left of it.
    pub(super) fn resume_log(&mut self, log: OwnLog, head: &LogHead, blocks: Vec<Logged>, now: Instant) {
        self.own.raise_floor(head.floor);
        self.own_last.fetch_max(head.floor, Ordering::AcqRel);
        let mut former = VecDeque::with_capacity(blocks.len());
        for Logged { first, last, published, body, .. } in blocks {
            let age_ms = u64::try_from(now.saturating_duration_since(published).as_millis()).unwrap_or(u64::MAX);
            let (stream, position) = (Arc::clone(&self.own), self.ring.claim());
            let content = Content::Messages(body);
            log.claimed(position);
            self.own_last.fetch_max(last, Ordering::AcqRel);
            let block = Block { stream, position, first, last, hops: 0, age_ms, appended_at: now, safe: Safe::Now, content };
            former.push_back(Arc::new(block));
            former.back().into_iter().for_each(|block| self.ring.publish(Arc::clone(block)));
            self.own.appended((last, position), 0, self.ring.tail());
        }
        *self.former.lock() = Former::new(head.floor, former, &self.ring);
        (self.log, self.born_at, self.resumed) = (Some(log), head.born, true);
    }

    /// Of an origin-lane of another broker the ids up to `cover` were dealt with in an earlier life. What was not is owed to this broker's sessions.
    pub(super) fn restore_cover(&self, key: StreamKey, cover: u64, now: Instant) {
        let mut streams = self.streams.write();
        if key != self.own.key() && streams.len() < STREAMS_PER_LANE_MAX {
            let id = OriginLane { origin: key.0, log: key.1, lane: self.id };
            streams.insert(key, Arc::new(Stream::restored(id, cover, now)));
        }
    }

    /// Whether this broker is still new to the mesh: it has taken over nobody's covers and has not been alone for long. Who goes on in an old log is not:
    /// it knows what it is owed, and what it has is from before the start of whoever is new.
    pub(super) fn is_new(&self, now: Instant) -> bool {
        !self.resumed && !self.settled.load(Ordering::Acquire) && now < self.started_at + NEWCOMER_TIME
    }

    /// Whether what is `age_ms` old was published before this broker's log began: then it is owed to none of its subscribers. Brokers that
    /// are all new have everything of QoS 1 and 2 of each other, whoever was first; of QoS 0 nothing, as one that was restarted in that time would
    /// give its subscribers once more what they had of its former life.
    pub(super) fn is_from_before(&self, age_ms: u64, now: Instant) -> bool {
        (!self.reliable || !self.is_new(now)) && self.born_at.is_some_and(|born_at| is_older(age_ms, born_at, now))
    }

    /// Whether `stream` is what this broker said at QoS 0 in an earlier life: whoever is here now was not there, or has had it, however long it took on its way.
    pub(super) fn is_former(&self, stream: &Stream) -> bool {
        !self.reliable && stream.key().0 == self.own.key().0
    }

    /// Whether what is `age_ms` old was published while this broker was down: then it is owed to the sessions that it had, and to no others.
    pub(super) fn is_from_absence(&self, age_ms: u64, now: Instant) -> bool {
        self.resumed && is_older(age_ms, self.started_at, now)
    }

    /// Whether a gap of `stream` up to `to` is no loss to this broker's subscribers.
    pub(super) fn is_owed_nothing(&self, stream: &Stream, to: u64, now: Instant) -> bool {
        to <= stream.joined_at().max(stream.dealt_with()) || self.is_new(now)
    }

    /// Whether a live cursor lags by half the ring.
    pub(super) fn lags(&self) -> bool {
        self.cursors.load().iter().any(|cursor| cursor.lags(&self.ring, 2))
    }

    /// Whether a live cursor other than `own` lags by three quarters of the ring: later than publishers here wait for their
    /// acknowledgements, and before anything is lost.
    pub(super) fn others_lag(&self, own: &Arc<Cursor>) -> bool {
        self.cursors.load().iter().any(|cursor| !Arc::ptr_eq(cursor, own) && cursor.lags(&self.ring, 3))
    }

    pub(super) fn attach(&self, cursor: &Arc<Cursor>) {
        self.cursors.rcu(|cursors| cursors.iter().chain([cursor]).cloned().collect::<Vec<_>>());
    }

    pub(super) fn detach(&self, cursor: &Arc<Cursor>) {
        self.cursors.rcu(|cursors| cursors.iter().filter(|held| !Arc::ptr_eq(held, cursor)).cloned().collect::<Vec<_>>());
    }

    /// Tells the lane writers that sleep.
    pub(super) fn wake(&self) {
        wake_all(self.cursors.load().iter().map(|cursor| &cursor.sleeper));
    }

    /// The last id that was given out, and is in the ring still.
    pub(super) fn last_published(&self) -> Option<u64> {
        let positions = (self.ring.tail()..self.ring.next()).rev();
        let blocks =
            positions.filter_map(|position| if let Read::Block(block) = self.ring.read(position) { Some(block) } else { None });
        blocks.filter(|block| Arc::ptr_eq(&block.stream, &self.own)).map(|block| block.last).next()
    }

    /// Appends a block of `count` messages that local clients published. Position and ids are one: two publishers never get their
    /// order and their numbers crossed. Nobody is woken yet.
    ///
    /// Where the log is on disk, what is to be written of it goes to `writes`. Gives the last message's sequence.
    pub(super) fn publish(&self, sealed: Sealed, writes: &mut Writes, now: Instant) -> u64 {
        let Sealed { body, count, exactly_once, followed, .. } = sealed;
        // Before the position is claimed: whoever follows waits for the block from then on.
        let ticket = self.log.as_ref().filter(|_| exactly_once).map(|_| writes.ticket());
        let position = self.ring.claim();
        let first = position << INDEX_BITS;
        let last = first + (count as u64).saturating_sub(1);
        for (place, number) in followed {
            // Whoever follows it has made the number for this message alone.
            let _ = number.set(MessageId { origin_lane: self.own.id(), sequence: first + place as u64 });
        }
        let mut safe = Safe::Now;
        if let Some(log) = &self.log {
            log.claimed(position);
            safe = ticket.map_or_else(|| log.safe_at(position), Safe::With);
            let (lane, body) = (self.id, body.clone());
            writes.push(Change::Logged(Logged { lane, first, last, published: now, body }));
        }
        let (stream, content) = (Arc::clone(&self.own), Content::Messages(body));
        self.own_last.fetch_max(last, Ordering::AcqRel);
        self.ring.publish(Block { stream, position, first, last, hops: 0, age_ms: 0, appended_at: now, safe, content });
        last
    }

    /// A position of the ring was given out to a block of another broker, or to nothing.
    fn claim(&self) -> u64 {
        let position = self.ring.claim();
        if let Some(log) = &self.log {
            log.claimed(position);
        }
        position
    }

    /// The first sequence that a block of ours can have that has this one.
    pub(super) fn block_begin(sequence: u64) -> u64 {
        sequence >> INDEX_BITS << INDEX_BITS
    }

    /// Appends a block that came over a link. To be called under the origin-lane's lock, with its cover below the block's last id.
    pub(super) fn append(&self, arrived: &Arrived<'_>, now: Instant) -> Arc<Block> {
        let Arrived { stream, first, last, hops, age_ms, body, from } = *arrived;
        let content = Content::Messages(Bytes::copy_from_slice(body));
        let (stream, position, safe) = (Arc::clone(stream), self.claim(), Safe::Now);
        // Before it is in the ring: what a cursor passes over has to be found again.
        if self.reliable {
            stream.appended((last, position), from, self.ring.tail());
        }
        let block = Arc::new(Block { stream, position, first, last, hops, age_ms, appended_at: now, safe, content });
        self.ring.publish(Arc::clone(&block));
        arrived.stream.set_cover(last);
        block
    }

    /// The first block of `stream` in the ring that has an id above `after`.
    pub(super) fn next_block(&self, stream: &Arc<Stream>, after: u64) -> Option<Arc<Block>> {
        let next = after.checked_add(1)?;
        let is_it = |block: &Arc<Block>| Arc::ptr_eq(&block.stream, stream) && block.last > after;
        let read = |position| match self.ring.read(position) {
            Read::Block(block) => Some(block).filter(is_it),
            Read::NotYet | Read::Lapped => None,
        };
        match stream.position_of(next) {
            Some(position) => read(position),
            // Of what this life has published the position follows from the id; what is in between is of others.
            None if Arc::ptr_eq(stream, &self.own) => {
                (Self::position_of(next).max(self.ring.tail())..self.ring.next()).find_map(read)
            }
            None => None,
        }
    }

    /// What follows `id` of what an earlier life of this broker published, whether the ring still has it or not.
    pub(super) fn former_after(&self, id: u64) -> After {
        self.former.lock().after(id)
    }

    /// Whether an earlier life of this broker published something above `id` that is still here.
    pub(super) fn has_former_beyond(&self, id: u64) -> bool {
        self.former.lock().reaches_beyond(id)
    }

    /// Where our own block with this sequence is: position and ids are one.
    pub(super) fn position_of(sequence: u64) -> u64 {
        sequence >> INDEX_BITS
    }

    /// The ids up to `to` are lost to this broker, or were never owed to it: the cover goes there, and whoever follows is told.
    /// Likewise under the lock.
    pub(super) fn skip_to(&self, known: &Arc<Stream>, to: u64, now: Instant) {
        if self.reliable {
            let (stream, position, safe) = (Arc::clone(known), self.claim(), Safe::Now);
            let content = Content::Lost;
            known.placed((to, position), self.ring.tail());
            self.ring.publish(Block { stream, position, first: to, last: to, hops: 0, age_ms: 0, appended_at: now, safe, content });
        }
        known.set_cover(to);
    }

    /// The origin-lane of `origin` and `log`, known from now on.
    ///
    /// # Errors
    /// [`LaneError::TooManyOrigins`] where the peer names more than a mesh can have.
    pub(super) fn stream(&self, (origin, log): StreamKey, now: Instant, silence: Duration) -> Result<Arc<Stream>, LaneError> {
        let known = |streams: &BTreeMap<_, Arc<Stream>>| streams.get(&(origin, log)).cloned();
        if (origin, log) == self.own.key() {
            return Ok(Arc::clone(&self.own));
        }
        if let Some(stream) = known(&self.streams.read()) {
            return Ok(stream);
        }
        let mut streams = self.streams.write();
        if let Some(stream) = known(&streams) {
            return Ok(stream);
        }
        let logs = (origin, LogId(0))..=(origin, LogId(u64::MAX));
        let mut forgotten = Vec::new();
        if streams.range(logs.clone()).count() >= LOGS_PER_ORIGIN_MAX {
            // A broker that restarts more often than that is remembered all the same, up to the bound of the table.
            forgotten.extend(forget_one(&mut streams, logs, now, silence));
        }
        if streams.len() >= STREAMS_PER_LANE_MAX {
            match forget_one(&mut streams, .., now, silence) {
                Some(key) => forgotten.push(key),
                None => forgotten.extend(forget_excess(&mut streams)),
            }
        }
        if let Some(own) = self.log.as_ref().filter(|_| self.reliable) {
            let name = |(origin, log)| OriginLane { origin, log, lane: self.id };
            forgotten.into_iter().map(name).for_each(|stream| own.journal().forget_cover(stream));
        }
        if streams.len() >= STREAMS_PER_LANE_MAX {
            return Err(LaneError::TooManyOrigins);
        }
        let stream = Arc::new(Stream::new(OriginLane { origin, log, lane: self.id }, 0, now));
        streams.insert((origin, log), Arc::clone(&stream));
        Ok(stream)
    }

    /// The origin-lane, if it is known.
    pub(super) fn known_stream(&self, key: &StreamKey) -> Option<Arc<Stream>> {
        if *key == self.own.key() { Some(Arc::clone(&self.own)) } else { self.streams.read().get(key).cloned() }
    }

    /// Whether as many logs of this broker are known as are kept at least: older ones may have been forgotten.
    pub(super) fn has_many_logs_of(&self, origin: BrokerId) -> bool {
        self.streams.read().range((origin, LogId(0))..=(origin, LogId(u64::MAX))).count() >= LOGS_PER_ORIGIN_MAX
    }

    /// Of a lane of QoS 0: `origin` numbers its messages in `log` now, and in no other that is known here. What is left of those comes too late: it would
    /// come behind what was published after it.
    pub(super) fn log_begun(&self, origin: BrokerId, log: LogId) {
        let logs = (origin, LogId(0))..=(origin, LogId(u64::MAX));
        self.streams.read().range(logs).for_each(|((_, known), stream)| stream.set_outlived(*known != log));
    }

    /// All origin-lanes of others.
    pub(super) fn streams(&self) -> Vec<Arc<Stream>> {
        self.streams.read().values().cloned().collect()
    }

    /// Up to where sessions here have been given everything of an origin-lane: of our own, whatever there is.
    pub(super) fn delivered_of(&self, key: &StreamKey) -> u64 {
        if *key == self.own.key() {
            return u64::MAX;
        }
        let streams = self.streams.read();
        streams.get(key).map_or(0, |stream| stream.delivered_of(stream.cover()).max(stream.dealt_with()))
    }

    /// Whether anything is known of an origin-lane.
    pub(super) fn knows(&self, key: &StreamKey) -> bool {
        *key == self.own.key() || self.streams.read().get(key).is_some_and(|stream| stream.cover() > 0)
    }

    /// Everything known, for an OPEN.
    pub(super) fn covers(&self) -> Vec<Cover> {
        // Our own ids are known to us as far as they are given out: whoever opens with us need not send them back.
        let own = (self.own.key(), (self.ring.next() << INDEX_BITS) - 1);
        let streams = self.streams.read();
        let others = streams.iter().map(|(key, stream)| (*key, stream.cover()));
        let cover = |((origin, log), cover)| Cover { origin, log, cover };
        others.chain([own]).map(cover).filter(|cover| cover.cover > 0).collect()
    }

    /// Looks whether a neighbour that opens knows ids of our own log that this broker has not given out: then the data directory is older than the log, and
    /// all that is published here is known already to that neighbour, by its ids. That cannot be undone while others read the ring; the next life
    /// begins beyond these ids. A liar moves us by a bounded number of them.
    pub(super) fn look_for_own_past(&self, covers: &[Cover], counters: &Counters) {
        let (Some(log), next) = (&self.log, self.ring.next()) else { return };
        let own = covers.iter().find(|cover| (cover.origin, cover.log) == self.own.key());
        let Some(known) = own.map(|cover| Self::position_of(cover.cover)).filter(|known| *known >= next) else { return };
        counters.own_ids_foreseen.add(1);
        let is_near = known - next <= OWN_POSITIONS_FORESEEN_MAX;
        if is_near {
            log.skip_in_next_life(known);
        }
        let remedy = if is_near {
            "restart this broker"
        } else {
            "distrust that neighbour, or restart this broker with an empty data directory"
        };
        let (lane, ids) = (self.id.0, known - next);
        tracing::error!(
            lane,
            ids,
            remedy,
            "a neighbour knows more of this broker's log than the disk: what is published here does not reach it"
        );
    }

    /// Calls `visit` for every origin-lane.
    pub(super) fn for_each_stream(&self, mut visit: impl FnMut(&Stream)) {
        visit(&self.own);
        self.streams.read().values().for_each(|stream| visit(stream));
    }

    /// Forgets blocks older than `age_ms_max`, and where the blocks are that the ring has forgotten. To be called once a second or so.
    pub(super) fn trim(&self, age_ms_max: u64, now: Instant) {
        self.ring.trim_while(|block| block.age_ms(now) > age_ms_max);
        if self.reliable {
            let tail = self.ring.tail();
            self.own.trim_index(tail);
            self.streams.read().values().for_each(|stream| stream.trim_index(tail));
        }
        if let Some(log) = &self.log {
            let mut former = self.former.lock();
            former.trim(&self.ring, self.own.floor(), age_ms_max, now);
            log.trimmed(former.floor(self.own.floor()));
        }
    }

    /// Takes over a neighbour's covers: with them this broker is no longer new. Those in `except` are what it told the neighbour that
    /// it knows, and therefore catches up with.
    ///
    /// Of QoS 1 and 2 it still takes the log itself, as far as the neighbour has it, though it delivers nothing from before its start:
    /// others may need it from here, to whom this broker, in its former life, had not yet given it. Of QoS 0 it begins at the cover.
    pub(super) fn adopt(
        &self,
        covers: impl IntoIterator<Item = Cover>,
        except: impl Fn(&StreamKey) -> bool,
        (now, silence): (Instant, Duration),
        counters: &Counters,
    ) -> Result<(), LaneError> {
        for Cover { origin, log, cover } in covers {
            let key = (origin, log);
            if key == self.own.key() || except(&key) {
                continue;
            }
            let stream = self.stream(key, now, silence)?;
            let mut heard = stream.turn.lock();
            if stream.cover() < cover {
                *heard = now;
                if self.reliable {
                    stream.join_at(cover);
                } else {
                    stream.set_cover(cover);
                }
                counters.covers_adopted.add(1);
            }
        }
        self.settled.store(true, Ordering::Release);
        Ok(())
    }
}

/// Whether what is `age_ms` old at `now` is from before `moment`.
fn is_older(age_ms: u64, moment: Instant, now: Instant) -> bool {
    u128::from(age_ms) > now.saturating_duration_since(moment).as_millis()
}

/// Forgets the origin-lane of `among` that has been silent longest, if that is longer than `silence`, and nothing in the ring and no
/// link speaks of it: what is forgotten could come again and would be new. Says which.
fn forget_one(
    streams: &mut BTreeMap<StreamKey, Arc<Stream>>,
    among: impl RangeBounds<StreamKey>,
    now: Instant,
    silence: Duration,
) -> Option<StreamKey> {
    let silent = streams.range(among).filter(|(_, stream)| Arc::strong_count(stream) == 1);
    let oldest = silent.map(|(key, stream)| (*stream.turn.lock(), *key)).min_by_key(|(heard, _)| *heard);
    let gone = oldest.filter(|(heard, _)| now.saturating_duration_since(*heard) > silence);
    gone.and_then(|(_, key)| streams.remove(&key).map(|_| key))
}

/// Forgets the oldest logs of the origin that has the most, down to its share: it harms itself at most, as what is forgotten could come
/// again and would be new. Says which; nothing if nobody has more than a share.
fn forget_excess(streams: &mut BTreeMap<StreamKey, Arc<Stream>>) -> Vec<StreamKey> {
    let mut counts = BTreeMap::new();
    streams.keys().for_each(|(origin, _)| *counts.entry(*origin).or_insert(0_usize) += 1);
    let Some((origin, count)) = counts.into_iter().max_by_key(|(_, count)| *count) else { return Vec::new() };
    let excess = count.saturating_sub(LOGS_PER_ORIGIN_MAX);
    let logs = streams.range((origin, LogId(0))..=(origin, LogId(u64::MAX)));
    let mut logs: Vec<_> = logs.map(|(key, stream)| (*stream.turn.lock(), *key)).collect();
    logs.sort_unstable();
    let gone: Vec<_> = logs.into_iter().take(excess).map(|(_, key)| key).collect();
    gone.iter().for_each(|key| drop(streams.remove(key)));
    gone
}
