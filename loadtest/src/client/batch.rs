//! What one read brought a subscriber, booked at its end: counting costs next to nothing a message.

use std::sync::{Arc, MutexGuard};

use super::gate::Gate;
use crate::clock::now_ns;
use crate::ledger::Arrival;
use crate::tally::{Recorder, Tally};

/// What one read brought, booked at its end.
pub(super) struct Batch<'a> {
    tally: &'a Tally,
    subscriber: u32,
    /// When the messages that came last were due, and how many of them there were: those sent in one write are due together,
    /// and so are measured together.
    due: (u64, u64),
    measuring: Option<Measuring<'a>>,
    /// The publisher whose messages came last, and how many of its messages are behind us now.
    advanced: (u32, u64),
    publishers: &'a [Arc<Gate>],
    delivered: u64,
    duplicated: u64,
    reordered: u64,
    pub(super) corrupted: u64,
    pub(super) foreign: u64,
}

/// How long the messages of a batch took.
struct Measuring<'a> {
    /// When the batch was read.
    now_ns: u64,
    /// Messages due earlier are not measured.
    from_ns: u64,
    latencies: MutexGuard<'a, Recorder>,
}

impl<'a> Batch<'a> {
    /// `publishers`: the gates of the run's publishers.
    pub(super) fn new(tally: &'a Tally, subscriber: u32, publishers: &'a [Arc<Gate>]) -> Self {
        let (due, advanced, delivered, duplicated, reordered, corrupted, foreign) = Default::default();
        Self { tally, subscriber, due, measuring: None, advanced, publishers, delivered, duplicated, reordered, corrupted, foreign }
    }

    /// A message has been booked; of a publisher of this run, or of another.
    #[inline]
    pub(super) fn arrived(&mut self, arrival: Arrival, due_at_ns: u64, publisher: Option<u32>) {
        match arrival {
            Arrival::Forward { advanced } => {
                if let Some(publisher) = publisher {
                    if publisher != self.advanced.0 {
                        self.pass();
                        self.advanced.0 = publisher;
                    }
                    self.advanced.1 += advanced;
                }
            }
            Arrival::Late => self.reordered += 1,
            Arrival::Duplicate => {
                self.duplicated += 1;
                return;
            }
        }
        self.delivered += 1;
        if due_at_ns != self.due.0 {
            self.measure();
            self.due = (due_at_ns, 0);
        }
        self.due.1 += 1;
    }

    /// Records the latency of the messages that came last.
    fn measure(&mut self) {
        let (due_at_ns, messages) = self.due;
        if messages == 0 {
            return;
        }
        let (tally, subscriber) = (self.tally, self.subscriber);
        let measuring = self.measuring.get_or_insert_with(|| Measuring {
            now_ns: now_ns(),
            from_ns: tally.measured_from_ns(),
            latencies: tally.latencies_of(subscriber),
        });
        if due_at_ns >= measuring.from_ns {
            measuring.latencies.record(measuring.now_ns.saturating_sub(due_at_ns), messages);
        }
    }

    /// Lets the publisher whose messages came last go on.
    fn pass(&mut self) {
        let count = std::mem::take(&mut self.advanced.1);
        if let Some(publisher) = self.publishers.get(self.advanced.0 as usize).filter(|_| count > 0) {
            publisher.pass(count);
        }
    }

    pub(super) fn book(mut self) {
        self.measure();
        self.pass();
        self.tally.delivered.add(self.delivered);
        self.tally.reads.add(u64::from(self.delivered > 0));
        self.tally.duplicated.add(self.duplicated);
        self.tally.reordered.add(self.reordered);
        self.tally.corrupted.add(self.corrupted);
        self.tally.foreign.add(self.foreign);
    }
}
