//! A subscriber: the session and its outbox behind one lock.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::Waker;
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;
use parking_lot::{Mutex, MutexGuard};

use super::change::{Change, Order, Stage};
use super::durable::{Durable, RESTORED_EPOCH};
use super::filters::Filters;
use super::inbound::{Inbound, QuotaExceeded};
use super::journal::{Awaited, Journal, Writes};
use super::message::{Delivery, Message, StoredMessage, Will};
use super::moved::Moving;
use super::outbound::{NextToSend, OutOfOrder, Outbound, OutboundLimits, PubRec, Queued, Resend};
use super::outbox::Outbox;
use super::retained::RetainedBacklog;
use super::rivalry::Rivalry;
use super::run::{Encoded, Run};
use super::variants::Variants;
use crate::auth::Access;
use crate::codec::{self, Ack, Packet, PacketId, ProtocolVersion, QoS, ReasonCode};
use crate::pressure::Level;

/// Names one session object of this process; a session that begins anew is another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SubscriberId(pub u64);

/// How long a session outlives its connection (MQTT 5.0 section 3.1.2.11.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionExpiry {
    /// It ends with the connection.
    WithConnection,
    /// It ends this long after the connection.
    After(Duration),
    /// It does not expire.
    Never,
}

impl SessionExpiry {
    /// From a Session Expiry Interval in seconds.
    #[must_use]
    pub fn from_interval_seconds(seconds: u32) -> Self {
        match seconds {
            0 => Self::WithConnection,
            u32::MAX => Self::Never,
            seconds => Self::After(Duration::from_secs(u64::from(seconds))),
        }
    }
}

/// The present connection of a session.
#[derive(Clone, Copy, Debug)]
pub struct Connected {
    /// Spoken by the client.
    pub version: ProtocolVersion,
    /// Messages that may be in flight: the lower of the client's Receive Maximum and our own bound.
    pub window: u16,
    /// The client's Maximum Packet Size, bytes.
    pub packet_bytes_max: usize,
    /// Topic aliases that we may set: the lower of the client's Topic Alias Maximum and our own bound [MQTT-3.1.2-26, -27].
    pub topic_alias_max: u16,
}

/// What a client asked for with one filter (MQTT 5.0 section 3.8.3.1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubscriptionOptions {
    /// The highest QoS that it wants.
    pub qos: QoS,
    /// Its own messages are not sent back [MQTT-3.8.3-3].
    pub no_local: bool,
    /// The RETAIN flag is kept [MQTT-3.3.1-13].
    pub retain_as_published: bool,
    /// Sent with every match.
    pub subscription_id: Option<u32>,
}

/// What became of one delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Encoded into the outbox.
    Sent,
    /// It is in flight, and is sent when it is safe.
    Staged,
    /// It waits in the session's queue.
    Queued,
    /// The same, and as many older ones were dropped to make room.
    QueuedInstead(u32),
    /// The outbox is full: QoS 0 is dropped.
    DroppedSlow,
    /// The session's queue is full.
    DroppedFull,
    /// Larger than the client takes.
    DroppedTooLarge,
    /// The client is not connected and the session keeps nothing for it.
    Away,
}

/// What a session held when it ended.
#[derive(Debug)]
pub(crate) struct Ended {
    /// Its filters.
    pub(crate) subscriptions: Filters,
    _rest: (Outbound, Inbound, RetainedBacklog),
}

/// A will whose connection may still have something to say about it.
#[derive(Debug)]
pub(crate) struct Parting {
    /// Of the connection.
    pub(crate) epoch: u64,
    pub(crate) will: Will,
    /// To be written down once it is published, or not to be.
    pub(crate) gone: Option<Change>,
}

/// Everything behind the lock.
#[derive(Debug)]
pub struct State {
    /// Counts the connections that the session has had: what an older one says is not heard.
    pub epoch: u64,
    /// None while the client is away.
    pub connected: Option<Connected>,
    /// To the present connection.
    pub outbox: Outbox,
    /// QoS 1 and 2 towards the client.
    pub outbound: Outbound,
    /// QoS 2 from the client.
    pub inbound: Inbound,
    /// Filters, as subscribed (with `$share/...`).
    pub subscriptions: Filters,
    /// How many of them are of share groups.
    pub shared_subscriptions: u32,
    /// What they take, by [`crate::limits::SUBSCRIPTIONS_BYTES_MAX`].
    pub subscriptions_bytes: usize,
    /// Armed while connected, and through the delay afterwards.
    pub will: Option<Box<Will>>,
    /// The will of a connection that was taken over: published when that connection is gone, unless it had said good-bye already.
    pub(crate) parting: Option<Box<Parting>>,
    /// What happens when the connection ends.
    pub expiry: SessionExpiry,
    /// The session is over; nothing more is put into it.
    pub ended: bool,
    /// It is on its way from or to another broker.
    pub(crate) moving: Option<Moving>,
    /// In a mesh: since when it is this broker's, by the stamp of its claim.
    pub(crate) claimed: u64,
    /// Its next claim is to have a later stamp than this.
    pub(crate) claims_above: u64,
    /// Its client had a connection elsewhere until it came here.
    pub(crate) taken_elsewhere: bool,
    /// Its client was connected when the broker's last life ended: it may have had more than was written down.
    pub(crate) is_cut_off: bool,
    /// Messages of QoS 0 are in the queue: as [`Outbound::qos0_waits`], where a delivery looks anyway.
    qos0_waits: bool,
    /// Where the client of the present connection is, if it is in a network; for people who look for it.
    pub(crate) address: Option<SocketAddr>,
    /// How often it was taken over.
    pub(crate) rivalry: Rivalry,
    /// Retained messages that new subscriptions are still to get.
    pub(crate) retained: RetainedBacklog,
    /// Its connection is not read from, because what it has sent cannot be acknowledged yet: its silence is ours.
    pub is_unread: bool,
    /// Where the session's changes are written down; none if it does not outlive the broker.
    pub(super) durable: Option<Box<Durable>>,
}

/// See the module's page.
#[derive(Debug)]
pub struct Subscriber {
    /// Of this process.
    pub id: SubscriberId,
    /// The client's own name.
    pub client_id: Arc<str>,
    /// When the client was last heard, in milliseconds of the router's clock: what its keep alive is measured by.
    pub heard_at_ms: AtomicU64,
    /// [`State::epoch`] for those who must not take the lock; 0 before the first connection and when the session has ended.
    epoch: AtomicU64,
    /// [`State::moving`] for those who must not take the lock. Who changes it makes routes void.
    is_moving: AtomicBool,
    /// It has a replica elsewhere: see [`Self::is_followed`].
    is_followed: AtomicBool,
    /// It came from another broker in this life of the broker: whatever is still to come is owed to it.
    is_owed: AtomicBool,
    access: ArcSwapOption<Access>,
    state: Mutex<State>,
}

impl Subscriber {
    /// A new session, not connected yet; with a journal it is durable.
    #[must_use]
    pub fn new(id: SubscriberId, client_id: Arc<str>, limits: OutboundLimits, journal: Option<&Arc<Journal>>) -> Self {
        let durable = journal.map(|journal| Box::new(Durable::new(id, Arc::clone(&client_id), Arc::clone(journal))));
        Self {
            id,
            client_id,
            heard_at_ms: AtomicU64::new(0),
            epoch: AtomicU64::new(0),
            is_moving: AtomicBool::new(false),
            is_followed: AtomicBool::new(false),
            is_owed: AtomicBool::new(false),
            access: ArcSwapOption::empty(),
            state: Mutex::new(State {
                // Its first connection is another than the last of one that was read from the disk.
                epoch: RESTORED_EPOCH,
                connected: None,
                outbox: Outbox::default(),
                outbound: Outbound::new(limits),
                inbound: Inbound::default(),
                subscriptions: Filters::default(),
                shared_subscriptions: 0,
                subscriptions_bytes: 0,
                will: None,
                parting: None,
                expiry: SessionExpiry::WithConnection,
                ended: false,
                moving: None,
                claimed: 0,
                claims_above: 0,
                taken_elsewhere: false,
                is_cut_off: false,
                qos0_waits: false,
                address: None,
                rivalry: Rivalry::default(),
                retained: RetainedBacklog::default(),
                is_unread: false,
                durable,
            }),
        }
    }

    /// Locks the state. Never while another subscriber's is held.
    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Gives the session, whose locked state is `state`, a new connection. The outbox begins anew with `connack`; what was in flight goes
    /// behind it.
    pub(crate) fn connect(
        &self,
        state: &mut State,
        writes: &mut Writes,
        connected: Connected,
        expiry: SessionExpiry,
        will: Option<Will>,
        connack: &[u8],
    ) -> u64 {
        if let Some(durable) = &mut state.durable {
            durable.owner = self.access().map(|access| access.owner()).unwrap_or_default();
            durable.claim = state.claimed;
        }
        let epoch = state.connect(writes, connected, expiry, will, connack);
        self.epoch.store(epoch, Ordering::Release);
        epoch
    }

    /// The session, whose locked state is `state`, is over. Gives all that it held, for the caller to drop when the lock is gone: a route that
    /// some publisher remembers may keep the session itself alive for long.
    #[must_use]
    pub(crate) fn end(&self, state: &mut State, writes: &mut Writes) -> Ended {
        self.epoch.store(0, Ordering::Release);
        state.end(writes)
    }

    /// A restarted broker has read the session; that was its last connection.
    pub(super) fn restored(&self, epoch: u64) {
        self.epoch.store(epoch, Ordering::Release);
    }

    pub(super) fn set_epoch(&self, epoch: u64) {
        self.epoch.store(epoch, Ordering::Release);
    }

    pub(super) fn set_moving(&self, is_moving: bool) {
        self.is_moving.store(is_moving, Ordering::Release);
    }

    pub(super) fn set_owed(&self) {
        self.is_owed.store(true, Ordering::Release);
    }

    /// Whether the places of its messages in the logs of their brokers matter: it is on its way between brokers, or has a replica at another. Then what is for it is
    /// wanted elsewhere.
    pub(crate) fn is_followed(&self) -> bool {
        self.is_moving() || self.is_followed.load(Ordering::Acquire)
    }

    /// The session, whose locked state is `state`, is about to have a replica, or has none any more. Whether it can have one. Who changes it makes routes void.
    pub(crate) fn follow(&self, state: &mut State, is_followed: bool) -> bool {
        let is_kept = !state.ended && state.expiry != SessionExpiry::WithConnection && state.moving.is_none();
        let Some(durable) = state.durable.as_mut().filter(|_| is_kept || !is_followed) else { return false };
        (durable.is_followed, durable.is_guarded) = (is_followed, false);
        self.is_followed.store(is_followed, Ordering::Release);
        true
    }

    /// Whether it is on its way between brokers.
    pub(crate) fn is_moving(&self) -> bool {
        self.is_moving.load(Ordering::Acquire)
    }

    /// Whether it came from another broker, with all that it had been given there: it is owed all else, also what was published while this broker was down.
    pub(crate) fn is_owed(&self) -> bool {
        self.is_owed.load(Ordering::Relaxed)
    }

    /// Whether connection `epoch` is the session's latest.
    #[must_use]
    pub fn is_latest(&self, epoch: u64) -> bool {
        self.epoch.load(Ordering::Acquire) == epoch
    }

    /// What the client may do. None: nobody has said, and everything is allowed.
    #[must_use]
    pub fn access(&self) -> Option<Arc<Access>> {
        self.access.load_full()
    }

    /// From now on the client may do what `access` says.
    pub(crate) fn set_access(&self, access: Option<Arc<Access>>) {
        self.access.store(access);
    }

    /// See [`Access::may_publish`].
    #[must_use]
    pub fn may_publish(&self, topic: &str) -> bool {
        self.access.load().as_ref().is_none_or(|access| access.may_publish(&self.client_id, topic))
    }

    /// See [`Access::may_receive`].
    #[must_use]
    pub fn may_receive(&self, topic: &str) -> bool {
        self.access.load().as_ref().is_none_or(|access| access.may_receive(&self.client_id, topic))
    }

    /// See [`Access::may_subscribe`].
    #[must_use]
    pub fn may_subscribe(&self, filter: &str) -> bool {
        self.access.load().as_ref().is_none_or(|access| access.may_subscribe(&self.client_id, filter))
    }

    /// The client was heard at `now_ms`, or will not be listened to before: the latest counts, so that a pause is one until its end. Said by one connection
    /// at a time.
    pub fn heard(&self, now_ms: u64) {
        if self.heard_at_ms.load(Ordering::Relaxed) < now_ms {
            self.heard_at_ms.store(now_ms, Ordering::Relaxed);
        }
    }
}

impl State {
    /// All messages of a run to a connected client of which nothing waits, to which each is no more than its packet, of at most its Maximum Packet Size. Says whether they
    /// were sent; if not, they are dropped, as its outbox is full. None: it is to take them one by one.
    pub fn deliver_run(&mut self, run: &mut Run, memory: Level, now: Instant) -> Option<(bool, Option<Waker>)> {
        let connected = self.connected.filter(|_| !self.ended && !self.qos0_waits)?;
        if self.outbox.aliases().is_some() {
            return None;
        }
        let packets = run.packets(connected.version, connected.packet_bytes_max, now)?;
        if self.outbox.is_full(memory) {
            return Some((false, None));
        }
        match packets {
            Encoded::Copied(bytes) => self.outbox.tail().extend_from_slice(bytes),
            Encoded::Shared(bytes) => self.outbox.push_packets(bytes),
        }
        Some((true, self.outbox.owner_to_wake()))
    }

    /// Puts `message` on its way. Returns the sleeping owner's waker, to be called after the lock is gone.
    pub fn deliver(
        &mut self,
        variants: &mut Variants,
        writes: &mut Writes,
        message: &Message<'_>,
        delivery: &Delivery<'_>,
        now: Instant,
    ) -> (Outcome, Option<Waker>) {
        if self.ended {
            return (Outcome::Away, None);
        }
        let Some(connected) = self.connected else {
            let outcome = self.deliver_away(variants, writes, message, delivery);
            let waits = if let Some(Moving::Shadow(shadow)) = &mut self.moving { shadow.take_waker() } else { None };
            return (outcome, waits);
        };
        let has_room = !self.outbox.is_full(variants.memory);
        if delivery.qos == QoS::AtMostOnce {
            if self.qos0_waits {
                return (self.queue(variants, writes, message, delivery), None);
            }
            if !has_room {
                return (Outcome::DroppedSlow, None);
            }
            let sent = variants.append(
                &mut self.outbox,
                message,
                delivery,
                connected.version,
                None,
                false,
                connected.packet_bytes_max,
                now,
            );
            return match sent {
                Ok(()) => (Outcome::Sent, self.outbox.owner_to_wake()),
                Err(_) => (Outcome::DroppedTooLarge, None),
            };
        }
        // The client must not know the identifier before the store does.
        if delivery.qos == QoS::ExactlyOnce && self.durable.is_some() {
            return self.deliver_when_safe(variants, writes, message, delivery, connected);
        }
        if !(has_room && self.outbound.is_open(connected.window)) {
            return (self.queue(variants, writes, message, delivery), None);
        }
        let kept = self.is_kept().then(|| Queued::new(variants.stored(message), delivery));
        match self.send_new(variants, writes, message, delivery, kept, connected, now) {
            true => (Outcome::Sent, self.outbox.owner_to_wake()),
            false => (Outcome::DroppedTooLarge, None),
        }
    }

    fn deliver_away(
        &mut self,
        variants: &mut Variants,
        writes: &mut Writes,
        message: &Message<'_>,
        delivery: &Delivery<'_>,
    ) -> Outcome {
        if !self.keeps(delivery.qos) || (self.moving.is_some() && delivery.qos == QoS::AtMostOnce) {
            return Outcome::Away;
        }
        self.queue(variants, writes, message, delivery)
    }

    /// Whether a message waits for a client that is away.
    fn keeps(&self, qos: QoS) -> bool {
        self.is_kept() && (qos != QoS::AtMostOnce || self.outbound.queues_qos0())
    }

    /// Whether a message of this QoS would have to wait in the session's queue if it came now.
    pub(crate) fn would_queue(&self, qos: QoS, memory: Level) -> bool {
        match self.connected {
            _ if self.ended || matches!(self.moving, Some(Moving::Shadow(_))) => false,
            None => self.keeps(qos),
            Some(_) if qos == QoS::AtMostOnce => self.qos0_waits,
            Some(connected) => self.outbox.is_full(memory) || !self.outbound.is_open(connected.window),
        }
    }

    fn queue(&mut self, variants: &mut Variants, writes: &mut Writes, message: &Message<'_>, delivery: &Delivery<'_>) -> Outcome {
        if let Some(Moving::Shadow(shadow)) = &mut self.moving {
            return shadow.arrive(variants, message, delivery);
        }
        if variants.memory == Level::Full {
            return Outcome::DroppedFull;
        }
        let durable = &self.durable;
        let dropped = self.outbound.make_room(message.bytes(), |order| {
            durable.iter().for_each(|durable| durable.remove(order));
        });
        let Some(dropped) = dropped else { return Outcome::DroppedFull };
        let mut queued = Queued::new(variants.stored(message), delivery);
        // QoS 0 is not kept on disk.
        if let Some(durable) = self.durable.as_mut().filter(|_| delivery.qos != QoS::AtMostOnce) {
            durable.place(writes, &mut queued, Stage::Queued, variants.source.as_ref());
        }
        if let Some(Moving::Coming { sources }) = &mut self.moving {
            sources.push(variants.source.clone());
            queued.order = sources.len() as Order;
        }
        self.outbound.enqueue(queued);
        self.qos0_waits = self.outbound.qos0_waits();
        if dropped > 0 { Outcome::QueuedInstead(dropped) } else { Outcome::Queued }
    }

    /// A QoS 2 message for a durable session: its owner sends it when it is safe.
    fn deliver_when_safe(
        &mut self,
        variants: &mut Variants,
        writes: &mut Writes,
        message: &Message<'_>,
        delivery: &Delivery<'_>,
        connected: Connected,
    ) -> (Outcome, Option<Waker>) {
        if self.outbound.queue_len() > 0 || !self.outbound.can_stage(connected.window) {
            return (self.queue(variants, writes, message, delivery), None);
        }
        let mut queued = Queued::new(variants.stored(message), delivery);
        if let Some(durable) = &mut self.durable {
            durable.place(writes, &mut queued, Stage::Published(self.outbound.next_serial()), variants.source.as_ref());
        }
        self.outbound.stage(queued);
        (Outcome::Staged, self.outbox.owner_to_wake())
    }

    /// What waits has come from elsewhere.
    pub(super) fn look_for_qos0(&mut self) {
        self.qos0_waits = self.outbound.qos0_waits();
    }

    fn is_kept(&self) -> bool {
        self.expiry != SessionExpiry::WithConnection
    }

    /// Sends a QoS 1 or 2 message, not kept before, for which the window has room.
    #[expect(clippy::too_many_arguments, reason = "each is a part of the delivery; a struct would be built for every one")]
    fn send_new(
        &mut self,
        variants: &mut Variants,
        writes: &mut Writes,
        message: &Message<'_>,
        delivery: &Delivery<'_>,
        mut kept: Option<Queued>,
        connected: Connected,
        now: Instant,
    ) -> bool {
        let placed = match (&mut self.durable, &mut kept) {
            (Some(durable), Some(queued)) => Some(durable.placing(queued, Stage::Published(self.outbound.next_serial()))),
            _ => None,
        };
        let is_sent = self.send(variants, message, delivery, kept, connected, now);
        if let (true, Some(placed), Some(durable)) = (is_sent, placed, &self.durable) {
            durable.name(writes, durable.placed, variants.source.as_ref());
            writes.push(placed);
        }
        is_sent
    }

    /// Sends a message; of QoS 1 or 2 only if the window has room.
    fn send(
        &mut self,
        variants: &mut Variants,
        message: &Message<'_>,
        delivery: &Delivery<'_>,
        kept: Option<Queued>,
        connected: Connected,
        now: Instant,
    ) -> bool {
        let id = (delivery.qos != QoS::AtMostOnce).then(|| self.outbound.send(delivery.qos, message.bytes(), kept));
        let sent =
            variants.append(&mut self.outbox, message, delivery, connected.version, id, false, connected.packet_bytes_max, now);
        if sent.is_err() && id.is_some() {
            self.outbound.unsend();
        }
        sent.is_ok()
    }

    /// Whether anything waits for room: redelivery, queue or retained messages.
    #[must_use]
    pub fn has_backlog(&self) -> bool {
        self.outbound.queue_len() > 0 || !self.retained.is_empty() || self.outbound.needs_resend()
    }

    /// Moves what waits into the outbox, as far as window and outbox allow: first what is sent again, or is safe now, then the queue. What the
    /// client may no longer receive is dropped.
    pub fn pump(&mut self, variants: &mut Variants, may_receive: impl Fn(&str) -> bool, now: Instant) -> Pumped {
        let mut pumped = Pumped::default();
        let Some(connected) = self.connected else { return pumped };
        self.pump_in_flight(variants, &may_receive, connected, now, &mut pumped);
        self.pump_queue(variants, &may_receive, connected, now, &mut pumped);
        self.qos0_waits = self.outbound.qos0_waits();
        pumped
    }

    fn pump_in_flight(
        &mut self,
        variants: &mut Variants,
        may_receive: &impl Fn(&str) -> bool,
        connected: Connected,
        now: Instant,
        pumped: &mut Pumped,
    ) {
        while !self.outbox.is_full(variants.memory) {
            let gate = self.durable.as_ref().map(|durable| durable.gate());
            let Some(resend) = self.outbound.resend(connected.window, gate) else { break };
            let (id, queued, dup) = match resend {
                Resend::PubRel(id) => {
                    self.send_pubrel(id, connected.version);
                    continue;
                }
                Resend::Publish { id, queued, dup } => (id, queued, dup),
            };
            // The right was taken away meanwhile.
            if !may_receive(&queued.message.topic) {
                self.forget(id);
                pumped.denied += 1;
                continue;
            }
            // An exchange under way runs to its end whatever its expiry [MQTT-4.3.3-7]; this one may not have begun.
            if !dup && queued.message.expires_at.is_some_and(|at| at <= now) {
                self.forget(id);
                pumped.expired += 1;
                continue;
            }
            variants.begin_stored(&queued.message);
            let sent = variants.append(
                &mut self.outbox,
                &queued.message.borrow(),
                &queued.delivery(),
                connected.version,
                Some(id),
                dup,
                connected.packet_bytes_max,
                now,
            );
            match sent {
                Ok(()) => pumped.count_sent(queued.message.payload.len()),
                Err(_) => {
                    self.forget(id);
                    pumped.too_large += 1;
                }
            }
        }
    }

    fn pump_queue(
        &mut self,
        variants: &mut Variants,
        may_receive: &impl Fn(&str) -> bool,
        connected: Connected,
        now: Instant,
        pumped: &mut Pumped,
    ) {
        while !self.outbox.is_full(variants.memory) {
            let may_go = self.outbound.may_dequeue(connected.window);
            // In a durable session what must be safe first is put in flight all the same, and what stands behind such a message with it.
            let may_stage = self.durable.is_some() && self.outbound.can_stage(connected.window);
            if !may_go && !may_stage {
                break;
            }
            let Some(queued) = self.outbound.dequeue() else { break };
            let order = queued.order;
            if queued.message.expires_at.is_some_and(|at| at <= now) {
                pumped.expired += 1;
                self.removed(order);
                continue;
            }
            if !may_receive(&queued.message.topic) {
                pumped.denied += 1;
                self.removed(order);
                continue;
            }
            if let Some(durable) = self.durable.as_ref().filter(|_| queued.qos != QoS::AtMostOnce) {
                let number = durable.stage(order, Stage::Published(self.outbound.next_serial()));
                if !may_go || queued.qos == QoS::ExactlyOnce {
                    self.outbound.stage(queued);
                    self.outbound.staged(number);
                    continue;
                }
            }
            variants.begin_stored(&queued.message);
            let kept = self.is_kept().then(|| queued.clone());
            match self.send(variants, &queued.message.borrow(), &queued.delivery(), kept, connected, now) {
                true => pumped.count_sent(queued.message.payload.len()),
                false => {
                    self.removed(order);
                    pumped.too_large += 1;
                }
            }
        }
    }

    /// Whether a message in flight is to be sent now, or when it is safe.
    #[must_use]
    pub fn next_to_send(&self) -> NextToSend {
        match (&self.durable, self.connected) {
            (Some(durable), Some(connected)) => self.outbound.next_to_send(connected.window, durable.gate()),
            _ => NextToSend::Nothing,
        }
    }

    fn forget(&mut self, id: PacketId) {
        if let Some(order) = self.outbound.forget(id) {
            self.removed(order);
        }
    }

    fn removed(&self, order: Order) {
        if let Some(durable) = &self.durable {
            durable.remove(order);
        }
    }

    /// PUBACK arrived.
    ///
    /// # Errors
    /// When the identifier is that of another exchange.
    pub fn puback(&mut self, id: PacketId) -> Result<(), OutOfOrder> {
        if let Some(order) = self.outbound.puback(id)? {
            self.removed(order);
        }
        Ok(())
    }

    /// PUBREC arrived. Whether the identifier is known, and the change that must be safe before PUBREL is sent, where one must.
    ///
    /// # Errors
    /// When the identifier is that of another exchange.
    pub fn pubrec(&mut self, id: PacketId, refused: bool) -> Result<(bool, Option<Awaited>), OutOfOrder> {
        let known = self.outbound.pubrec(id, refused)?;
        let Some(durable) = &self.durable else { return Ok((known != PubRec::Unknown, None)) };
        Ok(match known {
            PubRec::Unknown => (false, None),
            PubRec::Refused(order) => {
                durable.remove(order);
                (true, None)
            }
            PubRec::Released(order, serial) => {
                let number = durable.stage(order, Stage::Released(serial));
                self.outbound.released(order, number);
                (true, Some(durable.awaited(number)))
            }
            PubRec::Again(number) => (true, Some(durable.awaited(number))),
        })
    }

    /// PUBCOMP arrived.
    ///
    /// # Errors
    /// When the identifier is that of another exchange.
    pub fn pubcomp(&mut self, id: PacketId) -> Result<(), OutOfOrder> {
        if let Some(order) = self.outbound.pubcomp(id)? {
            self.removed(order);
        }
        Ok(())
    }

    /// A QoS 2 PUBLISH arrived: see [`Inbound::receive`].
    ///
    /// # Errors
    /// When `maximum` messages are open already.
    pub fn receive(&mut self, writes: &mut Writes, id: PacketId, maximum: usize) -> Result<bool, QuotaExceeded> {
        let is_new = self.inbound.receive(id, maximum)?;
        if let Some(durable) = &mut self.durable {
            match is_new {
                true => durable.identify(writes, Change::Received(durable.session, id)),
                false => durable.wait_for_all(writes),
            }
        }
        Ok(is_new)
    }

    /// PUBREL arrived: see [`Inbound::release`].
    pub fn pubrel(&mut self, writes: &mut Writes, id: PacketId) -> bool {
        let was_open = self.release(writes, id);
        if let (Some(durable), false) = (&self.durable, was_open) {
            // With PUBCOMP the client uses the identifier again: that it is free must be as safe as the first time.
            durable.wait_for_all(writes);
        }
        was_open
    }

    /// The message was refused, and its exchange is over.
    pub fn release(&mut self, writes: &mut Writes, id: PacketId) -> bool {
        let was_open = self.inbound.release(id);
        if let (Some(durable), true) = (&mut self.durable, was_open) {
            durable.identify(writes, Change::Completed(durable.session, id));
        }
        was_open
    }

    /// The other side has forgotten what it had sent: none of its identifiers is open any more.
    pub fn release_all(&mut self, writes: &mut Writes) {
        for id in self.inbound.take_all() {
            if let Some(durable) = &mut self.durable {
                durable.identify(writes, Change::Completed(durable.session, id));
            }
        }
    }

    /// What the connection says is not heard any more: the session has gone on elsewhere, or is about to.
    #[must_use]
    pub fn is_elsewhere(&self) -> bool {
        self.moving.is_some() || self.ended
    }

    /// Whether it outlives the broker.
    #[must_use]
    pub fn is_durable(&self) -> bool {
        self.durable.is_some()
    }

    /// A subscription was made or changed. The change that must be safe before it is acknowledged, where one must.
    pub(crate) fn subscribed(&self, filter: &str, options: &SubscriptionOptions) -> Option<u64> {
        self.durable.as_ref().map(|durable| durable.subscribed(filter, options))
    }

    /// A subscription is as it was, or was not there: what made it so must be safe, too.
    pub(crate) fn as_before(&self) -> Option<u64> {
        self.durable.as_ref().map(|durable| durable.journal.last())
    }

    /// A subscription is gone. See [`Self::subscribed`].
    pub(crate) fn unsubscribed(&self, filter: &str) -> Option<u64> {
        self.durable.as_ref().map(|durable| durable.unsubscribed(filter))
    }

    fn send_pubrel(&mut self, id: PacketId, version: ProtocolVersion) {
        let ack = Packet::PubRel(Ack::success(id));
        // An acknowledgement without properties always encodes.
        let _ = codec::encode(self.outbox.tail(), version, &ack);
    }

    /// A retained message for a new subscription; the caller has checked that the outbox has room.
    pub(crate) fn deliver_retained(
        &mut self,
        variants: &mut Variants,
        writes: &mut Writes,
        message: &Arc<StoredMessage>,
        options: &SubscriptionOptions,
        now: Instant,
    ) -> Outcome {
        variants.begin_stored(message);
        let ids: &[u32] = options.subscription_id.as_slice();
        let delivery = Delivery { qos: message.qos.min(options.qos), retain: true, dup: false, subscription_ids: ids };
        self.deliver(variants, writes, &message.borrow(), &delivery, now).0
    }

    fn connect(
        &mut self,
        writes: &mut Writes,
        connected: Connected,
        expiry: SessionExpiry,
        will: Option<Will>,
        connack: &[u8],
    ) -> u64 {
        self.epoch += 1;
        drop(self.take_given_by_groups());
        self.is_unread = false;
        self.connected = Some(connected);
        self.expiry = expiry;
        self.will = will.map(Box::new);
        self.outbox.reset();
        self.outbox.allow_aliases(connected.topic_alias_max);
        self.outbox.tail().extend_from_slice(connack);
        self.outbound.resume();
        self.inbound.resume();
        let is_kept = self.is_kept();
        match &mut self.durable {
            // From now on it ends with its connection.
            Some(durable) if !is_kept => {
                writes.push(Change::Ended(durable.session));
                self.durable = None;
            }
            Some(durable) => durable.connected(writes, expiry, self.epoch, self.will.as_deref()),
            None => {}
        }
        self.epoch
    }

    /// The connection is gone, at `now`. What the outbox held of QoS 1 and 2 is still in flight.
    pub(crate) fn disconnect(&mut self, expiry: Option<SessionExpiry>, now: Instant) {
        self.connected = None;
        // Whom we are about to close because his user is gone does not say any more how long his session lasts.
        if self.outbox.closing() != Some(ReasonCode::NotAuthorized) {
            self.expiry = expiry.unwrap_or(self.expiry);
        }
        self.outbox.reset();
        // What a kept session was promised is part of it (MQTT 5.0 section 4.1).
        if !self.is_kept() {
            self.retained = RetainedBacklog::default();
        } else if let Some(durable) = &mut self.durable {
            durable.left(self.expiry, now);
        }
    }

    /// What is written when the session's present will is published or cancelled.
    pub(crate) fn will_gone(&self) -> Option<Change> {
        self.durable.as_ref().map(|durable| Change::WillGone(durable.session, self.epoch))
    }

    fn end(&mut self, writes: &mut Writes) -> Ended {
        self.ended = true;
        if let Some(durable) = self.durable.take() {
            writes.push(Change::Ended(durable.session));
        }
        Ended {
            subscriptions: std::mem::take(&mut self.subscriptions),
            _rest: (std::mem::take(&mut self.outbound), std::mem::take(&mut self.inbound), std::mem::take(&mut self.retained)),
        }
    }

    /// Ends the connection after what waits is written, with `reason` for an MQTT 5 client.
    pub fn close(&mut self, reason: ReasonCode) -> Option<Waker> {
        self.outbox.close(reason)
    }
}

/// What [`State::pump`] did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pumped {
    /// Messages put into the outbox.
    pub sent: u64,
    /// Bytes of their payloads.
    pub sent_bytes: u64,
    /// Messages dropped because they expired in the queue.
    pub expired: u64,
    /// Messages dropped because the client takes no packet of that size.
    pub too_large: u64,
    /// Messages dropped because the client may no longer receive them.
    pub denied: u64,
}

impl Pumped {
    fn count_sent(&mut self, bytes: usize) {
        self.sent += 1;
        self.sent_bytes += bytes as u64;
    }
}
