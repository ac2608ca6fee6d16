//! One register as it is kept: its entries, and the newest of its deltas, to be handed on to a neighbour that was away for a moment.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::sync::Arc;

use super::key::digest;
use super::{Change, Delta, DeltaHead, Key, Value};
use crate::ids::Incarnation;
use crate::limits::{REGISTER_TAIL_BYTES, REGISTER_TAIL_DELTAS};
use crate::shared::SignedRecord;

/// What an entry takes besides its key, about.
const ENTRY_OVERHEAD_BYTES: usize = 128;
/// What a delta takes besides its bytes, about.
const DELTA_OVERHEAD_BYTES: usize = 192;

/// One register.
#[derive(Debug, Default)]
pub(super) struct Content {
    pub(super) incarnation: Incarnation,
    /// Every delta up to it has been taken in.
    pub(super) version: u64,
    pub(super) whole: bool,
    /// The last version that asked for an echo.
    pub(super) echo: u64,
    /// At this version its owner said the digest last.
    told_version: u64,
    /// What its owner says the digest is.
    told_digest: u128,
    digest: u128,
    entries: BTreeMap<Key, Value>,
    /// Keys of all entries, with what they take besides.
    entry_bytes: usize,
    /// The deltas up to `version`, the newest last; at least one, once one was told.
    tail: VecDeque<Arc<SignedRecord>>,
    tail_bytes: usize,
}

impl Content {
    pub(super) fn new(incarnation: Incarnation) -> Self {
        Self { incarnation, ..Self::default() }
    }

    /// A copy that is begun, of which no entry has come.
    pub(super) fn copied(incarnation: Incarnation, version: u64) -> Self {
        Self { incarnation, version, ..Self::default() }
    }

    /// Of which life, and how far.
    pub(super) fn place(&self) -> (Incarnation, u64) {
        (self.incarnation, self.version)
    }

    /// What it takes, about.
    pub(super) fn bytes(&self) -> usize {
        self.tail_bytes + self.entry_bytes
    }

    /// Whether it is the register that its owner says it is.
    pub(super) fn adds_up(&self) -> bool {
        self.digest == self.told_digest && !self.tail.is_empty()
    }

    /// Takes in the delta that continues it. Gives what has really changed.
    pub(super) fn apply(&mut self, delta: Delta, signed: Arc<SignedRecord>) -> Vec<Change> {
        self.version = delta.head.version;
        self.head(&delta.head, signed);
        delta.changes.into_iter().filter(|(key, value)| self.set(key, value.as_ref())).collect()
    }

    /// The owner's own word on how it is at this version. Who has followed what came live has it.
    pub(super) fn head(&mut self, head: &DeltaHead, signed: Arc<SignedRecord>) {
        if self.told_version >= head.version {
            return;
        }
        self.told_version = head.version;
        self.whole |= head.whole;
        if head.echo {
            self.echo = head.version;
        }
        self.told_digest = head.digest;
        self.tail_bytes += kept_bytes(&signed);
        self.tail.push_back(signed);
        while self.tail.len() > 1 && (self.tail_bytes > REGISTER_TAIL_BYTES || self.tail.len() > REGISTER_TAIL_DELTAS) {
            self.tail_bytes -= self.tail.pop_front().map_or(0, |oldest| kept_bytes(&oldest));
        }
    }

    /// Part of a copy.
    pub(super) fn fill(&mut self, entries: Vec<(Key, Value)>) {
        for (key, value) in &entries {
            self.set(key, Some(value));
        }
    }

    /// Whether that is news.
    fn set(&mut self, key: &Key, value: Option<&Value>) -> bool {
        let old = match value {
            Some(value) => {
                self.digest = self.digest.wrapping_add(digest(key, value));
                self.entry_bytes += key.len() + ENTRY_OVERHEAD_BYTES;
                self.entries.insert(key.clone(), value.clone())
            }
            None => self.entries.remove(key),
        };
        if let Some(old) = &old {
            self.digest = self.digest.wrapping_sub(digest(key, old));
            self.entry_bytes -= key.len() + ENTRY_OVERHEAD_BYTES;
        }
        old.as_ref() != value
    }

    /// The deltas behind `version`, oldest first; none where not all of them are here any more.
    pub(super) fn behind(&self, version: u64) -> Option<impl Iterator<Item = &Arc<SignedRecord>>> {
        let missing = usize::try_from(self.version.checked_sub(version)?).ok()?;
        let skipped = self.tail.len().checked_sub(missing)?;
        Some(self.tail.iter().skip(skipped))
    }

    /// The newest delta.
    pub(super) fn newest(&self) -> Option<&Arc<SignedRecord>> {
        self.tail.back()
    }

    /// The entries behind a key, or all.
    pub(super) fn entries_behind(&self, key: Option<&Key>) -> impl Iterator<Item = (&Key, &Value)> {
        self.entries.range((key.map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded))
    }

    /// What the register says of a key.
    pub(super) fn value(&self, key: &Key) -> Option<&Value> {
        self.entries.get(key)
    }

    /// How many filters its owner has; where these were too many to be told, one for all.
    pub(super) fn filters(&self) -> usize {
        self.entries.keys().filter(|key| matches!(key, Key::Filter(_) | Key::Everything)).count()
    }

    /// What turns `former` into this.
    pub(super) fn changes_from(&self, former: Option<&Self>) -> Vec<Change> {
        let was = |key: &Key| former.and_then(|former| former.value(key));
        let put = self.entries.iter().filter(|(key, value)| was(key) != Some(*value));
        let gone = former.into_iter().flat_map(|former| former.entries.keys()).filter(|key| self.value(key).is_none());
        gone.map(|key| (key.clone(), None)).chain(put.map(|(key, value)| (key.clone(), Some(value.clone())))).collect()
    }

    /// The digest after `changes`, no two of which are of one key.
    pub(super) fn digest_after(&self, changes: &[Change]) -> u128 {
        changes.iter().fold(self.digest, |sum, (key, value)| {
            let old = self.value(key).map_or(0, |old| digest(key, old));
            sum.wrapping_sub(old).wrapping_add(value.as_ref().map_or(0, |value| digest(key, value)))
        })
    }
}

/// What a delta takes; its certificate is shared with others.
fn kept_bytes(signed: &SignedRecord) -> usize {
    signed.wire.len() + signed.signature.bytes.len() + DELTA_OVERHEAD_BYTES
}
