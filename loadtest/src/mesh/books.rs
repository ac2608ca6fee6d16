//! The books of a run: what each publisher has sent and brokers have taken, what each subscriber was given.
//!
//! Lock order: a subscriber's book, then a publisher's.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::bits::Bits;
use super::plan::MeshPlan;
use crate::client::{Fault, Gate, Phase, PhaseSwitch, WebSocketFault};
use crate::clock::now_ns;
use crate::payload::Stamp;
use crate::wire::QoS;

/// Sequences from here on are nobody's: a book of all below takes 32 MiB.
const SEQUENCE_MAX: u64 = 1 << 28;

/// How finely it is kept when a message was sent.
const MARK_EVERY_NS: u64 = 100_000_000;

/// Of what goes wrong with connections, so much is remembered word by word.
const TROUBLES_MAX: usize = 200;

/// What all clients of a run share.
pub(super) struct Books {
    pub(super) plan: MeshPlan,
    /// The run's random number.
    pub(super) run: u32,
    pub(super) topics: Vec<String>,
    pub(super) begun_ns: u64,
    pub(super) phase: PhaseSwitch,
    publishers: Vec<Mutex<PublisherBook>>,
    subscribers: Vec<Mutex<SubscriberBook>>,
    gates: Vec<Arc<Gate>>,
    /// When a first copy arrived last.
    moved_at_ns: AtomicU64,
    troubles: Mutex<Troubles>,
}

/// What went wrong with connections.
#[derive(Clone, Debug, Default)]
pub(super) struct Troubles {
    /// Ends of connections, and those that did not come about.
    pub(super) ends: u64,
    /// The first of them, with the time in nanoseconds.
    pub(super) told: Vec<(u64, String)>,
    /// What no broker may do, whatever has happened to it.
    pub(super) violations: Vec<String>,
}

/// How a client came and came back.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Visits {
    pub(super) connects: u64,
    /// How often its session should have been there and was not.
    pub(super) sessions_lost: u64,
}

#[derive(Debug, Default)]
pub(super) struct PublisherBook {
    pub(super) sent: u64,
    /// Acknowledged: the broker owes them to whoever hears this publisher.
    pub(super) taken: Bits,
    pub(super) taken_count: u64,
    /// Sent more than once.
    pub(super) resent: Bits,
    /// Answered with an error.
    pub(super) refused: u64,
    /// Nobody knows whether the broker has taken them: its session was lost while they were under way.
    pub(super) unknown: u64,
    pub(super) in_flight: u64,
    /// How many were sent when the books were opened: those are owed to nobody.
    pub(super) owed_from: Option<u64>,
    pub(super) visits: Visits,
    /// When it had sent how many, now and then.
    marks: Vec<(u64, u64)>,
}

#[derive(Debug, Default)]
pub(super) struct SubscriberBook {
    /// By publisher; `None` for those that it does not hear.
    pub(super) flows: Vec<Option<FlowBook>>,
    /// Messages of nobody in this run, or of publishers that it has not asked for.
    pub(super) foreign: u64,
    pub(super) is_subscribed: bool,
    pub(super) visits: Visits,
}

/// What one subscriber got of one publisher.
#[derive(Debug, Default)]
pub(super) struct FlowBook {
    pub(super) seen: Bits,
    /// One past the highest that came.
    next: u64,
    pub(super) delivered: u64,
    pub(super) duplicated: u64,
    /// Second copies that MQTT allows.
    pub(super) redelivered: u64,
    pub(super) reordered: u64,
    /// Its topic was right; the stamp, the filler or the QoS was not.
    pub(super) corrupted: u64,
    last_ns: u64,
    /// The longest time between two first copies, and when it began.
    pub(super) gap_ns: u64,
    pub(super) gap_from_ns: u64,
}

impl Visits {
    /// A connection is up. Whether the session that should be there is not.
    pub(super) fn arrive(&mut self, keeps_session: bool, session_present: bool) -> bool {
        let is_lost = keeps_session && self.connects > 0 && !session_present;
        self.connects += 1;
        self.sessions_lost += u64::from(is_lost);
        is_lost
    }
}

impl PublisherBook {
    /// The sequences that may be owed.
    pub(super) fn owed(&self) -> Range<u64> {
        self.owed_from.unwrap_or(self.sent)..self.sent
    }

    /// So many are sent by now.
    pub(super) fn mark(&mut self, sent: u64, now_ns: u64) {
        self.sent = sent;
        if self.marks.last().is_none_or(|&(at_ns, _)| now_ns >= at_ns + MARK_EVERY_NS) {
            self.marks.push((now_ns, sent));
        }
    }

    /// By when `sequence` was sent, about.
    pub(super) fn sent_at_ns(&self, sequence: u64) -> u64 {
        let after = self.marks.partition_point(|&(_, sent)| sent <= sequence);
        self.marks.get(after).or(self.marks.last()).map_or(0, |&(at_ns, _)| at_ns)
    }
}

impl FlowBook {
    /// Books an intact message; whether it is the first copy.
    pub(super) fn book(&mut self, sequence: u64, now_ns: u64) -> bool {
        if !self.seen.insert(sequence) {
            return false;
        }
        self.delivered += 1;
        if sequence < self.next {
            self.reordered += 1;
        } else {
            self.next = sequence + 1;
        }
        if self.last_ns > 0 && now_ns - self.last_ns > self.gap_ns {
            (self.gap_ns, self.gap_from_ns) = (now_ns - self.last_ns, self.last_ns);
        }
        self.last_ns = now_ns;
        true
    }

    /// Gaps count from now on.
    fn begin_gaps(&mut self, now_ns: u64) {
        (self.gap_ns, self.gap_from_ns, self.last_ns) = (0, 0, now_ns);
    }
}

impl Books {
    pub(super) fn new(plan: MeshPlan, run: u32) -> Self {
        let topics = (0..plan.publishers.len()).map(|publisher| plan.topic(run, publisher)).collect();
        let flows = |subscriber| {
            let heard = (0..plan.publishers.len()).map(|publisher| plan.hears(subscriber, publisher).then(FlowBook::default));
            Mutex::new(SubscriberBook { flows: heard.collect(), ..SubscriberBook::default() })
        };
        let clients = plan.publishers.len() + plan.subscribers.len();
        Self {
            run,
            topics,
            begun_ns: now_ns(),
            phase: PhaseSwitch::default(),
            publishers: plan.publishers.iter().map(|_| Mutex::default()).collect(),
            subscribers: plan.subscribers.iter().map(flows).collect(),
            gates: (0..clients).map(|_| Arc::default()).collect(),
            moved_at_ns: AtomicU64::new(now_ns()),
            troubles: Mutex::default(),
            plan,
        }
    }

    /// `index` is one of the plan.
    pub(super) fn publisher(&self, index: usize) -> Option<MutexGuard<'_, PublisherBook>> {
        self.publishers.get(index).map(lock)
    }

    /// `index` is one of the plan.
    pub(super) fn subscriber(&self, index: usize) -> Option<MutexGuard<'_, SubscriberBook>> {
        self.subscribers.get(index).map(lock)
    }

    pub(super) fn publishers(&self) -> impl Iterator<Item = MutexGuard<'_, PublisherBook>> {
        self.publishers.iter().map(lock)
    }

    pub(super) fn subscribers(&self) -> impl Iterator<Item = MutexGuard<'_, SubscriberBook>> {
        self.subscribers.iter().map(lock)
    }

    /// The doorbells: of the publishers, then of the subscribers.
    pub(super) fn gates(&self) -> &[Arc<Gate>] {
        &self.gates
    }

    pub(super) fn advance(&self, phase: Phase) {
        self.phase.advance(phase);
        self.gates.iter().for_each(|gate| gate.wake());
    }

    /// From now on messages are owed, and gaps count.
    pub(super) fn open(&self) {
        let now_ns = now_ns();
        self.publishers().for_each(|mut book| book.owed_from = Some(book.sent));
        self.subscribers().for_each(|mut book| book.flows.iter_mut().flatten().for_each(|flow| flow.begin_gaps(now_ns)));
        self.gates.iter().for_each(|gate| gate.wake());
    }

    /// Whether every subscriber has all that brokers have taken for it. Of QoS 0 they take nothing.
    pub(super) fn owes_nothing(&self) -> bool {
        self.subscribers().all(|book| {
            book.flows
                .iter()
                .zip(&self.publishers)
                .filter_map(|(flow, sender)| Some((flow.as_ref()?, lock(sender))))
                .all(|(flow, sender)| sender.taken.without(&flow.seen, sender.owed()).next().is_none())
        })
    }

    /// Whether the last message of each publisher of QoS 0 has come to all who hear it: what is missing then is lost.
    pub(super) fn has_heard_the_last(&self) -> bool {
        self.subscribers().all(|book| {
            let flows = book.flows.iter().zip(&self.publishers).zip(&self.plan.publishers);
            flows.filter(|(_, plan)| plan.qos == QoS::AtMostOnce).all(|((flow, sender), _)| {
                let owed = lock(sender).owed();
                owed.is_empty() || flow.as_ref().is_none_or(|flow| flow.seen.contains(owed.end - 1))
            })
        })
    }

    /// A first copy has arrived.
    pub(super) fn moved(&self, now_ns: u64) {
        self.moved_at_ns.store(now_ns, Ordering::Relaxed);
    }

    pub(super) fn moved_at_ns(&self) -> u64 {
        self.moved_at_ns.load(Ordering::Relaxed)
    }

    /// Whose message of this run a stamp speaks of, if it was sent under this topic: the publisher's place.
    pub(super) fn publisher_of(&self, stamp: &Stamp, topic: &[u8]) -> Option<usize> {
        let index = stamp.flow as usize;
        let is_right = stamp.run == self.run && stamp.sequence < SEQUENCE_MAX;
        (is_right && self.topics.get(index).is_some_and(|expected| expected.as_bytes() == topic)).then_some(index)
    }

    /// The publisher whose topic this is.
    pub(super) fn publisher_at(&self, topic: &[u8]) -> Option<usize> {
        self.topics.iter().position(|expected| expected.as_bytes() == topic)
    }

    /// A connection of `client` has ended, or did not come about.
    pub(super) fn trouble(&self, client: &str, broker: &str, fault: &Fault) {
        let mut troubles = lock(&self.troubles);
        let text = format!("{client} at {broker}: {fault}");
        match fault {
            Fault::Wire(_)
            | Fault::WebSocket(WebSocketFault::Malformed(_))
            | Fault::UnknownAcknowledgement(_)
            | Fault::SubscriptionRefused { .. }
            | Fault::QosLowered { .. }
            | Fault::QosChanged { .. }
            | Fault::PacketTooLarge { .. }
            | Fault::Unwritable(_) => {
                if troubles.violations.len() < TROUBLES_MAX {
                    troubles.violations.push(text);
                }
            }
            Fault::Connect(_)
            | Fault::Tls(_)
            | Fault::WebSocket(_)
            | Fault::NoAnswer(_)
            | Fault::Connection(_)
            | Fault::Closed
            | Fault::Disconnected(_)
            | Fault::Refused(_)
            | Fault::Silent(_)
            | Fault::Deaf(_) => {
                troubles.ends += 1;
                if troubles.told.len() < TROUBLES_MAX {
                    troubles.told.push((now_ns(), text));
                }
            }
        }
    }

    pub(super) fn troubles(&self) -> Troubles {
        lock(&self.troubles).clone()
    }
}

/// A book is whole between any two entries, whoever panicked.
fn lock<T>(book: &Mutex<T>) -> MutexGuard<'_, T> {
    book.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flow_tells_second_copies_and_late_ones_and_gaps() {
        let mut flow = FlowBook::default();
        let arrivals = [(0, 100, true), (2, 150, true), (2, 160, false), (1, 400, true), (3, 410, true)];
        for (sequence, now_ns, is_first) in arrivals {
            assert_eq!(flow.book(sequence, now_ns), is_first, "{sequence}");
        }
        assert_eq!((flow.delivered, flow.reordered, flow.gap_ns, flow.gap_from_ns), (4, 1, 250, 150));
    }

    #[test]
    fn a_session_that_should_be_there_is_missed() {
        let mut visits = Visits::default();
        assert_eq!([visits.arrive(true, false), visits.arrive(true, true), visits.arrive(true, false)], [false, false, true]);
        assert!(!visits.arrive(false, false));
        assert_eq!((visits.connects, visits.sessions_lost), (4, 1));
    }

    #[test]
    fn when_a_message_was_sent_is_known_to_a_tenth_of_a_second() {
        let mut book = PublisherBook::default();
        for (sent, now_ns) in [(1, 1), (10, MARK_EVERY_NS / 2), (20, 2 * MARK_EVERY_NS), (30, 4 * MARK_EVERY_NS)] {
            book.mark(sent, now_ns);
        }
        let table = [(0, 1), (1, 2 * MARK_EVERY_NS), (19, 2 * MARK_EVERY_NS), (20, 4 * MARK_EVERY_NS), (99, 4 * MARK_EVERY_NS)];
        assert_eq!(table.map(|(sequence, _)| (sequence, book.sent_at_ns(sequence))), table);
    }
}
