//! QoS 1 and 2 towards the client: packet identifiers, the in-flight window, the queue behind it (MQTT 5.0 sections 4.3, 4.4, 4.9).
//!
//! Entries stand in the order of sending, acknowledgements nearly always come in it: the front is looked at first. Identifiers count
//! up from 1; one that is still open is never given out again [MQTT-2.2.1-4]. PUBREL never waits for the window [MQTT-3.3.4-10].
//! A session that ends with its connection keeps only identifiers in flight: nobody will ever ask for those messages again.
//!
//! In a durable session a QoS 2 message is put in flight first and sent when its identifier is safe, by the way of redelivery; what comes behind it
//! keeps behind it.

use std::collections::VecDeque;
use std::sync::Arc;

use super::change::{Entry, Order, Stage};
use super::durable::Gate;
use super::journal::{Awaited, Ticket};
use super::message::{Delivery, StoredMessage};
use crate::codec::{PacketId, QoS};

/// Bounds of one session.
#[derive(Clone, Copy, Debug, Default)]
pub struct OutboundLimits {
    /// Messages in flight at once; the client's Receive Maximum may lower it.
    pub inflight_max: u16,
    /// Bytes in flight at once, or one message of any size.
    pub inflight_bytes_max: usize,
    /// Messages that may wait behind the window.
    pub queued_messages_max: u32,
    /// Bytes that may wait behind the window.
    pub queued_bytes_max: usize,
    /// What has waited longest makes room for what comes; else what comes is dropped.
    pub drop_oldest: bool,
    /// QoS 0 waits as well while the client is away.
    pub queue_qos0: bool,
}

/// An acknowledgement that is not the one which the message's QoS asks for [MQTT-3.3.4-1]: a protocol error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfOrder;

#[derive(Debug)]
struct Inflight {
    /// How many identifiers were given out before: tells the identifier and the age.
    serial: u64,
    /// See [`Queued::order`].
    order: Order,
    /// The change that made it what it is: to be safe before anything is sent, where that matters.
    written: u64,
    qos: QoS,
    /// PUBREC received, PUBREL sent, PUBCOMP awaited; before that PUBLISH sent, PUBACK (QoS 1) or PUBREC (QoS 2) awaited.
    released: bool,
    /// It was never sent: sending it is no repeat.
    unsent: bool,
    /// Counts against the client's Receive Maximum on this connection.
    counted: bool,
    /// What the message takes until the client has it: with PUBREC nothing any more.
    bytes: u32,
    /// Kept where the session may outlive the connection.
    message: Option<Queued>,
}

/// A message that waits for the window or for redelivery.
#[derive(Clone, Debug)]
pub(super) struct Queued {
    pub(super) message: Arc<StoredMessage>,
    pub(super) qos: QoS,
    pub(super) retain: bool,
    /// See [`Delivery::dup`].
    dup: bool,
    pub(super) subscription_ids: Option<Arc<[u32]>>,
    /// Its name in a durable session.
    pub(super) order: Order,
    /// Tells when its placing is safe, in a durable session and at QoS 2.
    pub(super) ticket: Option<Arc<Ticket>>,
}

impl Queued {
    pub(super) fn new(message: Arc<StoredMessage>, delivery: &Delivery<'_>) -> Self {
        let ids = delivery.subscription_ids;
        let subscription_ids = (!ids.is_empty()).then(|| Arc::from(ids));
        Self { message, qos: delivery.qos, retain: delivery.retain, dup: delivery.dup, subscription_ids, order: 0, ticket: None }
    }

    /// As it is written down.
    pub(super) fn entry(&self, stage: Stage) -> Entry {
        let Self { message, qos, retain, subscription_ids, .. } = self;
        Entry { message: Arc::clone(message), qos: *qos, retain: *retain, subscription_ids: subscription_ids.clone(), stage }
    }

    pub(super) fn delivery(&self) -> Delivery<'_> {
        let subscription_ids = self.subscription_ids.as_deref().unwrap_or_default();
        Delivery { qos: self.qos, retain: self.retain, dup: self.dup, subscription_ids }
    }
}

/// What a session has to send again on a new connection [MQTT-4.4.0-1].
#[derive(Debug)]
pub(super) enum Resend {
    /// With the DUP flag, unless it was never sent.
    Publish {
        id: PacketId,
        queued: Queued,
        dup: bool,
    },
    PubRel(PacketId),
}

/// What of a durable session is to be sent next of what is in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextToSend {
    /// Nothing: all is sent, or the window is closed.
    Nothing,
    /// What may go.
    Now,
    /// Something, when that change is safe.
    After(Awaited),
}

/// What became of a PUBREC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PubRec {
    /// Nothing waits for it.
    Unknown,
    /// The client refuses the message: the exchange is over [MQTT-4.3.3-5].
    Refused(Order),
    /// The exchange goes on.
    Released(Order, u64),
    /// A repeat; that it is released is safe with that change.
    Again(u64),
}

/// See the module's page.
#[derive(Debug, Default)]
pub struct Outbound {
    issued: u64,
    inflight: VecDeque<Inflight>,
    /// Entries that count against the window.
    counted: usize,
    /// Entries before this place were sent on the present connection; those behind it wait for redelivery.
    resent: usize,
    /// Bytes of the messages in flight, kept or not.
    inflight_bytes: usize,
    queue: VecDeque<Queued>,
    queue_bytes: usize,
    /// Messages of QoS 0 in the queue.
    queue_qos0: usize,
    limits: OutboundLimits,
}

fn packet_id(serial: u64) -> PacketId {
    // 65,535 identifiers, none of them 0.
    let low = u16::try_from(serial % u64::from(u16::MAX)).unwrap_or(0);
    PacketId::MIN.saturating_add(low)
}

impl Outbound {
    /// Nothing sent, nothing waiting.
    #[must_use]
    pub fn new(limits: OutboundLimits) -> Self {
        Self { limits, ..Self::default() }
    }

    /// Messages sent and not yet acknowledged, or to be sent again.
    #[must_use]
    pub fn inflight_len(&self) -> usize {
        self.inflight.len()
    }

    /// The identifier that will be given to a message last of all: what else is said under it meets none in flight.
    #[must_use]
    pub fn spare_id(&self) -> PacketId {
        let oldest = self.inflight.front().map_or(self.issued, |first| first.serial);
        packet_id(oldest.wrapping_add(u64::from(u16::MAX) - 1))
    }

    /// Messages that wait for the window.
    #[must_use]
    pub fn queue_len(&self) -> usize {
        self.queue.len()
    }

    /// Whether messages in flight are still to be sent again.
    pub(super) fn needs_resend(&self) -> bool {
        self.resent < self.inflight.len()
    }

    /// Whether a new message may be sent at once: the window is open and nothing older waits.
    pub(super) fn is_open(&self, window: u16) -> bool {
        self.queue.is_empty() && self.has_room(window)
    }

    /// Whether the window takes one more message.
    pub(super) fn has_room(&self, window: u16) -> bool {
        self.counted < usize::from(window)
            && self.inflight.len() < usize::from(u16::MAX)
            && self.resent == self.inflight.len()
            && (self.inflight.is_empty() || self.inflight_bytes < self.limits.inflight_bytes_max)
    }

    /// Whether the window has room for one that is sent later: the same, but others may be waiting for that already.
    pub(super) fn can_stage(&self, window: u16) -> bool {
        let unsent = self.inflight.len() - self.resent;
        self.counted + unsent < usize::from(window)
            && self.inflight.len() < usize::from(u16::MAX)
            && (self.inflight.is_empty() || self.inflight_bytes < self.limits.inflight_bytes_max)
    }

    /// Gives out an identifier and puts a message of `bytes` in flight, to be sent at once. Call only with [`Self::has_room`].
    pub(super) fn send(&mut self, qos: QoS, bytes: usize, message: Option<Queued>) -> PacketId {
        let serial = self.put_in_flight(qos, bytes, message, true);
        self.counted += 1;
        self.resent += 1;
        packet_id(serial)
    }

    /// Gives out an identifier, of which the serial number is returned, and puts the message in flight, to be sent when that is safe. Call only with
    /// [`Self::can_stage`].
    pub(super) fn stage(&mut self, queued: Queued) -> u64 {
        self.put_in_flight(queued.qos, queued.message.bytes(), Some(queued), false)
    }

    /// Change `number` says what was staged last.
    pub(super) fn staged(&mut self, number: u64) {
        if let Some(open) = self.inflight.back_mut() {
            open.written = number;
        }
    }

    /// The serial number that the next identifier will have.
    pub(super) fn next_serial(&self) -> u64 {
        let mut serial = self.issued;
        // Only an entry a whole round old can hold the same identifier.
        if self.inflight.front().is_some_and(|oldest| serial - oldest.serial >= u64::from(u16::MAX)) {
            while self.inflight.iter().any(|open| packet_id(open.serial) == packet_id(serial)) {
                serial += 1;
            }
        }
        serial
    }

    fn put_in_flight(&mut self, qos: QoS, bytes: usize, message: Option<Queued>, is_sent: bool) -> u64 {
        let serial = self.next_serial();
        self.issued = serial + 1;
        self.inflight_bytes += bytes;
        // No packet is larger.
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        let order = message.as_ref().map_or(0, |queued| queued.order);
        self.inflight.push_back(Inflight {
            serial,
            order,
            written: 0,
            qos,
            released: false,
            unsent: !is_sent,
            counted: is_sent,
            bytes,
            message,
        });
        serial
    }

    /// Takes back what [`Self::send`] did: the packet could not be encoded for this client.
    pub(super) fn unsend(&mut self) {
        if let Some(entry) = self.inflight.pop_back() {
            self.counted -= usize::from(entry.counted);
            self.inflight_bytes -= entry.bytes as usize;
            self.resent = self.resent.min(self.inflight.len());
        }
    }

    /// Where the message with this identifier stands, which must have come as far as this.
    fn position(&self, id: PacketId, released: bool) -> Option<usize> {
        let is_meant = |open: &Inflight| packet_id(open.serial) == id && open.released == released;
        if self.inflight.front().is_some_and(is_meant) { Some(0) } else { self.inflight.iter().position(is_meant) }
    }

    /// What an acknowledgement without a message of its kind means: nothing, or that the exchange under this identifier is another.
    fn unknown<T>(&self, id: PacketId, nothing: T) -> Result<T, OutOfOrder> {
        match self.inflight.iter().any(|open| packet_id(open.serial) == id) {
            true => Err(OutOfOrder),
            false => Ok(nothing),
        }
    }

    fn remove(&mut self, place: usize) -> Option<Order> {
        // The same, but far cheaper.
        let entry = if place == 0 { self.inflight.pop_front() } else { self.inflight.remove(place) }?;
        self.counted -= usize::from(entry.counted);
        self.inflight_bytes -= entry.bytes as usize;
        self.resent -= usize::from(place < self.resent);
        Some(entry.order)
    }

    /// PUBACK arrived. None if nothing waits for it.
    ///
    /// # Errors
    /// When the identifier is that of a QoS 2 message.
    pub(super) fn puback(&mut self, id: PacketId) -> Result<Option<Order>, OutOfOrder> {
        match self.position(id, false) {
            Some(place) if self.inflight.get(place).is_some_and(|open| open.qos == QoS::AtLeastOnce) => Ok(self.remove(place)),
            _ => self.unknown(id, None),
        }
    }

    /// PUBREC arrived. PUBREL is to be sent also for a repeat [MQTT-4.3.3-3], and for an unknown identifier with 0x92.
    ///
    /// # Errors
    /// When the identifier is that of a QoS 1 message.
    pub(super) fn pubrec(&mut self, id: PacketId, refused: bool) -> Result<PubRec, OutOfOrder> {
        let Some(place) = self.position(id, false) else {
            let released = self.position(id, true).and_then(|place| self.inflight.get(place));
            return Ok(released.map_or(PubRec::Unknown, |open| PubRec::Again(open.written)));
        };
        match self.inflight.get_mut(place) {
            Some(open) if open.qos != QoS::ExactlyOnce => Err(OutOfOrder),
            Some(_) if refused => Ok(self.remove(place).map_or(PubRec::Unknown, PubRec::Refused)),
            Some(open) => {
                open.released = true;
                let (order, serial) = (open.order, open.serial);
                open.message = None;
                self.inflight_bytes -= std::mem::take(&mut open.bytes) as usize;
                Ok(PubRec::Released(order, serial))
            }
            None => Ok(PubRec::Unknown),
        }
    }

    /// That the message of `order` is released is safe with change `number`.
    pub(super) fn released(&mut self, order: Order, number: u64) {
        if let Some(open) = self.inflight.iter_mut().find(|open| open.order == order) {
            open.written = number;
        }
    }

    /// PUBCOMP arrived. None if nothing waits for it.
    ///
    /// # Errors
    /// When the message with the identifier has not come that far, or is of QoS 1.
    pub(super) fn pubcomp(&mut self, id: PacketId) -> Result<Option<Order>, OutOfOrder> {
        match self.position(id, true) {
            Some(place) => Ok(self.remove(place)),
            None => self.unknown(id, None),
        }
    }

    fn takes(&self, bytes: usize) -> bool {
        let has_place = u32::try_from(self.queue.len()).is_ok_and(|waiting| waiting < self.limits.queued_messages_max);
        has_place && self.queue_bytes + bytes <= self.limits.queued_bytes_max
    }

    /// Whether a message of `bytes` may wait behind the window, once as many of the oldest are dropped as it says. `None`: it may not, and
    /// nothing was dropped. Each that is dropped is named to `drop`.
    pub(super) fn make_room(&mut self, bytes: usize, mut drop: impl FnMut(Order)) -> Option<u32> {
        let mut dropped = 0;
        while !self.takes(bytes) {
            if !self.limits.drop_oldest || bytes > self.limits.queued_bytes_max {
                return None;
            }
            drop(self.dequeue()?.order);
            dropped += 1;
        }
        Some(dropped)
    }

    /// Whether messages of QoS 0 wait while the client is away.
    pub(super) fn queues_qos0(&self) -> bool {
        self.limits.queue_qos0
    }

    /// Whether messages of QoS 0 wait: newer ones must not overtake them [MQTT-4.6.0-5].
    pub(super) fn qos0_waits(&self) -> bool {
        self.queue_qos0 > 0
    }

    /// Puts a message behind the window. Call only after [`Self::make_room`].
    pub(super) fn enqueue(&mut self, queued: Queued) {
        self.queue_bytes += queued.message.bytes();
        self.queue_qos0 += usize::from(queued.qos == QoS::AtMostOnce);
        self.queue.push_back(queued);
    }

    /// Whether the oldest message behind the window may go: QoS 0 needs no room in it.
    pub(super) fn may_dequeue(&self, window: u16) -> bool {
        self.queue.front().is_some_and(|oldest| oldest.qos == QoS::AtMostOnce || self.has_room(window))
    }

    /// The oldest message behind the window.
    pub(super) fn dequeue(&mut self) -> Option<Queued> {
        let queued = self.queue.pop_front()?;
        self.queue_bytes -= queued.message.bytes();
        self.queue_qos0 -= usize::from(queued.qos == QoS::AtMostOnce);
        Some(queued)
    }

    /// A new connection resumes the session: everything in flight is to be sent again, in its order [MQTT-4.6.0-1].
    pub(super) fn resume(&mut self) {
        self.resent = 0;
        self.counted = 0;
        self.inflight.iter_mut().for_each(|open| open.counted = false);
    }

    /// The next entry to be sent, or to be sent again, that the window allows; PUBREL needs no room. In a durable session, which has a gate, what must
    /// be safe before waits until it is. Call until `None`.
    pub(super) fn resend(&mut self, window: u16, gate: Option<Gate<'_>>) -> Option<Resend> {
        loop {
            let full = self.counted >= usize::from(window);
            let open = self.inflight.get_mut(self.resent)?;
            if gate.is_some_and(|gate| open.awaited(gate).is_some()) {
                return None;
            }
            let id = packet_id(open.serial);
            if open.released {
                self.resent += 1;
                return Some(Resend::PubRel(id));
            }
            if full {
                return None;
            }
            match open.message.clone() {
                Some(queued) => {
                    open.counted = true;
                    let dup = !std::mem::replace(&mut open.unsent, false);
                    self.counted += 1;
                    self.resent += 1;
                    return Some(Resend::Publish { id, queued, dup });
                }
                // A session that kept no message was not meant to be resumed.
                None => {
                    self.inflight.remove(self.resent);
                }
            }
        }
    }

    /// What [`Self::resend`] would do.
    pub(super) fn next_to_send(&self, window: u16, gate: Gate<'_>) -> NextToSend {
        let Some(open) = self.inflight.get(self.resent) else { return NextToSend::Nothing };
        match open.awaited(gate) {
            Some(awaited) => NextToSend::After(awaited),
            None if open.released || self.counted < usize::from(window) => NextToSend::Now,
            None => NextToSend::Nothing,
        }
    }

    /// The message that was just taken by [`Self::resend`] is not to be sent to this client any more.
    pub(super) fn forget(&mut self, id: PacketId) -> Option<Order> {
        let place = self.position(id, false)?;
        self.remove(place)
    }

    /// All that is kept for the client, in its order.
    pub(super) fn entries(&self) -> impl Iterator<Item = (Order, Entry)> {
        let in_flight = self.inflight.iter().filter_map(|open| match &open.message {
            _ if open.released => Some((open.order, Entry::released(open.serial))),
            Some(queued) => Some((open.order, queued.entry(Stage::Published(open.serial)))),
            None => None,
        });
        in_flight.chain(self.queue.iter().map(|queued| (queued.order, queued.entry(Stage::Queued))))
    }

    /// What waits behind the window.
    pub(super) fn into_queue(self) -> impl Iterator<Item = Queued> {
        self.queue.into_iter()
    }

    /// How many messages of QoS 1 and 2 the client has not got yet, and what they take, bytes.
    pub(crate) fn owed(&self) -> (usize, usize) {
        let in_flight = self.inflight.iter().filter(|open| !open.released).count();
        (in_flight + self.queue.len() - self.queue_qos0, self.inflight_bytes + self.queue_bytes)
    }

    /// Its bounds.
    pub(super) fn limits(&self) -> OutboundLimits {
        self.limits
    }

    /// What a restarted broker has read of a session, in its order: the bounds do not count. `dup`: the client may have had what waits.
    pub(super) fn restore(&mut self, order: Order, entry: Entry, dup: bool) {
        let Entry { message, qos, retain, subscription_ids, stage } = entry;
        let dup = dup && stage == Stage::Queued && qos == QoS::AtLeastOnce;
        let queued = Queued { message, qos, retain, dup, subscription_ids, order, ticket: None };
        let (serial, released) = match stage {
            Stage::Queued => return self.enqueue(queued),
            Stage::Published(serial) => (serial, false),
            Stage::Released(serial) => (serial, true),
        };
        self.issued = self.issued.max(serial.saturating_add(1));
        let message = (!released).then_some(queued);
        let bytes = message.as_ref().map_or(0, |queued| queued.message.bytes());
        self.inflight_bytes += bytes;
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        self.inflight.push_back(Inflight {
            serial,
            order,
            written: 0,
            qos,
            released,
            unsent: false,
            counted: false,
            bytes,
            message,
        });
    }
}

impl Inflight {
    /// The change for which it waits: at QoS 2 the client must not know an identifier, nor that it was released, which the store does not.
    fn awaited(&self, gate: Gate<'_>) -> Option<Awaited> {
        if self.qos != QoS::ExactlyOnce {
            return None;
        }
        gate.awaited(self.written, self.message.as_ref().and_then(|queued| queued.ticket.as_deref()))
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    const ROOMY: OutboundLimits = OutboundLimits {
        inflight_max: 100,
        inflight_bytes_max: 1_000,
        queued_messages_max: 100,
        queued_bytes_max: 1_000,
        drop_oldest: false,
        queue_qos0: false,
    };

    fn queued(qos: QoS) -> Queued {
        let message = StoredMessage {
            topic: "t".into(),
            payload: Bytes::from_static(b"xyz"),
            qos,
            retain: false,
            expires_at: None,
            properties: Bytes::new(),
        };
        Queued::new(Arc::new(message), &Delivery { qos, retain: false, dup: false, subscription_ids: &[] })
    }

    fn empty() -> Queued {
        let message = StoredMessage { topic: "".into(), payload: Bytes::new(), ..(*queued(QoS::AtLeastOnce).message).clone() };
        Queued { message: Arc::new(message), ..queued(QoS::AtLeastOnce) }
    }

    #[test]
    fn identifiers_count_up_and_skip_what_is_open() {
        let mut outbound = Outbound::new(ROOMY);
        let first = outbound.send(QoS::AtLeastOnce, 0, None);
        assert_eq!(first.get(), 1);
        for n in 0..200_000_u32 {
            let id = outbound.send(QoS::AtLeastOnce, 0, None);
            assert_ne!(id, first, "given twice at {n}");
            assert_eq!(outbound.puback(id).map(|known| known.is_some()), Ok(true));
        }
        assert_eq!(
            (outbound.puback(first).map(|known| known.is_some()), outbound.puback(first).map(|known| known.is_some())),
            (Ok(true), Ok(false))
        );
        assert_eq!(outbound.inflight_len(), 0);
    }

    #[test]
    fn the_spare_identifier_is_the_one_that_is_furthest_from_use() {
        let mut outbound = Outbound::new(ROOMY);
        assert_eq!(outbound.spare_id().get(), u16::MAX);
        let first = outbound.send(QoS::AtLeastOnce, 0, None);
        let spare = outbound.spare_id();
        for _ in 1..u16::MAX - 1 {
            let id = outbound.send(QoS::AtLeastOnce, 0, None);
            assert!(id != spare && outbound.puback(id).map(|known| known.is_some()) == Ok(true));
        }
        assert_eq!(outbound.puback(first).map(|known| known.is_some()), Ok(true));
        assert_eq!((spare.get(), outbound.send(QoS::AtLeastOnce, 0, None)), (u16::MAX, spare));
    }

    #[test]
    fn qos_2_goes_through_its_stages() {
        let mut outbound = Outbound::new(ROOMY);
        let id = outbound.send(QoS::ExactlyOnce, 4, Some(queued(QoS::ExactlyOnce)));
        assert!(!outbound.has_room(1));
        assert_eq!(
            (outbound.puback(id).map(|known| known.is_some()), outbound.pubcomp(id).map(|known| known.is_some())),
            (Err(OutOfOrder), Err(OutOfOrder))
        );
        assert_eq!(
            (
                outbound.pubrec(id, false).map(|known| known != PubRec::Unknown),
                outbound.pubrec(id, false).map(|known| known != PubRec::Unknown)
            ),
            (Ok(true), Ok(true)),
            "a repeated PUBREC gets PUBREL again"
        );
        assert_eq!(outbound.puback(id).map(|known| known.is_some()), Err(OutOfOrder));
        assert!(!outbound.has_room(1), "the window opens at PUBCOMP [MQTT-4.9.0-2]");
        assert_eq!(
            (outbound.pubcomp(id).map(|known| known.is_some()), outbound.pubcomp(id).map(|known| known.is_some())),
            (Ok(true), Ok(false))
        );
        assert!(outbound.has_room(1));
        let refused = outbound.send(QoS::ExactlyOnce, 0, None);
        assert_eq!(outbound.pubrec(refused, true).map(|known| known != PubRec::Unknown), Ok(true));
        assert!(outbound.has_room(1));
    }

    #[test]
    fn the_queue_is_bounded_by_messages_and_bytes() {
        let mut outbound = Outbound::new(OutboundLimits { queued_messages_max: 3, queued_bytes_max: 8, ..ROOMY });
        for _ in 0..2 {
            assert_eq!(outbound.make_room(4, |_| {}), Some(0));
            outbound.enqueue(queued(QoS::AtLeastOnce));
        }
        assert_eq!((outbound.make_room(4, |_| {}), outbound.make_room(0, |_| {})), (None, Some(0)));
        outbound.enqueue(empty());
        assert_eq!(outbound.make_room(0, |_| {}), None, "three messages");
        assert!(outbound.dequeue().is_some());
        assert_eq!(outbound.make_room(4, |_| {}), Some(0));
    }

    #[test]
    fn the_oldest_make_room_where_that_was_chosen() {
        let mut outbound =
            Outbound::new(OutboundLimits { queued_messages_max: 3, queued_bytes_max: 12, drop_oldest: true, ..ROOMY });
        for _ in 0..3 {
            assert_eq!(outbound.make_room(4, |_| {}), Some(0));
            outbound.enqueue(queued(QoS::AtLeastOnce));
        }
        assert_eq!(outbound.make_room(13, |_| {}), None, "it would not fit if all others went");
        assert_eq!((outbound.queue_len(), outbound.make_room(8, |_| {})), (3, Some(2)));
        outbound.enqueue(queued(QoS::AtLeastOnce));
        assert_eq!((outbound.queue_len(), outbound.make_room(4, |_| {})), (2, Some(0)));
    }

    #[test]
    fn qos_0_that_waits_needs_no_window() {
        let mut outbound = Outbound::new(ROOMY);
        for qos in [QoS::AtMostOnce, QoS::AtLeastOnce] {
            outbound.enqueue(queued(qos));
        }
        assert!(outbound.qos0_waits() && outbound.may_dequeue(0));
        assert_eq!(outbound.dequeue().map(|first| first.qos), Some(QoS::AtMostOnce));
        assert!(!outbound.qos0_waits() && !outbound.may_dequeue(0) && outbound.may_dequeue(1));
    }

    #[test]
    fn what_is_in_flight_is_bounded_by_bytes() {
        let mut outbound = Outbound::new(OutboundLimits { inflight_bytes_max: 8, ..ROOMY });
        let first = outbound.send(QoS::AtLeastOnce, 4, None);
        let second = outbound.send(QoS::ExactlyOnce, 4, Some(queued(QoS::ExactlyOnce)));
        assert!(!outbound.has_room(9), "4 bytes each");
        assert_eq!(outbound.pubrec(second, false).map(|known| known != PubRec::Unknown), Ok(true));
        assert!(outbound.has_room(9), "the client has a released message");
        outbound.send(QoS::AtLeastOnce, 4, None);
        assert!(!outbound.has_room(9));
        assert!(outbound.puback(first).map(|known| known.is_some()) == Ok(true) && outbound.has_room(9));
        assert!(outbound.pubcomp(second).map(|known| known.is_some()) == Ok(true) && outbound.has_room(9));
        outbound.send(QoS::AtLeastOnce, 400, None);
        outbound.unsend();
        assert!(outbound.has_room(9));
    }

    #[test]
    fn a_resumed_session_sends_again_in_order_and_within_the_window() {
        let mut outbound = Outbound::new(ROOMY);
        let ids: Vec<PacketId> = (0..4).map(|_| outbound.send(QoS::ExactlyOnce, 4, Some(queued(QoS::ExactlyOnce)))).collect();
        assert_eq!(outbound.pubrec(ids[1], false).map(|known| known != PubRec::Unknown), Ok(true));
        for _ in 0..50 {
            outbound.resume();
            let mut again = Vec::new();
            while let Some(resend) = outbound.resend(2, None) {
                again.push(match resend {
                    Resend::Publish { id, .. } => (id, false),
                    Resend::PubRel(id) => (id, true),
                });
            }
            assert_eq!(again, [(ids[0], false), (ids[1], true), (ids[2], false)]);
            assert!(!outbound.is_open(2));
        }
        assert_eq!(
            (
                outbound.pubrec(ids[0], false).map(|known| known != PubRec::Unknown),
                outbound.pubcomp(ids[0]).map(|known| known.is_some())
            ),
            (Ok(true), Ok(true))
        );
        assert!(matches!(outbound.resend(2, None), Some(Resend::Publish { id, .. }) if id == ids[3]));
        assert_eq!(outbound.pubcomp(ids[1]).map(|known| known.is_some()), Ok(true));
        assert_eq!(outbound.inflight_len(), 2);
    }
}
