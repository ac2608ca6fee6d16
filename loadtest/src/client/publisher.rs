//! A publisher: sends as paced, books the acknowledgements.

use std::future::poll_fn;
use std::num::NonZeroU16;
use std::sync::Arc;
use std::task::{Context, Poll};

use super::Shared;
use super::connection::Connection;
use super::fault::Fault;
use super::gate::{Gate, Phase};
use super::in_flight::InFlight;
use crate::clock::now_ns;
use crate::pace::Schedule;
use crate::payload::Stamp;
use crate::spread::{Random, Sizes, Topics};
use crate::wire::{Frame, PacketKind, PublishWriter, QoS, Version, WireFault, acknowledgement, write_acknowledgement};

/// Nothing more is queued while so many bytes wait for the socket.
const QUEUED_BYTES_MAX: usize = 64 * 1024;

/// Reason codes from here on are errors (MQTT 5, section 2.4).
const FIRST_ERROR_REASON: u8 = 0x80;

/// When a publisher may send its next message.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Pace {
    /// When it is due.
    Open(Schedule),
    /// At once, while fewer than `window` messages have yet to pass each of `subscribers` subscribers. Without subscribers
    /// only the acknowledgements (QoS 1, 2) and the socket hold it back.
    Closed { window: u64, subscribers: u64 },
}

/// What a publisher sends.
#[derive(Clone, Debug)]
pub(crate) struct PublisherPlan {
    /// Its number in the run.
    pub(crate) index: u32,
    /// Its topics, by their numbers.
    pub(crate) names: Vec<String>,
    /// How the run's messages are spread over topics.
    pub(crate) topics: Topics,
    pub(crate) qos: QoS,
    pub(crate) sizes: Sizes,
    /// QoS 1 and 2: messages not yet acknowledged, at most; the broker may allow fewer.
    pub(crate) window: NonZeroU16,
    /// Messages to send, unless the run ends before.
    pub(crate) count: Option<u64>,
    /// Whether the time to the acknowledgement is the latency of the run.
    pub(crate) measures: bool,
}

/// See the module.
pub(crate) struct Publisher {
    connection: Connection,
    outgoing: Outgoing,
    answers: Answers,
    gate: Arc<Gate>,
    shared: Arc<Shared>,
    finished: bool,
}

impl Publisher {
    /// A publisher that has sent nothing yet.
    ///
    /// # Errors
    /// When the broker does not allow what the plan asks for.
    pub(crate) fn new(
        connection: Connection,
        plan: PublisherPlan,
        pace: Pace,
        gate: Arc<Gate>,
        shared: Arc<Shared>,
    ) -> Result<Self, Fault> {
        let allowed = connection.allowed();
        let version = connection.version();
        let writers: Vec<_> = plan.names.iter().map(|topic| PublishWriter::new(version, plan.qos, topic)).collect();
        let packet_bytes = writers.iter().map(|writer| writer.packet_bytes(plan.sizes.most())).max().unwrap_or_default();
        if packet_bytes as u64 > u64::from(allowed.packet_bytes_max) {
            return Err(Fault::PacketTooLarge { packet_bytes, packet_bytes_max: allowed.packet_bytes_max });
        }
        if allowed.qos_maximum < plan.qos {
            return Err(Fault::QosLowered { asked: plan.qos, granted: allowed.qos_maximum });
        }
        let window = plan.window.min(NonZeroU16::new(allowed.receive_maximum).unwrap_or(NonZeroU16::MIN));
        let answers = Answers { version, in_flight: InFlight::new(window), measures: plan.measures, booked: Booked::default() };
        let outgoing = Outgoing {
            sent_by_topic: vec![0; writers.len()],
            first_flow: plan.topics.flows(plan.index..plan.index).start,
            random: Random::new(u64::from(shared.run) << 32 | u64::from(plan.index)),
            plan,
            pace,
            writers,
            run: shared.run,
            sent: 0,
            forgiven: 0,
        };
        Ok(Self { connection, outgoing, answers, gate, shared, finished: false })
    }

    /// Publishes until the run closes, then disconnects.
    ///
    /// # Errors
    /// When the connection or the broker fails.
    pub(crate) async fn run(&mut self) -> Result<(), Fault> {
        poll_fn(|cx| self.poll(cx)).await?;
        self.connection.close().await
    }

    /// The flow of its first topic, and messages sent so far by topic.
    pub(crate) fn sent(&mut self) -> (u32, Vec<u64>) {
        (self.outgoing.first_flow, std::mem::take(&mut self.outgoing.sent_by_topic))
    }

    /// Messages the broker has yet to acknowledge.
    pub(crate) fn unacknowledged(&self) -> usize {
        self.answers.in_flight.used()
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Fault>> {
        self.gate.register(cx.waker());
        self.connection.keep_alive(cx, self.answers.in_flight.used() > 0)?;
        loop {
            let read = self.connection.poll_frames(cx, |frame, out| self.answers.take(frame, out))?;
            self.book();
            let phase = self.shared.phase.now();
            let sent = if phase == Phase::Publish { self.send() } else { 0 };
            let flushed = self.connection.poll_flush(cx)?;
            if phase == Phase::Close {
                return Poll::Ready(Ok(()));
            }
            self.finish(phase, flushed.is_ready());
            if read.is_pending() && (sent == 0 || flushed.is_pending()) {
                return Poll::Pending;
            }
        }
    }

    /// Queues all that may be sent now, and says how many messages that was.
    fn send(&mut self) -> u64 {
        let before = self.outgoing.sent;
        if self.gate.take_forgiveness() {
            self.outgoing.forgiven = before;
        }
        let now_ns = now_ns();
        while self.connection.queued_bytes() < QUEUED_BYTES_MAX
            && self.outgoing.send_one(now_ns, self.gate.passed(), &mut self.answers.in_flight, self.connection.out())
        {}
        let sent = self.outgoing.sent - before;
        self.shared.tally.sent.add(sent);
        sent
    }

    /// Carries what the last batch brought to the tally.
    fn book(&mut self) {
        let tally = &self.shared.tally;
        tally.acknowledged.add(std::mem::take(&mut self.answers.booked.acknowledged));
        tally.refused.add(std::mem::take(&mut self.answers.booked.refused));
        let due_at = &mut self.answers.booked.acknowledged_due_at_ns;
        if !due_at.is_empty() {
            let (now_ns, measured_from_ns) = (now_ns(), tally.measured_from_ns());
            let mut latencies = tally.latencies_of(self.outgoing.plan.index);
            for &due_at_ns in due_at.iter().filter(|&&due_at_ns| due_at_ns >= measured_from_ns) {
                latencies.record(now_ns.saturating_sub(due_at_ns), 1);
            }
        }
        due_at.clear();
    }

    /// Reports once that there is nothing more to send and nothing owed.
    fn finish(&mut self, phase: Phase, flushed: bool) {
        let nothing_to_send = phase != Phase::Publish || self.outgoing.plan.count.is_some_and(|count| self.outgoing.sent >= count);
        if nothing_to_send && flushed && self.answers.in_flight.used() == 0 && !self.finished {
            self.finished = true;
            self.shared.tally.finished.add(1);
        }
    }
}

/// What is yet to be sent.
struct Outgoing {
    plan: PublisherPlan,
    pace: Pace,
    /// By topic.
    writers: Vec<PublishWriter>,
    run: u32,
    first_flow: u32,
    sent: u64,
    sent_by_topic: Vec<u64>,
    random: Random,
    /// Of these, so many count as passed whatever the subscribers say.
    forgiven: u64,
}

impl Outgoing {
    /// Queues the next message if it may go now.
    fn send_one(&mut self, now_ns: u64, passed: u64, in_flight: &mut InFlight<u64>, out: &mut Vec<u8>) -> bool {
        if self.plan.count.is_some_and(|count| self.sent >= count) {
            return false;
        }
        let Some(due_at_ns) = self.due_at_ns(now_ns, passed) else {
            return false;
        };
        let packet_id = match self.plan.qos {
            QoS::AtMostOnce => None,
            QoS::AtLeastOnce | QoS::ExactlyOnce => match in_flight.take(due_at_ns) {
                None => return false,
                taken => taken,
            },
        };
        let topic = self.plan.topics.pick(&mut self.random);
        let at = topic as usize;
        let (Some(writer), Some(sent)) = (self.writers.get_mut(at), self.sent_by_topic.get_mut(at)) else {
            return false;
        };
        let stamp = Stamp { run: self.run, flow: self.first_flow + topic, sequence: *sent, due_at_ns };
        writer.write(packet_id, &stamp, self.plan.sizes.pick(&mut self.random), out);
        *sent += 1;
        self.sent += 1;
        true
    }

    /// When the next message was due, if it was.
    fn due_at_ns(&self, now_ns: u64, passed: u64) -> Option<u64> {
        match self.pace {
            Pace::Open(schedule) => Some(schedule.due_at_ns(self.plan.index, self.sent)).filter(|&due_at_ns| due_at_ns <= now_ns),
            Pace::Closed { window, subscribers } => {
                let passed = passed.max(self.forgiven * subscribers);
                let under_way = (self.sent * subscribers).saturating_sub(passed);
                (subscribers == 0 || under_way < window * subscribers).then_some(now_ns)
            }
        }
    }
}

/// What the broker owes and answers.
struct Answers {
    version: Version,
    in_flight: InFlight<u64>,
    measures: bool,
    booked: Booked,
}

/// What one batch of answers brought.
#[derive(Default)]
struct Booked {
    acknowledged: u64,
    refused: u64,
    /// When they were due, where that is measured.
    acknowledged_due_at_ns: Vec<u64>,
}

impl Answers {
    fn take(&mut self, frame: &Frame<'_>, out: &mut Vec<u8>) -> Result<(), Fault> {
        let (id, reason) = match frame.kind {
            PacketKind::PubAck | PacketKind::PubRec | PacketKind::PubComp => acknowledgement(frame, self.version)?,
            unexpected => return Err(WireFault::Unexpected(unexpected).into()),
        };
        let due_at_ns = match frame.kind {
            PacketKind::PubRec if reason < FIRST_ERROR_REASON => {
                self.in_flight.release(id)?;
                write_acknowledgement(PacketKind::PubRel, id, out);
                return Ok(());
            }
            PacketKind::PubComp => self.in_flight.complete(id)?,
            _ => self.in_flight.acknowledge(id)?,
        };
        if reason < FIRST_ERROR_REASON {
            self.booked.acknowledged += 1;
            if self.measures {
                self.booked.acknowledged_due_at_ns.push(due_at_ns);
            }
        } else {
            self.booked.refused += 1;
        }
        Ok(())
    }
}
