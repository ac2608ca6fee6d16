//! Tells those who ask how far this broker has dealt with their logs, asks others how far they have with ours, and has picked again what was picked for brokers that will
//! not.

use std::time::Instant;

use super::Driver;
use crate::interest::Asked;
use crate::limits::{DEALT_INTERVAL, DEALT_INTERVAL_CALM};

/// When those who ask are told next.
fn next_telling(asked: &[Asked], now: Instant) -> Option<Instant> {
    let interval = if asked.iter().any(|one| one.is_urgent) { DEALT_INTERVAL } else { DEALT_INTERVAL_CALM };
    (!asked.is_empty()).then(|| now + interval)
}

impl Driver {
    /// Registers have said something.
    pub(super) fn dealt_heard(&mut self, now: Instant) {
        let replication = &self.settings.replication;
        replication.dealt_progress();
        let due = next_telling(&replication.interest().asked(), now);
        // Sooner, if somebody waits now.
        if let Some(due) = due {
            self.tell_dealt_at = Some(self.tell_dealt_at.map_or(due, |at| at.min(due)));
        }
    }

    /// Tells what is news, if it is time.
    pub(super) fn tell_dealt(&mut self, now: Instant) {
        if self.tell_dealt_at.take_if(|at| *at <= now).is_none() {
            return;
        }
        let replication = &self.settings.replication;
        let asked = replication.interest().asked();
        for (stream, sequence) in replication.dealt(&asked) {
            self.settings.registers.own().tell_dealt(stream, sequence);
        }
        self.tell_dealt_at = next_telling(&asked, now);
    }

    /// Picks again, and late, if it is time: so much that links are heard in between.
    pub(super) fn pick_more(&mut self, now: Instant) {
        let replication = &self.settings.replication;
        let is_more = replication.pick_again(now, &mut *self.deliver) | replication.share_late(now, &mut *self.deliver);
        self.pick_more_at = is_more.then(|| now + DEALT_INTERVAL);
    }

    /// Once a second.
    pub(super) fn dealt_tick(&mut self, now: Instant) {
        self.pick_more(now);
        let replication = &self.settings.replication;
        let is_urgent = replication.asks_urgently();
        self.settings.registers.own().ask_dealt(replication.awaits_dealt() || is_urgent, is_urgent);
        if replication.acknowledges_in_mesh() {
            let mute = replication.interest().mute();
            for broker in mute.iter().filter(|broker| !self.mute.contains(broker)) {
                tracing::warn!(%broker, "publish_ack = \"mesh\" does not wait for this broker: it does not say how far it has dealt with messages");
            }
            self.mute = mute;
        }
        self.dealt_heard(now);
    }
}
