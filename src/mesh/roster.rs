//! What dialling and handshakes need to know of other brokers: the latest life of each that we have met, with whom we are linked, who is
//! worth a link, and who lied lately.
//! Written by the driver, read by tasks that dial and accept.
//!
//! Met is who has shown its certificate to us. Lives of which only records tell are in the records.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::watch;

use super::error::LinkError;
use crate::clock;
use crate::ids::{BrokerId, Incarnation};
use crate::limits::BROKERS_MAX;
use crate::neighbours::{Neighbours, Settings, Verdict};

/// Who said what no honest broker says has no link for so long: else it would be back at once, and links that come and go would fill the log.
const SHUN: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(super) struct Roster {
    lives: Mutex<BTreeMap<BrokerId, Incarnation>>,
    linked: watch::Sender<BTreeSet<BrokerId>>,
    /// Since when. By the certificates that were shown, so that nobody brings it upon another.
    shunned: Mutex<BTreeMap<BrokerId, Instant>>,
    pub(super) neighbours: Mutex<Neighbours>,
}

impl Roster {
    /// `chooses`: see [`Settings::chooses`].
    pub(super) fn new(own: BrokerId, links_max: usize, chooses: bool) -> Self {
        let neighbours = Neighbours::new(Settings { own, links_max, chooses, seed: rand::random() });
        let linked = watch::Sender::new(BTreeSet::new());
        Self { lives: Mutex::default(), linked, shunned: Mutex::default(), neighbours: Mutex::new(neighbours) }
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

    /// The link with `broker` was closed for what it said. Remembers at most [`BROKERS_MAX`].
    pub(super) fn shun(&self, broker: BrokerId, now: Instant) {
        let mut shunned = self.shunned.lock();
        shunned.retain(|_, since| now.saturating_duration_since(*since) < SHUN);
        if shunned.len() < BROKERS_MAX {
            shunned.insert(broker, now);
        }
    }

    /// Whether that was a moment ago.
    pub(super) fn is_shunned(&self, broker: BrokerId, now: Instant) -> bool {
        self.shunned.lock().get(&broker).is_some_and(|since| now.saturating_duration_since(*since) < SHUN)
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
    fn who_lied_is_shunned_for_a_while_and_the_memory_is_bounded() {
        let (roster, start) = (Roster::new(BrokerId(9), 8, true), clock::now());
        roster.shun(BrokerId(1), start);
        assert!(roster.is_shunned(BrokerId(1), start + SHUN / 2) && !roster.is_shunned(BrokerId(2), start));
        assert!(!roster.is_shunned(BrokerId(1), start + SHUN));
        (0..2 * BROKERS_MAX as u64).for_each(|id| roster.shun(BrokerId(id), start));
        assert_eq!(roster.shunned.lock().len(), BROKERS_MAX);
        roster.shun(BrokerId(7), start + SHUN);
        assert_eq!(roster.shunned.lock().len(), 1);
    }

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
