//! What the operator says of topics: whether the interest of others counts for them.

use crate::topic;

/// How messages of a topic cross the mesh.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// To where they are wanted.
    Interest,
    /// Everywhere.
    Full,
}

/// The mode of every topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rules {
    otherwise: Mode,
    topics: Vec<(Box<str>, Mode)>,
}

impl Rules {
    /// `otherwise`, but for the topics that a filter of `topics` matches (checked, without a share name): the first that does counts.
    #[must_use]
    pub fn new(otherwise: Mode, topics: impl IntoIterator<Item = (Box<str>, Mode)>) -> Self {
        let topics: Vec<_> = topics.into_iter().collect();
        // What follows changes nothing.
        let kept = topics.iter().rposition(|(_, mode)| *mode != otherwise).map_or(0, |last| last + 1);
        Self { otherwise, topics: topics.into_iter().take(kept).collect() }
    }

    /// How messages of `name` cross the mesh.
    #[must_use]
    pub fn mode(&self, name: &str) -> Mode {
        let found = self.topics.iter().find(|(filter, _)| topic::matches(filter, name));
        found.map_or(self.otherwise, |(_, mode)| *mode)
    }

    /// Whether everything goes everywhere.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.otherwise == Mode::Full && self.topics.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_filter_that_matches_counts() {
        let rules = Rules::new(Mode::Full, [("a/b".into(), Mode::Full), ("a/#".into(), Mode::Interest), ("b".into(), Mode::Full)]);
        let modes = ["a/b", "a", "a/c/d", "b", "c"].map(|name| rules.mode(name));
        assert_eq!(modes, [Mode::Full, Mode::Interest, Mode::Interest, Mode::Full, Mode::Full]);
        assert!(!rules.is_full() && rules.topics.len() == 2);
        assert!(Rules::new(Mode::Full, [("a".into(), Mode::Full)]).is_full());
        assert!(!Rules::new(Mode::Interest, []).is_full());
    }
}
