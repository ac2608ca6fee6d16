//! The tables of our configuration, as they are written: each key once, in the order in which they were said.

use std::fmt::Write as _;

use toml::Value;

use super::lines::Origin;

/// One table.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Section {
    entries: Vec<(String, Value, Origin)>,
    /// Where the table begins.
    origin: Option<Origin>,
}

impl Section {
    /// A table that begins there.
    pub(super) fn at(origin: Option<&Origin>) -> Self {
        Self { entries: Vec::new(), origin: origin.cloned() }
    }

    /// Said twice, the last counts.
    pub(super) fn set(&mut self, key: &str, value: Value, origin: &Origin) {
        match self.entries.iter_mut().find(|(known, ..)| known == key) {
            Some(entry) => (entry.1, entry.2) = (value, origin.clone()),
            None => self.entries.push((key.to_owned(), value, origin.clone())),
        }
    }

    pub(super) fn value(&self, key: &str) -> Option<(&Value, &Origin)> {
        self.entries.iter().find(|(known, ..)| known == key).map(|(_, value, origin)| (value, origin))
    }

    /// Takes over what another says.
    pub(super) fn extend(&mut self, other: &Self) {
        for (key, value, origin) in &other.entries {
            self.set(key, value.clone(), origin);
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Where a key was said, or the table.
    pub(super) fn origin_of(&self, key: &str) -> Option<&Origin> {
        self.value(key).map(|(_, origin)| origin).or(self.origin.as_ref())
    }

    /// Writes it behind `into`.
    pub(super) fn write(&self, head: &str, into: &mut String) {
        if !head.is_empty() {
            into.push('\n');
            into.push_str(head);
            into.push('\n');
        }
        for (key, value, _) in &self.entries {
            // Writing to a `String` cannot fail.
            let _ = writeln!(into, "{key} = {value}");
        }
    }
}
