//! All that is known of retained topics by its stamp, in an order and with sums that two brokers can compare.
//!
//! A topic's **key** is the first 64 bits of its SHA-256: the same everywhere, and nobody finds two topics with one by chance. The highest bits of
//! a key are its **bucket**; each bucket has a sum over keys and stamps of what is in it. What a topic retains and that it was deleted count
//! alike, so that a message that has expired at one broker and not been looked at by another makes no difference.
//!
//! A tombstone has two ages. By its stamp it goes *out of sight*: it no longer counts in sums, which so come to be the same at all brokers without their
//! forgetting it in the same moment; only who holds something older is still told. By the time that has been lived since it was taken in it is forgotten: so a
//! clock that jumps ahead makes nobody forget anything.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use sha2::{Digest, Sha256};

use crate::frame::bulk::{BUCKET_COUNT, TopicKey};
use crate::ids::Stamp;

/// What a tombstone takes beside its topic, bytes.
const TOMBSTONE_OVERHEAD_BYTES: usize = 200;
/// The sum of a bucket in which there is nothing but what is out of sight.
pub const UNSEEN: u64 = 1;
/// Tombstones that one turn forgets or hides before it lets others to the lock.
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
    /// It was deleted, or has expired: a tombstone, with the topic and since when it is here.
    Deleted(Box<str>, Instant),
}

/// See the module's page.
#[derive(Debug)]
pub struct Index<T> {
    items: BTreeMap<TopicKey, (Stamp, Written<T>)>,
    /// Of `items`, oldest first.
    tombstones: BTreeSet<(Stamp, TopicKey)>,
    /// The same, by when they were taken in.
    by_age: BTreeSet<(Instant, TopicKey)>,
    tombstone_bytes: usize,
    /// Tombstones of before that ([`Stamp::time`]) are out of sight, or were forgotten.
    horizon: u64,
    /// How many of each bucket are out of sight.
    unseen: Vec<u32>,
    sums: Vec<u64>,
}

impl<T> Default for Index<T> {
    fn default() -> Self {
        Self {
            items: BTreeMap::new(),
            tombstones: BTreeSet::new(),
            by_age: BTreeSet::new(),
            tombstone_bytes: 0,
            horizon: 0,
            unseen: vec![0; BUCKET_COUNT],
            sums: vec![0; BUCKET_COUNT],
        }
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
        if let Written::Deleted(topic, since) = &written {
            self.tombstones.insert((stamp, key));
            self.by_age.insert((*since, key));
            self.tombstone_bytes += topic.len() + TOMBSTONE_OVERHEAD_BYTES;
        }
        if self.is_unseen(stamp, &written) {
            self.count_unseen(key, 1);
        } else {
            self.add_to_sum(key, digest(key, stamp));
        }
        self.items.insert(key, (stamp, written));
    }

    /// Nothing is known of a topic any more. Whether something was.
    pub fn remove(&mut self, key: TopicKey) -> bool {
        let Some((stamp, written)) = self.items.remove(&key) else { return false };
        if let Written::Deleted(topic, since) = &written {
            self.tombstones.remove(&(stamp, key));
            self.by_age.remove(&(*since, key));
            self.tombstone_bytes -= topic.len() + TOMBSTONE_OVERHEAD_BYTES;
        }
        if self.is_unseen(stamp, &written) {
            self.count_unseen(key, -1);
        } else {
            self.add_to_sum(key, digest(key, stamp).wrapping_neg());
        }
        true
    }

    fn is_unseen(&self, stamp: Stamp, written: &Written<T>) -> bool {
        stamp.time < self.horizon && matches!(written, Written::Deleted(..))
    }

    fn count_unseen(&mut self, key: TopicKey, change: i32) {
        if let Some(count) = self.unseen.get_mut(key.bucket()) {
            *count = count.saturating_add_signed(change);
        }
    }

    fn add_to_sum(&mut self, key: TopicKey, digest: u64) {
        if let Some(sum) = self.sums.get_mut(key.bucket()) {
            *sum = sum.wrapping_add(digest);
        }
    }

    /// The sum of each bucket; 0: it is empty; [`UNSEEN`]: but for what is out of sight.
    #[must_use]
    pub fn sums(&self) -> Vec<u64> {
        let said = |(sum, unseen): (&u64, &u32)| if *sum == 0 && *unseen > 0 { UNSEEN } else { *sum };
        self.sums.iter().zip(&self.unseen).map(said).collect()
    }

    /// What is out of sight from `from` to `to`: for nobody but who holds something older.
    pub fn unseen(&self, from: TopicKey, to: TopicKey) -> BTreeSet<TopicKey> {
        let range = if from <= to { from..=to } else { from..=from };
        let unseen = self.items.range(range).filter(|(_, (stamp, written))| self.is_unseen(*stamp, written));
        unseen.map(|(key, _)| *key).collect()
    }

    /// What is known from `from` to `to`, both included, in the order of the keys.
    pub fn range(&self, from: TopicKey, to: TopicKey) -> impl Iterator<Item = (TopicKey, Stamp)> {
        // An empty range in place of one that would panic.
        let range = if from <= to { from..=to } else { from..=from };
        self.items.range(range).map(|(key, (stamp, _))| (*key, *stamp))
    }

    /// Puts tombstones of before `time` ([`Stamp::time`]) out of sight, a turn of them. Whether those were all.
    pub fn hide_tombstones(&mut self, time: u64) -> bool {
        let least = |time| (Stamp { time, writer: 0 }, TopicKey(0));
        if time <= self.horizon {
            return true;
        }
        let mut hidden = Vec::new();
        let mut horizon = time;
        for (stamp, key) in self.tombstones.range(least(self.horizon)..least(time)) {
            // All of one time, or none.
            if hidden.len() >= TURN && hidden.last().is_some_and(|(last, _): &(Stamp, TopicKey)| last.time < stamp.time) {
                horizon = stamp.time;
                break;
            }
            hidden.push((*stamp, *key));
        }
        for (stamp, key) in hidden {
            self.add_to_sum(key, digest(key, stamp).wrapping_neg());
            self.count_unseen(key, 1);
        }
        self.horizon = horizon;
        horizon == time
    }

    /// Forgets tombstones that are out of sight and were taken in so long before `now`, and the oldest beyond `bytes_max`, a turn of them. Their topics, and whether they were
    /// of age.
    pub fn forget_tombstones(&mut self, age: Duration, bytes_max: usize, now: Instant) -> Vec<(Box<str>, bool)> {
        let mut forgotten = Vec::new();
        while forgotten.len() < TURN {
            let first = self.by_age.first().filter(|(since, _)| now.saturating_duration_since(*since) >= age);
            // Of what is still in sight others would tell again.
            let is_hidden = |key: &TopicKey| self.stamp(*key).is_some_and(|stamp| stamp.time < self.horizon);
            let of_age = first.map(|(_, key)| *key).filter(is_hidden);
            let too_many = self.tombstones.first().filter(|_| self.tombstone_bytes > bytes_max);
            let Some(key) = of_age.or(too_many.map(|(_, key)| *key)) else { break };
            let Some((stamp, Written::Deleted(topic, _))) = self.items.get(&key) else { break };
            let time = stamp.time;
            forgotten.push((topic.clone(), of_age.is_some()));
            self.remove(key);
            if of_age.is_none() {
                // Who has room for it is not to tell it again. It was the oldest: those of the same time go with it.
                self.hide_tombstones(time.saturating_add(1));
            }
        }
        forgotten
    }

    /// Whether a deletion is one that was forgotten here, or would be out of sight at once: who still remembers it has nothing to tell.
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

    #[expect(clippy::disallowed_methods, reason = "virtual time starts somewhere")]
    fn any_instant() -> Instant {
        Instant::now()
    }

    #[test]
    fn many_are_hidden_in_turns() {
        let mut index = Index::<()>::default();
        let many = 2 * TURN as u64 + 1;
        (0..many).for_each(|n| index.insert(key_of(&n.to_string()), stamp(n), Written::Deleted("t".into(), any_instant())));
        assert!(!index.hide_tombstones(many) && !index.hide_tombstones(many) && index.hide_tombstones(many));
        assert!(index.sums().iter().all(|sum| *sum <= UNSEEN));
        assert_eq!(index.unseen(TopicKey(0), TopicKey(u64::MAX)).len() as u64, many);
    }

    proptest! {
        #[test]
        fn sums_say_what_is_there_however_it_came_there(
            steps in prop::collection::vec((0..12_u64, prop::option::of((0..5_u64, any::<bool>()))), 0..60),
        ) {
            let mut index = Index::<()>::default();
            let mut model = BTreeMap::new();
            let begin = any_instant();
            for (topic, step) in steps {
                // Two a bucket.
                let key = TopicKey(topic << 52);
                match step {
                    Some((time, is_message)) => {
                        let written = if is_message { Written::Message(()) } else { Written::Deleted(topic.to_string().into(), begin + Duration::from_secs(9 - time)) };
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
            // Out of sight: nothing of it in the sums, and nobody is to tell it again.
            let hidden: BTreeSet<_> =
                model.iter().filter(|(_, (time, is_message))| !is_message && *time < 3).map(|(key, _)| *key).collect();
            prop_assert!(index.hide_tombstones(3) && index.hide_tombstones(2));
            prop_assert_eq!(index.unseen(TopicKey(0), TopicKey(u64::MAX)), hidden.clone());
            for key in &hidden {
                other.remove(*key);
            }
            let seen = |sums: Vec<u64>| sums.into_iter().map(|sum| if sum == UNSEEN { 0 } else { sum }).collect::<Vec<_>>();
            prop_assert_eq!(seen(index.sums()), other.sums());
            prop_assert!(hidden.iter().all(|key| index.sums()[key.bucket()] != 0));
            let unknown = TopicKey(u64::MAX);
            prop_assert!(index.is_forgotten(unknown, stamp(2)) && !index.is_forgotten(unknown, stamp(3)));
            prop_assert!(hidden.iter().all(|key| !index.is_forgotten(*key, stamp(0))));
            // Forgotten is what is out of sight and was here for so long, however old it is.
            let at = |seconds| begin + Duration::from_secs(seconds);
            let mut forget = |now, bytes_max| index.forget_tombstones(Duration::from_secs(60), bytes_max, now);
            prop_assert_eq!(forget(at(66), usize::MAX).len(), 0);
            let forgotten = forget(at(67), usize::MAX);
            prop_assert!(forgotten.iter().all(|(_, is_of_age)| *is_of_age) && forgotten.len() <= hidden.len());
            prop_assert!(forget(begin, 0).iter().all(|(_, is_of_age)| !is_of_age));
            prop_assert_eq!(index.tombstones(), (0, 0));
            let dropped = model.values().filter(|(_, is_message)| !is_message).map(|(time, _)| *time).max();
            prop_assert!(dropped.is_none_or(|time| index.is_forgotten(unknown, stamp(time))));
            model.retain(|_, (_, is_message)| *is_message);
            prop_assert_eq!(index.range(TopicKey(0), TopicKey(u64::MAX)).count(), model.len());
            prop_assert!(model.keys().all(|key| index.remove(*key)));
            prop_assert!(index.sums().iter().all(|sum| *sum == 0));
        }
    }
}
