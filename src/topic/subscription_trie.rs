//! Finds the subscriptions that match a topic name, in time that grows with the name's levels and not with the subscriptions that do
//! not match.
//!
//! One node a level. Literal levels are looked up in a map, `+` has an edge of its own, and `#` is not a node but a second set of
//! subscriptions at its parent, so that `a/#` is met on the way through `a`. At most two edges leave a node for one level of a name;
//! where both exist one of them waits on an explicit stack, so nothing recurses and a name without `+` on its way allocates nothing.
//!
//! Invariant: every node but the root holds a subscription or leads to one; removing the last one prunes.

use std::hash::Hash;

use super::small_map::SmallMap;
use super::{ALL_BELOW, ANY_LEVEL, SEPARATOR, is_reserved};

/// Subscriptions by topic filter: under each filter, each key has one value.
#[derive(Debug)]
pub struct SubscriptionTrie<K, V> {
    root: Node<K, V>,
    len: usize,
}

#[derive(Debug)]
struct Node<K, V> {
    literal: SmallMap<Box<str>, Self>,
    any: Option<Box<Self>>,
    /// Subscriptions whose filter ends here.
    here: SmallMap<K, V>,
    /// Subscriptions whose filter goes on with `#` and ends.
    below: SmallMap<K, V>,
}

impl<K: Eq + Hash, V> SubscriptionTrie<K, V> {
    /// A trie without subscriptions.
    #[must_use]
    pub fn new() -> Self {
        Self { root: Node::new(), len: 0 }
    }

    /// How many subscriptions there are: pairs of filter and key.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Subscribes `key` to `filter` (checked, without a share name) and returns what it had there before [MQTT-3.8.4-3].
    pub fn insert(&mut self, filter: &str, key: K, value: V) -> Option<V> {
        let (path, all_below) = split(filter);
        let mut node = &mut self.root;
        for level in path.into_iter().flat_map(|path| path.split(SEPARATOR)) {
            node = node.child_or_new(level);
        }
        let replaced = node.entries_mut(all_below).insert(key, value);
        self.len += usize::from(replaced.is_none());
        replaced
    }

    /// Takes the subscription of `key` to `filter` away and returns it [MQTT-3.10.4-1].
    pub fn remove(&mut self, filter: &str, key: &K) -> Option<V> {
        let (path, all_below) = split(filter);
        let levels = || path.into_iter().flat_map(|path| path.split(SEPARATOR));

        // The deepest node on the way that other subscriptions need, as the number of levels that lead to it.
        let (mut node, mut kept) = (&mut self.root, 0);
        for (depth, level) in levels().enumerate() {
            if node.is_shared() {
                kept = depth;
            }
            node = node.child_mut(level)?;
        }
        let removed = node.entries_mut(all_below).remove(key)?;
        self.len -= 1;

        if node.is_empty() {
            let mut node = &mut self.root;
            for (depth, level) in levels().enumerate() {
                if depth == kept {
                    node.remove_child(level);
                    break;
                }
                node = node.child_mut(level)?;
            }
        }
        Some(removed)
    }

    /// Calls `found` for every subscription whose filter matches the topic name `name`: a key as often as it has matching filters.
    pub fn for_each_match<'a>(&'a self, name: &str, mut found: impl FnMut(&'a K, &'a V)) {
        let mut waiting = Vec::new();
        let mut next = Some((&self.root, Some(name)));
        let mut wildcards = !is_reserved(name);
        while let Some((node, rest)) = next {
            if wildcards {
                node.below.iter().for_each(|(key, value)| found(key, value));
            }
            next = match rest {
                None => {
                    node.here.iter().for_each(|(key, value)| found(key, value));
                    None
                }
                Some(rest) => {
                    let (level, rest) = match rest.split_once(SEPARATOR) {
                        Some((level, rest)) => (level, Some(rest)),
                        None => (rest, None),
                    };
                    let any = if wildcards { node.any.as_deref() } else { None };
                    match (node.literal.get(level), any) {
                        (Some(literal), Some(any)) => {
                            waiting.push((any, rest));
                            Some((literal, rest))
                        }
                        (literal, any) => literal.or(any).map(|child| (child, rest)),
                    }
                }
            };
            // Only a wildcard in the first level is kept from `$` names [MQTT-4.7.2-1].
            wildcards = true;
            next = next.or_else(|| waiting.pop());
        }
    }
}

impl<K: Eq + Hash, V> Default for SubscriptionTrie<K, V> {
    fn default() -> Self {
        Self::new()
    }
}

/// The levels that have nodes, if any, and whether `#` follows them.
fn split(filter: &str) -> (Option<&str>, bool) {
    if filter == ALL_BELOW {
        return (None, true);
    }
    match filter.rsplit_once(SEPARATOR) {
        Some((path, ALL_BELOW)) => (Some(path), true),
        _ => (Some(filter), false),
    }
}

impl<K: Eq + Hash, V> Node<K, V> {
    fn new() -> Self {
        Self { literal: SmallMap::new(), any: None, here: SmallMap::new(), below: SmallMap::new() }
    }

    fn entries_mut(&mut self, all_below: bool) -> &mut SmallMap<K, V> {
        if all_below { &mut self.below } else { &mut self.here }
    }

    fn child_mut(&mut self, level: &str) -> Option<&mut Self> {
        if level == ANY_LEVEL { self.any.as_deref_mut() } else { self.literal.get_mut(level) }
    }

    fn child_or_new(&mut self, level: &str) -> &mut Self {
        if level == ANY_LEVEL {
            self.any.get_or_insert_with(|| Box::new(Self::new()))
        } else {
            self.literal.get_or_insert_with(level, Self::new)
        }
    }

    fn remove_child(&mut self, level: &str) {
        if level == ANY_LEVEL {
            self.any = None;
        } else {
            self.literal.remove(level);
        }
    }

    fn is_empty(&self) -> bool {
        self.literal.len() == 0 && self.any.is_none() && self.here.len() == 0 && self.below.len() == 0
    }

    /// Whether it stays when one of its children goes.
    fn is_shared(&self) -> bool {
        self.literal.len() + usize::from(self.any.is_some()) > 1 || self.here.len() > 0 || self.below.len() > 0
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::super::tests::{MATCHES, filter, name};
    use super::super::{matches, parse_filter};
    use super::*;

    fn found<K: Copy + Eq + Hash + Ord, V: Copy + Ord>(trie: &SubscriptionTrie<K, V>, name: &str) -> Vec<(K, V)> {
        let mut all = Vec::new();
        trie.for_each_match(name, |key, value| all.push((*key, *value)));
        all.sort_unstable();
        all
    }

    #[test]
    fn agrees_with_the_table() {
        for &(filter, name, expected) in MATCHES {
            let mut trie = SubscriptionTrie::new();
            trie.insert(filter, 1, ());
            assert_eq!(found(&trie, name).len(), usize::from(expected), "{filter:?} against {name:?}");
        }
    }

    #[test]
    fn a_key_is_found_once_for_each_of_its_filters() {
        let mut trie = SubscriptionTrie::new();
        assert_eq!(trie.insert("a/+", "k", 1), None);
        assert_eq!(trie.insert("a/#", "k", 2), None);
        assert_eq!(trie.insert("a/b", "k", 3), None);
        assert_eq!(trie.insert("a/b", "k", 4), Some(3));
        assert_eq!(trie.insert("a/b", "l", 5), None);
        assert_eq!(trie.len(), 4);
        assert_eq!(found(&trie, "a/b"), [("k", 1), ("k", 2), ("k", 4), ("l", 5)]);
    }

    #[test]
    fn removing_the_last_prunes_and_nothing_else() {
        let mut trie = SubscriptionTrie::new();
        trie.insert("a/b/c/d", 1, ());
        trie.insert("a/b", 1, ());
        trie.insert("a/b/+/e", 1, ());
        for absent in ["a", "a/b/c", "a/b/#", "a/b/c/d/#", "#", "+", "a/b/c/d/e"] {
            assert_eq!(trie.remove(absent, &1), None, "{absent:?}");
        }
        assert_eq!(trie.remove("a/b", &2), None);
        assert_eq!(trie.remove("a/b/c/d", &1), Some(()));
        assert_eq!((found(&trie, "a/b").len(), found(&trie, "a/b/c/e").len()), (1, 1));
        assert_eq!(trie.remove("a/b/+/e", &1), Some(()));
        assert_eq!(found(&trie, "a/b").len(), 1);
        assert_eq!(trie.remove("a/b", &1), Some(()));
        assert!(trie.is_empty() && trie.root.is_empty());
    }

    #[test]
    fn the_deepest_hierarchy_fits_the_stack() {
        let deep = vec!["+"; crate::limits::TOPIC_LEVELS_MAX].join("/");
        let mut trie = SubscriptionTrie::new();
        trie.insert(&deep, 1, ());
        trie.insert(&format!("{deep}/#"), 1, ());
        assert_eq!(found(&trie, &deep).len(), 2);
        trie.remove(&deep, &1);
        trie.remove(&format!("{deep}/#"), &1);
        assert!(trie.root.is_empty());
    }

    proptest! {
        #[test]
        fn agrees_with_a_list_of_filters(
            steps in prop::collection::vec((prop::bool::weighted(0.6), filter(), 0_u8..12, any::<u16>()), 0..60),
            names in prop::collection::vec(name(), 1..10),
        ) {
            let (mut trie, mut model) = (SubscriptionTrie::new(), BTreeMap::new());
            for (insert, filter, key, value) in steps {
                prop_assert!(parse_filter(&filter).is_ok());
                if insert {
                    prop_assert_eq!(trie.insert(&filter, key, value), model.insert((filter, key), value));
                } else {
                    prop_assert_eq!(trie.remove(&filter, &key), model.remove(&(filter, key)));
                }
                prop_assert_eq!(trie.len(), model.len());
            }
            for name in names {
                let mut expected: Vec<_> =
                    model.iter().filter(|((filter, _), _)| matches(filter, &name)).map(|((_, key), value)| (*key, *value)).collect();
                expected.sort_unstable();
                prop_assert_eq!(found(&trie, &name), expected, "{:?}", name);
            }
            for (filter, key) in model.into_keys() {
                prop_assert!(trie.remove(&filter, &key).is_some());
            }
            prop_assert!(trie.root.is_empty());
        }
    }
}
