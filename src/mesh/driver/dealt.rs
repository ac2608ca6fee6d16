//! Tells those who ask how far this broker has dealt with their logs, asks others how far they have with ours, and has picked again what was picked for brokers that will
//! not.

use std::time::Instant;

use super::Driver;
use crate::limits::DEALT_INTERVAL;

impl Driver {
    /// Registers have said something.
    pub(super) fn dealt_heard(&mut self, now: Instant) {
        let replication = &self.settings.replication;
        replication.dealt_progress();
        if self.tell_dealt_at.is_none() && !replication.interest().asked().is_empty() {
            self.tell_dealt_at = Some(now + DEALT_INTERVAL);
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
        if !asked.is_empty() {
            self.tell_dealt_at = Some(now + DEALT_INTERVAL);
        }
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
        self.settings.registers.own().ask_dealt(replication.awaits_dealt() || replication.acknowledges_in_mesh());
        self.dealt_heard(now);
    }
}
