//! What a start reads: all segments in their order, what is damaged skipped, and what comes of it.
//!
//! A file that ends in the middle of a frame was being written when its broker was killed: what is missing was never acknowledged. Everything else that is no
//! frame is damage. What stands behind it counts again from the next frame on, so that as little as possible is lost; what was lost is told.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;

use super::clocks::Clocks;
use super::log::{ENDS, FRAME_HEAD_BYTES, HEADER, checksum};
use super::mirror::{Key, Mirror, RestoredEntry, Segment};
use crate::codec::{PacketId, QoS};
use crate::ids::{BrokerId, LaneId, LogId, OriginLane, Stamp};
use crate::session::record::{self, Content, Record};
use crate::session::{
    Entry, Head, LogHead, Logged, Order, RESTORED_EPOCH, RestoredLog, RestoredSession, SessionExpiry, Stage, StoredMessage,
    SubscriberId, SubscriptionOptions, Will,
};

type Map<K, V> = HashMap<K, V, ahash::RandomState>;

/// What was read so far.
#[derive(Debug)]
pub(super) struct Reading {
    clocks: Clocks,
    sessions: Map<u64, ReadSession>,
    messages: Map<u64, (Arc<StoredMessage>, Segment)>,
    retained: Map<Box<str>, ReadWrite>,
    logs: BTreeMap<LaneId, (LogHead, Segment)>,
    blocks: BTreeMap<(LaneId, u64), (Logged, Segment)>,
    covers: Map<OriginLane, (u64, Segment)>,
    members: Map<BrokerId, Segment>,
    last_session: u64,
    last_message: u64,
}

#[derive(Debug, Default)]
struct ReadSession {
    /// None as long as only parts of it were read.
    head: Option<ReadHead>,
    subscriptions: Map<Box<str>, (SubscriptionOptions, Segment)>,
    entries: BTreeMap<Order, ReadEntry>,
    received: Map<PacketId, Segment>,
    will: Option<(Will, Segment)>,
}

#[derive(Debug)]
struct ReadHead {
    client_id: Box<str>,
    owner: Arc<str>,
    expiry: SessionExpiry,
    left_at_ms: Option<u64>,
    claim: u64,
    at: Segment,
}

/// What was last read of what a topic retains.
#[derive(Clone, Copy, Debug)]
struct ReadWrite {
    /// None: it was deleted.
    message: Option<u64>,
    stamp: Option<Stamp>,
    at: Segment,
}

#[derive(Debug)]
struct ReadEntry {
    message: u64,
    qos: QoS,
    retain: bool,
    stage: Stage,
    subscription_ids: Vec<u32>,
    at: Segment,
}

/// What is wrong with a segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Damage {
    /// Bytes that are no frames.
    pub(super) bytes: usize,
    /// Records of good frames that are none.
    pub(super) records: usize,
    /// Of kinds that this version does not know.
    pub(super) unknown: usize,
    /// Bytes at its end that were being written when its broker ended. No damage.
    pub(super) unfinished: usize,
}

impl Damage {
    pub(super) fn is_some(&self) -> bool {
        self.bytes > 0 || self.records > 0
    }
}

/// What could not be kept although it was read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Lost {
    /// Sessions of which only parts were found.
    pub(super) sessions: usize,
    /// Messages kept for a client of which the content was not found.
    pub(super) entries: usize,
    /// Retained messages of which the content was not found.
    pub(super) retained: usize,
}

/// A frame of the segment's marker at the beginning of `bytes`.
struct Frame<'a> {
    body: &'a [u8],
    ends: bool,
    length: usize,
}

impl<'a> Frame<'a> {
    fn parse(bytes: &'a [u8], marker: [u8; 8]) -> Option<Self> {
        let (head, rest) = bytes.split_first_chunk::<FRAME_HEAD_BYTES>()?;
        let (found, head) = head.split_first_chunk::<8>()?;
        let (length, head) = head.split_first_chunk::<4>()?;
        let (sum, flag) = head.split_first_chunk::<4>()?;
        let (length, flag) = (u32::from_be_bytes(*length), *flag.first()?);
        let body = rest.get(..usize::try_from(length).ok()?)?;
        let is_good = *found == marker && checksum(length, flag, body) == u32::from_be_bytes(*sum);
        is_good.then_some(Self { body, ends: flag & ENDS != 0, length: FRAME_HEAD_BYTES + body.len() })
    }
}

impl Reading {
    /// Nothing read yet. What has expired at this moment is gone.
    pub(super) fn new(clocks: Clocks) -> Self {
        Self {
            clocks,
            sessions: Map::default(),
            messages: Map::default(),
            retained: Map::default(),
            logs: BTreeMap::new(),
            blocks: BTreeMap::new(),
            covers: Map::default(),
            members: Map::default(),
            last_session: 0,
            last_message: 0,
        }
    }

    /// Reads one segment, after all older ones.
    pub(super) fn read(&mut self, segment: Segment, marker: u64, bytes: &[u8]) -> Damage {
        let marker = marker.to_be_bytes();
        let mut damage = Damage::default();
        if bytes.len() < HEADER.len() {
            damage.unfinished = bytes.len();
            return damage;
        }
        let mut at = HEADER.len();
        if !bytes.starts_with(&HEADER) {
            damage.bytes += at;
        }
        // Frames of a commit whose end was not met yet.
        let mut open: Vec<&[u8]> = Vec::new();
        while let Some(rest) = bytes.get(at..).filter(|rest| !rest.is_empty()) {
            if let Some(frame) = Frame::parse(rest, marker) {
                open.push(frame.body);
                if frame.ends {
                    open.drain(..).for_each(|body| self.take_records(segment, body, &mut damage));
                }
                at += frame.length;
                continue;
            }
            let next = (1..rest.len()).find(|from| rest.get(*from..).and_then(|rest| Frame::parse(rest, marker)).is_some());
            match next {
                Some(skipped) => {
                    damage.bytes += skipped;
                    // Of a commit that is damaged what is good counts.
                    open.drain(..).for_each(|body| self.take_records(segment, body, &mut damage));
                    at += skipped;
                }
                None => {
                    match is_unfinished(rest, marker) {
                        true => damage.unfinished += rest.len(),
                        false => {
                            damage.bytes += rest.len();
                            open.drain(..).for_each(|body| self.take_records(segment, body, &mut damage));
                        }
                    }
                    break;
                }
            }
        }
        damage.unfinished += open.iter().map(|body| body.len()).sum::<usize>();
        damage
    }

    fn take_records(&mut self, segment: Segment, mut body: &[u8], damage: &mut Damage) {
        while !body.is_empty() {
            let before = body.len();
            match record::decode(&mut body) {
                Ok(Some(record)) => self.take(record, segment),
                Ok(None) => damage.unknown += 1,
                Err(_) => {
                    damage.records += 1;
                    // The record's own length is no good: nothing behind it can be told apart.
                    if body.len() == before {
                        return;
                    }
                }
            }
        }
    }

    fn session(&mut self, number: u64) -> &mut ReadSession {
        self.last_session = self.last_session.max(number);
        self.sessions.entry(number).or_default()
    }

    fn take(&mut self, record: Record<'_>, at: Segment) {
        match record {
            Record::Session { session, client_id, owner, expiry, left_at_ms, claim } => {
                let head = ReadHead { client_id: client_id.into(), owner: owner.into(), expiry, left_at_ms, claim, at };
                self.session(session).head = Some(head);
            }
            Record::Ended { session } => {
                self.last_session = self.last_session.max(session);
                self.sessions.remove(&session);
            }
            Record::Subscribed { session, filter, options } => {
                self.session(session).subscriptions.insert(filter.into(), (options, at));
            }
            Record::Unsubscribed { session, filter } => {
                self.session(session).subscriptions.remove(filter);
            }
            Record::Message { message, content, expires_at_ms } => {
                self.last_message = self.last_message.max(message);
                let expires_at = expires_at_ms.map(|at| self.clocks.instant(at));
                self.messages.insert(message, (Arc::new(stored(&content, expires_at)), at));
            }
            Record::Entry { session, order, message, qos, retain, stage, subscription_ids } => {
                let entry = ReadEntry { message, qos, retain, stage, subscription_ids, at };
                self.session(session).entries.insert(order, entry);
            }
            Record::Removed { session, order } => {
                self.session(session).entries.remove(&order);
            }
            Record::Received { session, id } => {
                self.session(session).received.insert(id, at);
            }
            Record::Completed { session, id } => {
                self.session(session).received.remove(&id);
            }
            Record::Will { session, content, delay, message_expiry } => {
                let will = Will { message: stored(&content, None), message_expiry, delay };
                self.session(session).will = Some((will, at));
            }
            Record::WillGone { session } => self.session(session).will = None,
            Record::Retained { topic, message } => {
                self.retained.insert(topic.into(), ReadWrite { message: Some(message), stamp: None, at });
            }
            Record::Stamped { topic, message, stamp } => {
                self.retained.insert(topic.into(), ReadWrite { message: Some(message), stamp: Some(stamp), at });
            }
            Record::Deleted { topic, stamp } => {
                self.retained.insert(topic.into(), ReadWrite { message: None, stamp: Some(stamp), at });
            }
            Record::Forgotten { topic } => {
                self.retained.remove(topic);
            }
            Record::Log { lane, log, born_ms, reserved, floor } => {
                let (lane, born) = (LaneId(lane), born_ms.and_then(|born_ms| self.clocks.past(born_ms)));
                self.logs.insert(lane, (LogHead { lane, log: LogId(log), born, reserved, floor }, at));
                // So that no more is in memory than was kept.
                while let Some(key) = self.blocks.range((lane, 0)..=(lane, floor)).next().map(|(key, _)| *key) {
                    self.blocks.remove(&key);
                }
            }
            Record::LogGone { lane } => {
                self.logs.remove(&LaneId(lane));
                self.blocks.retain(|(of, _), _| of.0 != lane);
            }
            Record::Logged { lane, first, last, published_ms, body } => {
                let (lane, published) = (LaneId(lane), self.clocks.published(published_ms));
                let block = Logged { lane, first, last, published, body: Bytes::copy_from_slice(body) };
                self.blocks.insert((lane, first), (block, at));
            }
            Record::Cover { lane, origin, log, cover } => {
                self.covers.insert(OriginLane { origin: BrokerId(origin), log: LogId(log), lane: LaneId(lane) }, (cover, at));
            }
            Record::CoverGone { lane, origin, log } => {
                self.covers.remove(&OriginLane { origin: BrokerId(origin), log: LogId(log), lane: LaneId(lane) });
            }
            Record::Member { broker } => {
                self.members.insert(BrokerId(broker), at);
            }
            Record::MemberGone { broker } => {
                self.members.remove(&BrokerId(broker));
            }
        }
    }
}

/// Whether the end of a segment is a frame that was being written, or room that a file system has left there.
fn is_unfinished(rest: &[u8], marker: [u8; 8]) -> bool {
    if rest.iter().all(|byte| *byte == 0) {
        return true;
    }
    if rest.len() < FRAME_HEAD_BYTES {
        return rest.iter().zip(marker).all(|(byte, marked)| *byte == marked);
    }
    let length = rest.strip_prefix(&marker).and_then(|rest| rest.first_chunk::<4>());
    length.is_some_and(|length| u32::from_be_bytes(*length) as usize > rest.len() - FRAME_HEAD_BYTES)
}

fn stored(content: &Content<'_>, expires_at: Option<Instant>) -> StoredMessage {
    StoredMessage {
        topic: content.topic.into(),
        payload: Bytes::copy_from_slice(content.payload),
        qos: content.qos,
        retain: content.retain,
        expires_at,
        properties: Bytes::copy_from_slice(content.properties),
    }
}

/// What a restarted broker begins with.
#[derive(Debug)]
pub struct Restored {
    /// All sessions, away.
    pub sessions: Vec<RestoredSession>,
    /// All retained messages, and in a mesh when they were published.
    pub retained: Vec<(Arc<StoredMessage>, Option<Stamp>)>,
    /// Topics whose retained message was deleted, and when.
    pub deleted: Vec<(Box<str>, Stamp)>,
    /// The highest number that a session has had.
    pub last_session: SubscriberId,
    /// What the mesh's replication goes on from.
    pub log: RestoredLog,
}

impl Reading {
    /// All segments were read.
    pub(super) fn finish(self) -> (Mirror, Restored, Lost) {
        let Self { clocks, sessions, messages, retained, logs, blocks, covers, members, last_session, last_message } = self;
        let now = clocks.now;
        let (mut mirror, mut lost) = (Mirror::default(), Lost::default());
        mirror.number_messages_from(last_message);
        for (number, (message, at)) in &messages {
            mirror.restore_message(message, *number, *at);
        }
        let has_expired = |message: &StoredMessage| message.expires_at.is_some_and(|at| at <= now);
        for (topic, ReadWrite { message, stamp, at }) in retained {
            let found = message.and_then(|number| messages.get(&number)).map(|(message, _)| message);
            match (found, stamp) {
                (Some(message), _) if !has_expired(message) => mirror.retain(Arc::clone(message), stamp, at),
                (None, Some(stamp)) if message.is_none() => mirror.delete(topic, stamp, at),
                // What came before it is no more valid for that it has expired.
                (Some(message), Some(stamp)) => {
                    mirror.retain(Arc::clone(message), Some(stamp), at);
                    mirror.delete(topic, stamp, 0);
                }
                (found, _) => {
                    lost.retained += usize::from(found.is_none());
                    mirror.bury(Key::Retained(topic));
                }
            }
        }
        let mut sessions: Vec<_> = sessions.into_iter().collect();
        sessions.sort_by_key(|(number, _)| *number);
        let mut newest: Map<Box<str>, u64> = Map::default();
        for (number, session) in &sessions {
            if let Some(head) = &session.head {
                newest.insert(head.client_id.clone(), *number);
            }
        }
        for (number, session) in sessions {
            let session_number = SubscriberId(number);
            match &session.head {
                // An older one of the same client ended when the newer began.
                Some(head) if newest.get(&head.client_id) != Some(&number) => mirror.bury(Key::Session(session_number)),
                Some(_) => session.restore(session_number, &mut mirror, &messages, &clocks, &mut lost),
                None => {
                    lost.sessions += 1;
                    mirror.bury(Key::Session(session_number));
                }
            }
        }
        mirror.drop_unreferenced();
        mirror.replay(|replay, said| {
            logs.into_values().for_each(|(head, at)| replay.set_head(head, at, said));
            blocks.into_values().for_each(|(block, at)| replay.log(block, at, said));
            covers.into_iter().for_each(|(stream, (cover, at))| replay.cover(stream, cover, at, said));
            members.into_iter().for_each(|(broker, at)| replay.join(broker, at, said));
        });
        let restored = Restored {
            sessions: restored_sessions(&mirror),
            retained: mirror.retained().map(|(message, stamp)| (Arc::clone(message), stamp)).collect(),
            deleted: mirror.deleted().map(|(topic, stamp)| (topic.into(), stamp)).collect(),
            last_session: SubscriberId(last_session),
            log: restored_log(&mirror),
        };
        (mirror, restored, lost)
    }
}

impl ReadSession {
    fn restore(
        self,
        number: SubscriberId,
        mirror: &mut Mirror,
        messages: &Map<u64, (Arc<StoredMessage>, Segment)>,
        clocks: &Clocks,
        lost: &mut Lost,
    ) {
        let Some(ReadHead { client_id, owner, expiry, left_at_ms, claim, at }) = self.head else { return };
        // A clock that was ahead then, or is behind now, must not let it live longer than from now on.
        let left_at = left_at_ms.map(|left_at_ms| clocks.instant(left_at_ms).min(clocks.now));
        let head = Head { client_id: client_id.into(), owner, expiry, left_at, claim };
        mirror.set_session(number, head.clone(), at);
        if left_at.is_none() {
            // It was connected when the broker ended: when it left is unknown, and counts from now.
            mirror.set_session(number, Head { left_at: Some(clocks.now), ..head }, 0);
        }
        for (filter, (options, at)) in self.subscriptions {
            mirror.subscribe(number, filter, options, at);
        }
        for (id, at) in self.received {
            mirror.receive(number, id, at);
        }
        if let Some((will, at)) = self.will {
            mirror.set_will(number, RESTORED_EPOCH, Arc::new(will), at);
        }
        for (order, entry) in self.entries {
            let ReadEntry { message, qos, retain, stage, subscription_ids, at } = entry;
            let found = messages.get(&message).map(|(message, _)| Arc::clone(message));
            let has_expired =
                stage == Stage::Queued && found.as_ref().is_some_and(|it| it.expires_at.is_some_and(|at| at <= clocks.now));
            let is_lost = found.is_none() && !matches!(stage, Stage::Released(_));
            if is_lost || has_expired {
                lost.entries += usize::from(is_lost);
                mirror.bury(Key::Entry(number, order));
                continue;
            }
            let message = found.filter(|_| !matches!(stage, Stage::Released(_)));
            let subscription_ids = (!subscription_ids.is_empty()).then(|| Arc::from(subscription_ids));
            mirror.restore_entry(number, order, RestoredEntry { message, qos, retain, stage, subscription_ids }, at);
        }
    }
}

fn restored_log(mirror: &Mirror) -> RestoredLog {
    let replay = mirror.replayed();
    RestoredLog {
        heads: replay.heads().copied().collect(),
        blocks: replay.blocks().cloned().collect(),
        covers: replay.covers().collect(),
        members: replay.members().collect(),
        positions_in_doubt: 0,
    }
}

fn restored_sessions(mirror: &Mirror) -> Vec<RestoredSession> {
    // Of a message that is released nothing is needed any more.
    let none = Content { topic: "", payload: &[], properties: &[], qos: QoS::ExactlyOnce, retain: false };
    let none = Arc::new(stored(&none, None));
    let entry = |kept: &super::mirror::Kept| Entry {
        message: kept.message.as_ref().map_or_else(|| Arc::clone(&none), Arc::clone),
        qos: kept.qos,
        retain: kept.retain,
        subscription_ids: kept.subscription_ids.clone(),
        stage: kept.stage,
    };
    let restored = mirror.sessions().map(|(number, session)| RestoredSession {
        session: number,
        head: session.head.clone(),
        subscriptions: session.subscriptions().map(|(filter, options)| (filter.into(), options.clone())).collect(),
        entries: session.entries.iter().map(|(order, kept)| (*order, entry(kept))).collect(),
        received: session.received().collect(),
        will: session.will.as_ref().map(|waiting| (*waiting.will).clone()),
    });
    restored.collect()
}
