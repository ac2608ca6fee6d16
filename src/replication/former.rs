//! What this broker published in an earlier life, and read from its disk: kept beside the ring for as long as the ring would keep it.
//!
//! After a restart neighbours give a broker all that their rings have, for whoever is behind it. Where that fills its own ring, what it had read from its disk is
//! the first to go, although nobody else may have it. So that stays within reach here: who lacks some of it is given it as a range ([`super::fill`]).
//!
//! Not for what this life publishes: that is in the neighbours' rings, or slows its publishers down.
//!
//! Invariants: blocks are in the order of their ids, nothing up to the floor is among them, and they are no more than the ring held when it had been read.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use super::block::Block;

/// See the module's page.
#[derive(Debug, Default)]
pub(super) struct Former {
    floor: u64,
    blocks: VecDeque<Arc<Block>>,
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
    /// What the ring has once all is read. Up to `floor` nothing is there.
    pub(super) fn new(floor: u64, blocks: impl IntoIterator<Item = Arc<Block>>) -> Self {
        Self { floor, blocks: blocks.into_iter().collect() }
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

    /// Forgets what is older than `age_ms_max`. To be called now and then.
    pub(super) fn trim(&mut self, age_ms_max: u64, now: Instant) {
        while let Some(block) = self.blocks.pop_front_if(|block| block.age_ms(now) > age_ms_max) {
            self.floor = self.floor.max(block.last);
        }
        if self.blocks.is_empty() {
            self.blocks.shrink_to_fit();
        }
    }
}
