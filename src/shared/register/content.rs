//! One register as it is kept: its entries, and the deltas of which they come, to be handed on.
//!
//! Entries remember the version that said them, so that deltas may come in any order while a copy is made: the newest word on a key counts. A
//! delta is **dead** when nothing that it put counts any more; dead ones go, but for the tail, the newest ones without a hole, from
//! which a neighbour that was away for a moment is brought up to date.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::key::digest;
use super::own::ENTRY_BYTES;
use super::{Change, Delta, DeltaHead, Key, Value};
use crate::ids::Incarnation;
use crate::limits::{REGISTER_TAIL_BYTES, REGISTER_TAIL_DELTAS};
use crate::shared::SignedRecord;

/// What an entry takes besides its key, about.
const ENTRY_OVERHEAD_BYTES: usize = 128;

/// What a delta takes besides its bytes, about.
const DELTA_OVERHEAD_BYTES: usize = 192;

/// One register, or what there is of it.
#[derive(Debug, Default)]
pub(super) struct Content {
    pub(super) incarnation: Incarnation,
    /// Every delta up to it has been taken in; of a copy that is being made, the newest that came.
    pub(super) version: u64,
    pub(super) whole: bool,
    /// The last version that asked for an echo.
    pub(super) echo: u64,
    /// What its owner says the digest is.
    told_digest: u128,
    digest: u128,
    /// While a copy is made, keys that are gone stay, without a value.
    entries: HashMap<Key, Held, ahash::RandomState>,
    deltas: BTreeMap<u64, Kept>,
    /// From here on there is every delta.
    tail_from: u64,
    tail_bytes: usize,
    /// Wire forms of all deltas.
    delta_bytes: usize,
    /// Keys of all entries, with what they take besides.
    entry_bytes: usize,
}

#[derive(Debug)]
struct Held {
    value: Option<Value>,
    version: u64,
}

#[derive(Debug)]
struct Kept {
    signed: Arc<SignedRecord>,
    /// Entries that it put and that still count.
    live: usize,
}

impl Content {
    pub(super) fn new(incarnation: Incarnation) -> Self {
        Self { incarnation, tail_from: 1, ..Self::default() }
    }

    /// Of which life, and how far.
    pub(super) fn place(&self) -> (Incarnation, u64) {
        (self.incarnation, self.version)
    }

    /// What it takes, about.
    pub(super) fn bytes(&self) -> usize {
        self.delta_bytes + self.entry_bytes
    }

    /// Whether it is the register that its owner says it is.
    pub(super) fn adds_up(&self) -> bool {
        self.digest == self.told_digest
    }

    /// Takes in the delta that continues it. Gives what has really changed.
    pub(super) fn apply(&mut self, delta: Delta, signed: Arc<SignedRecord>) -> Vec<Change> {
        let version = delta.head.version;
        let changed = self.merge(delta, signed, false);
        self.tail_bytes += self.wire_len(version);
        self.trim();
        changed
    }

    /// Takes in a delta of a copy, in whatever order they come.
    pub(super) fn copy(&mut self, delta: Delta, signed: Arc<SignedRecord>) {
        if !self.deltas.contains_key(&delta.head.version) {
            self.merge(delta, signed, true);
        }
    }

    fn merge(&mut self, Delta { head, changes }: Delta, signed: Arc<SignedRecord>, keep_removed: bool) -> Vec<Change> {
        let version = head.version;
        self.note(&head);
        self.delta_bytes += kept_bytes(&signed);
        self.deltas.insert(version, Kept { signed, live: 0 });
        let mut changed = Vec::new();
        for (key, value) in changes {
            let held = self.entries.get(&key);
            if held.is_some_and(|held| held.version > version) {
                continue;
            }
            if let Some(Held { value: Some(old), version }) = held {
                let (version, old_digest) = (*version, digest(&key, old));
                self.digest = self.digest.wrapping_sub(old_digest);
                self.outdate(version);
            }
            let is_news = held_value(&self.entries, &key) != value.as_ref();
            if let Some(value) = &value {
                self.digest = self.digest.wrapping_add(digest(&key, value));
                if let Some(kept) = self.deltas.get_mut(&version) {
                    kept.live += 1;
                }
            }
            if value.is_some() || keep_removed {
                let held = Held { value: value.clone(), version };
                if self.entries.insert(key.clone(), held).is_none() {
                    self.entry_bytes += key.len() + ENTRY_OVERHEAD_BYTES;
                }
            } else if self.entries.remove(&key).is_some() {
                self.entry_bytes -= key.len() + ENTRY_OVERHEAD_BYTES;
            }
            if is_news {
                changed.push((key, value));
            }
        }
        changed
    }

    fn note(&mut self, head: &DeltaHead) {
        self.whole |= head.whole;
        if head.echo {
            self.echo = self.echo.max(head.version);
        }
        if head.version > self.version {
            self.version = head.version;
            self.told_digest = head.digest;
        }
    }

    /// One entry that this version put counts no more.
    fn outdate(&mut self, version: u64) {
        let Some(kept) = self.deltas.get_mut(&version) else { return };
        kept.live -= 1;
        if kept.live == 0 && version < self.tail_from {
            self.drop_delta(version);
        }
    }

    fn drop_delta(&mut self, version: u64) {
        if let Some(kept) = self.deltas.remove(&version) {
            self.delta_bytes -= kept_bytes(&kept.signed);
        }
    }

    fn wire_len(&self, version: u64) -> usize {
        self.deltas.get(&version).map_or(0, |kept| kept_bytes(&kept.signed))
    }

    /// Shortens the tail, and lets the dead go that are no longer in it.
    fn trim(&mut self) {
        let is_long = |content: &Self| {
            content.tail_bytes > REGISTER_TAIL_BYTES || content.version - content.tail_from >= REGISTER_TAIL_DELTAS
        };
        while self.tail_from < self.version && is_long(self) {
            let first = self.tail_from;
            self.tail_bytes -= self.wire_len(first);
            self.tail_from += 1;
            if self.deltas.get(&first).is_some_and(|kept| kept.live == 0) {
                self.drop_delta(first);
            }
        }
    }

    /// A copy is complete: what is gone is forgotten, and the tail is what there is without a hole.
    pub(super) fn complete(&mut self) {
        let mut forgotten = 0;
        self.entries.retain(|key, held| {
            let is_there = held.value.is_some();
            if !is_there {
                forgotten += key.len() + ENTRY_OVERHEAD_BYTES;
            }
            is_there
        });
        self.entry_bytes -= forgotten;
        let mut from = self.version;
        while from > 1 && self.deltas.contains_key(&(from - 1)) {
            from -= 1;
        }
        self.tail_from = from;
        self.tail_bytes = self.deltas.range(from..).map(|(_, kept)| kept_bytes(&kept.signed)).sum();
        let dead: Vec<_> = self.deltas.range(..from).filter(|(_, kept)| kept.live == 0).map(|(version, _)| *version).collect();
        dead.into_iter().for_each(|version| self.drop_delta(version));
        self.trim();
    }

    /// Whether it has every delta behind `version`.
    pub(super) fn continues(&self, version: u64) -> bool {
        version + 1 >= self.tail_from
    }

    /// The deltas that are left behind `version`, oldest first.
    pub(super) fn behind(&self, version: u64) -> impl Iterator<Item = (u64, &Arc<SignedRecord>)> {
        self.deltas.range(version + 1..).map(|(version, kept)| (*version, &kept.signed))
    }

    /// What the register says of a key.
    pub(super) fn value(&self, key: &Key) -> Option<&Value> {
        held_value(&self.entries, key)
    }

    /// All entries.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&Key, &Value)> {
        self.entries.iter().filter_map(|(key, held)| Some((key, held.value.as_ref()?)))
    }

    /// What turns `former` into this.
    pub(super) fn changes_from(&self, former: Option<&Self>) -> Vec<Change> {
        let was = |key: &Key| former.and_then(|former| former.value(key));
        let put =
            self.iter().filter(|(key, value)| was(key) != Some(*value)).map(|(key, value)| (key.clone(), Some(value.clone())));
        let gone = former.into_iter().flat_map(Self::iter).filter(|(key, _)| self.value(key).is_none());
        gone.map(|(key, _)| (key.clone(), None)).chain(put).collect()
    }

    /// Of the owner's own: entries that stand alone in old deltas, to be said again so that these go, about `bytes` of them.
    pub(super) fn sparse(&self, bytes: usize) -> Vec<Change> {
        let old_bytes = self.delta_bytes - self.tail_bytes;
        if old_bytes <= 2 * self.entry_bytes + REGISTER_TAIL_BYTES {
            return Vec::new();
        }
        let mut said_again = Vec::new();
        let mut taken = 0;
        for (version, kept) in self.deltas.range(..self.tail_from) {
            if taken > 0 && taken + kept.signed.wire.len() > bytes {
                break;
            }
            let Ok(delta) = Delta::decode(&kept.signed.wire) else { continue };
            let counts = |key: &Key| self.entries.get(key).filter(|held| held.version == *version);
            for (key, _) in delta.changes {
                if let Some(Held { value: Some(value), .. }) = counts(&key) {
                    taken += key.len() + ENTRY_BYTES;
                    said_again.push((key, Some(value.clone())));
                }
            }
        }
        said_again
    }

    /// The digest after `changes`, which come in this order.
    pub(super) fn digest_after(&self, changes: &[Change]) -> u128 {
        // The last of each key counts.
        let last: HashMap<&Key, Option<&Value>, ahash::RandomState> =
            changes.iter().map(|(key, value)| (key, value.as_ref())).collect();
        last.into_iter().fold(self.digest, |sum, (key, value)| {
            let old = self.value(key).map_or(0, |old| digest(key, old));
            sum.wrapping_sub(old).wrapping_add(value.map_or(0, |value| digest(key, value)))
        })
    }
}

/// What a delta takes; its certificate is shared with others.
fn kept_bytes(signed: &SignedRecord) -> usize {
    signed.wire.len() + signed.signature.bytes.len() + DELTA_OVERHEAD_BYTES
}

fn held_value<'a>(entries: &'a HashMap<Key, Held, ahash::RandomState>, key: &Key) -> Option<&'a Value> {
    entries.get(key).and_then(|held| held.value.as_ref())
}
