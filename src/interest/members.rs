//! Sets of members, as bits.

/// A member's place in the table of members; below [`BROKERS_MAX`](crate::limits::BROKERS_MAX).
pub(super) type Place = u16;

/// Some members, by their places.
#[derive(Clone, Debug, Default)]
pub(super) struct MemberSet {
    words: Vec<u64>,
}

impl MemberSet {
    pub(super) fn insert(&mut self, place: Place) {
        let word = usize::from(place / 64);
        if self.words.len() <= word {
            self.words.resize(word + 1, 0);
        }
        if let Some(word) = self.words.get_mut(word) {
            *word |= 1 << (place % 64);
        }
    }

    /// Whether somebody is in both.
    pub(super) fn meets(&self, other: &Self) -> bool {
        self.words.iter().zip(&other.words).any(|(a, b)| a & b != 0)
    }
}

impl PartialEq for MemberSet {
    fn eq(&self, other: &Self) -> bool {
        let word = |set: &Self, place: usize| set.words.get(place).copied().unwrap_or(0);
        (0..self.words.len().max(other.words.len())).all(|place| word(self, place) == word(other, place))
    }
}

impl Eq for MemberSet {}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(places: &[Place]) -> MemberSet {
        let mut set = MemberSet::default();
        places.iter().for_each(|place| set.insert(*place));
        set
    }

    #[test]
    fn sets_meet_where_somebody_is_in_both() {
        for (a, b, meet) in [
            (&[][..], &[][..], false),
            (&[0], &[0], true),
            (&[63], &[64], false),
            (&[1, 4_095], &[4_095], true),
            (&[4_095], &[1], false),
            (&[64, 65], &[1, 65, 200], true),
        ] {
            assert_eq!((set(a).meets(&set(b)), set(b).meets(&set(a))), (meet, meet), "{a:?} {b:?}");
        }
        assert_eq!(set(&[3, 70]), set(&[70, 3, 3]));
        assert_ne!(set(&[3]), set(&[3, 70]));
    }
}
