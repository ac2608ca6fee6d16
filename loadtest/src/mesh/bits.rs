//! A set of message sequences, one bit each.

use std::ops::Range;

/// See the module. As large as its highest member asks for.
#[derive(Clone, Debug, Default)]
pub(super) struct Bits(Vec<u64>);

impl Bits {
    /// False if it was there.
    pub(super) fn insert(&mut self, sequence: u64) -> bool {
        let place = (sequence / 64) as usize;
        if place >= self.0.len() {
            self.0.resize(place + 1, 0);
        }
        let bit = 1 << (sequence % 64);
        self.0.get_mut(place).is_some_and(|word| {
            let is_new = *word & bit == 0;
            *word |= bit;
            is_new
        })
    }

    pub(super) fn contains(&self, sequence: u64) -> bool {
        self.word(sequence / 64) & 1 << (sequence % 64) != 0
    }

    /// How many of `range` are here.
    pub(super) fn count(&self, range: Range<u64>) -> u64 {
        Self::words(&range).map(|(at, mask)| u64::from((self.word(at) & mask).count_ones())).sum()
    }

    /// What of `range` is here and not in `other`, ascending.
    pub(super) fn without(&self, other: &Self, range: Range<u64>) -> impl Iterator<Item = u64> {
        Self::words(&range).flat_map(move |(at, mask)| members(at, self.word(at) & !other.word(at) & mask))
    }

    /// What of `range` is not here, ascending.
    pub(super) fn absent(&self, range: Range<u64>) -> impl Iterator<Item = u64> {
        Self::words(&range).flat_map(move |(at, mask)| members(at, !self.word(at) & mask))
    }

    fn word(&self, at: u64) -> u64 {
        self.0.get(at as usize).copied().unwrap_or_default()
    }

    /// The words that hold `range`, each with the bits that do.
    fn words(range: &Range<u64>) -> impl Iterator<Item = (u64, u64)> + use<> {
        let Range { start, end } = *range;
        let words = if start < end { start / 64..end.div_ceil(64) } else { 0..0 };
        words.map(move |at| {
            let from = start.saturating_sub(at * 64).min(63);
            let beyond = (at * 64 + 64).saturating_sub(end);
            (at, u64::MAX << from & u64::MAX >> beyond)
        })
    }
}

/// The sequences of one word.
fn members(at: u64, mut word: u64) -> impl Iterator<Item = u64> {
    std::iter::from_fn(move || {
        let bit = (word != 0).then(|| u64::from(word.trailing_zeros()))?;
        word &= word - 1;
        Some(at * 64 + bit)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_of_bits_is_a_set() {
        let (mut some, mut others) = (Bits::default(), Bits::default());
        assert!([0, 63, 64, 200].iter().all(|&one| some.insert(one)));
        assert!(!some.insert(64) && some.contains(64) && !some.contains(65) && !some.contains(10_000));
        others.insert(63);
        for (range, count, without) in [
            (0..201, 4, vec![0, 64, 200]),
            (0..200, 3, vec![0, 64]),
            (1..64, 1, vec![]),
            (64..64, 0, vec![]),
            (64..65, 1, vec![64]),
            (65..1_000, 1, vec![200]),
        ] {
            assert_eq!((some.count(range.clone()), some.without(&others, range.clone()).collect()), (count, without), "{range:?}");
            let absent = range.clone().filter(|&sequence| !some.contains(sequence));
            assert!(some.absent(range.clone()).eq(absent), "{range:?}");
        }
    }
}
