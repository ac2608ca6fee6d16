//! The ledgers of one subscriber, by flow.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ops::Range;

use crate::ledger::Flow;

/// Flows of others that one subscriber can tell apart; messages of more count as foreign.
const FLOWS_MAX: usize = 1_000_000;

/// Whose messages a flow holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct FlowKey {
    pub(crate) run: u32,
    pub(crate) flow: u32,
}

/// See the module. Messages of one flow mostly come in runs, so the last ledger is tried first.
pub(super) struct Flows {
    run: u32,
    /// The flows that are heard from their first message on, at the front of the list.
    expected: Range<u32>,
    list: Vec<(FlowKey, Flow)>,
    /// Of the others.
    places: HashMap<FlowKey, usize>,
    last: usize,
}

impl Flows {
    /// Expects these flows of this run.
    pub(super) fn new(run: u32, expected: Range<u32>) -> Self {
        let list = expected.clone().map(|flow| (FlowKey { run, flow }, Flow::default())).collect();
        Self { run, expected, list, places: HashMap::new(), last: 0 }
    }

    pub(super) fn expects(&self, key: FlowKey) -> bool {
        key.run == self.run && self.expected.contains(&key.flow)
    }

    /// The flow of `key`, joined at `sequence` if it is new; `None` when there are too many.
    #[inline]
    pub(super) fn of(&mut self, key: FlowKey, sequence: u64) -> Option<&mut Flow> {
        if self.list.get(self.last).is_none_or(|(last, _)| *last != key) {
            self.last = self.place(key, sequence)?;
        }
        self.list.get_mut(self.last).map(|(_, flow)| flow)
    }

    pub(super) fn into_list(self) -> Vec<(FlowKey, Flow)> {
        self.list
    }

    fn place(&mut self, key: FlowKey, sequence: u64) -> Option<usize> {
        if self.expects(key) {
            return Some((key.flow - self.expected.start) as usize);
        }
        let places = self.places.len();
        match self.places.entry(key) {
            Entry::Occupied(place) => Some(*place.get()),
            Entry::Vacant(_) if places >= FLOWS_MAX => None,
            Entry::Vacant(vacant) => {
                self.list.push((key, Flow::joined_at(sequence)));
                Some(*vacant.insert(self.list.len() - 1))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expected_flows_begin_at_the_beginning_and_others_where_they_are_met() {
        let mut flows = Flows::new(7, 4..6);
        let key = |run, flow| FlowKey { run, flow };
        for (key, sequence) in [(key(7, 5), 2), (key(8, 5), 2), (key(7, 4), 0), (key(7, 5), 3), (key(7, 6), 9), (key(8, 5), 3)] {
            flows.of(key, sequence).unwrap().book(sequence);
        }
        let told: Vec<_> = flows.into_list().into_iter().map(|(key, flow)| (key, flow.delivered, flow.missing())).collect();
        assert_eq!(told, [(key(7, 4), 1, 0), (key(7, 5), 2, 2), (key(8, 5), 2, 0), (key(7, 6), 1, 0)]);
    }
}
