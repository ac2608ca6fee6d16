//! What dialling and handshakes need to know of other brokers: the latest life of each that we have met, with whom we are linked, and who
//! is worth a link.
//! Written by the driver, read by tasks that dial and accept.
//!
//! Met is who has shown its certificate to us. Lives of which only records tell are in the records.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;

use super::error::LinkError;
use crate::clock;
use crate::ids::{BrokerId, Incarnation};
use crate::limits::BROKERS_MAX;
use crate::neighbours::{Neighbours, Settings, Verdict};

#[derive(Debug)]
pub(super) struct Roster {
    lives: Mutex<BTreeMap<BrokerId, Incarnation>>,
    linked: watch::Sender<BTreeSet<BrokerId>>,
    pub(super) neighbours: Mutex<Neighbours>,
}

impl Roster {
    /// `chooses`: see [`Settings::chooses`].
    pub(super) fn new(own: BrokerId, links_max: usize, chooses: bool) -> Self {
        let neighbours = Neighbours::new(Settings { own, links_max, chooses, seed: rand::random() });
        Self { lives: Mutex::default(), linked: watch::Sender::new(BTreeSet::new()), neighbours: Mutex::new(neighbours) }
    }

    /// The latest life of `broker` that we have met; 0: none.
    pub(super) fn life(&self, broker: BrokerId) -> Incarnation {
        self.lives.lock().get(&broker).copied().unwrap_or_default()
    }

    /// A life of `broker` has introduced itself.
    pub(super) fn met(&self, broker: BrokerId, incarnation: Incarnation) {
        let mut lives = self.lives.lock();
        if lives.len() < BROKERS_MAX || lives.contains_key(&broker) {
            let life = lives.entry(broker).or_default();
            *life = incarnation.max(*life);
        }
    }

    /// A link with `broker` came up or went down.
    pub(super) fn set_linked(&self, broker: BrokerId, linked: bool) {
        self.linked.send_if_modified(|set| if linked { set.insert(broker) } else { set.remove(&broker) });
    }

    pub(super) fn is_linked(&self, broker: BrokerId) -> bool {
        self.linked.borrow().contains(&broker)
    }

    /// With how many brokers we are linked.
    pub(super) fn links(&self) -> usize {
        self.linked.borrow().len()
    }

    /// Whether a broker that we met at the end of `rtt` is worth a link.
    ///
    /// # Errors
    /// It is not: there are as many links as there may be, and better ones.
    pub(super) fn consider(&self, broker: BrokerId, rtt: Duration) -> Result<(), LinkError> {
        let mut neighbours = self.neighbours.lock();
        neighbours.measured(broker, rtt);
        match neighbours.judge(broker, rtt, clock::now()) {
            Verdict::Refuse => Err(LinkError::TooManyLinks(neighbours.links_max())),
            Verdict::Admit | Verdict::InPlaceOf(_) => Ok(()),
        }
    }

    /// With whom we are linked, to be followed.
    pub(super) fn follow_links(&self) -> watch::Receiver<BTreeSet<BrokerId>> {
        self.linked.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lives_only_grow() {
        let roster = Roster::new(BrokerId(9), 8, true);
        assert_eq!(roster.life(BrokerId(1)), Incarnation(0));
        roster.met(BrokerId(1), Incarnation(5));
        roster.met(BrokerId(1), Incarnation(3));
        assert_eq!(roster.life(BrokerId(1)), Incarnation(5));
        roster.set_linked(BrokerId(1), true);
        assert!(roster.is_linked(BrokerId(1)) && roster.links() == 1);
    }
}
