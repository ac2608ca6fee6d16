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

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Instant;

use parking_lot::RwLock;

use crate::auth::Access;
use crate::limits::RETAINED_BYTES_MAX;
use crate::session::{Change, Journal, StoredMessage};
use crate::topic::NameTrie;

/// What a retained message costs beside its bytes: counters, indexes, allocations. Counted, so that many small ones are bounded too.
const MESSAGE_OVERHEAD_BYTES: usize = 256;
/// What each level of its topic costs in the trie beside its text, where no other topic shares it.
const LEVEL_OVERHEAD_BYTES: usize = 128;
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

/// See the module's page.
#[derive(Debug)]
pub struct RetainedStore {
    inner: RwLock<Inner>,
    bytes_max: usize,
    /// Where it is written down what is retained; none: nowhere.
    journal: Option<Arc<Journal>>,
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

impl RetainedStore {
    /// A store without messages that holds at most `bytes_max` bytes, overhead included.
    #[must_use]
    pub fn new(bytes_max: usize) -> Self {
        Self { inner: RwLock::default(), bytes_max, journal: None }
    }

    /// A store, as large as may be, that outlives the broker if there is a journal.
    pub(super) fn durable(journal: Option<Arc<Journal>>) -> Self {
        Self { journal, ..Self::default() }
    }

    /// Whether what nobody waits for should not be retained now: see [`Journal::is_behind`].
    pub(super) fn is_behind(&self) -> bool {
        self.journal.as_ref().is_some_and(|journal| journal.is_behind())
    }

    /// Writes down what has happened under the lock that is held.
    fn write_down(&self, change: impl FnOnce() -> Change) -> Option<u64> {
        self.journal.as_ref().map(|journal| journal.push(change()))
    }

    /// Takes in what a restarted broker has read.
    pub(super) fn restore(&self, message: Arc<StoredMessage>) {
        let mut inner = self.inner.write();
        let replaced = inner.remove(&message.topic);
        inner.insert(message, None);
        drop(inner);
        drop(replaced);
    }

    /// Keeps `message` in place of the one that its topic had [MQTT-3.3.1-5]. Who retained it is remembered where there are rules about that. Gives the number of the change, where it is written down.
    ///
    /// # Errors
    /// When there is no room. The old message is gone all the same: it is no longer what was published last.
    pub fn set(&self, message: Arc<StoredMessage>, writer: Option<Writer>) -> Result<Option<u64>, RetainedFull> {
        let mut inner = self.inner.write();
        let replaced = inner.remove(&message.topic);
        let (bytes, held) = (cost(&message), inner.bytes);
        let fits = held.saturating_add(bytes) <= self.bytes_max;
        let number = match (fits, &replaced) {
            (true, _) => self.write_down(|| Change::Retained(Arc::clone(&message))),
            (false, Some(replaced)) => self.write_down(|| Change::Forgotten(replaced.topic.clone())),
            (false, None) => None,
        };
        if fits {
            inner.insert(message, writer);
        }
        drop(inner);
        drop(replaced); // a large payload is freed outside the lock
        if fits { Ok(number) } else { Err(RetainedFull { bytes, held, bytes_max: self.bytes_max }) }
    }

    /// Keeps nothing for `topic` any more [MQTT-3.3.1-6]. Gives the number of the change, where it is written down.
    pub fn remove(&self, topic: &str) -> Option<u64> {
        let mut inner = self.inner.write();
        // Somebody else's removal may not be safe yet.
        let Some(removed) = inner.remove(topic) else { return self.journal.as_ref().map(|journal| journal.last()) };
        let number = self.write_down(|| Change::Forgotten(removed.topic.clone()));
        drop(inner);
        drop(removed); // a large payload is freed outside the lock
        number
    }

    /// Keeps nothing any more of those who no longer may say it, by `may_say`; how many that were.
    pub fn revoke(&self, may_say: impl Fn(&Writer, &str) -> bool) -> usize {
        let inner = self.inner.read();
        let unsaid = inner.writers.iter().filter(|(topic, writer)| !may_say(writer, topic));
        let unsaid: Vec<_> =
            unsaid.filter_map(|(topic, _)| inner.by_topic.find(topic)).map(|entry| Arc::clone(&entry.message)).collect();
        drop(inner);
        unsaid.iter().filter(|message| self.take_back(message)).count()
    }

    /// Keeps that message no more. False if its topic has another by now: somebody else has said something there.
    pub(super) fn take_back(&self, message: &Arc<StoredMessage>) -> bool {
        let mut inner = self.inner.write();
        let is_there = inner.by_topic.find(&message.topic).is_some_and(|entry| Arc::ptr_eq(&entry.message, message));
        if is_there {
            inner.remove(&message.topic);
            self.write_down(|| Change::Forgotten(message.topic.clone()));
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
                self.write_down(|| Change::Forgotten(message.topic.clone()));
            }
            drop(inner);
            swept += turn.len();
            if turn.len() < SWEEP_TURN {
                return swept;
            }
        }
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
        store.set(message("a/b", "1", None), None).unwrap();
        store.set(message("a/b", "2", None), None).unwrap();
        store.set(message("a/b/c", "3", None), None).unwrap();
        store.set(message("$SYS/x", "4", None), None).unwrap();
        for (filter, expected) in
            [("a/b", vec!["2"]), ("a/b/#", vec!["2", "3"]), ("#", vec!["2", "3"]), ("+/+", vec!["2"]), ("$SYS/#", vec!["4"])]
        {
            assert_eq!(payloads(&store, filter, now), expected, "{filter:?}");
        }
        store.remove("a/b");
        store.remove("never/there");
        assert_eq!(payloads(&store, "a/#", now), ["3"]);
        assert_eq!(store.count(), 2);
    }

    #[test]
    fn what_has_expired_is_not_handed_out_and_is_swept() {
        let (store, now) = (RetainedStore::default(), any_instant());
        let at = |seconds| now + Duration::from_secs(seconds);
        store.set(message("soon", "1", Some(at(1))), None).unwrap();
        store.set(message("later", "2", Some(at(5))), None).unwrap();
        store.set(message("never", "3", None), None).unwrap();
        store.set(message("replaced", "4", Some(at(1))), None).unwrap();
        store.set(message("replaced", "5", None), None).unwrap();
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
            store.set(message(&format!("t/{number}"), "x", Some(now)), None).unwrap();
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
        store.set(first, None).unwrap();
        let second = message("b", "x", None);
        let refused = RetainedFull { bytes: cost(&second), held: room, bytes_max: room };
        assert_eq!(store.set(second, None), Err(refused));
        assert_eq!(payloads(&store, "#", now), ["old"]);
        assert!(store.set(message("a", "larger", None), None).is_err());
        assert_eq!((payloads(&store, "#", now).len(), store.bytes()), (0, 0), "`old` is not what was published last");
        assert_eq!(store.set(message("b", "ok", None), None), Ok(None));
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
                        store.remove(&topic);
                        model.remove(&topic);
                    }
                    Some((0, payload)) => {
                        store.set(message(&topic, &payload, None), None).unwrap();
                        model.insert(topic, (u64::MAX, payload));
                    }
                    Some((expiry, payload)) => {
                        store.set(message(&topic, &payload, Some(at(expiry))), None).unwrap();
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
