//! The other way round than [`SubscriptionTrie`](super::SubscriptionTrie): finds the topic names that match a filter, in time that grows
//! with the levels that the filter leaves open and not with the names beside them.
//!
//! One node a level. No search recurses. Dropping nodes does, a call a level: names are checked before they come here, and have
//! [`crate::limits::TOPIC_LEVELS_MAX`] at most.
//!
//! Invariant: every node but the root holds a value or leads to one; removing the last one prunes.

use super::small_map::SmallMap;
use super::{ALL_BELOW, ANY_LEVEL, SEPARATOR, is_reserved};

/// One value under each topic name.
#[derive(Debug)]
pub struct NameTrie<T> {
    root: Node<T>,
    len: usize,
}

#[derive(Debug)]
struct Node<T> {
    children: SmallMap<Box<str>, Self>,
    value: Option<T>,
}

impl<T> NameTrie<T> {
    /// A trie without names.
    #[must_use]
    pub fn new() -> Self {
        Self { root: Node::new(), len: 0 }
    }

    /// How many names have a value.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether none has.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Gives `name` (checked) a value and returns the one that it had.
    pub fn insert(&mut self, name: &str, value: T) -> Option<T> {
        let mut node = &mut self.root;
        for level in name.split(SEPARATOR) {
            node = node.children.get_or_insert_with(level, Node::new);
        }
        let replaced = node.value.replace(value);
        self.len += usize::from(replaced.is_none());
        replaced
    }

    /// The value of `name`.
    pub fn find(&self, name: &str) -> Option<&T> {
        let mut node = &self.root;
        for level in name.split(SEPARATOR) {
            node = node.children.get(level)?;
        }
        node.value.as_ref()
    }

    /// Takes the value of `name` away and returns it.
    pub fn remove(&mut self, name: &str) -> Option<T> {
        // The deepest node on the way that other names need, as the number of levels that lead to it.
        let (mut node, mut kept) = (&mut self.root, 0);
        for (depth, level) in name.split(SEPARATOR).enumerate() {
            if node.children.len() > 1 || node.value.is_some() {
                kept = depth;
            }
            node = node.children.get_mut(level)?;
        }
        let removed = node.value.take()?;
        self.len -= 1;

        if node.children.len() == 0 {
            let mut node = &mut self.root;
            for (depth, level) in name.split(SEPARATOR).enumerate() {
                if depth == kept {
                    node.children.remove(level);
                    break;
                }
                node = node.children.get_mut(level)?;
            }
        }
        Some(removed)
    }

    /// Calls `found` with the value of every name that `filter` (checked, without a share name) matches, in no particular order.
    pub fn for_each_match<'a>(&'a self, filter: &str, mut found: impl FnMut(&'a T)) {
        let mut waiting = vec![(&self.root, Some(filter))];
        // A wildcard in the first level matches no `$` name [MQTT-4.7.2-1].
        let mut is_first = true;
        while let Some((node, rest)) = waiting.pop() {
            let any_level = || {
                let children = node.children.iter().filter(|(level, _)| !(is_first && is_reserved(level)));
                children.map(|(_, child)| child)
            };
            match rest {
                None => node.value.iter().for_each(&mut found),
                Some(ALL_BELOW) => {
                    node.value.iter().for_each(&mut found);
                    waiting.extend(any_level().map(|child| (child, rest)));
                }
                Some(rest) => {
                    let (level, rest) = match rest.split_once(SEPARATOR) {
                        Some((level, rest)) => (level, Some(rest)),
                        None => (rest, None),
                    };
                    if level == ANY_LEVEL {
                        waiting.extend(any_level().map(|child| (child, rest)));
                    } else {
                        waiting.extend(node.children.get(level).map(|child| (child, rest)));
                    }
                }
            }
            is_first = false;
        }
    }
}

impl<T> Default for NameTrie<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Node<T> {
    fn new() -> Self {
        Self { children: SmallMap::new(), value: None }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::super::matches;
    use super::super::tests::{MATCHES, filter, name};
    use super::*;

    fn found<T: Copy + Ord>(trie: &NameTrie<T>, filter: &str) -> Vec<T> {
        let mut all = Vec::new();
        trie.for_each_match(filter, |value| all.push(*value));
        all.sort_unstable();
        all
    }

    #[test]
    fn agrees_with_the_table() {
        for &(filter, name, expected) in MATCHES {
            let mut trie = NameTrie::new();
            trie.insert(name, ());
            assert_eq!(found(&trie, filter).len(), usize::from(expected), "{filter:?} against {name:?}");
        }
    }

    #[test]
    fn removing_the_last_prunes_and_nothing_else() {
        let mut trie = NameTrie::new();
        assert_eq!(trie.insert("a/b/c/d", 1), None);
        assert_eq!(trie.insert("a/b", 2), None);
        assert_eq!(trie.insert("a/b", 3), Some(2));
        assert_eq!((trie.remove("a"), trie.remove("a/b/c"), trie.remove("b")), (None, None, None));
        assert_eq!(trie.remove("a/b/c/d"), Some(1));
        assert_eq!(found(&trie, "#"), [3]);
        assert_eq!(trie.remove("a/b"), Some(3));
        assert!(trie.is_empty() && trie.root.children.len() == 0);
    }

    proptest! {
        #[test]
        fn agrees_with_a_list_of_names(
            steps in prop::collection::vec((prop::bool::weighted(0.6), name(), any::<u16>()), 0..60),
            filters in prop::collection::vec(filter(), 1..10),
        ) {
            let (mut trie, mut model) = (NameTrie::new(), BTreeMap::new());
            for (insert, name, value) in steps {
                if insert {
                    prop_assert_eq!(trie.insert(&name, value), model.insert(name, value));
                } else {
                    prop_assert_eq!(trie.remove(&name), model.remove(&name));
                }
                prop_assert_eq!(trie.len(), model.len());
            }
            for filter in filters {
                let mut expected: Vec<_> =
                    model.iter().filter(|(name, _)| matches(&filter, name)).map(|(_, value)| *value).collect();
                expected.sort_unstable();
                prop_assert_eq!(found(&trie, &filter), expected, "{:?}", filter);
            }
            for name in model.into_keys() {
                prop_assert!(trie.remove(&name).is_some());
            }
            prop_assert_eq!(trie.root.children.len(), 0);
        }
    }
}
