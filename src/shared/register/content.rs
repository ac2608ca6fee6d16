//! One register as it is kept: its entries, and the newest of its deltas, to be handed on to a neighbour that was away for a moment.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::sync::Arc;

use super::key::wire;
use super::sum::Sum;
use super::{Change, Delta, DeltaHead, Key, Value};
use crate::ids::Incarnation;
use crate::limits::{REGISTER_TAIL_BYTES, REGISTER_TAIL_DELTAS};
use crate::shared::SignedRecord;

/// What an entry takes besides its bytes, about.
const ENTRY_OVERHEAD_BYTES: u64 = 128;
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
    /// What its owner said last of it as a whole.
    told: Option<DeltaHead>,
    /// Of our own, and of a copy that is being made. Who follows what came live has each step signed, and need not add it up.
    sum: Option<Sum>,
    entries: BTreeMap<Key, Value>,
    /// Of all entries as they travel.
    entry_bytes: u64,
    /// The deltas up to `version`, the newest last; at least one, once one was told.
    tail: VecDeque<Arc<SignedRecord>>,
    tail_bytes: usize,
}

impl Content {
    pub(super) fn new(incarnation: Incarnation) -> Self {
        Self { incarnation, ..Self::default() }
    }

    /// Our own.
    pub(super) fn own(incarnation: Incarnation) -> Self {
        Self { sum: Some(Sum::default()), ..Self::new(incarnation) }
    }

    /// A copy that is begun, of which no entry has come.
    pub(super) fn copied(head: &DeltaHead, signed: Arc<SignedRecord>) -> Self {
        let mut copy = Self { version: head.version, ..Self::own(head.incarnation) };
        copy.head(head, signed);
        copy
    }

    /// A copy that adds up is followed from now on.
    pub(super) fn settled(self) -> Self {
        Self { sum: None, ..self }
    }

    /// Of which life, and how far.
    pub(super) fn place(&self) -> (Incarnation, u64) {
        (self.incarnation, self.version)
    }

    /// What it takes, about.
    pub(super) fn bytes(&self) -> usize {
        self.tail_bytes + taken_bytes(self.entries.len() as u64, self.entry_bytes)
    }

    /// What it takes when it is all that its owner says.
    pub(super) fn told_bytes(&self) -> usize {
        self.told.as_ref().map_or(0, told_bytes)
    }

    /// Whether it is as large as its owner says.
    pub(super) fn is_as_large_as_told(&self) -> bool {
        self.told.is_some_and(|told| (told.entries, told.bytes) == (self.entries.len() as u64, self.entry_bytes))
    }

    /// Whether it is larger than its owner says: a copy never is, also while it is being made.
    pub(super) fn is_larger_than_told(&self) -> bool {
        self.told.is_none_or(|told| told.entries < self.entries.len() as u64 || told.bytes < self.entry_bytes)
    }

    /// Whether a copy is the register that its owner says it is.
    pub(super) fn adds_up(&self) -> bool {
        let digest = self.sum.as_ref().map(Sum::digest);
        self.is_as_large_as_told() && digest.is_some() && digest == self.told.map(|told| told.digest)
    }

    /// Takes in the delta that continues it. Gives what has really changed.
    pub(super) fn apply(&mut self, delta: Delta, signed: Arc<SignedRecord>) -> Vec<Change> {
        self.version = delta.head.version;
        self.head(&delta.head, signed);
        delta.changes.into_iter().filter(|(key, value)| self.set(key, value.as_ref())).collect()
    }

    /// The owner's own word on how it is at this version. Who has followed what came live has it.
    pub(super) fn head(&mut self, head: &DeltaHead, signed: Arc<SignedRecord>) {
        if self.told.is_some_and(|told| told.version >= head.version) {
            return;
        }
        self.told = Some(*head);
        self.whole |= head.whole;
        if head.echo {
            self.echo = head.version;
        }
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
        if let Some(value) = value {
            let wire = wire(key, value);
            self.entry_bytes += wire.len() as u64;
            self.sum.iter_mut().for_each(|sum| sum.add(&wire));
        }
        let old = match value {
            Some(value) => self.entries.insert(key.clone(), value.clone()),
            None => self.entries.remove(key),
        };
        if let Some(old) = &old {
            let wire = wire(key, old);
            self.entry_bytes -= wire.len() as u64;
            self.sum.iter_mut().for_each(|sum| sum.remove(&wire));
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

    /// Our own after `changes`, no two of which are of one key: entries, their bytes, what they add up to.
    pub(super) fn after(&self, changes: &[Change]) -> (u64, u64, Sum) {
        let (mut entries, mut bytes) = (self.entries.len() as u64, self.entry_bytes);
        let mut sum = self.sum.clone().unwrap_or_default();
        for (key, value) in changes {
            if let Some(value) = value {
                let wire = wire(key, value);
                (entries, bytes) = (entries + 1, bytes + wire.len() as u64);
                sum.add(&wire);
            }
            if let Some(old) = self.value(key) {
                let wire = wire(key, old);
                (entries, bytes) = (entries - 1, bytes - wire.len() as u64);
                sum.remove(&wire);
            }
        }
        (entries, bytes, sum)
    }

    /// Our own has said this, and adds up to `sum` by now.
    pub(super) fn said(&mut self, delta: Delta, signed: Arc<SignedRecord>, sum: Sum) {
        self.sum = None;
        self.apply(delta, signed);
        self.sum = Some(sum);
    }
}

/// What a register takes, by its owner's word.
pub(super) fn told_bytes(head: &DeltaHead) -> usize {
    taken_bytes(head.entries, head.bytes)
}

fn taken_bytes(entries: u64, bytes: u64) -> usize {
    usize::try_from(entries.saturating_mul(ENTRY_OVERHEAD_BYTES).saturating_add(bytes)).unwrap_or(usize::MAX)
}

/// What a delta takes; its certificate is shared with others.
fn kept_bytes(signed: &SignedRecord) -> usize {
    signed.wire.len() + signed.signature.bytes.len() + DELTA_OVERHEAD_BYTES
}
