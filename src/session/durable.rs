//! What makes a session durable: the journal in which it writes down what happens to it, and how it is made anew from what was written.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use super::change::{Change, Entry, Head, Order, Stage};
use super::journal::{Awaited, Journal, Reach, Ticket, Writes};
use super::message::{StoredMessage, Will};
use super::moved::Source;
use super::outbound::{OutboundLimits, Queued};
use super::subscriber::{SessionExpiry, State, Subscriber, SubscriberId, SubscriptionOptions};
use crate::auth::Access;
use crate::codec::{PacketId, QoS};
use crate::ids::ShareId;
use crate::limits::SUBSCRIPTION_OVERHEAD_BYTES;

/// What is to be safe before the client of a durable session sees something of QoS 2.
#[derive(Clone, Copy, Debug)]
pub(super) struct Gate<'a> {
    journal: &'a Journal,
    is_guarded: bool,
}

impl Gate<'_> {
    /// What is waited for, where what `number` and the `ticket` say is not safe.
    pub(super) fn awaited(&self, number: u64, ticket: Option<&Ticket>) -> Option<Awaited> {
        let reach = if self.is_guarded { Reach::Held } else { Reach::Disk };
        let awaited = Awaited { number, reach };
        if !self.journal.has(awaited) {
            return Some(awaited);
        }
        self.journal.awaited_at(ticket?, reach)
    }
}

/// Of one session, under its lock.
#[derive(Debug)]
pub(super) struct Durable {
    pub(super) session: SubscriberId,
    pub(super) journal: Arc<Journal>,
    client_id: Arc<str>,
    /// See [`Head::claim`].
    pub(super) claim: u64,
    /// See [`Head::owner`].
    pub(super) owner: Arc<str>,
    /// When the client's last connection ended, where it has none.
    pub(super) left_at: Option<Instant>,
    /// How many messages were placed.
    pub(super) placed: Order,
    /// See [`State::leave_behind`].
    pub(super) given_by_groups: VecDeque<(ShareId, Arc<StoredMessage>)>,
    /// It has a replica, or is about to: whence its messages are is written down.
    pub(super) is_followed: bool,
    /// Its client does not see what the replica does not know of.
    pub(super) is_guarded: bool,
    /// Batches with identifiers of the client's QoS 2 messages in their lists that have not ended, as far as is known: more than one only where the session
    /// was taken over in the middle of one.
    open: Vec<Arc<Ticket>>,
}

impl Durable {
    pub(super) fn new(session: SubscriberId, client_id: Arc<str>, journal: Arc<Journal>) -> Self {
        Self {
            session,
            journal,
            client_id,
            claim: 0,
            owner: Arc::default(),
            left_at: None,
            placed: 0,
            given_by_groups: VecDeque::new(),
            is_followed: false,
            is_guarded: false,
            open: Vec::new(),
        }
    }

    /// Names the message, and the change that places it.
    pub(super) fn placing(&mut self, queued: &mut Queued, stage: Stage) -> Change {
        self.placed += 1;
        queued.order = self.placed;
        Change::Placed(self.session, queued.order, queued.entry(stage))
    }

    /// Before it is placed: whence it is, if that is to be known.
    pub(super) fn name(&self, writes: &mut Writes, order: Order, source: Option<&Source>) {
        if let Some(source) = source.filter(|_| self.is_followed) {
            writes.push(Change::Source(self.session, order, source.clone()));
        }
    }

    /// Places the message with the rest of the batch.
    pub(super) fn place(&mut self, writes: &mut Writes, queued: &mut Queued, stage: Stage, source: Option<&Source>) {
        let change = self.placing(queued, stage);
        self.name(writes, queued.order, source);
        writes.push(change);
        if queued.qos == QoS::ExactlyOnce {
            queued.ticket = Some(writes.ticket());
        }
    }

    /// Says with the batch what becomes of an identifier of the client's.
    pub(super) fn identify(&mut self, writes: &mut Writes, change: Change) {
        let is_received = matches!(change, Change::Received(..));
        writes.push(change);
        match self.is_guarded {
            // Else it would come twice: if this broker dies, what its client repeats elsewhere is new there.
            true if is_received => writes.guard_batch(),
            true => writes.guard(),
            false => {}
        }
        if self.open.last().is_none_or(|last| !writes.is_ticket(last)) {
            self.open.retain(|open| open.number().is_none());
            self.open.push(writes.ticket());
        }
    }

    /// The client repeats itself: what was said of its identifiers must be safe, also what another connection's batch has still to say.
    pub(super) fn wait_for_all(&self, writes: &mut Writes) {
        self.open.iter().for_each(|open| writes.wait_for_batch(open));
        writes.wait_for(self.journal.last());
        if self.is_guarded {
            writes.guard();
        }
    }

    /// What is waited for before the client sees what change `number` says.
    pub(super) fn awaited(&self, number: u64) -> Awaited {
        Awaited { number, reach: if self.is_guarded { Reach::Known } else { Reach::Disk } }
    }

    /// What tells when the client may see something.
    pub(super) fn gate(&self) -> Gate<'_> {
        Gate { journal: &self.journal, is_guarded: self.is_guarded }
    }

    pub(super) fn stage(&self, order: Order, stage: Stage) -> u64 {
        self.journal.push(Change::Staged(self.session, order, stage))
    }

    /// A message is no longer kept; one that never was, of QoS 0, has no order.
    pub(super) fn remove(&self, order: Order) {
        if order > 0 {
            self.journal.push(Change::Removed(self.session, order));
        }
    }

    pub(super) fn subscribed(&self, filter: &str, options: &SubscriptionOptions) -> u64 {
        self.journal.push(Change::Subscribed(self.session, filter.into(), options.clone()))
    }

    pub(super) fn unsubscribed(&self, filter: &str) -> u64 {
        self.journal.push(Change::Unsubscribed(self.session, filter.into()))
    }

    /// A connection has begun. The will goes with the batch, in which an older one may be published.
    pub(super) fn connected(&mut self, writes: &mut Writes, expiry: SessionExpiry, epoch: u64, will: Option<&Will>) {
        self.left_at = None;
        writes.wait_for(self.journal.push(Change::Session(self.session, self.head(expiry))));
        if let Some(will) = will {
            writes.push(Change::Will(self.session, epoch, Arc::new(will.clone())));
        }
    }

    pub(super) fn left(&mut self, expiry: SessionExpiry, now: Instant) {
        self.left_at = Some(now);
        self.journal.push(Change::Session(self.session, self.head(expiry)));
    }

    fn head(&self, expiry: SessionExpiry) -> Head {
        let (client_id, owner) = (Arc::clone(&self.client_id), Arc::clone(&self.owner));
        Head { client_id, owner, expiry, left_at: self.left_at, claim: self.claim }
    }
}

/// A session as a restarted broker has read it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RestoredSession {
    /// The number under which it goes on.
    pub session: SubscriberId,
    /// The session itself. Where it was connected, it has left with the restart.
    pub head: Head,
    /// Filters, as subscribed.
    pub subscriptions: Vec<(Box<str>, SubscriptionOptions)>,
    /// What is kept for the client, in its order.
    pub entries: Vec<(Order, Entry)>,
    /// Identifiers of QoS 2 messages that the client has not released.
    pub received: Vec<PacketId>,
    /// Still to be published.
    pub will: Option<Will>,
}

/// The client was connected when the broker died. A QoS 1 message does not wait until it is written that it was sent, so the first of those that wait may have
/// been: they are sent again as what they may be, duplicates [MQTT-3.3.1-1]. One of QoS 2 was not, nor what waits behind it.
pub(super) fn suppose_sent<'a>(entries: impl Iterator<Item = &'a mut Entry>, inflight_max: u16) {
    let serial = |entry: &Entry| match entry.stage {
        Stage::Published(serial) | Stage::Released(serial) => Some(serial.saturating_add(1)),
        Stage::Queued => None,
    };
    let entries: Vec<_> = entries.collect();
    let next = entries.iter().filter_map(|entry| serial(entry)).max().unwrap_or(0);
    let waiting = entries.into_iter().filter(|entry| entry.stage == Stage::Queued);
    let perhaps = waiting.take_while(|entry| entry.qos == QoS::AtLeastOnce).take(inflight_max.into());
    (next..).zip(perhaps).for_each(|(serial, entry)| entry.stage = Stage::Published(serial));
}

/// The connection that a restored session has had: those to come are newer.
pub(crate) const RESTORED_EPOCH: u64 = 1;

impl RestoredSession {
    /// The session, away; if its client was connected, since `now`.
    pub(crate) fn into_subscriber(self, limits: OutboundLimits, journal: &Arc<Journal>, now: Instant) -> Subscriber {
        let Self { session, head, subscriptions, mut entries, received, will } = self;
        if head.left_at.is_none() {
            suppose_sent(entries.iter_mut().map(|(_, entry)| entry), limits.inflight_max);
        }
        let subscriber = Subscriber::new(session, head.client_id, limits, Some(journal));
        subscriber.restored(RESTORED_EPOCH);
        // Until somebody judges it, it may do nothing.
        subscriber.set_access(Some(Arc::new(Access::of_owner(&head.owner))));
        let mut state = subscriber.lock();
        let State { epoch, outbound, inbound, durable, expiry, claimed, is_cut_off, .. } = &mut *state;
        (*epoch, *expiry, *claimed) = (RESTORED_EPOCH, head.expiry, head.claim);
        *is_cut_off = head.left_at.is_none();
        if let Some(durable) = durable {
            (durable.owner, durable.claim, durable.left_at) = (head.owner, head.claim, head.left_at.or(Some(now)));
            durable.placed = entries.last().map_or(0, |(order, _)| *order);
        }
        // It may have acknowledged a window of them that was not written down either, and have been sent what follows.
        let mut perhaps_sent = *is_cut_off;
        for (order, entry) in entries {
            perhaps_sent &= entry.stage != Stage::Queued || entry.qos == QoS::AtLeastOnce;
            outbound.restore(order, entry, perhaps_sent);
        }
        received.into_iter().for_each(|id| inbound.restore(id));
        state.will = will.map(Box::new);
        state.subscriptions_bytes = subscriptions.iter().map(|(filter, _)| filter.len() + SUBSCRIPTION_OVERHEAD_BYTES).sum();
        state.subscriptions = subscriptions.into_iter().collect();
        drop(state);
        subscriber
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::super::outbound::Outbound;
    use super::*;
    use crate::session::StoredMessage;

    #[expect(clippy::disallowed_methods, reason = "virtual time starts somewhere")]
    fn now() -> Instant {
        Instant::now()
    }

    #[test]
    fn what_may_have_been_sent_before_a_crash_is_sent_as_a_duplicate() {
        let entry = |qos, stage| {
            let (topic, payload, properties) = ("t".into(), Bytes::new(), Bytes::new());
            let message = Arc::new(StoredMessage { topic, payload, properties, qos, retain: false, expires_at: None });
            Entry { message, qos, retain: false, subscription_ids: None, stage }
        };
        let kept = [
            (QoS::AtLeastOnce, Stage::Published(4)),
            (QoS::ExactlyOnce, Stage::Released(5)),
            (QoS::AtLeastOnce, Stage::Queued),
            (QoS::AtLeastOnce, Stage::Queued),
            (QoS::ExactlyOnce, Stage::Queued),
            (QoS::AtLeastOnce, Stage::Queued),
        ];
        let stages = |inflight_max: u16| {
            let mut entries: Vec<_> = (1..).zip(kept.map(|(qos, stage)| entry(qos, stage))).collect();
            suppose_sent(entries.iter_mut().map(|(_, entry)| entry), inflight_max);
            entries.into_iter().skip(2).map(|(_, entry)| entry.stage).collect::<Vec<_>>()
        };
        let (queued, perhaps) = (Stage::Queued, Stage::Published);
        assert_eq!(stages(20), [perhaps(6), perhaps(7), queued, queued], "up to what had to be safe first");
        assert_eq!(stages(1), [perhaps(6), queued, queued, queued], "no more than are in flight at once");
        assert_eq!(stages(0), [queued; 4]);

        let duplicates = |left_at: Option<Instant>| {
            let head = Head { client_id: "c".into(), owner: Arc::default(), expiry: SessionExpiry::Never, left_at, claim: 0 };
            let entries = (1..).zip(kept.map(|(qos, stage)| entry(qos, stage))).collect();
            let (subscriptions, received, will) = (Vec::new(), Vec::new(), None);
            let read = RestoredSession { session: SubscriberId(1), head, subscriptions, entries, received, will };
            let limits = OutboundLimits {
                inflight_max: 1,
                inflight_bytes_max: 1_000,
                queued_messages_max: 10,
                queued_bytes_max: 1_000,
                drop_oldest: false,
                queue_qos0: false,
            };
            let session = read.into_subscriber(limits, &Journal::new(), now());
            let outbound = std::mem::replace(&mut session.lock().outbound, Outbound::new(limits));
            outbound.into_queue().map(|queued| queued.delivery().dup).collect::<Vec<_>>()
        };
        assert_eq!(duplicates(None), [true, false, false], "behind the window, too, up to what had to be safe first");
        assert_eq!(duplicates(Some(now())), [false; 4], "who had left was sent nothing more");
    }
}
