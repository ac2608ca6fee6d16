//! A lane's ring: many producers, many cursors, no locks; the oldest goes first.
//!
//! It is not a queue: nothing is taken out by reading, and nobody is waited for. A producer claims a position with one `fetch_add`
//! and puts its block there; a reader asks for a position and is told what became of it. What keeps the slow from losing anything is
//! the acknowledgement gate ([`super::gate`]), not the ring.
//!
//! Invariants:
//! - A slot holds a block of exactly the positions `p` with `p % slots == slot`, and only ever a higher one than before.
//! - `tail` only grows. Before a block leaves its slot, it is told so ([`Entry::retire`]) and `tail` is moved above it: a reader that
//!   finds its block gone also finds itself below the tail, and what the block held is recorded as lost by then.
//! - `appended_bytes` less `trimmed_bytes` are the bytes held: each block is added and taken off exactly once.
//!
//! Positions begin at 1, so that a sequence made of one is never 0.

use std::sync::Arc;

use super::sync::{AtomicU64, Ordering, Slot};

/// What a ring holds.
pub(super) trait Entry {
    /// Where the block belongs; claimed before the block was made.
    fn position(&self) -> u64;
    /// What it counts against the bound in bytes.
    fn bytes(&self) -> usize;
    /// The ring is about to forget the block. May be called more than once.
    fn retire(&self);
}

/// What became of a position.
#[derive(Debug)]
pub(super) enum Read<T> {
    /// It is there.
    Block(Arc<T>),
    /// It is claimed, or not even that: wait.
    NotYet,
    /// It has been overwritten or trimmed: go on at [`Ring::tail`].
    Lapped,
}

/// A counter that many threads write gets a cache line of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Apart(AtomicU64);

#[derive(Debug)]
pub(super) struct Ring<T> {
    slots: Box<[Slot<T>]>,
    bytes_max: u64,
    /// The position that the next producer claims.
    next: Apart,
    /// Nothing below it is promised to be there.
    tail: Apart,
    appended_bytes: Apart,
    trimmed_bytes: Apart,
}

impl<T: Entry> Ring<T> {
    /// A ring of `slots` blocks and `bytes_max` bytes. The newest block stays, however large it is.
    pub(super) fn new(slots: usize, bytes_max: usize) -> Self {
        Self {
            slots: (0..slots.max(1)).map(|_| Slot::default()).collect(),
            bytes_max: bytes_max as u64,
            next: Apart(AtomicU64::new(1)),
            tail: Apart(AtomicU64::new(1)),
            appended_bytes: Apart::default(),
            trimmed_bytes: Apart::default(),
        }
    }

    /// Takes the next position. Whoever claims must [`publish`](Self::publish) at once: readers wait there.
    pub(super) fn claim(&self) -> u64 {
        self.next.0.fetch_add(1, Ordering::AcqRel)
    }

    /// Puts `block` at its position, and trims what is then above the bounds. False when a whole round of other producers has passed
    /// in between: the block is retired, not stored.
    pub(super) fn publish(&self, block: Arc<T>) -> bool {
        let position = block.position();
        let bytes = block.bytes() as u64;
        let Some(slot) = self.slot(position) else { return false };
        // What stood one round ago is displaced below; the tail has to be above it by then.
        let displaced_below = (position + 1).saturating_sub(self.slots.len() as u64);
        loop {
            let current = slot.load();
            if let Some(old) = &*current {
                if old.position() > position {
                    block.retire();
                    return false;
                }
                old.retire();
            }
            self.tail.0.fetch_max(displaced_below, Ordering::AcqRel);
            if slot.replace(&current, Some(Arc::clone(&block))) {
                self.appended_bytes.0.fetch_add(bytes, Ordering::AcqRel);
                self.count_trimmed(&current);
                break;
            }
        }
        while self.held_bytes() > self.bytes_max && self.tail() < position && self.trim_one(|_| true) {}
        true
    }

    /// What is at `position`.
    pub(super) fn read(&self, position: u64) -> Read<T> {
        let Some(slot) = self.slot(position) else { return Read::NotYet };
        if let Some(block) = slot.load_full() {
            match block.position().cmp(&position) {
                std::cmp::Ordering::Equal => return Read::Block(block),
                std::cmp::Ordering::Greater => return Read::Lapped,
                std::cmp::Ordering::Less => {}
            }
        }
        if position < self.tail() { Read::Lapped } else { Read::NotYet }
    }

    /// Forgets blocks from the tail on, as long as `goes` says so.
    pub(super) fn trim_while(&self, goes: impl Fn(&T) -> bool) {
        while self.trim_one(&goes) {}
    }

    /// The oldest position that may still be there.
    pub(super) fn tail(&self) -> u64 {
        self.tail.0.load(Ordering::Acquire)
    }

    /// The position that the next producer will claim.
    pub(super) fn next(&self) -> u64 {
        self.next.0.load(Ordering::Acquire)
    }

    /// Blocks that fit.
    pub(super) fn slots(&self) -> u64 {
        self.slots.len() as u64
    }

    /// Bytes that fit.
    pub(super) fn bytes_max(&self) -> u64 {
        self.bytes_max
    }

    /// Bytes of all blocks ever published.
    pub(super) fn appended_bytes(&self) -> u64 {
        self.appended_bytes.0.load(Ordering::Acquire)
    }

    /// Bytes of all blocks that are gone.
    pub(super) fn trimmed_bytes(&self) -> u64 {
        self.trimmed_bytes.0.load(Ordering::Acquire)
    }

    /// Bytes held.
    pub(super) fn held_bytes(&self) -> u64 {
        self.appended_bytes().saturating_sub(self.trimmed_bytes())
    }

    fn slot(&self, position: u64) -> Option<&Slot<T>> {
        self.slots.get((position % self.slots.len() as u64) as usize)
    }

    /// Forgets the block at the tail if it is published and `goes`. False if nothing was done.
    fn trim_one(&self, goes: impl Fn(&T) -> bool) -> bool {
        let tail = self.tail();
        let Some(slot) = self.slot(tail) else { return false };
        let current = slot.load();
        let Some(block) = current.as_ref().filter(|block| block.position() == tail && goes(block)) else {
            // Another producer is about to publish there, or somebody else has trimmed it: then the tail has moved.
            return self.tail() != tail;
        };
        block.retire();
        if self.tail.0.compare_exchange(tail, tail + 1, Ordering::AcqRel, Ordering::Acquire).is_ok() && slot.replace(&current, None)
        {
            self.count_trimmed(&current);
        }
        true
    }

    /// Called by the one who has taken `block` out of its slot.
    fn count_trimmed(&self, block: &Option<Arc<T>>) {
        if let Some(block) = block {
            self.trimmed_bytes.0.fetch_add(block.bytes() as u64, Ordering::AcqRel);
        }
    }
}
