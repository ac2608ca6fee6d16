//! What is wanted behind one tree port, topic by topic, remembered.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::ArcSwapOption;

use super::members::MemberSet;
use super::{Interest, Wanted};
use crate::ids::BrokerId;

/// What one lane of a port may remember: beyond it, it begins anew.
const BYTES_MAX: usize = 4 * 1024 * 1024;
/// What a topic costs besides its name.
const TOPIC_BYTES: usize = 64;

/// Who is behind a tree port, as the far side said. Shared by the port's lanes.
#[derive(Debug, Default)]
pub struct Behind {
    /// In order.
    members: ArcSwapOption<Vec<BrokerId>>,
    /// Grows when they change.
    version: AtomicU64,
}

/// Whether and why a message goes over a tree port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Draw {
    /// Its topic goes everywhere.
    Rule,
    /// It is not known who is there, or what somebody there wants.
    Unknown,
    /// Somebody there wants it.
    Wanted,
    /// A share group has members there: it goes if one of them is picked.
    Shared,
    /// Nobody there does.
    Nobody,
}

impl Behind {
    /// Whether and why a message of `topic` goes there. For people: a lane asks [`Verdicts`], which say the same.
    #[must_use]
    pub fn draw(&self, interest: &Interest, topic: &str) -> Draw {
        interest.draw(topic, self.members.load().as_ref().map(|members| members.as_slice()))
    }

    /// Sets who is there; `None`: nobody knows.
    pub fn set(&self, members: Option<Vec<BrokerId>>) {
        let sorted = members.map(|mut members| {
            members.sort_unstable();
            Arc::new(members)
        });
        self.members.store(sorted);
        self.version.fetch_add(1, Ordering::AcqRel);
    }
}

/// One lane's memory of what is wanted behind its port. Empty, it owns no memory.
#[derive(Debug, Default)]
pub struct Verdicts {
    /// Under which it holds: the generation of the interest's filters, the port's version.
    under: (u64, u64),
    /// Who is there; `None`: everything is wanted.
    members: Option<MemberSet>,
    /// The same, by name.
    behind: Option<Arc<Vec<BrokerId>>>,
    topics: HashMap<Box<str>, bool, ahash::RandomState>,
    bytes: usize,
}

impl Verdicts {
    /// Whether everything is wanted, of whatever topic. To be asked before [`wants`](Self::wants), once a block or so: it drops what has become void.
    pub fn want_everything(&mut self, interest: &Interest, behind: &Behind) -> bool {
        // Read before what they speak of: a change meanwhile is found the next time.
        let under = (interest.filters_generation(), behind.version.load(Ordering::Acquire));
        if self.under != under {
            self.under = under;
            self.behind = behind.members.load_full();
            self.members = self.behind.as_ref().and_then(|members| interest.places(members));
            self.clear();
        }
        self.members.is_none()
    }

    /// Whether `broker` is behind the port, as far as is known.
    #[must_use]
    pub fn has(&self, broker: BrokerId) -> bool {
        self.behind.as_ref().is_none_or(|behind| behind.binary_search(&broker).is_ok())
    }

    /// Whether somebody behind the port wants `topic`.
    pub fn wants(&mut self, interest: &Interest, topic: &str) -> bool {
        let Some(members) = &self.members else { return true };
        if let Some(verdict) = self.topics.get(topic) {
            return *verdict;
        }
        let verdict = match interest.wanted(topic) {
            Wanted::ByRule => true,
            Wanted::By(wanting) => wanting.meets(members),
        };
        if self.bytes > BYTES_MAX {
            self.clear();
        }
        self.bytes += TOPIC_BYTES + topic.len();
        self.topics.insert(topic.into(), verdict);
        verdict
    }

    fn clear(&mut self) {
        self.topics.clear();
        self.bytes = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::interest::{Mode, Rules};

    const OWN: BrokerId = BrokerId(1);
    const A: BrokerId = BrokerId(2);
    const B: BrokerId = BrokerId(3);

    #[test]
    fn a_port_wants_what_somebody_behind_it_wants() {
        let interest = Interest::new(OWN, Rules::new(Mode::Interest, [("full/#".into(), Mode::Full)]));
        let (behind, mut verdicts) = (Behind::default(), Verdicts::default());
        for member in [A, B] {
            interest.change().join(member);
            interest.change().know(member);
        }
        let mut wants = |topic: &str, behind: &Behind| {
            let wants = verdicts.want_everything(&interest, behind) || verdicts.wants(&interest, topic);
            let draws = !matches!(behind.draw(&interest, topic), Draw::Nobody | Draw::Shared);
            assert_eq!(draws, wants, "what is shown is what is done");
            wants
        };
        interest.change().insert(A, "a/+");
        interest.change().insert(B, "b");
        assert!(wants("x", &behind), "who is there is not known");
        behind.set(Some(vec![A]));
        let named = |wants: &mut dyn FnMut(&str, &Behind) -> bool| ["a/1", "b", "full/x"].map(|topic| wants(topic, &behind));
        assert_eq!(named(&mut wants), [true, false, true]);
        assert_eq!(named(&mut wants), [true, false, true], "from memory");
        behind.set(Some(vec![A, B, OWN]));
        assert_eq!(named(&mut wants), [true, true, true]);
        behind.set(Some(Vec::new()));
        assert_eq!(named(&mut wants), [false, false, true]);
        behind.set(Some(vec![A, BrokerId(77)]));
        assert!(wants("x", &behind), "there is somebody of whom nothing is known");
        behind.set(Some(vec![A]));
        interest.change().insert(A, "#");
        assert!(wants("x", &behind));
        interest.change().remove(A, "#");
        assert!(!wants("x", &behind) && wants("a/x", &behind));
        interest.change().join(A);
        assert!(wants("x", &behind));
        behind.set(None);
        assert!(wants("x", &behind));
    }

    #[test]
    fn where_everything_goes_everywhere_nobody_is_asked_for_topics() {
        let interest = Interest::new(OWN, Rules::new(Mode::Full, []));
        interest.change().join(A);
        interest.change().know(A);
        let behind = Behind::default();
        behind.set(Some(vec![A]));
        assert!(Verdicts::default().want_everything(&interest, &behind));
    }

    #[test]
    fn the_memory_is_bounded() {
        let interest = Interest::new(OWN, Rules::new(Mode::Interest, []));
        interest.change().join(A);
        interest.change().know(A);
        let (behind, mut verdicts) = (Behind::default(), Verdicts::default());
        behind.set(Some(vec![A]));
        assert!(!verdicts.want_everything(&interest, &behind));
        let name = "x".repeat(60_000);
        (0..200).for_each(|n| assert!(!verdicts.wants(&interest, &format!("{name}{n}"))));
        assert!(verdicts.bytes <= BYTES_MAX + 70_000 && verdicts.topics.len() < 100, "{}", verdicts.bytes);
    }
}
