//! A publisher: sends as paced, keeps what is not acknowledged, and sends it again on its next connection.

use std::num::NonZeroU16;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Interval, MissedTickBehavior, interval};

use super::books::{Books, PublisherBook};
use super::client::Role;
use crate::client::{Connection, Fault, InFlight, Phase};
use crate::clock::{nanoseconds, now_ns};
use crate::payload::Stamp;
use crate::wire::{Frame, PacketKind, PublishWriter, QoS, Version, WireFault, acknowledgement, write_acknowledgement};

/// Nothing more is queued while so many bytes wait for the socket.
const QUEUED_BYTES_MAX: usize = 64 * 1024;

/// Reason codes from here on are errors (MQTT 5, section 2.4).
const FIRST_ERROR_REASON: u8 = 0x80;

/// The DUP flag of a PUBLISH.
const DUP: u8 = 8;

/// Between two messages while the books are closed: enough to see that they arrive.
const GREETING_EVERY_NS: u64 = 50_000_000;

/// How often a publisher with a rate looks what is due.
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// Messages that are due for longer are not caught up with.
const BEHIND_MAX: Duration = Duration::from_millis(100);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Message {
    sequence: u64,
    due_at_ns: u64,
}

/// See the module.
pub(super) struct Publisher {
    books: Arc<Books>,
    index: usize,
    writer: PublishWriter,
    answers: Answers,
    sent: u64,
    /// How many were sent when the books were opened; `None` while they are closed.
    owed_from: Option<u64>,
    /// What the present broker allows.
    window: usize,
    interval_ns: Option<u64>,
    next_due_ns: u64,
    look: Interval,
}

impl Publisher {
    /// One that has sent nothing.
    pub(super) fn new(books: Arc<Books>, index: usize, qos: QoS) -> Self {
        let plan = &books.plan;
        let topic = books.topics.get(index).map(String::as_str).unwrap_or_default();
        let writer = PublishWriter::new(plan.version, qos, topic);
        let answers = Answers { version: plan.version, qos, in_flight: InFlight::new(plan.window), taken: Vec::new(), refused: 0 };
        let mut look = interval(LOOK_EVERY);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let interval_ns = plan.rate.map(|rate| (1e9 / rate) as u64);
        Self { index, writer, answers, sent: 0, owed_from: None, window: 0, interval_ns, next_due_ns: 0, look, books }
    }

    fn write(&mut self, packet_id: Option<NonZeroU16>, message: Message, out: &mut Vec<u8>) {
        let Message { sequence, due_at_ns } = message;
        let stamp = Stamp { run: self.books.run, flow: self.index as u32, sequence, due_at_ns };
        self.writer.write(packet_id, &stamp, self.books.plan.payload_bytes as usize, out);
    }

    /// Queues what may go now; whether anything did.
    fn send(&mut self, connection: &mut Connection, now_ns: u64) -> bool {
        let before = self.sent;
        while connection.queued_bytes() < QUEUED_BYTES_MAX && self.answers.in_flight.used() < self.window && !self.is_done() {
            let Some(due_at_ns) = self.due_at_ns(now_ns) else { break };
            let message = Message { sequence: self.sent, due_at_ns };
            let packet_id = match self.answers.qos {
                QoS::AtMostOnce => None,
                QoS::AtLeastOnce | QoS::ExactlyOnce => match self.answers.in_flight.take(message) {
                    None => break,
                    taken => taken,
                },
            };
            self.write(packet_id, message, connection.out());
            self.sent += 1;
        }
        self.sent > before
    }

    fn is_done(&self) -> bool {
        let sent = self.owed_from.map(|owed_from| self.sent - owed_from);
        sent.zip(self.books.plan.count).is_some_and(|(sent, count)| sent >= count)
    }

    /// Between two messages; `None`: as fast as they go.
    fn interval_ns(&self) -> Option<u64> {
        if self.owed_from.is_some() { self.interval_ns } else { Some(GREETING_EVERY_NS) }
    }

    /// When the next message was due, if it was.
    fn due_at_ns(&mut self, now_ns: u64) -> Option<u64> {
        let Some(interval_ns) = self.interval_ns() else { return Some(now_ns) };
        let due_at_ns = self.next_due_ns.max(now_ns.saturating_sub(nanoseconds(BEHIND_MAX)));
        (due_at_ns <= now_ns).then(|| {
            self.next_due_ns = due_at_ns + interval_ns;
            due_at_ns
        })
    }

    fn book(&mut self, change: impl FnOnce(&mut Self, &mut PublisherBook)) {
        let books = Arc::clone(&self.books);
        if let Some(mut book) = books.publisher(self.index) {
            change(self, &mut book);
        }
    }
}

impl Role for Publisher {
    fn begin(&mut self, connection: &mut Connection) -> Result<(), Fault> {
        let (allowed, qos) = (connection.allowed(), self.answers.qos);
        let packet_bytes = self.writer.packet_bytes(self.books.plan.payload_bytes as usize);
        if packet_bytes as u64 > u64::from(allowed.packet_bytes_max) {
            return Err(Fault::PacketTooLarge { packet_bytes, packet_bytes_max: allowed.packet_bytes_max });
        }
        if allowed.qos_maximum < qos {
            return Err(Fault::QosLowered { asked: qos, granted: allowed.qos_maximum });
        }
        self.window = usize::from(self.books.plan.window.get().min(allowed.receive_maximum));
        self.next_due_ns = self.next_due_ns.max(now_ns());
        self.book(|publisher, book| {
            let keeps_session = publisher.books.plan.keeps_sessions;
            let is_lost = book.visits.arrive(keeps_session, allowed.session_present);
            if !keeps_session || (is_lost && qos == QoS::ExactlyOnce) {
                // To send them again might double them, and what a broker without a session knows of them it does not say.
                let released = publisher.answers.in_flight.open().filter(|(.., is_released)| *is_released).count();
                book.unknown += (publisher.answers.in_flight.used() - released) as u64;
                publisher.answers.in_flight.forget_published();
            }
            let mut open: Vec<_> = publisher.answers.in_flight.open().collect();
            open.sort_unstable_by_key(|(_, message, _)| message.sequence);
            for (id, message, is_released) in open {
                if is_released {
                    write_acknowledgement(PacketKind::PubRel, id, connection.out());
                    continue;
                }
                let at = connection.out().len();
                publisher.write(Some(id), message, connection.out());
                connection.out().get_mut(at).into_iter().for_each(|first_byte| *first_byte |= DUP);
                book.resent.insert(message.sequence);
            }
        });
        Ok(())
    }

    fn poll(&mut self, connection: &mut Connection, cx: &mut Context<'_>) -> Poll<Result<(), Fault>> {
        self.books.gates().get(self.index).into_iter().for_each(|gate| gate.register(cx.waker()));
        while self.interval_ns().is_some() && self.look.poll_tick(cx).is_ready() {}
        connection.keep_alive(cx, self.answers.in_flight.used() > 0)?;
        loop {
            let read = connection.poll_frames(cx, |frame, out| self.answers.take(frame, out));
            let phase = self.books.phase.now();
            let now_ns = now_ns();
            let may_send = phase == Phase::Publish && !matches!(read, Poll::Ready(Err(_)));
            let has_sent = may_send && self.send(connection, now_ns);
            self.book(|publisher, book| {
                book.mark(publisher.sent, now_ns);
                publisher.answers.taken.drain(..).for_each(|sequence| book.taken_count += u64::from(book.taken.insert(sequence)));
                book.refused += std::mem::take(&mut publisher.answers.refused);
                book.in_flight = publisher.answers.in_flight.used() as u64;
                publisher.owed_from = book.owed_from;
            });
            let read = read?;
            let flushed = connection.poll_flush(cx)?;
            if phase == Phase::Close {
                return Poll::Ready(Ok(()));
            }
            if read.is_pending() && (!has_sent || flushed.is_pending()) {
                return Poll::Pending;
            }
        }
    }
}

/// What the broker owes and answers.
struct Answers {
    version: Version,
    qos: QoS,
    in_flight: InFlight<Message>,
    /// Sequences that the last batch has acknowledged for the first time.
    taken: Vec<u64>,
    /// And how many it has answered with an error.
    refused: u64,
}

impl Answers {
    fn take(&mut self, frame: &Frame<'_>, out: &mut Vec<u8>) -> Result<(), Fault> {
        let (id, reason) = match frame.kind {
            PacketKind::PubAck | PacketKind::PubRec | PacketKind::PubComp => acknowledgement(frame, self.version)?,
            unexpected => return Err(WireFault::Unexpected(unexpected).into()),
        };
        match frame.kind {
            PacketKind::PubRec if reason < FIRST_ERROR_REASON => self.release(id, out),
            // That a PUBREL finds nothing is right where the PUBCOMP was lost.
            PacketKind::PubComp => self.in_flight.complete(id).map(drop),
            _ => {
                let message = self.in_flight.acknowledge(id)?;
                if reason < FIRST_ERROR_REASON {
                    self.taken.push(message.sequence);
                } else {
                    self.refused += 1;
                }
                Ok(())
            }
        }
    }

    fn release(&mut self, id: NonZeroU16, out: &mut Vec<u8>) -> Result<(), Fault> {
        let was_taken = self.in_flight.is_released(id);
        let message = self.in_flight.release(id)?;
        if !was_taken {
            self.taken.push(message.sequence);
        }
        write_acknowledgement(PacketKind::PubRel, id, out);
        Ok(())
    }
}
