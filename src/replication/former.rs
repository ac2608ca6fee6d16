//! What this broker published in an earlier life, and read from its disk: kept beside the ring for as long as the ring would keep it.
//!
//! After a restart neighbours give a broker all that their rings have, for whoever is behind it. Where that fills its own ring, what it had read from its disk is
//! the first to go, although nobody else may have it. So that stays within reach here: who lacks some of it is given it as a range ([`super::fill`]).
//!
//! Not for what this life publishes: that is in the neighbours' rings, or slows its publishers down.
//!
//! While it is kept the disk keeps what this life publishes, too, whether the ring still has it or not. So it is given up when the ring has let go of one round, or of as
//! many bytes as it holds, since it let go of the first that this life published.
//!
//! Invariants: blocks are in the order of their ids, nothing up to the floor is among them, and they are no more bytes than the ring holds.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use super::block::Block;
use super::ring::{Entry, Ring};

/// See the module's page.
#[derive(Debug, Default)]
pub(super) struct Former {
    floor: u64,
    blocks: VecDeque<Arc<Block>>,
    /// The ring's tail, and what it had trimmed, when it had let go of something that this life published.
    overtaken: Option<(u64, u64)>,
}

/// What comes behind an id.
#[derive(Debug)]
pub(super) enum After {
    Block(Arc<Block>),
    /// The ids up to this one are gone.
    Lost(u64),
    /// Nothing of an earlier life.
    Nothing,
}

impl Former {
    /// The newest of `blocks`, as many as the ring has room for in bytes. Up to `floor` nothing is there.
    pub(super) fn new(floor: u64, blocks: VecDeque<Arc<Block>>, ring: &Ring<Block>) -> Self {
        let mut former = Self { floor, blocks, overtaken: None };
        let mut bytes: u64 = former.blocks.iter().map(|block| block.bytes() as u64).sum();
        while bytes > ring.bytes_max()
            && let Some(oldest) = former.blocks.pop_front()
        {
            bytes -= oldest.bytes() as u64;
            former.floor = former.floor.max(oldest.last);
        }
        former
    }

    /// Up to where our own ids are gone, if the ring has none up to `ring_floor`.
    pub(super) fn floor(&self, ring_floor: u64) -> u64 {
        if self.blocks.is_empty() { ring_floor } else { ring_floor.min(self.floor) }
    }

    /// Whether something is there above `id`.
    pub(super) fn reaches_beyond(&self, id: u64) -> bool {
        self.blocks.back().is_some_and(|newest| newest.last > id)
    }

    /// What follows `id`.
    pub(super) fn after(&self, id: u64) -> After {
        let place = self.blocks.partition_point(|block| block.last <= id);
        match self.blocks.get(place) {
            Some(_) if id < self.floor => After::Lost(self.floor),
            Some(block) => After::Block(Arc::clone(block)),
            None => After::Nothing,
        }
    }

    /// Forgets what is older than `age_ms_max`, and all of it when `ring`, which has none of our own up to `ring_floor`, has let go of too much since. To be called now
    /// and then.
    pub(super) fn trim(&mut self, ring: &Ring<Block>, ring_floor: u64, age_ms_max: u64, now: Instant) {
        if self.blocks.back().is_some_and(|newest| newest.last < ring_floor) {
            let (tail, trimmed) = *self.overtaken.get_or_insert((ring.tail(), ring.trimmed_bytes()));
            if ring.tail() - tail > ring.slots() || ring.trimmed_bytes() - trimmed > ring.bytes_max() {
                self.blocks.clear();
            }
        }
        while let Some(block) = self.blocks.pop_front_if(|block| block.age_ms(now) > age_ms_max) {
            self.floor = self.floor.max(block.last);
        }
        if self.blocks.is_empty() {
            self.blocks.shrink_to_fit();
        }
    }
}
