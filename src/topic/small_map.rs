//! A map that is a short list until it has grown: almost every node of the trie has one child or one subscriber, and a hash table for
//! each would cost more memory than what it holds.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::hash::Hash;

/// Entries up to which comparing them all is cheaper than hashing.
const FEW_MAX: usize = 8;

#[derive(Debug)]
pub(super) enum SmallMap<K, V> {
    Few(Vec<(K, V)>),
    #[expect(clippy::box_collection, reason = "so that an empty map costs three words")]
    Many(Box<HashMap<K, V, ahash::RandomState>>),
}

impl<K: Eq + Hash, V> SmallMap<K, V> {
    pub(super) const fn new() -> Self {
        Self::Few(Vec::new())
    }

    pub(super) fn len(&self) -> usize {
        match self {
            Self::Few(list) => list.len(),
            Self::Many(map) => map.len(),
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        let (list, map) = match self {
            Self::Few(list) => (Some(list), None),
            Self::Many(map) => (None, Some(map)),
        };
        list.into_iter().flatten().map(|(key, value)| (key, value)).chain(map.into_iter().flat_map(|map| map.iter()))
    }

    pub(super) fn get<Q: Eq + Hash + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        match self {
            Self::Few(list) => list.iter().find(|(held, _)| held.borrow() == key).map(|(_, value)| value),
            Self::Many(map) => map.get(key),
        }
    }

    pub(super) fn get_mut<Q: Eq + Hash + ?Sized>(&mut self, key: &Q) -> Option<&mut V>
    where
        K: Borrow<Q>,
    {
        match self {
            Self::Few(list) => list.iter_mut().find(|(held, _)| held.borrow() == key).map(|(_, value)| value),
            Self::Many(map) => map.get_mut(key),
        }
    }

    /// The value of `key`, made if there is none yet.
    pub(super) fn get_or_insert_with<Q: Eq + Hash + ?Sized>(&mut self, key: &Q, make: impl FnOnce() -> V) -> &mut V
    where
        K: Borrow<Q> + for<'q> From<&'q Q>,
    {
        if self.get(key).is_none() {
            self.grow();
        }
        match self {
            Self::Few(list) => {
                let place = list.iter().position(|(held, _)| held.borrow() == key).unwrap_or(list.len());
                if place == list.len() {
                    list.push((K::from(key), make()));
                }
                #[expect(clippy::indexing_slicing, reason = "found or pushed there just now")]
                &mut list[place].1
            }
            Self::Many(map) => map.entry(K::from(key)).or_insert_with(make),
        }
    }

    /// Returns the value that `key` had before.
    pub(super) fn insert(&mut self, key: K, value: V) -> Option<V> {
        if let Some(held) = self.get_mut(&key) {
            return Some(std::mem::replace(held, value));
        }
        self.grow();
        match self {
            Self::Few(list) => list.push((key, value)),
            Self::Many(map) => drop(map.insert(key, value)),
        }
        None
    }

    /// Returns the value that `key` had. A map that becomes empty holds no memory.
    pub(super) fn remove<Q: Eq + Hash + ?Sized>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        let removed = match self {
            Self::Few(list) => {
                let place = list.iter().position(|(held, _)| held.borrow() == key)?;
                Some(list.swap_remove(place).1)
            }
            Self::Many(map) => map.remove(key),
        };
        if self.len() == 0 {
            *self = Self::new();
        }
        removed
    }

    /// Makes room for one more: exactly that while there are few, for nodes live long and most never get a second entry.
    fn grow(&mut self) {
        match self {
            Self::Few(list) if list.len() < FEW_MAX => list.reserve_exact(1),
            Self::Few(list) => *self = Self::Many(Box::new(list.drain(..).collect())),
            Self::Many(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn does_what_a_map_does(steps in prop::collection::vec((any::<bool>(), 0_u8..20, any::<u16>()), 0..200)) {
            let (mut small, mut model) = (SmallMap::new(), BTreeMap::new());
            for (insert, key, value) in steps {
                if insert {
                    prop_assert_eq!(small.insert(key, value), model.insert(key, value));
                } else {
                    prop_assert_eq!(small.remove(&key), model.remove(&key));
                }
                prop_assert_eq!(small.get(&key), model.get(&key));
                prop_assert_eq!(small.get_mut(&key), model.get_mut(&key));
                prop_assert_eq!(small.len(), model.len());
                prop_assert_eq!(small.iter().collect::<BTreeMap<_, _>>(), model.iter().collect::<BTreeMap<_, _>>());
            }
        }
    }

    #[test]
    fn an_empty_map_holds_no_memory() {
        let mut map = SmallMap::new();
        for key in 0..100 {
            map.insert(key, ());
        }
        assert!(matches!(map, SmallMap::Many(_)));
        for key in 0..100 {
            map.remove(&key);
        }
        assert!(matches!(&map, SmallMap::Few(list) if list.capacity() == 0));
    }
}
