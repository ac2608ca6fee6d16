//! What the disk is to hold: all durable sessions and retained messages as the changes have left them, and of each thing in which segment of the log its
//! newest record stands. The messages themselves are shared with the sessions and cost nothing here.
//!
//! What has changed since the last commit is *dirty*; a commit writes what is dirty, however often it has changed, and nothing of what came and went in
//! between. A commit that fails leaves it dirty: so nothing is lost while the disk is full, and what waits is bounded by what there is.
//!
//! Changes to a message may come before the one that places it, and a will's or an identifier's end before its beginning: see `session::change`.
//!
//! It knows no file: records go to a [`Sink`].

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use super::clocks::Clocks;
use super::replay::{Replay, ReplayKey, Said};
use crate::codec::{PacketId, QoS};
use crate::ids::Stamp;
use crate::session::record::{Content, Record};
use crate::session::{Change, Entry, Head, Order, Stage, StoredMessage, SubscriberId, SubscriptionOptions, Will};

type Map<K, V> = HashMap<K, V, ahash::RandomState>;
type Set<T> = HashSet<T, ahash::RandomState>;

/// Names of what is dirty that are not looked through for those that stand there twice.
const TIDIED_FROM: usize = 64 * 1024;
/// What a record takes beside its bytes, roughly.
const RECORD_OVERHEAD_BYTES: u64 = 24;

/// The number of a segment of the log; 0 is none.
pub(super) type Segment = u64;

/// What takes the records of a commit.
pub(super) trait Sink {
    /// Why it does not.
    type Error;

    /// Takes one record.
    ///
    /// # Errors
    /// When it cannot be written.
    fn put(&mut self, record: &Record<'_>) -> Result<(), Self::Error>;
}

/// Where the newest record of something stands, and whether that is what there is.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Slot {
    at: Segment,
    pub(super) is_dirty: bool,
}

impl Slot {
    /// Of something new or changed: what was read from segment `at` is there, all else is dirty and is named, once.
    pub(super) fn changed(self, at: Segment, name: impl FnOnce()) -> Self {
        if at > 0 {
            return Self { at, is_dirty: false };
        }
        if !self.is_dirty {
            name();
        }
        Self { is_dirty: true, ..self }
    }

    /// Whether a record of it may be read.
    pub(super) fn stands(self) -> bool {
        self.at > 0
    }
}

/// Names one thing that has a record.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Key {
    Session(SubscriberId),
    Subscription(SubscriberId, Box<str>),
    Entry(SubscriberId, Order),
    Received(SubscriberId, PacketId),
    Will(SubscriberId),
    Retained(Box<str>),
    /// By its address; it lives as long as something refers to it.
    Message(usize),
    /// Of the mesh's logs.
    Replay(ReplayKey),
}

#[derive(Debug)]
pub(super) struct Session {
    pub(super) head: Head,
    slot: Slot,
    subscriptions: Map<Box<str>, (SubscriptionOptions, Slot)>,
    pub(super) entries: BTreeMap<Order, Kept>,
    /// What came before the message that it is about.
    early: Map<Order, Early>,
    received: Map<PacketId, Received>,
    pub(super) will: Option<Waiting>,
    /// The newest connection whose will is gone: what comes late of it, or of older ones, does not count.
    will_gone: u64,
}

#[derive(Debug)]
pub(super) struct Kept {
    /// None when it is released: nobody will ask for it again.
    pub(super) message: Option<Arc<StoredMessage>>,
    pub(super) qos: QoS,
    pub(super) retain: bool,
    pub(super) stage: Stage,
    pub(super) subscription_ids: Option<Arc<[u32]>>,
    slot: Slot,
}

#[derive(Clone, Copy, Debug)]
enum Early {
    Staged(Stage),
    Removed,
}

/// How often an identifier was received more than it was completed: once, or not at all, unless they come the wrong way round.
#[derive(Debug, Default)]
struct Received {
    count: i32,
    slot: Slot,
}

#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) will: Arc<Will>,
    /// The connection that has brought it.
    epoch: u64,
    slot: Slot,
}

/// What a topic retains, or that it was deleted.
#[derive(Debug)]
struct LastWrite {
    /// None: it was deleted, and the stamp says when.
    message: Option<Arc<StoredMessage>>,
    stamp: Option<Stamp>,
    slot: Slot,
}

/// A message that records refer to.
#[derive(Debug)]
struct Shared {
    number: u64,
    references: u32,
    slot: Slot,
    message: Arc<StoredMessage>,
}

/// See the module's page.
#[derive(Debug, Default)]
pub(super) struct Mirror {
    sessions: Map<SubscriberId, Session>,
    retained: Map<Box<str>, LastWrite>,
    messages: Map<usize, Shared>,
    replay: Replay,
    /// Number of the last message.
    last_message: u64,
    dirty: Vec<Key>,
    /// Length at which `dirty` is looked through.
    tidy_at: usize,
    /// What stands on the disk and is no more.
    gone: Vec<Key>,
}

fn address(message: &Arc<StoredMessage>) -> usize {
    Arc::as_ptr(message).addr()
}

impl Mirror {
    /// Whether the disk is to be told something.
    pub(super) fn is_dirty(&self) -> bool {
        !(self.dirty.is_empty() && self.gone.is_empty())
    }

    pub(super) fn sessions(&self) -> impl Iterator<Item = (SubscriberId, &Session)> {
        self.sessions.iter().map(|(number, session)| (*number, session))
    }

    /// What is retained.
    pub(super) fn retained(&self) -> impl Iterator<Item = (&Arc<StoredMessage>, Option<Stamp>)> {
        self.retained.values().filter_map(|last| Some((last.message.as_ref()?, last.stamp)))
    }

    /// What was deleted.
    pub(super) fn deleted(&self) -> impl Iterator<Item = (&str, Stamp)> {
        self.retained.iter().filter_map(|(topic, last)| Some((&**topic, last.stamp.filter(|_| last.message.is_none())?)))
    }

    /// Takes in what has happened.
    pub(super) fn apply(&mut self, change: Change) {
        if self.dirty.len() >= self.tidy_at.max(TIDIED_FROM) {
            // Only where nothing can be written for long: what comes and goes leaves its name each time.
            let mut seen: Set<Key> = Set::default();
            let dirty = std::mem::take(&mut self.dirty);
            self.dirty = dirty
                .into_iter()
                .filter(|key| self.slot_of(key).is_some_and(|it| it.is_dirty) && seen.insert(key.clone()))
                .collect();
            self.tidy_at = 2 * self.dirty.len();
        }
        match change {
            Change::Session(session, head) => self.set_session(session, head, 0),
            Change::Ended(session) => self.end(session),
            Change::Subscribed(session, filter, options) => self.subscribe(session, filter, options, 0),
            Change::Unsubscribed(session, filter) => self.unsubscribe(session, &filter),
            Change::Placed(session, order, entry) => self.place(session, order, entry),
            Change::Staged(session, order, stage) => self.stage(session, order, stage),
            Change::Removed(session, order) => self.remove(session, order),
            Change::Received(session, id) => self.receive(session, id, 0),
            Change::Completed(session, id) => self.complete(session, id),
            Change::Will(session, epoch, will) => self.set_will(session, epoch, will, 0),
            Change::WillGone(session, epoch) => self.forget_will(session, Some(epoch)),
            Change::Source(..) | Change::Copied(..) | Change::Guarded(..) => {}
            Change::Retained(message, stamp) => self.retain(message, stamp, 0),
            Change::Forgotten(topic, Some(stamp)) => self.delete(topic, stamp, 0),
            Change::Forgotten(topic, None) => self.forget(&topic),
            Change::Log(head) => self.replay(|replay, said| replay.set_head(head, 0, said)),
            Change::LogGone(lane) => self.replay(|replay, said| replay.end(lane, said)),
            Change::Logged(block) => self.replay(|replay, said| replay.log(block, 0, said)),
            Change::Cover(stream, cover) => self.replay(|replay, said| replay.cover(stream, cover, 0, said)),
            Change::CoverGone(stream) => self.replay(|replay, said| replay.uncover(stream, said)),
            Change::Member(broker) => self.replay(|replay, said| replay.join(broker, 0, said)),
            Change::MemberGone(broker) => self.replay(|replay, said| replay.leave(broker, said)),
        }
    }

    /// Changes something of the mesh's logs, and takes down what is dirty and gone by that.
    pub(super) fn replay(&mut self, change: impl FnOnce(&mut Replay, &mut Said<'_>)) {
        let Self { replay, dirty, gone, .. } = self;
        let mut said = Said { dirty: &mut |key| dirty.push(Key::Replay(key)), gone: &mut |key| gone.push(Key::Replay(key)) };
        change(replay, &mut said);
    }

    pub(super) fn replayed(&self) -> &Replay {
        &self.replay
    }

    fn slot_of(&self, key: &Key) -> Option<Slot> {
        match key {
            Key::Session(number) => self.sessions.get(number).map(|session| session.slot),
            Key::Subscription(number, filter) => self.sessions.get(number)?.subscriptions.get(filter).map(|(_, slot)| *slot),
            Key::Entry(number, order) => self.sessions.get(number)?.entries.get(order).map(|kept| kept.slot),
            Key::Received(number, id) => self.sessions.get(number)?.received.get(id).map(|received| received.slot),
            Key::Will(number) => self.sessions.get(number)?.will.as_ref().map(|waiting| waiting.slot),
            Key::Retained(topic) => self.retained.get(topic).map(|last| last.slot),
            Key::Message(address) => self.messages.get(address).map(|shared| shared.slot),
            Key::Replay(key) => self.replay.slot(key),
        }
    }

    /// The slot of something new or changed: what was read from a segment is there, all else is dirty.
    fn slot(dirty: &mut Vec<Key>, before: Slot, at: Segment, key: impl FnOnce() -> Key) -> Slot {
        before.changed(at, || dirty.push(key()))
    }

    pub(super) fn set_session(&mut self, number: SubscriberId, head: Head, at: Segment) {
        let before = self.sessions.get(&number).map(|session| session.slot).unwrap_or_default();
        let slot = Self::slot(&mut self.dirty, before, at, || Key::Session(number));
        match self.sessions.get_mut(&number) {
            Some(session) => (session.head, session.slot) = (head, slot),
            None => {
                let session = Session {
                    head,
                    slot,
                    subscriptions: Map::default(),
                    entries: BTreeMap::new(),
                    early: Map::default(),
                    received: Map::default(),
                    will: None,
                    will_gone: 0,
                };
                self.sessions.insert(number, session);
            }
        }
    }

    pub(super) fn end(&mut self, number: SubscriberId) {
        let Some(session) = self.sessions.remove(&number) else { return };
        if session.slot.at > 0 {
            self.gone.push(Key::Session(number));
        }
        for kept in session.entries.into_values() {
            self.release(kept.message);
        }
    }

    pub(super) fn subscribe(&mut self, number: SubscriberId, filter: Box<str>, options: SubscriptionOptions, at: Segment) {
        let Some(session) = self.sessions.get_mut(&number) else { return };
        let before = session.subscriptions.get(&filter).map(|(_, slot)| *slot).unwrap_or_default();
        let slot = Self::slot(&mut self.dirty, before, at, || Key::Subscription(number, filter.clone()));
        session.subscriptions.insert(filter, (options, slot));
    }

    pub(super) fn unsubscribe(&mut self, number: SubscriberId, filter: &str) {
        let Some(session) = self.sessions.get_mut(&number) else { return };
        if let Some((filter, (_, slot))) = session.subscriptions.remove_entry(filter)
            && slot.at > 0
        {
            self.gone.push(Key::Subscription(number, filter));
        }
    }

    fn place(&mut self, number: SubscriberId, order: Order, entry: Entry) {
        let Some(session) = self.sessions.get_mut(&number) else { return };
        let Entry { message, qos, retain, subscription_ids, stage } = entry;
        let stage = match session.early.remove(&order) {
            Some(Early::Removed) => return,
            Some(Early::Staged(stage)) => stage,
            None => stage,
        };
        let slot = Self::slot(&mut self.dirty, Slot::default(), 0, || Key::Entry(number, order));
        Self::refer(&mut self.messages, &mut self.last_message, &message);
        let message = (!matches!(stage, Stage::Released(_))).then_some(message);
        session.entries.insert(order, Kept { message, qos, retain, stage, subscription_ids, slot });
    }

    fn stage(&mut self, number: SubscriberId, order: Order, stage: Stage) {
        let Some(session) = self.sessions.get_mut(&number) else { return };
        let Some(kept) = session.entries.get_mut(&order) else {
            session.early.insert(order, Early::Staged(stage));
            return;
        };
        kept.stage = stage;
        kept.slot = Self::slot(&mut self.dirty, kept.slot, 0, || Key::Entry(number, order));
        if matches!(stage, Stage::Released(_)) {
            let message = kept.message.take();
            self.release(message);
        }
    }

    pub(super) fn remove(&mut self, number: SubscriberId, order: Order) {
        let Some(session) = self.sessions.get_mut(&number) else { return };
        let Some(kept) = session.entries.remove(&order) else {
            session.early.insert(order, Early::Removed);
            return;
        };
        if kept.slot.at > 0 {
            self.gone.push(Key::Entry(number, order));
        }
        self.release(kept.message);
    }

    pub(super) fn receive(&mut self, number: SubscriberId, id: PacketId, at: Segment) {
        let Some(session) = self.sessions.get_mut(&number) else { return };
        let received = session.received.entry(id).or_default();
        received.count += 1;
        match received.count {
            0 => {
                session.received.remove(&id);
            }
            1 => received.slot = Self::slot(&mut self.dirty, received.slot, at, || Key::Received(number, id)),
            _ => {}
        }
    }

    pub(super) fn complete(&mut self, number: SubscriberId, id: PacketId) {
        let Some(session) = self.sessions.get_mut(&number) else { return };
        let received = session.received.entry(id).or_default();
        received.count -= 1;
        if received.count == 0 {
            if received.slot.at > 0 {
                self.gone.push(Key::Received(number, id));
            }
            session.received.remove(&id);
        }
    }

    pub(super) fn set_will(&mut self, number: SubscriberId, epoch: u64, will: Arc<Will>, at: Segment) {
        let Some(session) = self.sessions.get_mut(&number) else { return };
        if epoch <= session.will_gone || session.will.as_ref().is_some_and(|waiting| waiting.epoch > epoch) {
            return;
        }
        let before = session.will.as_ref().map(|waiting| waiting.slot).unwrap_or_default();
        let slot = Self::slot(&mut self.dirty, before, at, || Key::Will(number));
        session.will = Some(Waiting { will, epoch, slot });
    }

    /// Of that connection and older ones, where one is named.
    pub(super) fn forget_will(&mut self, number: SubscriberId, epoch: Option<u64>) {
        let Some(session) = self.sessions.get_mut(&number) else { return };
        session.will_gone = session.will_gone.max(epoch.unwrap_or(0));
        let is_meant = |waiting: &mut Waiting| epoch.is_none_or(|epoch| waiting.epoch <= epoch);
        if session.will.take_if(is_meant).is_some_and(|waiting| waiting.slot.at > 0) {
            self.gone.push(Key::Will(number));
        }
    }

    pub(super) fn retain(&mut self, message: Arc<StoredMessage>, stamp: Option<Stamp>, at: Segment) {
        Self::refer(&mut self.messages, &mut self.last_message, &message);
        self.last_write(message.topic.clone(), Some(message), stamp, at);
    }

    /// A topic retains nothing any more, which is remembered.
    pub(super) fn delete(&mut self, topic: Box<str>, stamp: Stamp, at: Segment) {
        self.last_write(topic, None, Some(stamp), at);
    }

    fn last_write(&mut self, topic: Box<str>, message: Option<Arc<StoredMessage>>, stamp: Option<Stamp>, at: Segment) {
        let before = self.retained.get(&topic).map(|last| last.slot).unwrap_or_default();
        let slot = Self::slot(&mut self.dirty, before, at, || Key::Retained(topic.clone()));
        let replaced = self.retained.insert(topic, LastWrite { message, stamp, slot });
        self.release(replaced.and_then(|last| last.message));
    }

    pub(super) fn forget(&mut self, topic: &str) {
        let Some((topic, LastWrite { message, slot, .. })) = self.retained.remove_entry(topic) else { return };
        if slot.at > 0 {
            self.gone.push(Key::Retained(topic));
        }
        self.release(message);
    }

    /// One reference more.
    fn refer(messages: &mut Map<usize, Shared>, last: &mut u64, message: &Arc<StoredMessage>) {
        let shared = messages.entry(address(message)).or_insert_with(|| {
            *last += 1;
            Shared { number: *last, references: 0, slot: Slot::default(), message: Arc::clone(message) }
        });
        shared.references += 1;
    }

    /// One reference less. A message that nothing refers to is not read back: it needs no record that it is gone.
    fn release(&mut self, message: Option<Arc<StoredMessage>>) {
        let Some(message) = message else { return };
        if let std::collections::hash_map::Entry::Occupied(mut occupied) = self.messages.entry(address(&message)) {
            occupied.get_mut().references -= 1;
            if occupied.get().references == 0 {
                occupied.remove();
            }
        }
    }
}

/// What a restarted broker has read.
impl Mirror {
    /// A message stands in a segment under that number; it is kept while something refers to it.
    pub(super) fn restore_message(&mut self, message: &Arc<StoredMessage>, number: u64, at: Segment) {
        self.last_message = self.last_message.max(number);
        let slot = Slot { at, is_dirty: false };
        self.messages.insert(address(message), Shared { number, references: 0, slot, message: Arc::clone(message) });
    }

    /// A kept message stands in a segment.
    pub(super) fn restore_entry(&mut self, number: SubscriberId, order: Order, kept: RestoredEntry, at: Segment) {
        let Some(session) = self.sessions.get_mut(&number) else { return };
        let RestoredEntry { message, qos, retain, stage, subscription_ids } = kept;
        if let Some(message) = &message {
            Self::refer(&mut self.messages, &mut self.last_message, message);
        }
        let slot = Slot { at, is_dirty: false };
        session.entries.insert(order, Kept { message, qos, retain, stage, subscription_ids, slot });
    }

    /// Something was read that is no more, and is to be said to be gone.
    pub(super) fn bury(&mut self, key: Key) {
        self.gone.push(key);
    }

    /// Numbers of messages go on above this one.
    pub(super) fn number_messages_from(&mut self, last: u64) {
        self.last_message = self.last_message.max(last);
    }

    /// Nothing refers to these.
    pub(super) fn drop_unreferenced(&mut self) {
        self.messages.retain(|_, shared| shared.references > 0);
    }
}

/// See [`Mirror::restore_entry`].
pub(super) struct RestoredEntry {
    pub(super) message: Option<Arc<StoredMessage>>,
    pub(super) qos: QoS,
    pub(super) retain: bool,
    pub(super) stage: Stage,
    pub(super) subscription_ids: Option<Arc<[u32]>>,
}

impl Session {
    /// Filters, as subscribed.
    pub(super) fn subscriptions(&self) -> impl Iterator<Item = (&str, &SubscriptionOptions)> {
        self.subscriptions.iter().map(|(filter, (options, _))| (&**filter, options))
    }

    /// Identifiers of QoS 2 messages that the client has not released.
    pub(super) fn received(&self) -> impl Iterator<Item = PacketId> {
        self.received.iter().filter(|(_, received)| received.count > 0).map(|(id, _)| *id)
    }
}

/// Writing.
impl Mirror {
    /// Hands all that is dirty to `sink`. When that is on the disk, in `segment`, say [`written`](Self::written).
    ///
    /// # Errors
    /// The sink's. Everything is as dirty as before.
    pub(super) fn write<S: Sink>(&self, sink: &mut S, clocks: &Clocks) -> Result<(), S::Error> {
        // What is gone first: some of it may be there again.
        for key in &self.gone {
            self.write_gone(sink, key)?;
        }
        let mut messages = Set::default();
        for key in &self.dirty {
            self.write_one(sink, key, clocks, &mut messages)?;
        }
        Ok(())
    }

    fn write_gone<S: Sink>(&self, sink: &mut S, key: &Key) -> Result<(), S::Error> {
        sink.put(&match key {
            Key::Session(session) => Record::Ended { session: session.0 },
            Key::Subscription(session, filter) => Record::Unsubscribed { session: session.0, filter },
            Key::Entry(session, order) => Record::Removed { session: session.0, order: *order },
            Key::Received(session, id) => Record::Completed { session: session.0, id: *id },
            Key::Will(session) => Record::WillGone { session: session.0 },
            Key::Retained(topic) => Record::Forgotten { topic },
            Key::Replay(key) => return Replay::write_gone(sink, key),
            // Never said: see `release`.
            Key::Message(_) => return Ok(()),
        })
    }

    /// What is no longer there when its turn comes has come and gone.
    fn write_one<S: Sink>(&self, sink: &mut S, key: &Key, clocks: &Clocks, written: &mut Set<usize>) -> Result<(), S::Error> {
        match key {
            Key::Session(number) => match self.sessions.get(number) {
                Some(session) if session.slot.is_dirty => {
                    let Head { client_id, owner, expiry, left_at, claim } = &session.head;
                    let left_at_ms = left_at.map(|at| clocks.unix_ms(at));
                    sink.put(&Record::Session { session: number.0, client_id, owner, expiry: *expiry, left_at_ms, claim: *claim })
                }
                _ => Ok(()),
            },
            Key::Subscription(number, filter) => match self.sessions.get(number).and_then(|it| it.subscriptions.get(filter)) {
                Some((options, slot)) if slot.is_dirty => {
                    sink.put(&Record::Subscribed { session: number.0, filter, options: options.clone() })
                }
                _ => Ok(()),
            },
            Key::Entry(number, order) => match self.sessions.get(number).and_then(|it| it.entries.get(order)) {
                Some(kept) if kept.slot.is_dirty => self.write_entry(sink, *number, *order, kept, clocks, written),
                _ => Ok(()),
            },
            Key::Received(number, id) => match self.sessions.get(number).and_then(|it| it.received.get(id)) {
                Some(received) if received.slot.is_dirty && received.count > 0 => {
                    sink.put(&Record::Received { session: number.0, id: *id })
                }
                _ => Ok(()),
            },
            Key::Will(number) => match self.sessions.get(number).and_then(|it| it.will.as_ref()) {
                Some(Waiting { will, slot, .. }) if slot.is_dirty => sink.put(&Record::Will {
                    session: number.0,
                    content: content(&will.message),
                    delay: will.delay,
                    message_expiry: will.message_expiry,
                }),
                _ => Ok(()),
            },
            Key::Retained(topic) => match self.retained.get(topic) {
                Some(LastWrite { message: Some(message), stamp, slot }) if slot.is_dirty => {
                    let message = self.write_message(sink, address(message), clocks, written)?;
                    sink.put(&match *stamp {
                        Some(stamp) => Record::Stamped { topic, message, stamp },
                        None => Record::Retained { topic, message },
                    })
                }
                Some(LastWrite { message: None, stamp: Some(stamp), slot }) if slot.is_dirty => {
                    sink.put(&Record::Deleted { topic, stamp: *stamp })
                }
                _ => Ok(()),
            },
            Key::Message(address) => self.write_message(sink, *address, clocks, written).map(drop),
            Key::Replay(key) => self.replay.write(sink, key, clocks),
        }
    }

    fn write_entry<S: Sink>(
        &self,
        sink: &mut S,
        number: SubscriberId,
        order: Order,
        kept: &Kept,
        clocks: &Clocks,
        written: &mut Set<usize>,
    ) -> Result<(), S::Error> {
        let message = match &kept.message {
            Some(message) => self.write_message(sink, address(message), clocks, written)?,
            None => 0,
        };
        let subscription_ids = kept.subscription_ids.as_deref().unwrap_or_default().to_vec();
        let Kept { qos, retain, stage, .. } = kept;
        sink.put(&Record::Entry { session: number.0, order, message, qos: *qos, retain: *retain, stage: *stage, subscription_ids })
    }

    /// The number of a message, which is written if it does not stand anywhere yet.
    fn write_message<S: Sink>(
        &self,
        sink: &mut S,
        address: usize,
        clocks: &Clocks,
        written: &mut Set<usize>,
    ) -> Result<u64, S::Error> {
        let Some(shared) = self.messages.get(&address) else { return Ok(0) };
        let stands = shared.slot.at > 0 && !shared.slot.is_dirty;
        if !stands && written.insert(address) {
            let expires_at_ms = shared.message.expires_at.map(|at| clocks.unix_ms(at));
            sink.put(&Record::Message { message: shared.number, content: content(&shared.message), expires_at_ms })?;
        }
        Ok(shared.number)
    }

    /// What was dirty stands in `segment` now.
    pub(super) fn written(&mut self, segment: Segment) {
        let clean = Slot { at: segment, is_dirty: false };
        self.gone.clear();
        self.tidy_at = 0;
        for key in std::mem::take(&mut self.dirty) {
            // The message of an entry was written with it, if it did not stand anywhere.
            let message = match &key {
                Key::Entry(number, order) => {
                    self.sessions.get(number).and_then(|it| it.entries.get(order)).and_then(|kept| kept.message.as_ref())
                }
                Key::Retained(topic) => self.retained.get(topic).and_then(|last| last.message.as_ref()),
                _ => None,
            };
            if let Some(shared) = message.map(address).and_then(|address| self.messages.get_mut(&address))
                && (shared.slot.at == 0 || shared.slot.is_dirty)
            {
                shared.slot = clean;
            }
            if let Some(slot) = self.slot_mut(&key) {
                *slot = clean;
            }
        }
    }

    /// What is dirty may be read in `segment`, though nobody can count on it: what of it goes must be said to be gone.
    pub(super) fn may_stand(&mut self, segment: Segment) {
        let dirty = std::mem::take(&mut self.dirty);
        for key in &dirty {
            if let Some(slot) = self.slot_mut(key).filter(|slot| slot.is_dirty) {
                slot.at = segment;
            }
        }
        self.dirty = dirty;
    }

    fn slot_mut(&mut self, key: &Key) -> Option<&mut Slot> {
        match key {
            Key::Session(number) => self.sessions.get_mut(number).map(|session| &mut session.slot),
            Key::Subscription(number, filter) => self.sessions.get_mut(number)?.subscriptions.get_mut(filter).map(|(_, slot)| slot),
            Key::Entry(number, order) => self.sessions.get_mut(number)?.entries.get_mut(order).map(|kept| &mut kept.slot),
            Key::Received(number, id) => self.sessions.get_mut(number)?.received.get_mut(id).map(|received| &mut received.slot),
            Key::Will(number) => self.sessions.get_mut(number)?.will.as_mut().map(|waiting| &mut waiting.slot),
            Key::Retained(topic) => self.retained.get_mut(topic).map(|last| &mut last.slot),
            Key::Message(address) => self.messages.get_mut(address).map(|shared| &mut shared.slot),
            Key::Replay(key) => self.replay.slot_mut(key),
        }
    }
}

/// Moving what stands in old segments to the newest, so that they can go.
impl Mirror {
    /// What stands in segments up to `cut`.
    pub(super) fn standing(&self, cut: Segment) -> Vec<Standing> {
        let mut found = Vec::new();
        let mut look = |slot: &Slot, key: &dyn Fn() -> Key| {
            if slot.at > 0 && slot.at <= cut {
                found.push(Standing(key()));
            }
        };
        for (number, session) in &self.sessions {
            look(&session.slot, &|| Key::Session(*number));
            for (filter, (_, slot)) in &session.subscriptions {
                look(slot, &|| Key::Subscription(*number, filter.clone()));
            }
            for (order, kept) in &session.entries {
                look(&kept.slot, &|| Key::Entry(*number, *order));
            }
            for (id, received) in &session.received {
                look(&received.slot, &|| Key::Received(*number, *id));
            }
            if let Some(waiting) = &session.will {
                look(&waiting.slot, &|| Key::Will(*number));
            }
        }
        for (topic, last) in &self.retained {
            look(&last.slot, &|| Key::Retained(topic.clone()));
        }
        for (address, shared) in &self.messages {
            look(&shared.slot, &|| Key::Message(*address));
        }
        self.replay.for_each(|slot, key| look(slot, &|| Key::Replay(key)));
        found
    }

    /// Makes it dirty, if it still stands in a segment up to `cut`. Says how much that will write, bytes.
    pub(super) fn renew(&mut self, standing: Standing, cut: Segment) -> u64 {
        let Standing(key) = standing;
        match self.slot_mut(&key) {
            Some(slot) if slot.at <= cut && !slot.is_dirty => slot.is_dirty = true,
            _ => return 0,
        }
        let bytes = match &key {
            Key::Message(address) => self.messages.get(address).map_or(0, |shared| shared.message.bytes() as u64),
            Key::Retained(text) | Key::Subscription(_, text) => text.len() as u64,
            Key::Replay(key) => self.replay.bytes_of(key),
            _ => 0,
        };
        self.dirty.push(key);
        bytes + RECORD_OVERHEAD_BYTES
    }

    /// What all that is known would take if it were written anew, bytes, roughly.
    pub(super) fn live_bytes(&self) -> u64 {
        let (replayed, replayed_bytes) = self.replay.size();
        let mut records = self.sessions.len() + self.retained.len() + self.messages.len() + replayed;
        let mut bytes = self.messages.values().map(|shared| shared.message.bytes()).sum::<usize>();
        bytes += self.retained.keys().map(|topic| topic.len()).sum::<usize>();
        for session in self.sessions.values() {
            records += session.subscriptions.len() + session.entries.len() + session.received.len();
            bytes += session.head.client_id.len() + session.subscriptions.keys().map(|filter| filter.len()).sum::<usize>();
            bytes += session.will.as_ref().map_or(0, |waiting| waiting.will.message.bytes());
        }
        bytes as u64 + replayed_bytes + records as u64 * RECORD_OVERHEAD_BYTES
    }
}

/// Something that stands in an old segment.
#[derive(Debug)]
pub(super) struct Standing(Key);

fn content(message: &StoredMessage) -> Content<'_> {
    Content {
        topic: &message.topic,
        payload: &message.payload,
        properties: &message.properties,
        qos: message.qos,
        retain: message.retain,
    }
}
