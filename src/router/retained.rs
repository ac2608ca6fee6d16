//! Retained messages: the last one of each topic, kept for subscriptions to come.
//!
//! It holds what it is given and finds it by filter. Whether a publish retains, deletes or neither [MQTT-3.3.1-5 to 3.3.1-8], and which
//! subscriptions are sent anything [MQTT-3.3.1-9 to 3.3.1-11], is the router's to say.
//!
//! Publishes that do not retain never come here, so one lock is enough; whoever holds it does no more than walk the trie or drop a
//! bounded number of messages. It is a leaf in the lock order.
//!
//! Invariants: the bytes held never exceed the bound; every message with an expiry stands in the expiry index exactly once and no other
//! does; what has expired is never handed out, whether or not it has been swept yet.
//!
//! Specification: MQTT 5.0, sections 3.3.1.3 (RETAIN) and 3.3.2.3.3 (Message Expiry Interval).

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use parking_lot::RwLock;

use crate::auth::Access;
use crate::frame::bulk::TopicKey;
use crate::ids::Stamp;
use crate::limits::{RETAINED_BYTES_MAX, TOMBSTONES_BYTES_MAX};
use crate::metrics::Counter;
use crate::session::{Change, Journal, StoredMessage};
use crate::shared::StampClock;
use crate::shared::retained::{Index, Turn, Written, key_of};
use crate::topic::NameTrie;

/// What a retained message costs beside its bytes: counters, indexes, allocations. Counted, so that many small ones are bounded too.
const MESSAGE_OVERHEAD_BYTES: usize = 256;
/// What each level of its topic costs in the trie beside its text, where no other topic shares it.
const LEVEL_OVERHEAD_BYTES: usize = 128;
/// What a write takes on its way to another broker beside its bytes, roughly.
const WRITE_OVERHEAD_BYTES: usize = 40;
/// Messages that one turn of the sweep drops before it lets others to the lock.
const SWEEP_TURN: usize = 1_024;

/// There is no room for another retained message: reason code 0x97.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no room for {bytes} more bytes of retained messages: {held} of {bytes_max} are taken")]
pub struct RetainedFull {
    /// What the message needs.
    pub bytes: usize,
    /// What the others take.
    pub held: usize,
    /// The bound.
    pub bytes_max: usize,
}

/// A stamp that is further ahead than any clock: what has it must not be retained, for nothing could be written after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a stamp of {} ms since 1970, which is no honest broker's", .0.millis())]
pub struct Unbelievable(pub Stamp);

/// See the module's page.
#[derive(Debug)]
pub struct RetainedStore {
    inner: RwLock<Inner>,
    bytes_max: usize,
    /// Where it is written down what is retained; none: nowhere.
    journal: Option<Arc<Journal>>,
    mesh: OnceLock<Shared>,
}

/// What there is in a mesh only.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) clock: StampClock,
    tombstone_age: Duration,
    pub(super) turn: Turn,
    news: AtomicU64,
    pub(super) counts: MeshCounts,
}

/// What is counted of retained messages in a mesh.
#[derive(Debug, Default)]
pub struct MeshCounts {
    /// Taken from a neighbour when the two were compared.
    pub taken: Counter,
    /// Older than what was there already, and so not retained.
    pub older: Counter,
    /// Not retained, for their stamp is further ahead than a clock can be.
    pub refused: Counter,
    /// Tombstones forgotten before their time, for want of room.
    pub tombstones_dropped: Counter,
}

#[derive(Debug, Default)]
struct Inner {
    by_topic: NameTrie<Entry>,
    /// Who retained them, where there are rules about that.
    writers: HashMap<Box<str>, Writer, ahash::RandomState>,
    /// The messages that expire, soonest first.
    by_expiry: BTreeMap<ExpiryKey, Arc<StoredMessage>>,
    bytes: usize,
    /// Tells messages that expire at the same instant apart.
    stored_count: u64,
    /// In a mesh: the stamp of all that is retained, and of what was deleted.
    index: Index<Arc<StoredMessage>>,
}

/// Who has retained a message.
#[derive(Clone, Debug)]
pub struct Writer {
    /// The client.
    pub client_id: Arc<str>,
    /// What it could do then.
    pub access: Arc<Access>,
}

type ExpiryKey = (Instant, u64);

#[derive(Debug)]
struct Entry {
    message: Arc<StoredMessage>,
    expiry: Option<ExpiryKey>,
}

/// Whether what is written may take the place of what there is.
enum Place {
    /// There is no mesh.
    Plain,
    /// It is newer.
    Newer(TopicKey, Stamp),
    /// It is not.
    Older,
}

impl RetainedStore {
    /// A store without messages that holds at most `bytes_max` bytes, overhead included.
    #[must_use]
    pub fn new(bytes_max: usize) -> Self {
        Self { inner: RwLock::default(), bytes_max, journal: None, mesh: OnceLock::new() }
    }

    /// A store, as large as may be, that outlives the broker if there is a journal.
    #[must_use]
    pub fn durable(journal: Option<Arc<Journal>>) -> Self {
        Self { journal, ..Self::default() }
    }

    /// From now on, and before anything is retained, all that is written has a stamp, and deletions are remembered so long. The first call counts.
    pub fn share(&self, clock: StampClock, tombstone_age: Duration) {
        let shared = Shared { clock, tombstone_age, turn: Turn::default(), news: AtomicU64::new(0), counts: MeshCounts::default() };
        // A broker has one mesh.
        let _ = self.mesh.set(shared);
    }

    /// What there is in a mesh only.
    pub(super) fn shared(&self) -> Option<&Shared> {
        self.mesh.get()
    }

    /// What is counted in a mesh.
    #[must_use]
    pub fn mesh_counts(&self) -> Option<&MeshCounts> {
        self.mesh.get().map(|shared| &shared.counts)
    }

    /// The clock of stamps, in a mesh.
    #[must_use]
    pub fn clock(&self) -> Option<&StampClock> {
        self.mesh.get().map(|shared| &shared.clock)
    }

    /// The stamp of a write: its own, or the present if it is made here. None without a mesh.
    ///
    /// # Errors
    /// [`Unbelievable`]: it must not be retained.
    pub fn stamp(&self, own: Option<Stamp>, now: Instant) -> Result<Option<Stamp>, Unbelievable> {
        let Some(shared) = self.shared() else { return Ok(None) };
        match own {
            None => Ok(Some(shared.clock.tick(now))),
            Some(stamp) if shared.clock.accepts(stamp, now) => Ok(Some(stamp)),
            Some(stamp) => {
                shared.counts.refused.add(1);
                Err(Unbelievable(stamp))
            }
        }
    }

    /// Something was written here that does not go through the lanes.
    pub(super) fn is_news(&self) {
        if let Some(shared) = self.shared() {
            shared.news.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// How often that was.
    #[must_use]
    pub fn news(&self) -> u64 {
        self.shared().map_or(0, |shared| shared.news.load(Ordering::Acquire))
    }

    /// Whether what nobody waits for should not be retained now: see [`Journal::is_behind`].
    pub(super) fn is_behind(&self) -> bool {
        self.journal.as_ref().is_some_and(|journal| journal.is_behind())
    }

    /// Writes down what has happened under the lock that is held.
    fn write_down(&self, change: impl FnOnce() -> Change) -> Option<u64> {
        self.journal.as_ref().map(|journal| journal.push(change()))
    }

    /// Takes in what a restarted broker has read. In a mesh what has no stamp was written before all that has one.
    pub fn restore(&self, message: Arc<StoredMessage>, stamp: Option<Stamp>, now: Instant) {
        let mut inner = self.inner.write();
        let replaced = inner.remove(&message.topic);
        if let Some(shared) = self.shared() {
            let stamp = stamp.unwrap_or(Stamp { time: 0, writer: shared.clock.writer() });
            shared.clock.restore(stamp, now);
            inner.index.insert(key_of(&message.topic), stamp, Written::Message(Arc::clone(&message)));
        }
        inner.insert(message, None);
        drop(inner);
        drop(replaced);
    }

    /// Takes in that a topic was deleted, as a restarted broker has read it; its age counts anew. Without a mesh nobody needs to know.
    pub fn restore_deleted(&self, topic: Box<str>, stamp: Stamp, now: Instant) {
        match self.shared() {
            Some(shared) => {
                shared.clock.restore(stamp, now);
                self.inner.write().index.insert(key_of(&topic), stamp, Written::Deleted(topic, now));
            }
            None => drop(self.write_down(|| Change::Forgotten(topic, None))),
        }
    }

    /// Whether a write with that stamp counts.
    fn place(inner: &Inner, topic: &str, stamp: Option<Stamp>) -> Place {
        let Some(stamp) = stamp else { return Place::Plain };
        let key = key_of(topic);
        match inner.index.stamp(key) {
            Some(present) if present >= stamp => Place::Older,
            _ => Place::Newer(key, stamp),
        }
    }

    /// Somebody else's write may not be safe yet.
    fn last_number(&self) -> Option<u64> {
        self.journal.as_ref().map(|journal| journal.last())
    }

    fn count_older(&self) {
        if let Some(shared) = self.shared() {
            shared.counts.older.add(1);
        }
    }

    /// Keeps `message` in place of the one that its topic had [MQTT-3.3.1-5], unless that is newer by its stamp. Who retained it is remembered where there are rules
    /// about that. Gives the number of the change, where it is written down.
    ///
    /// # Errors
    /// When there is no room. The old message is gone all the same: it is no longer what was published last.
    pub fn set(
        &self,
        message: Arc<StoredMessage>,
        stamp: Option<Stamp>,
        writer: Option<Writer>,
    ) -> Result<Option<u64>, RetainedFull> {
        self.write(message, stamp, writer, None).map(|(number, _)| number)
    }

    /// As [`set`](Self::set), of what other brokers hold: where there is no room nothing older is taken all the same.
    ///
    /// # Errors
    /// As there.
    pub(super) fn follow(
        &self,
        message: Arc<StoredMessage>,
        stamp: Option<Stamp>,
        now: Instant,
    ) -> Result<Option<u64>, RetainedFull> {
        self.write(message, stamp, None, Some(now)).map(|(number, _)| number)
    }

    /// As [`set`](Self::set); also says whether it was newer. `known_elsewhere`, the present: another broker holds it, and what there is no room for is not to
    /// be taken in an older form of a third one.
    fn write(
        &self,
        message: Arc<StoredMessage>,
        stamp: Option<Stamp>,
        writer: Option<Writer>,
        known_elsewhere: Option<Instant>,
    ) -> Result<(Option<u64>, bool), RetainedFull> {
        let mut inner = self.inner.write();
        let place = Self::place(&inner, &message.topic, stamp);
        if matches!(place, Place::Older) {
            drop(inner);
            self.count_older();
            return Ok((self.last_number(), false));
        }
        let replaced = inner.remove(&message.topic);
        let (bytes, held) = (cost(&message), inner.bytes);
        if held.saturating_add(bytes) > self.bytes_max {
            if replaced.is_some() {
                let outdated = match (&place, known_elsewhere) {
                    (Place::Newer(..), Some(now)) => inner.outlive(&message.topic, now),
                    (Place::Newer(key, _), None) => {
                        inner.index.remove(*key);
                        None
                    }
                    (Place::Plain | Place::Older, _) => None,
                };
                self.write_down(|| Change::Forgotten(message.topic.clone(), outdated));
            }
            drop(inner);
            drop(replaced);
            return Err(RetainedFull { bytes, held, bytes_max: self.bytes_max });
        }
        let number = self.write_down(|| Change::Retained(Arc::clone(&message), stamp));
        if let Place::Newer(key, stamp) = place {
            inner.index.insert(key, stamp, Written::Message(Arc::clone(&message)));
        }
        inner.insert(message, writer);
        drop(inner);
        drop(replaced); // a large payload is freed outside the lock
        Ok((number, true))
    }

    /// Keeps nothing for `topic` any more [MQTT-3.3.1-6], unless what it has is newer by its stamp. With a stamp it is remembered when that was. Gives the number of the
    /// change, where it is written down.
    pub fn remove(&self, topic: &str, stamp: Option<Stamp>, now: Instant) -> Option<u64> {
        self.delete(topic, stamp, now).0
    }

    /// As [`remove`](Self::remove); also says whether it was newer.
    fn delete(&self, topic: &str, stamp: Option<Stamp>, now: Instant) -> (Option<u64>, bool) {
        let mut inner = self.inner.write();
        let place = Self::place(&inner, topic, stamp);
        if matches!(place, Place::Older) {
            drop(inner);
            self.count_older();
            return (self.last_number(), false);
        }
        let removed = inner.remove(topic);
        match place {
            Place::Newer(key, stamp) => inner.index.insert(key, stamp, Written::Deleted(topic.into(), now)),
            Place::Plain | Place::Older if removed.is_none() => return (self.last_number(), false),
            Place::Plain | Place::Older => {}
        }
        let number = self.write_down(|| Change::Forgotten(topic.into(), stamp));
        drop(inner);
        drop(removed); // a large payload is freed outside the lock
        (number, true)
    }

    /// What `topic` has is not what was published last, and that cannot be kept: nothing is known of it.
    pub(super) fn forget(&self, topic: &str) {
        let mut inner = self.inner.write();
        let removed = inner.remove(topic);
        let was_known = self.shared().is_some() && inner.index.remove(key_of(topic));
        if was_known || removed.is_some() {
            self.write_down(|| Change::Forgotten(topic.into(), None));
        }
        drop(inner);
        drop(removed);
    }

    /// There is something newer of `topic`, with that stamp, which cannot be kept. Of what is older than what was here nothing is taken all the same.
    pub(super) fn outdate(&self, topic: &str, stamp: Stamp, now: Instant) {
        let mut inner = self.inner.write();
        if !matches!(Self::place(&inner, topic, Some(stamp)), Place::Newer(..)) {
            return;
        }
        let removed = inner.remove(topic);
        if removed.is_some() {
            let outdated = inner.outlive(topic, now);
            self.write_down(|| Change::Forgotten(topic.into(), outdated));
        }
        drop(inner);
        drop(removed);
    }

    /// Bytes that there is room for.
    pub(super) fn room(&self) -> usize {
        self.bytes_max.saturating_sub(self.inner.read().bytes)
    }

    /// Keeps nothing any more of those who no longer may say it, by `may_say`; how many that were.
    pub fn revoke(&self, may_say: impl Fn(&Writer, &str) -> bool, now: Instant) -> usize {
        let inner = self.inner.read();
        let unsaid = inner.writers.iter().filter(|(topic, writer)| !may_say(writer, topic));
        let unsaid: Vec<_> =
            unsaid.filter_map(|(topic, _)| inner.by_topic.find(topic)).map(|entry| Arc::clone(&entry.message)).collect();
        drop(inner);
        unsaid.iter().filter(|message| self.take_back(message, now)).count()
    }

    /// Keeps that message no more. False if its topic has another by now: somebody else has said something there.
    pub(super) fn take_back(&self, message: &Arc<StoredMessage>, now: Instant) -> bool {
        let mut inner = self.inner.write();
        let is_there = inner.by_topic.find(&message.topic).is_some_and(|entry| Arc::ptr_eq(&entry.message, message));
        if is_there {
            inner.remove(&message.topic);
            // All others are to take it back as well.
            let stamp = self.clock().map(|clock| clock.tick(now));
            if let Some(stamp) = stamp {
                inner.index.insert(key_of(&message.topic), stamp, Written::Deleted(message.topic.clone(), now));
            }
            self.write_down(|| Change::Forgotten(message.topic.clone(), stamp));
            self.is_news();
        }
        is_there
    }

    /// The messages whose topic `filter` (checked, without a share name) matches and that have not expired, in no particular order.
    #[must_use]
    pub fn matching(&self, filter: &str, now: Instant) -> Vec<Arc<StoredMessage>> {
        let mut found = Vec::new();
        self.inner.read().by_topic.for_each_match(filter, |entry| {
            if entry.message.expires_at.is_none_or(|at| at > now) {
                found.push(Arc::clone(&entry.message));
            }
        });
        found
    }

    /// Drops what has expired, so that it costs no memory until somebody subscribes, and returns how many that were.
    pub fn sweep_expired(&self, now: Instant) -> usize {
        let mut swept = 0;
        loop {
            let mut inner = self.inner.write();
            let turn = inner.take_expired(now);
            for message in &turn {
                let stamp = self.shared().and_then(|_| inner.outlive(&message.topic, now));
                self.write_down(|| Change::Forgotten(message.topic.clone(), stamp));
            }
            drop(inner);
            swept += turn.len();
            if turn.len() < SWEEP_TURN {
                return swept;
            }
        }
    }

    /// Forgets, in a mesh, what was deleted long ago: by the time that has been lived here, not by mesh time, which may jump. Said once a second or so.
    pub fn sweep_tombstones(&self, now: Instant) {
        let Some(shared) = self.shared() else { return };
        let age_ms = u64::try_from(shared.tombstone_age.as_millis()).unwrap_or(u64::MAX);
        let time = shared.clock.mesh_ms(now).saturating_sub(age_ms) << Stamp::COUNTER_BITS;
        loop {
            let mut inner = self.inner.write();
            let are_all_hidden = inner.index.hide_tombstones(time);
            let forgotten = inner.index.forget_tombstones(shared.tombstone_age, TOMBSTONES_BYTES_MAX, now);
            if are_all_hidden && forgotten.is_empty() {
                return;
            }
            for (topic, is_of_age) in forgotten {
                shared.counts.tombstones_dropped.add(u64::from(!is_of_age));
                self.write_down(|| Change::Forgotten(topic, None));
            }
        }
    }

    /// How many deletions are remembered.
    #[must_use]
    pub fn tombstones(&self) -> usize {
        self.inner.read().index.tombstones().0
    }

    /// See [`Index::sums`].
    pub fn sums(&self) -> Vec<u64> {
        self.inner.read().index.sums()
    }

    /// See [`Index::unseen`].
    pub fn unseen(&self, from: TopicKey, to: TopicKey) -> BTreeSet<TopicKey> {
        self.inner.read().index.unseen(from, to)
    }

    /// What is held of the keys from one to another, at most so many from the front.
    pub fn stamps(&self, from: TopicKey, to: TopicKey, count_max: usize) -> Vec<(TopicKey, Stamp)> {
        self.inner.read().index.range(from, to).take(count_max).collect()
    }

    /// What was written last to the topics of the keys at the front of `keys`, which are taken off: as many as have so many bytes together, at least one.
    pub fn last_writes(&self, keys: &mut BTreeSet<TopicKey>, bytes: usize) -> Vec<(Stamp, Written<Arc<StoredMessage>>)> {
        let inner = self.inner.read();
        let (mut found, mut sum) = (Vec::new(), 0);
        while sum < bytes
            && let Some(key) = keys.pop_first()
        {
            let Some((stamp, written)) = inner.index.find(key) else { continue };
            sum += WRITE_OVERHEAD_BYTES
                + match written {
                    Written::Message(message) => message.bytes(),
                    Written::Deleted(topic, _) => topic.len(),
                };
            found.push((stamp, written.clone()));
        }
        found
    }

    /// Takes in what another broker holds, if it is newer; says whether it was. None: a deletion.
    ///
    /// # Errors
    /// When there is no room.
    pub fn merge(
        &self,
        topic: &str,
        stamp: Stamp,
        message: Option<Arc<StoredMessage>>,
        now: Instant,
    ) -> Result<bool, RetainedFull> {
        let is_newer = match message {
            Some(message) => self.write(message, Some(stamp), None, Some(now))?.1,
            // Otherwise it would be forgotten and taken again for as long as any neighbour remembers it.
            None if self.inner.read().index.is_forgotten(key_of(topic), stamp) => false,
            None => self.delete(topic, Some(stamp), now).1,
        };
        if is_newer {
            self.is_news();
        }
        Ok(is_newer)
    }

    /// Whether `message` is still the one that its topic has.
    #[must_use]
    pub fn holds(&self, message: &Arc<StoredMessage>) -> bool {
        self.inner.read().by_topic.find(&message.topic).is_some_and(|entry| Arc::ptr_eq(&entry.message, message))
    }

    /// How many messages are kept.
    #[must_use]
    pub fn count(&self) -> usize {
        self.inner.read().by_topic.len()
    }

    /// What they take, overhead included.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.inner.read().bytes
    }
}

impl Default for RetainedStore {
    fn default() -> Self {
        Self::new(RETAINED_BYTES_MAX)
    }
}

impl Inner {
    fn insert(&mut self, message: Arc<StoredMessage>, writer: Option<Writer>) {
        if let Some(writer) = writer {
            self.writers.insert(message.topic.clone(), writer);
        }
        self.stored_count += 1;
        let expiry = message.expires_at.map(|at| (at, self.stored_count));
        if let Some(key) = expiry {
            self.by_expiry.insert(key, Arc::clone(&message));
        }
        self.bytes += cost(&message);
        let topic = Arc::clone(&message);
        self.by_topic.insert(&topic.topic, Entry { message, expiry });
    }

    fn remove(&mut self, topic: &str) -> Option<Arc<StoredMessage>> {
        let Entry { message, expiry } = self.by_topic.remove(topic)?;
        self.writers.remove(topic);
        if let Some(key) = expiry {
            self.by_expiry.remove(&key);
        }
        self.bytes -= cost(&message);
        Some(message)
    }

    /// What was retained has expired, or is outdated: the topic is as if it had been deleted when that was published, so that nothing older comes back.
    fn outlive(&mut self, topic: &str, now: Instant) -> Option<Stamp> {
        let key = key_of(topic);
        let stamp = self.index.stamp(key)?;
        self.index.insert(key, stamp, Written::Deleted(topic.into(), now));
        Some(stamp)
    }

    /// At most one turn's worth, for the caller to drop outside the lock.
    fn take_expired(&mut self, now: Instant) -> Vec<Arc<StoredMessage>> {
        let mut taken = Vec::new();
        while let Some(first) = self.by_expiry.first_entry()
            && first.key().0 <= now
            && taken.len() < SWEEP_TURN
        {
            let message = Arc::clone(first.get());
            taken.extend(self.remove(&message.topic));
        }
        taken
    }
}

/// An upper bound: levels that topics share are counted for each.
fn cost(message: &StoredMessage) -> usize {
    let levels = message.topic.split('/').count();
    message.bytes() + message.topic.len() + levels * LEVEL_OVERHEAD_BYTES + MESSAGE_OVERHEAD_BYTES
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bytes::Bytes;
    use proptest::prelude::*;

    use super::*;
    use crate::codec::QoS;

    fn message(topic: &str, payload: &str, expires_at: Option<Instant>) -> Arc<StoredMessage> {
        Arc::new(StoredMessage {
            topic: topic.into(),
            payload: Bytes::copy_from_slice(payload.as_bytes()),
            qos: QoS::AtLeastOnce,
            retain: true,
            expires_at,
            properties: Bytes::new(),
        })
    }

    fn payloads(store: &RetainedStore, filter: &str, now: Instant) -> Vec<String> {
        let text = |message: &Arc<StoredMessage>| String::from_utf8(message.payload.to_vec()).unwrap();
        let mut payloads: Vec<_> = store.matching(filter, now).iter().map(text).collect();
        payloads.sort();
        payloads
    }

    #[expect(clippy::disallowed_methods, reason = "virtual time starts somewhere")]
    fn any_instant() -> Instant {
        Instant::now()
    }

    #[test]
    fn the_last_message_of_a_topic_is_kept_until_it_is_removed() {
        let (store, now) = (RetainedStore::default(), any_instant());
        store.set(message("a/b", "1", None), None, None).unwrap();
        store.set(message("a/b", "2", None), None, None).unwrap();
        store.set(message("a/b/c", "3", None), None, None).unwrap();
        store.set(message("$SYS/x", "4", None), None, None).unwrap();
        for (filter, expected) in
            [("a/b", vec!["2"]), ("a/b/#", vec!["2", "3"]), ("#", vec!["2", "3"]), ("+/+", vec!["2"]), ("$SYS/#", vec!["4"])]
        {
            assert_eq!(payloads(&store, filter, now), expected, "{filter:?}");
        }
        store.remove("a/b", None, now);
        store.remove("never/there", None, now);
        assert_eq!(payloads(&store, "a/#", now), ["3"]);
        assert_eq!(store.count(), 2);
    }

    #[test]
    fn what_has_expired_is_not_handed_out_and_is_swept() {
        let (store, now) = (RetainedStore::default(), any_instant());
        let at = |seconds| now + Duration::from_secs(seconds);
        store.set(message("soon", "1", Some(at(1))), None, None).unwrap();
        store.set(message("later", "2", Some(at(5))), None, None).unwrap();
        store.set(message("never", "3", None), None, None).unwrap();
        store.set(message("replaced", "4", Some(at(1))), None, None).unwrap();
        store.set(message("replaced", "5", None), None, None).unwrap();
        assert_eq!(payloads(&store, "#", at(0)), ["1", "2", "3", "5"]);
        assert_eq!(payloads(&store, "#", at(1)), ["2", "3", "5"], "expired, though not swept");
        assert_eq!((store.sweep_expired(at(0)), store.sweep_expired(at(1)), store.sweep_expired(at(1))), (0, 1, 0));
        assert_eq!((store.sweep_expired(at(9)), store.count()), (1, 2));
    }

    #[test]
    fn a_sweep_takes_all_in_turns() {
        let (store, now) = (RetainedStore::default(), any_instant());
        let many = 2 * SWEEP_TURN + 1;
        for number in 0..many {
            store.set(message(&format!("t/{number}"), "x", Some(now)), None, None).unwrap();
        }
        assert_eq!(store.sweep_expired(now), many);
        assert_eq!((store.count(), store.bytes()), (0, 0));
    }

    #[test]
    fn a_deep_topic_costs_its_levels() {
        let (flat, deep) = ("l".repeat(199), ["l"; 100].join("/"));
        assert!(cost(&message(&deep, "", None)) > cost(&message(&flat, "", None)) + 99 * size_of::<NameTrie<Entry>>());
    }

    #[test]
    fn a_full_store_refuses_and_keeps_nothing_stale() {
        let (first, now) = (message("a", "old", None), any_instant());
        let room = cost(&first);
        let store = RetainedStore::new(room);
        store.set(first, None, None).unwrap();
        let second = message("b", "x", None);
        let refused = RetainedFull { bytes: cost(&second), held: room, bytes_max: room };
        assert_eq!(store.set(second, None, None), Err(refused));
        assert_eq!(payloads(&store, "#", now), ["old"]);
        assert!(store.set(message("a", "larger", None), None, None).is_err());
        assert_eq!((payloads(&store, "#", now).len(), store.bytes()), (0, 0), "`old` is not what was published last");
        assert_eq!(store.set(message("b", "ok", None), None, None), Ok(None));
    }

    /// A store in a mesh, and its journal.
    fn in_a_mesh(now: Instant) -> (RetainedStore, Arc<Journal>) {
        let journal = Journal::new();
        let store = RetainedStore::durable(Some(Arc::clone(&journal)));
        store.share(StampClock::new(7, Duration::from_secs(1_800_000_000), now), Duration::from_secs(60));
        (store, journal)
    }

    fn stamp_of(store: &RetainedStore, topic: &str) -> Option<Stamp> {
        let key = key_of(topic);
        store.stamps(key, key, 1).first().map(|(_, stamp)| *stamp)
    }

    /// What the journal says of a topic, deletions as none.
    fn written(journal: &Journal) -> Vec<(String, Option<String>, Option<Stamp>)> {
        let mut changes = Vec::new();
        journal.take(&mut changes, Duration::ZERO);
        let one = |change| match change {
            Change::Retained(message, stamp) => {
                (message.topic.to_string(), Some(String::from_utf8(message.payload.to_vec()).unwrap()), stamp)
            }
            Change::Forgotten(topic, stamp) => (topic.to_string(), None, stamp),
            other => panic!("{other:?}"),
        };
        changes.into_iter().map(one).collect()
    }

    #[test]
    fn in_a_mesh_the_later_stamp_counts_whatever_comes_last() {
        let now = any_instant();
        let (store, journal) = in_a_mesh(now);
        let [first, second, third] = [(); 3].map(|()| store.stamp(None, now).unwrap());
        store.set(message("t", "2", None), second, None).unwrap();
        store.set(message("t", "1", None), first, None).unwrap();
        store.remove("t", first, now);
        assert_eq!(payloads(&store, "#", now), ["2"]);
        store.remove("t", third, now);
        store.set(message("t", "2", None), second, None).unwrap();
        assert_eq!((payloads(&store, "#", now).len(), store.tombstones(), stamp_of(&store, "t")), (0, 1, third));
        // What was never here was deleted elsewhere perhaps before it came here.
        let fourth = store.stamp(None, now).unwrap();
        store.remove("u", fourth, now);
        store.set(message("u", "1", None), first, None).unwrap();
        assert_eq!(store.count(), 0);
        let told = [("t", Some("2"), second), ("t", None, third), ("u", None, fourth)];
        assert_eq!(written(&journal), told.map(|(topic, text, stamp)| (topic.to_owned(), text.map(str::to_owned), stamp)));
        // As a restarted broker reads it.
        let (again, _) = in_a_mesh(now);
        again.restore(message("v", "old", None), None, now);
        again.restore_deleted("t".into(), third.unwrap(), now);
        assert!(again.stamp(None, now).unwrap() > third);
        assert_eq!(again.merge("t", second.unwrap(), Some(message("t", "2", None)), now), Ok(false));
        assert_eq!(
            again.merge("v", first.unwrap(), Some(message("v", "new", None)), now),
            Ok(true),
            "any stamp is later than none"
        );
        assert_eq!((payloads(&again, "#", now), again.news()), (vec!["new".to_owned()], 1));
    }

    #[test]
    fn in_a_mesh_what_is_over_leaves_a_tombstone_until_that_is_over_too() {
        let now = any_instant();
        let at = |seconds| now + Duration::from_secs(seconds);
        let (store, journal) = in_a_mesh(now);
        let expiring = store.stamp(None, now).unwrap();
        store.set(message("expires", "x", Some(at(1))), expiring, None).unwrap();
        let said = message("said", "x", None);
        store.set(Arc::clone(&said), store.stamp(None, now).unwrap(), None).unwrap();
        store.sweep_expired(at(1));
        assert_eq!(stamp_of(&store, "expires"), expiring, "nothing older comes back, and no neighbour sees a difference");
        assert_eq!(store.news(), 0);
        let before = stamp_of(&store, "said");
        assert!(store.take_back(&said, at(2)) && !store.take_back(&said, at(2)));
        let taken_back = stamp_of(&store, "said");
        assert!(taken_back > before, "others take it back as well");
        assert_eq!((store.news(), store.count(), store.tombstones()), (1, 0, 2));
        store.sweep_tombstones(at(61));
        assert_eq!(store.tombstones(), 1);
        store.sweep_tombstones(at(63));
        assert_eq!((store.tombstones(), store.sums()), (0, RetainedStore::default().sums()));
        let kinds: Vec<_> = written(&journal).into_iter().map(|(topic, _, stamp)| (topic, stamp)).collect();
        let told = [
            ("expires", expiring),
            ("said", before),
            ("expires", expiring),
            ("said", taken_back),
            ("expires", None),
            ("said", None),
        ];
        assert_eq!(kinds, told.map(|(topic, stamp)| (topic.to_owned(), stamp)));
    }

    #[test]
    fn in_a_mesh_a_clock_that_jumps_ahead_makes_nobody_forget() {
        let now = any_instant();
        let at = |seconds| now + Duration::from_secs(seconds);
        let (store, _) = in_a_mesh(now);
        let [old, deleted] = [(); 2].map(|()| store.stamp(None, now).unwrap().unwrap());
        store.remove("t", Some(deleted), now);
        let year_ms = 365 * 86_400_000;
        let ahead = store.clock().unwrap().say(now) + year_ms;
        assert!(matches!(store.clock().unwrap().hear(ahead, now), crate::shared::ClockWord::Behind(_)));
        store.sweep_tombstones(at(59));
        assert_eq!(store.merge("t", old, Some(message("t", "old", None)), at(59)), Ok(false), "who was away brings nothing back");
        let key = key_of("t");
        assert_eq!((store.stamps(key, key, 1), store.unseen(key, key).len()), (vec![(key, deleted)], 1), "who has it is told");
        // Of what is past that time nothing is taken that changes nothing.
        assert_eq!(store.merge("u", deleted, None, at(59)), Ok(false));
        store.set(message("u", "old", None), Some(old), None).unwrap();
        assert_eq!((store.merge("u", deleted, None, at(59)), store.count()), (Ok(true), 0));
        store.sweep_tombstones(at(60));
        assert_eq!(store.tombstones(), 1);
    }

    /// There is a newer one, which does not fit: what a third broker has is older still.
    #[test]
    fn in_a_mesh_what_is_outdated_makes_no_room_for_what_is_older() {
        let now = any_instant();
        let store = RetainedStore::new(cost(&message("t", "old", None)));
        store.share(StampClock::new(7, Duration::ZERO, now), Duration::from_secs(60));
        let [older, old, new, newest] = [(); 4].map(|()| store.stamp(None, now).unwrap().unwrap());
        let has = || (store.count(), stamp_of(&store, "t"));
        store.set(message("t", "old", None), Some(old), None).unwrap();
        assert!(store.merge("t", new, Some(message("t", "larger", None)), now).is_err());
        assert_eq!(has(), (0, Some(old)));
        assert_eq!(store.merge("t", older, Some(message("t", "o", None)), now), Ok(false));
        assert!(store.merge("t", new, Some(message("t", "larger", None)), now).is_err(), "it is still to be had");
        assert_eq!(has(), (0, Some(old)));
        assert_eq!(store.merge("t", new, Some(message("t", "new", None)), now), Ok(true));
        assert_eq!(has(), (1, Some(new)));
        store.outdate("t", new, now);
        assert_eq!(has(), (1, Some(new)), "that is no newer one");
        store.outdate("t", newest, now);
        assert_eq!(has(), (0, Some(new)));
        assert!(store.follow(message("u", "too large", None), Some(newest), now).is_err());
        assert_eq!((stamp_of(&store, "u"), store.room()), (None, store.bytes_max));
    }

    #[test]
    fn in_a_mesh_what_does_not_fit_is_unknown_and_what_cannot_be_is_refused() {
        let now = any_instant();
        let store = RetainedStore::new(cost(&message("t", "old", None)));
        store.share(StampClock::new(7, Duration::ZERO, now), Duration::from_secs(60));
        store.set(message("t", "old", None), store.stamp(None, now).unwrap(), None).unwrap();
        assert!(store.set(message("t", "larger", None), store.stamp(None, now).unwrap(), None).is_err());
        assert_eq!(stamp_of(&store, "t"), None, "a neighbour that has it is asked for it again");
        let far = Stamp { time: u64::MAX, writer: 1 };
        assert_eq!(store.stamp(Some(far), now), Err(Unbelievable(far)));
        assert_eq!(store.mesh_counts().unwrap().refused.value(), 1);
    }

    proptest! {
        #[test]
        fn agrees_with_a_map(steps in prop::collection::vec(("[abc]", prop::option::of((0_u64..5, "[xyz]{1,3}")), 0_u64..4), 1..100)) {
            let (store, now) = (RetainedStore::default(), any_instant());
            let at = |seconds| now + Duration::from_secs(seconds);
            let mut model = BTreeMap::new();
            for (topic, what, clock) in steps {
                match what {
                    None => {
                        store.remove(&topic, None, now);
                        model.remove(&topic);
                    }
                    Some((0, payload)) => {
                        store.set(message(&topic, &payload, None), None, None).unwrap();
                        model.insert(topic, (u64::MAX, payload));
                    }
                    Some((expiry, payload)) => {
                        store.set(message(&topic, &payload, Some(at(expiry))), None, None).unwrap();
                        model.insert(topic, (expiry, payload));
                    }
                }
                let mut expected: Vec<_> =
                    model.values().filter(|(expiry, _)| *expiry > clock).map(|(_, payload)| payload.clone()).collect();
                expected.sort();
                prop_assert_eq!(payloads(&store, "#", at(clock)), expected);
                store.sweep_expired(at(clock));
                model.retain(|_, (expiry, _)| *expiry > clock);
                prop_assert_eq!(store.count(), model.len());
                let bytes = model.iter().map(|(topic, (_, payload))| cost(&message(topic, payload, None))).sum::<usize>();
                prop_assert_eq!(store.bytes(), bytes);
                let inner = store.inner.read();
                prop_assert_eq!(inner.by_expiry.len(), model.values().filter(|(expiry, _)| *expiry != u64::MAX).count());
            }
        }
    }
}
