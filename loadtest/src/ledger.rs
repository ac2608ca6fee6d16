//! The ledger of one flow (one publisher to one subscriber): what came, what came twice, what came late, what is missing.
//!
//! Exact as long as the missing messages lie in at most [`HOLES_MAX`] runs; beyond that the oldest run is written off as lost.

use std::collections::BTreeMap;

/// Runs of missing messages remembered in a flow. A hole that is written off can no longer be told from a duplicate if it
/// arrives after all.
pub(crate) const HOLES_MAX: usize = 65_536;

/// What one arrival was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arrival {
    /// The next one, or one beyond the next: `advanced` sequences are now behind us, the missing ones included.
    Forward {
        /// At least 1.
        advanced: u64,
    },
    /// Missing until now: overtaken by a later message of the same publisher.
    Late,
    /// Here already.
    Duplicate,
}

/// The ledger of one flow.
#[derive(Debug, Default)]
pub(crate) struct Flow {
    /// The lowest sequence that can be expected.
    first: u64,
    /// One past the highest that came.
    next: u64,
    holes: Holes,
    pub(crate) delivered: u64,
    pub(crate) duplicated: u64,
    pub(crate) reordered: u64,
}

impl Flow {
    /// A flow joined while it runs: `sequence` came first, and nothing before it is expected.
    pub(crate) fn joined_at(sequence: u64) -> Self {
        Self { first: sequence, next: sequence, ..Self::default() }
    }

    /// Books the arrival of `sequence`.
    #[inline]
    pub(crate) fn book(&mut self, sequence: u64) -> Arrival {
        if sequence == self.next {
            // Nearly always, so nothing else is looked at.
            (self.next, self.delivered) = (sequence.saturating_add(1), self.delivered + 1);
            return Arrival::Forward { advanced: 1 };
        }
        let arrival = if sequence > self.next {
            self.holes.add(self.next, sequence);
            let advanced = (sequence - self.next).saturating_add(1);
            self.next = sequence.saturating_add(1);
            Arrival::Forward { advanced }
        } else if sequence < self.first {
            // We joined earlier than it seemed: what lies between is expected after all.
            self.holes.add(sequence + 1, self.first);
            self.first = sequence;
            Arrival::Late
        } else if self.holes.fill(sequence) {
            Arrival::Late
        } else {
            Arrival::Duplicate
        };
        match arrival {
            Arrival::Forward { .. } => self.delivered += 1,
            Arrival::Late => (self.delivered, self.reordered) = (self.delivered + 1, self.reordered + 1),
            Arrival::Duplicate => self.duplicated += 1,
        }
        arrival
    }

    /// Messages missing below the highest that came.
    pub(crate) fn missing(&self) -> u64 {
        self.holes.total
    }

    /// Messages missing of a flow that had `sent` messages, sequences 0 to `sent - 1`.
    pub(crate) fn missing_of(&self, sent: u64) -> u64 {
        sent.saturating_sub(self.delivered)
    }
}

/// Disjoint runs of missing sequences.
#[derive(Debug, Default)]
struct Holes {
    /// First to one past the last.
    runs: BTreeMap<u64, u64>,
    /// Missing sequences, those written off included.
    total: u64,
}

impl Holes {
    /// Adds a run that touches no other; nothing if it is empty.
    fn add(&mut self, first: u64, end: u64) {
        if first >= end {
            return;
        }
        self.total += end - first;
        self.runs.insert(first, end);
        if self.runs.len() > HOLES_MAX {
            self.runs.pop_first();
        }
    }

    /// Removes one sequence; false if it was not missing.
    fn fill(&mut self, sequence: u64) -> bool {
        let Some((&first, &end)) = self.runs.range(..=sequence).next_back().filter(|&(_, &end)| sequence < end) else {
            return false;
        };
        self.runs.remove(&first);
        if first < sequence {
            self.runs.insert(first, sequence);
        }
        if sequence + 1 < end {
            self.runs.insert(sequence + 1, end);
        }
        self.total -= 1;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use Arrival::{Duplicate, Forward, Late};

    /// Sequences as they arrive, then (delivered, duplicated, reordered, missing).
    #[test]
    fn arrivals_are_booked_as_what_they_are() {
        let table: &[(&[u64], [u64; 4])] = &[
            (&[], [0, 0, 0, 0]),
            (&[0, 1, 2], [3, 0, 0, 0]),
            (&[0, 0, 1, 1, 0], [2, 3, 0, 0]),
            (&[0, 2, 1], [3, 0, 1, 0]),
            (&[2, 0, 1], [3, 0, 2, 0]),
            (&[0, 5], [2, 0, 0, 4]),
            (&[0, 5, 3, 3], [3, 1, 1, 3]),
            (&[0, 5, 1, 4, 2, 3], [6, 0, 4, 0]),
        ];
        for (arrivals, expected) in table {
            let mut flow = Flow::default();
            for &sequence in *arrivals {
                flow.book(sequence);
            }
            assert_eq!([flow.delivered, flow.duplicated, flow.reordered, flow.missing()], *expected, "{arrivals:?}");
        }
    }

    #[test]
    fn an_arrival_says_what_it_was() {
        let mut flow = Flow::default();
        assert_eq!(flow.book(0), Forward { advanced: 1 });
        assert_eq!(flow.book(4), Forward { advanced: 4 });
        assert_eq!(flow.book(2), Late);
        assert_eq!(flow.book(2), Duplicate);
        assert_eq!(flow.book(0), Duplicate);
        assert_eq!(flow.missing_of(10), 7);
    }

    #[test]
    fn one_who_joins_late_misses_nothing_that_went_before() {
        let mut flow = Flow::joined_at(100);
        assert_eq!(flow.book(100), Forward { advanced: 1 });
        assert_eq!(flow.missing(), 0);
        assert_eq!(flow.book(97), Late);
        assert_eq!(flow.missing(), 2, "98 and 99 were sent after 97, which came");
        assert_eq!((flow.book(97), flow.book(98), flow.book(99)), (Duplicate, Late, Late));
        assert_eq!(flow.missing(), 0);
    }

    /// Against a naive set, over a shuffled stream with duplicates and losses.
    #[test]
    fn agrees_with_a_naive_set() {
        let mut state: u64 = 42;
        let mut random = move |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        let (mut flow, mut seen, mut duplicated) = (Flow::default(), std::collections::HashSet::new(), 0);
        for step in 0..20_000 {
            let sequence = step / 2 + random(200);
            duplicated += u64::from(!seen.insert(sequence));
            flow.book(sequence);
        }
        let highest = *seen.iter().max().unwrap();
        assert_eq!(flow.delivered, seen.len() as u64);
        assert_eq!(flow.duplicated, duplicated);
        assert_eq!(flow.missing(), highest + 1 - seen.len() as u64);
    }

    #[test]
    fn holes_are_bounded_and_what_is_written_off_stays_lost() {
        let mut flow = Flow::default();
        let messages = 2 * (HOLES_MAX as u64 + 10);
        for odd in (1..messages).step_by(2) {
            flow.book(odd);
        }
        assert_eq!(flow.holes.runs.len(), HOLES_MAX);
        assert_eq!(flow.missing(), messages / 2);
        assert_eq!(flow.book(0), Duplicate, "written off");
        assert_eq!(flow.book(messages - 2), Late);
    }
}
