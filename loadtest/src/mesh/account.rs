//! What came of each flow, for programs and for people.

use std::fmt::{self, Display, Formatter};

use serde::{Deserialize, Serialize};

use super::books::{Books, FlowBook, PublisherBook};
use super::plan::MeshPlan;
use crate::clock::now_ns;
use crate::wire::QoS;

/// Flows and troubles that are told to people, the worst first.
const TOLD: usize = 20;

/// Runs of lost messages named in a flow.
const LOST_NAMED: usize = 10;

/// The account of a run. Times are seconds since its beginning.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Account {
    /// How long it took.
    pub seconds: f64,
    /// By publisher.
    pub publishers: Vec<PublisherAccount>,
    /// By subscriber.
    pub subscribers: Vec<SubscriberAccount>,
    /// By subscriber, then publisher.
    pub flows: Vec<FlowAccount>,
    /// What was done to the mesh, and when.
    pub timetable: Vec<(f64, String)>,
    /// Connections that ended or did not come about, though the run was not over.
    pub disconnects: u64,
    /// The first of them.
    pub troubles: Vec<(f64, String)>,
    /// What brokers did that they may never do.
    pub violations: Vec<String>,
}

/// Of one publisher.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PublisherAccount {
    /// The broker at which it begins.
    pub at: String,
    /// Of its messages.
    pub qos: QoS,
    /// Messages begun.
    pub sent: u64,
    /// QoS 1 and 2: those that brokers have acknowledged.
    pub taken: u64,
    /// Those that were answered with an error.
    pub refused: u64,
    /// Those that nobody can tell about: their session was lost while they were under way.
    pub unknown: u64,
    /// Those without an answer at the end.
    pub unacknowledged: u64,
    /// Connections.
    pub connects: u64,
    /// How often its session should have been there and was not.
    pub sessions_lost: u64,
}

/// Of one subscriber.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SubscriberAccount {
    /// The broker at which it begins.
    pub at: String,
    /// Whether a broker has granted its subscriptions.
    pub is_subscribed: bool,
    /// Messages that nobody of this run has sent, or that it has not asked for.
    pub foreign: u64,
    /// Connections.
    pub connects: u64,
    /// How often its session should have been there and was not.
    pub sessions_lost: u64,
}

/// Of one publisher's messages to one subscriber.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct FlowAccount {
    /// Its place in the plan.
    pub publisher: usize,
    /// Its place in the plan.
    pub subscriber: usize,
    /// Of the messages.
    pub qos: QoS,
    /// Messages that it must get (QoS 0: that it should get).
    pub owed: u64,
    /// First copies, owed or not.
    pub delivered: u64,
    /// Owed and not delivered.
    pub lost: u64,
    /// Second copies that MQTT does not excuse.
    pub duplicated: u64,
    /// Second copies that it does.
    pub redelivered: u64,
    /// First copies behind one that was sent later.
    pub reordered: u64,
    /// Copies whose topic was right and whose stamp, filler or QoS was not.
    pub corrupted: u64,
    /// The longest time between two first copies, milliseconds.
    pub gap_ms: f64,
    /// When it began.
    pub gap_from: f64,
    /// The first runs of lost messages: sequences, and when they were sent, from and to.
    pub lost_runs: Vec<LostRun>,
}

/// Messages without one in between that came.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LostRun {
    /// The first sequence.
    pub first: u64,
    /// The last.
    pub last: u64,
    /// About when these were sent.
    pub sent: [f64; 2],
}

/// Sums over flows; the fields are as in [`FlowAccount`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Totals {
    /// Messages that must come (QoS 0: that should).
    pub owed: u64,
    /// First copies, owed or not.
    pub delivered: u64,
    /// Owed and not delivered.
    pub lost: u64,
    /// Second copies that MQTT does not excuse.
    pub duplicated: u64,
    /// Second copies that it does.
    pub redelivered: u64,
    /// First copies behind one that was sent later.
    pub reordered: u64,
    /// Copies that were changed on their way.
    pub corrupted: u64,
    /// The longest gap of all, milliseconds.
    pub gap_ms: f64,
}

impl Account {
    pub(super) fn new(books: &Books, timetable: &[(u64, String)]) -> Self {
        let plan = &books.plan;
        let seconds = |at_ns: u64| at_ns.saturating_sub(books.begun_ns) as f64 / 1e9;
        let troubles = books.troubles();
        let publishers = books.publishers().zip(&plan.publishers).map(|(book, publishing)| PublisherAccount {
            at: home(plan, &publishing.at),
            qos: publishing.qos,
            sent: book.sent,
            taken: book.taken_count,
            refused: book.refused,
            unknown: book.unknown,
            unacknowledged: book.in_flight,
            connects: book.visits.connects,
            sessions_lost: book.visits.sessions_lost,
        });
        let publishers = publishers.collect();
        let mut flows = Vec::new();
        let subscribers = books.subscribers().zip(&plan.subscribers).enumerate().map(|(subscriber, (book, subscribing))| {
            let heard = book.flows.iter().enumerate().filter_map(|(publisher, flow)| Some((publisher, flow.as_ref()?)));
            flows.extend(heard.filter_map(|(publisher, flow)| {
                let qos = plan.publishers.get(publisher)?.qos;
                Some(FlowAccount::new((publisher, subscriber), qos, flow, &*books.publisher(publisher)?, seconds))
            }));
            SubscriberAccount {
                at: home(plan, &subscribing.at),
                is_subscribed: book.is_subscribed,
                foreign: book.foreign,
                connects: book.visits.connects,
                sessions_lost: book.visits.sessions_lost,
            }
        });
        let subscribers = subscribers.collect();
        Self {
            seconds: seconds(now_ns()),
            publishers,
            subscribers,
            flows,
            timetable: timetable.iter().map(|(at_ns, what)| (seconds(*at_ns), what.clone())).collect(),
            disconnects: troubles.ends,
            troubles: troubles.told.into_iter().map(|(at_ns, what)| (seconds(at_ns), what)).collect(),
            violations: troubles.violations,
        }
    }

    /// The sums of one QoS.
    #[must_use]
    pub fn totals(&self, qos: QoS) -> Totals {
        let flows = self.flows.iter().filter(|flow| flow.qos == qos);
        flows.fold(Totals::default(), |sum, flow| Totals {
            owed: sum.owed + flow.owed,
            delivered: sum.delivered + flow.delivered,
            lost: sum.lost + flow.lost,
            duplicated: sum.duplicated + flow.duplicated,
            redelivered: sum.redelivered + flow.redelivered,
            reordered: sum.reordered + flow.reordered,
            corrupted: sum.corrupted + flow.corrupted,
            gap_ms: sum.gap_ms.max(flow.gap_ms),
        })
    }

    /// Messages of nobody.
    #[must_use]
    pub fn foreign(&self) -> u64 {
        self.subscribers.iter().map(|subscriber| subscriber.foreign).sum()
    }

    /// Sessions that should have been there and were not.
    #[must_use]
    pub fn sessions_lost(&self) -> u64 {
        let publishers = self.publishers.iter().map(|publisher| publisher.sessions_lost);
        publishers.chain(self.subscribers.iter().map(|subscriber| subscriber.sessions_lost)).sum()
    }

    /// What of the delivery contract does not hold, one line each; nothing if all does: no message acknowledged at QoS 1 or 2 is
    /// lost, none at QoS 0 or 2 comes twice, at QoS 1 only as MQTT allows, all in order and whole, no session is lost, and brokers
    /// keep to the protocol.
    #[must_use]
    pub fn breaches(&self) -> Vec<String> {
        let mut breaches = self.violations.clone();
        for qos in [QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce] {
            let totals = self.totals(qos);
            let lost = if qos == QoS::AtMostOnce { 0 } else { totals.lost };
            let counts = [
                ("lost", lost),
                ("duplicated", totals.duplicated),
                ("reordered", totals.reordered),
                ("corrupted", totals.corrupted),
            ];
            let wrong = counts.iter().filter(|(_, count)| *count > 0);
            breaches.extend(wrong.map(|(what, count)| format!("QoS {qos}: {count} {what} of {}", totals.owed)));
        }
        let counts = [
            ("sessions lost", self.sessions_lost()),
            ("foreign messages", self.foreign()),
            ("messages without an answer", self.publishers.iter().map(|publisher| publisher.unacknowledged).sum()),
        ];
        breaches.extend(counts.iter().filter(|(_, count)| *count > 0).map(|(what, count)| format!("{count} {what}")));
        breaches
    }
}

impl FlowAccount {
    fn new(
        (publisher, subscriber): (usize, usize),
        qos: QoS,
        flow: &FlowBook,
        sender: &PublisherBook,
        seconds: impl Fn(u64) -> f64,
    ) -> Self {
        let range = sender.owed();
        let (mut lost, mut lost_runs) = (0, Vec::<LostRun>::new());
        let mut lose = |sequence: u64| {
            lost += 1;
            let at = seconds(sender.sent_at_ns(sequence));
            if let Some(run) = lost_runs.last_mut().filter(|run| run.last + 1 == sequence) {
                (run.last, run.sent[1]) = (sequence, at);
            } else if lost_runs.len() < LOST_NAMED {
                lost_runs.push(LostRun { first: sequence, last: sequence, sent: [at; 2] });
            }
        };
        let owed = match qos {
            QoS::AtMostOnce => {
                flow.seen.absent(range.clone()).for_each(&mut lose);
                range.end.saturating_sub(range.start)
            }
            QoS::AtLeastOnce | QoS::ExactlyOnce => {
                sender.taken.without(&flow.seen, range.clone()).for_each(&mut lose);
                sender.taken.count(range)
            }
        };
        Self {
            publisher,
            subscriber,
            qos,
            owed,
            delivered: flow.delivered,
            lost,
            duplicated: flow.duplicated,
            redelivered: flow.redelivered,
            reordered: flow.reordered,
            corrupted: flow.corrupted,
            gap_ms: flow.gap_ns as f64 / 1e6,
            gap_from: seconds(flow.gap_from_ns),
            lost_runs,
        }
    }

    fn faults(&self) -> u64 {
        self.lost + self.duplicated + self.reordered + self.corrupted
    }
}

fn home(plan: &MeshPlan, at: &[usize]) -> String {
    at.first().and_then(|&broker| plan.brokers.get(broker)).map(ToString::to_string).unwrap_or_default()
}

impl Display for Account {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        for qos in [QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce] {
            let sent = self.publishers.iter().filter(|publisher| publisher.qos == qos).map(|publisher| publisher.sent);
            let (publishers, sent) = (sent.clone().count(), sent.sum::<u64>());
            if publishers == 0 {
                continue;
            }
            let Totals { owed, delivered, lost, duplicated, redelivered, reordered, corrupted, gap_ms } = self.totals(qos);
            writeln!(
                out,
                "QoS {qos}       sent {sent}, owed {owed}, delivered {delivered}, lost {lost}, duplicated {duplicated}, \
                 redelivered {redelivered}, reordered {reordered}, corrupted {corrupted}, longest gap {gap_ms:.0} ms"
            )?;
        }
        let refused: u64 = self.publishers.iter().map(|publisher| publisher.refused).sum();
        let unknown: u64 = self.publishers.iter().map(|publisher| publisher.unknown).sum();
        writeln!(
            out,
            "clients     {:.1} s, disconnected {} times, sessions lost {}, refused {refused}, of unknown fate {unknown}, foreign {}",
            self.seconds,
            self.disconnects,
            self.sessions_lost(),
            self.foreign()
        )?;
        let mut worst: Vec<_> = self.flows.iter().filter(|flow| flow.faults() > 0).collect();
        worst.sort_by_key(|flow| (flow.qos == QoS::AtMostOnce, std::cmp::Reverse(flow.faults())));
        for flow in worst.iter().take(TOLD) {
            self.write_flow(flow, out)?;
        }
        if worst.len() > TOLD {
            writeln!(out, "            and {} more flows", worst.len() - TOLD)?;
        }
        self.timetable.iter().try_for_each(|(at, what)| writeln!(out, "{at:>7.1} s   {what}"))?;
        self.troubles.iter().take(TOLD).try_for_each(|(at, what)| writeln!(out, "{at:>7.1} s   {what}"))?;
        self.violations.iter().try_for_each(|what| writeln!(out, "never       {what}"))
    }
}

impl Account {
    fn write_flow(&self, flow: &FlowAccount, out: &mut Formatter<'_>) -> fmt::Result {
        let from = self.publishers.get(flow.publisher).map(|publisher| publisher.at.as_str()).unwrap_or_default();
        let to = self.subscribers.get(flow.subscriber).map(|subscriber| subscriber.at.as_str()).unwrap_or_default();
        write!(
            out,
            "            publisher {} at {from}, QoS {}, to subscriber {} at {to}: owed {}, lost {}, duplicated {}, reordered {}, \
             corrupted {}",
            flow.publisher, flow.qos, flow.subscriber, flow.owed, flow.lost, flow.duplicated, flow.reordered, flow.corrupted
        )?;
        for LostRun { first, last, sent: [from, to] } in &flow.lost_runs {
            write!(out, "; lost {first} to {last}, sent {from:.1} to {to:.1} s")?;
        }
        writeln!(out)
    }
}
