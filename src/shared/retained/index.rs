//! All that is known of retained topics by its stamp, in an order and with sums that two brokers can compare.
//!
//! A topic's **key** is the first 64 bits of its SHA-256: the same everywhere, and nobody finds two topics with one by chance. The highest bits of
//! a key are its **bucket**; each bucket has a sum over keys and stamps of what is in it. What a topic retains and that it was deleted count
//! alike, so that a message that has expired at one broker and not been looked at by another makes no difference.

use std::collections::{BTreeMap, BTreeSet};

use sha2::{Digest, Sha256};

use crate::frame::bulk::{BUCKET_COUNT, TopicKey};
use crate::ids::Stamp;

/// What a tombstone takes beside its topic, bytes.
const TOMBSTONE_OVERHEAD_BYTES: usize = 200;
/// Tombstones that one turn forgets before it lets others to the lock.
const TURN: usize = 1_024;

/// The key of a topic.
#[must_use]
pub fn key_of(topic: &str) -> TopicKey {
    let hash = Sha256::digest(topic.as_bytes());
    let mut first = [0_u8; 8];
    first.iter_mut().zip(hash.iter()).for_each(|(to, from)| *to = *from);
    TopicKey(u64::from_be_bytes(first))
}

/// What was written last to a topic.
#[derive(Clone, Debug)]
pub enum Written<T> {
    /// That.
    Message(T),
    /// It was deleted, or has expired: a tombstone, with the topic.
    Deleted(Box<str>),
}

/// See the module's page.
#[derive(Debug)]
pub struct Index<T> {
    items: BTreeMap<TopicKey, (Stamp, Written<T>)>,
    /// Of `items`, oldest first.
    tombstones: BTreeSet<(Stamp, TopicKey)>,
    tombstone_bytes: usize,
    /// Tombstones of before that ([`Stamp::time`]) were forgotten.
    horizon: u64,
    sums: Vec<u64>,
}

impl<T> Default for Index<T> {
    fn default() -> Self {
        Self { items: BTreeMap::new(), tombstones: BTreeSet::new(), tombstone_bytes: 0, horizon: 0, sums: vec![0; BUCKET_COUNT] }
    }
}

impl<T> Index<T> {
    /// When a topic was last written, as far as that is known.
    #[must_use]
    pub fn stamp(&self, key: TopicKey) -> Option<Stamp> {
        self.items.get(&key).map(|(stamp, _)| *stamp)
    }

    /// What was written then.
    #[must_use]
    pub fn find(&self, key: TopicKey) -> Option<(Stamp, &Written<T>)> {
        self.items.get(&key).map(|(stamp, written)| (*stamp, written))
    }

    /// The newest of a topic, in place of what there was.
    pub fn insert(&mut self, key: TopicKey, stamp: Stamp, written: Written<T>) {
        self.remove(key);
        if let Written::Deleted(topic) = &written {
            self.tombstones.insert((stamp, key));
            self.tombstone_bytes += topic.len() + TOMBSTONE_OVERHEAD_BYTES;
        }
        self.add_to_sum(key, digest(key, stamp));
        self.items.insert(key, (stamp, written));
    }

    /// Nothing is known of a topic any more. Whether something was.
    pub fn remove(&mut self, key: TopicKey) -> bool {
        let Some((stamp, written)) = self.items.remove(&key) else { return false };
        if let Written::Deleted(topic) = &written {
            self.tombstones.remove(&(stamp, key));
            self.tombstone_bytes -= topic.len() + TOMBSTONE_OVERHEAD_BYTES;
        }
        self.add_to_sum(key, digest(key, stamp).wrapping_neg());
        true
    }

    fn add_to_sum(&mut self, key: TopicKey, digest: u64) {
        if let Some(sum) = self.sums.get_mut(key.bucket()) {
            *sum = sum.wrapping_add(digest);
        }
    }

    /// The sum of each bucket; 0: it is empty.
    #[must_use]
    pub fn sums(&self) -> &[u64] {
        &self.sums
    }

    /// What is known from `from` to `to`, both included, in the order of the keys.
    pub fn range(&self, from: TopicKey, to: TopicKey) -> impl Iterator<Item = (TopicKey, Stamp)> {
        // An empty range in place of one that would panic.
        let range = if from <= to { from..=to } else { from..=from };
        self.items.range(range).map(|(key, (stamp, _))| (*key, *stamp))
    }

    /// Forgets tombstones of before `time` ([`Stamp::time`]), and the oldest beyond `bytes_max`, a turn of them. Their topics, and whether they were of
    /// age.
    pub fn forget_tombstones(&mut self, time: u64, bytes_max: usize) -> Vec<(Box<str>, bool)> {
        self.horizon = self.horizon.max(time);
        let mut forgotten = Vec::new();
        while let Some((stamp, key)) = self.tombstones.first().copied()
            && (stamp.time < time || self.tombstone_bytes > bytes_max)
            && forgotten.len() < TURN
        {
            if let Some((_, Written::Deleted(topic))) = self.items.get(&key) {
                forgotten.push((topic.clone(), stamp.time < time));
            }
            self.remove(key);
            self.horizon = self.horizon.max(stamp.time.saturating_add(1));
        }
        forgotten
    }

    /// Whether a deletion is one that was forgotten here, or would be at once: who still remembers it has nothing to tell.
    #[must_use]
    pub fn is_forgotten(&self, key: TopicKey, stamp: Stamp) -> bool {
        stamp.time < self.horizon && !self.items.contains_key(&key)
    }

    /// How many tombstones there are, and what they take.
    #[must_use]
    pub fn tombstones(&self) -> (usize, usize) {
        (self.tombstones.len(), self.tombstone_bytes)
    }
}

/// Never 0 but by chance.
fn digest(key: TopicKey, stamp: Stamp) -> u64 {
    mix(key.0 ^ mix(stamp.time ^ mix(stamp.writer)))
}

/// The finalizer of SplitMix64.
fn mix(mut bits: u64) -> u64 {
    bits = bits.wrapping_add(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn stamp(time: u64) -> Stamp {
        Stamp { time, writer: 1 }
    }

    #[test]
    fn keys_are_the_same_in_every_version() {
        assert_eq!(key_of(""), TopicKey(0xe3b0_c442_98fc_1c14));
        assert_eq!(key_of("abc"), TopicKey(0xba78_16bf_8f01_cfea));
    }

    proptest! {
        #[test]
        fn sums_say_what_is_there_however_it_came_there(
            steps in prop::collection::vec((0..12_u64, prop::option::of((0..5_u64, any::<bool>()))), 0..60),
        ) {
            let mut index = Index::<()>::default();
            let mut model = BTreeMap::new();
            for (topic, step) in steps {
                // Two a bucket.
                let key = TopicKey(topic << 52);
                match step {
                    Some((time, is_message)) => {
                        let written = if is_message { Written::Message(()) } else { Written::Deleted(topic.to_string().into()) };
                        index.insert(key, stamp(time), written);
                        model.insert(key, (time, is_message));
                    }
                    None => prop_assert_eq!(index.remove(key), model.remove(&key).is_some()),
                }
            }
            let mut other = Index::<()>::default();
            model.iter().for_each(|(key, (time, _))| other.insert(*key, stamp(*time), Written::Message(())));
            prop_assert_eq!(index.sums(), other.sums());
            let tombstones = model.values().filter(|(_, is_message)| !is_message).count();
            prop_assert_eq!(index.tombstones().0, tombstones);
            let forgotten = index.forget_tombstones(3, usize::MAX);
            prop_assert!(index.is_forgotten(TopicKey(u64::MAX), stamp(2)) && !index.is_forgotten(TopicKey(u64::MAX), stamp(3)));
            prop_assert!(model.iter().all(|(key, (time, is_message))| !is_message || !index.is_forgotten(*key, stamp(*time))));
            prop_assert_eq!(forgotten.len(), model.values().filter(|(time, is_message)| !is_message && *time < 3).count());
            prop_assert!(index.forget_tombstones(3, 0).iter().all(|(_, is_of_age)| !is_of_age));
            prop_assert_eq!(index.tombstones(), (0, 0));
            let dropped = model.values().filter(|(_, is_message)| !is_message).map(|(time, _)| *time).max();
            prop_assert!(dropped.is_none_or(|time| index.is_forgotten(TopicKey(u64::MAX), stamp(time))));
            model.retain(|_, (_, is_message)| *is_message);
            prop_assert_eq!(index.range(TopicKey(0), TopicKey(u64::MAX)).count(), model.len());
            prop_assert!(model.keys().all(|key| index.remove(*key)));
            prop_assert!(index.sums().iter().all(|sum| *sum == 0));
        }
    }
}
