//! What dialling and handshakes need to know of other brokers: the latest life of each that we have met, and with whom we are linked.
//! Written by the driver, read by tasks that dial and accept.
//!
//! Met is who has shown its certificate to us: what records say of others is anybody's word, and a life too high would end its broker.

use std::collections::{BTreeMap, BTreeSet};

use parking_lot::Mutex;
use tokio::sync::watch;

use crate::ids::{BrokerId, Incarnation};
use crate::limits::BROKERS_MAX;

#[derive(Debug)]
pub(super) struct Roster {
    lives: Mutex<BTreeMap<BrokerId, Incarnation>>,
    linked: watch::Sender<BTreeSet<BrokerId>>,
}

impl Roster {
    pub(super) fn new() -> Self {
        Self { lives: Mutex::default(), linked: watch::Sender::new(BTreeSet::new()) }
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

    /// Waits until there is no link with `broker`.
    pub(super) async fn unlinked(&self, broker: BrokerId) {
        // Fails only if the sender is gone, which `self` holds.
        let _ = self.linked.subscribe().wait_for(|linked| !linked.contains(&broker)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lives_only_grow() {
        let roster = Roster::new();
        assert_eq!(roster.life(BrokerId(1)), Incarnation(0));
        roster.met(BrokerId(1), Incarnation(5));
        roster.met(BrokerId(1), Incarnation(3));
        assert_eq!(roster.life(BrokerId(1)), Incarnation(5));
        roster.set_linked(BrokerId(1), true);
        assert!(roster.is_linked(BrokerId(1)) && roster.links() == 1);
    }
}
