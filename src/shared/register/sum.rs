//! What the entries of a register add up to, in whatever order they came: the sum of vectors of 64 lanes of 64 bits, each SHA-256 of its entry drawn
//! out in counter mode.
//!
//! A sum of plain hashes is not enough: who may choose many entries finds some that make up for others that he leaves out, and the filters of
//! a register are its clients' choice. By the best way known (Wagner's generalized birthday) that takes 2^(4096 / (1 + t)) steps with 2^t entries of free
//! choice, and a register has no room for more than 2^22.
//!
//! Specification: Bellare, Micciancio, "A New Paradigm for Collision-Free Hashing", 1997 (sums of hashes); Lewi, Kim, Maykov, Weis, "Securing
//! Update Propagation with Homomorphic Hashing", 2019 (vectors).

use sha2::{Digest, Sha256};

const LANES: usize = 64;
/// Lanes that one SHA-256 fills.
const LANES_PER_HASH: usize = 32 / size_of::<u64>();

/// The sum, without entries zero.
#[derive(Clone, Debug)]
pub(super) struct Sum {
    lanes: [u64; LANES],
}

impl Default for Sum {
    fn default() -> Self {
        Self { lanes: [0; LANES] }
    }
}

impl Sum {
    /// One more entry, as it travels.
    pub(super) fn add(&mut self, entry: &[u8]) {
        self.fold(entry, u64::wrapping_add);
    }

    /// One entry less.
    pub(super) fn remove(&mut self, entry: &[u8]) {
        self.fold(entry, u64::wrapping_sub);
    }

    /// What stands for it.
    pub(super) fn digest(&self) -> [u8; 32] {
        let mut hash = Sha256::new();
        self.lanes.iter().for_each(|lane| hash.update(lane.to_be_bytes()));
        hash.finalize().into()
    }

    fn fold(&mut self, entry: &[u8], fold: impl Fn(u64, u64) -> u64) {
        let seed: [u8; 32] = Sha256::digest(entry).into();
        for (block, lanes) in (0_u8..).zip(self.lanes.chunks_mut(LANES_PER_HASH)) {
            let hash: [u8; 32] = Sha256::new().chain_update(seed).chain_update([block]).finalize().into();
            let (words, _) = hash.as_chunks();
            words.iter().zip(lanes).for_each(|(word, lane)| *lane = fold(*lane, u64::from_be_bytes(*word)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_does_not_count_and_every_lane_does() {
        let (mut one, mut other) = (Sum::default(), Sum::default());
        let empty = one.digest();
        ["a", "b", "c"].iter().for_each(|entry| one.add(entry.as_bytes()));
        ["c", "x", "b", "a"].iter().for_each(|entry| other.add(entry.as_bytes()));
        assert_ne!(one.digest(), other.digest());
        other.remove(b"x");
        assert_eq!(one.digest(), other.digest());
        let lanes: std::collections::BTreeSet<_> = one.lanes.iter().collect();
        assert!(lanes.len() == LANES && !lanes.contains(&0));
        ["b", "c", "a"].iter().for_each(|entry| one.remove(entry.as_bytes()));
        assert_eq!(one.digest(), empty);
        (0..2).for_each(|_| one.add(b"a"));
        assert_ne!(one.digest(), empty, "twice is not never");
    }

    /// What others compute is the same for all versions of this program.
    #[test]
    fn it_is_what_another_program_finds() {
        let mut sum = Sum::default();
        sum.add(b"entry");
        let hex: String = sum.digest().iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, "101a294480eb2fda24b99be4202326f689e8ed30574d2522483012c9a5c56c59");
    }
}
