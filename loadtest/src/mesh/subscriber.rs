//! A subscriber: acknowledges, checks and books what arrives, and knows over its connections which packet ids it has taken.

use std::sync::{Arc, MutexGuard};
use std::task::{Context, Poll};

use super::books::{Books, SubscriberBook};
use super::client::Role;
use crate::client::{Connection, Fault, PacketIds, Phase};
use crate::clock::now_ns;
use crate::payload::{self, PayloadFault};
use crate::wire::{Frame, PacketKind, Publish, QoS, WireFault, acknowledgement, publish, suback, subscribe, write_acknowledgement};

/// Nothing more is read while so many bytes of acknowledgements wait for a broker that does not read them.
const QUEUED_BYTES_MAX: usize = 1024 * 1024;

/// The DUP flag of a PUBLISH.
const DUP: u8 = 8;

/// See the module.
pub(super) struct Subscriber {
    books: Arc<Books>,
    index: usize,
    filters: Vec<String>,
    /// QoS 2: packet ids that have been received and not yet released.
    unreleased: PacketIds,
    is_subscribed: bool,
}

impl Subscriber {
    /// One that has asked for nothing yet.
    pub(super) fn new(books: Arc<Books>, index: usize, filters: Vec<String>) -> Self {
        Self { books, index, filters, unreleased: PacketIds::default(), is_subscribed: false }
    }
}

impl Role for Subscriber {
    fn begin(&mut self, connection: &mut Connection) -> Result<(), Fault> {
        let is_present = connection.allowed().session_present;
        if let Some(mut book) = self.books.subscriber(self.index) {
            book.visits.arrive(self.books.plan.keeps_sessions, is_present);
        }
        if !is_present {
            self.unreleased = PacketIds::default();
        }
        self.is_subscribed &= is_present;
        if !self.is_subscribed {
            let filters = self.filters.iter().map(String::as_str);
            subscribe(connection.version(), filters, QoS::ExactlyOnce, connection.out()).map_err(Fault::Unwritable)?;
        }
        Ok(())
    }

    fn poll(&mut self, connection: &mut Connection, cx: &mut Context<'_>) -> Poll<Result<(), Fault>> {
        let gate = self.books.gates().get(self.books.plan.publishers.len() + self.index);
        gate.into_iter().for_each(|gate| gate.register(cx.waker()));
        connection.keep_alive(cx, !self.is_subscribed)?;
        loop {
            let is_backed_up = connection.queued_bytes() >= QUEUED_BYTES_MAX;
            let read = if is_backed_up { Poll::Pending } else { self.read(connection, cx)? };
            let flushed = connection.poll_flush(cx)?;
            if self.books.phase.now() == Phase::Close {
                return Poll::Ready(Ok(()));
            }
            if if is_backed_up { flushed.is_pending() } else { read.is_pending() } {
                return Poll::Pending;
            }
        }
    }
}

impl Subscriber {
    /// Takes one batch from the socket, and books it.
    fn read(&mut self, connection: &mut Connection, cx: &mut Context<'_>) -> Poll<Result<(), Fault>> {
        let Self { books, index, filters, unreleased, is_subscribed } = self;
        let version = connection.version();
        let Some(mut batch) = Batch::begin(books, *index) else { return Poll::Pending };
        connection.poll_frames(cx, |frame, out| {
            match frame.kind {
                PacketKind::Publish => {
                    let publish = publish(frame, version)?;
                    let is_first = match (publish.qos, publish.packet_id) {
                        (QoS::AtLeastOnce, Some(id)) => {
                            write_acknowledgement(PacketKind::PubAck, id, out);
                            true
                        }
                        (QoS::ExactlyOnce, Some(id)) => {
                            write_acknowledgement(PacketKind::PubRec, id, out);
                            unreleased.insert(id)
                        }
                        _ => true,
                    };
                    if is_first {
                        batch.deliver(&publish, frame);
                    }
                }
                PacketKind::PubRel => {
                    let (id, _) = acknowledgement(frame, version)?;
                    unreleased.remove(id);
                    write_acknowledgement(PacketKind::PubComp, id, out);
                }
                PacketKind::SubAck if !*is_subscribed => {
                    let granted = suback(frame, version, filters.len())?
                        .map_err(|reason| Fault::SubscriptionRefused { filter: filters.join(" "), reason })?;
                    if granted < QoS::ExactlyOnce {
                        return Err(Fault::QosLowered { asked: QoS::ExactlyOnce, granted });
                    }
                    (*is_subscribed, batch.book.is_subscribed) = (true, true);
                }
                unexpected => return Err(WireFault::Unexpected(unexpected).into()),
            }
            Ok(())
        })
    }
}

/// What one read brings.
struct Batch<'a> {
    books: &'a Books,
    book: MutexGuard<'a, SubscriberBook>,
    now_ns: u64,
}

impl<'a> Batch<'a> {
    fn begin(books: &'a Books, subscriber: usize) -> Option<Self> {
        Some(Self { books, book: books.subscriber(subscriber)?, now_ns: now_ns() })
    }

    fn deliver(&mut self, publish: &Publish<'_>, frame: &Frame<'_>) {
        let Self { books, book, now_ns } = self;
        let read = payload::read(publish.payload);
        let ours = read.as_ref().ok().and_then(|stamp| Some((stamp, books.publisher_of(stamp, publish.topic)?)));
        let Some((stamp, publisher)) = ours else {
            // A stamp of somebody else's run is foreign, as is what has none; under a topic of ours everything else is corrupted.
            let is_foreign = matches!(read, Err(PayloadFault::Foreign)) || read.is_ok_and(|stamp| stamp.run != books.run);
            let flow = books.publisher_at(publish.topic).and_then(|publisher| book.flows.get_mut(publisher)?.as_mut());
            match flow.filter(|_| !is_foreign) {
                Some(flow) => flow.corrupted += 1,
                None => book.foreign += 1,
            }
            return;
        };
        let expected_qos = books.plan.publishers.get(publisher).map(|plan| plan.qos);
        let has_come_back = book.visits.connects > 1;
        let Some(flow) = book.flows.get_mut(publisher).and_then(Option::as_mut) else {
            book.foreign += 1;
            return;
        };
        if expected_qos != Some(publish.qos) {
            flow.corrupted += 1;
        } else if flow.book(stamp.sequence, *now_ns) {
            books.moved(*now_ns);
        } else {
            let was_resent = || books.publisher(publisher).is_some_and(|book| book.resent.contains(stamp.sequence));
            let is_marked = frame.first_byte & DUP != 0 && has_come_back;
            let is_excused = publish.qos == QoS::AtLeastOnce && (is_marked || was_resent());
            *if is_excused { &mut flow.redelivered } else { &mut flow.duplicated } += 1;
        }
    }
}
