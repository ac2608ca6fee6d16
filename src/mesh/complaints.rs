//! Which refusals are news: the same words about the same peer are logged once a minute, however often it tries.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

const REPEAT: Duration = Duration::from_secs(60);
/// Remembered at once; beyond that everything is news.
const ENTRIES_MAX: usize = 256;

#[derive(Debug, Default)]
pub(super) struct Complaints(Mutex<BTreeMap<(String, String), Instant>>);

impl Complaints {
    /// Whether `what` about `whom` was not said within the last minute.
    pub(super) fn is_news(&self, whom: &str, what: &str, now: Instant) -> bool {
        let mut said = self.0.lock();
        said.retain(|_, at| now.saturating_duration_since(*at) < REPEAT);
        let entry = (whom.to_owned(), what.to_owned());
        if said.contains_key(&entry) {
            return false;
        }
        if said.len() < ENTRIES_MAX {
            said.insert(entry, now);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_words_are_said_once_a_minute() {
        let (complaints, start) = (Complaints::default(), crate::clock::now());
        assert!(complaints.is_news("a", "x", start));
        assert!(!complaints.is_news("a", "x", start + REPEAT / 2));
        assert!(complaints.is_news("a", "y", start) && complaints.is_news("b", "x", start));
        assert!(complaints.is_news("a", "x", start + REPEAT));
    }
}
