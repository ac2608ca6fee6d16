//! A subscriber: the session and its outbox behind one lock.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Waker;
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;
use parking_lot::{Mutex, MutexGuard};

use super::inbound::Inbound;
use super::message::{Delivery, Message, StoredMessage, Will};
use super::outbound::{Outbound, OutboundLimits, Queued, Resend};
use super::outbox::Outbox;
use super::retained::RetainedBacklog;
use super::rivalry::Rivalry;
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
    /// Where the client is, if it is in a network; for people who look for it.
    pub address: Option<SocketAddr>,
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
    pub(crate) subscriptions: HashMap<Box<str>, SubscriptionOptions, ahash::RandomState>,
    _rest: (Outbound, Inbound, RetainedBacklog),
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
    pub subscriptions: HashMap<Box<str>, SubscriptionOptions, ahash::RandomState>,
    /// What they take, by [`crate::limits::SUBSCRIPTIONS_BYTES_MAX`].
    pub subscriptions_bytes: usize,
    /// Armed while connected, and through the delay afterwards.
    pub will: Option<Will>,
    /// What happens when the connection ends.
    pub expiry: SessionExpiry,
    /// The session is over; nothing more is put into it.
    pub ended: bool,
    /// How often it was taken over.
    pub(crate) rivalry: Rivalry,
    /// Retained messages that new subscriptions are still to get.
    pub(crate) retained: RetainedBacklog,
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
    access: ArcSwapOption<Access>,
    state: Mutex<State>,
}

impl Subscriber {
    /// A new session, not connected yet.
    #[must_use]
    pub fn new(id: SubscriberId, client_id: Arc<str>, limits: OutboundLimits) -> Self {
        Self {
            id,
            client_id,
            heard_at_ms: AtomicU64::new(0),
            epoch: AtomicU64::new(0),
            access: ArcSwapOption::empty(),
            state: Mutex::new(State {
                epoch: 0,
                connected: None,
                outbox: Outbox::default(),
                outbound: Outbound::new(limits),
                inbound: Inbound::default(),
                subscriptions: HashMap::default(),
                subscriptions_bytes: 0,
                will: None,
                expiry: SessionExpiry::WithConnection,
                ended: false,
                rivalry: Rivalry::default(),
                retained: RetainedBacklog::default(),
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
        connected: Connected,
        expiry: SessionExpiry,
        will: Option<Will>,
        connack: &[u8],
    ) -> u64 {
        let epoch = state.connect(connected, expiry, will, connack);
        self.epoch.store(epoch, Ordering::Release);
        epoch
    }

    /// The session, whose locked state is `state`, is over. Gives all that it held, for the caller to drop when the lock is gone: a route that
    /// some publisher remembers may keep the session itself alive for long.
    #[must_use]
    pub(crate) fn end(&self, state: &mut State) -> Ended {
        self.epoch.store(0, Ordering::Release);
        state.end()
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

    /// The client was heard at `now_ms`.
    pub fn heard(&self, now_ms: u64) {
        self.heard_at_ms.store(now_ms, Ordering::Relaxed);
    }
}

impl State {
    /// Puts `message` on its way. Returns the sleeping owner's waker, to be called after the lock is gone.
    pub fn deliver(
        &mut self,
        variants: &mut Variants,
        message: &Message<'_>,
        delivery: &Delivery<'_>,
        now: Instant,
    ) -> (Outcome, Option<Waker>) {
        if self.ended {
            return (Outcome::Away, None);
        }
        let Some(connected) = self.connected else {
            return (self.deliver_away(variants, message, delivery), None);
        };
        let has_room = !self.outbox.is_full(variants.memory);
        if delivery.qos == QoS::AtMostOnce {
            if self.outbound.qos0_waits() {
                return (self.queue(variants, message, delivery), None);
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
        if !(has_room && self.outbound.is_open(connected.window)) {
            return (self.queue(variants, message, delivery), None);
        }
        let kept = self.is_kept().then(|| Queued::new(variants.stored(message), delivery));
        match self.send(variants, message, delivery, kept, connected, now) {
            true => (Outcome::Sent, self.outbox.owner_to_wake()),
            false => (Outcome::DroppedTooLarge, None),
        }
    }

    fn deliver_away(&mut self, variants: &mut Variants, message: &Message<'_>, delivery: &Delivery<'_>) -> Outcome {
        if !self.keeps(delivery.qos) {
            return Outcome::Away;
        }
        self.queue(variants, message, delivery)
    }

    /// Whether a message waits for a client that is away.
    fn keeps(&self, qos: QoS) -> bool {
        self.is_kept() && (qos != QoS::AtMostOnce || self.outbound.queues_qos0())
    }

    /// Whether a message of this QoS would have to wait in the session's queue if it came now.
    pub(crate) fn would_queue(&self, qos: QoS, memory: Level) -> bool {
        match self.connected {
            _ if self.ended => false,
            None => self.keeps(qos),
            Some(_) if qos == QoS::AtMostOnce => self.outbound.qos0_waits(),
            Some(connected) => self.outbox.is_full(memory) || !self.outbound.is_open(connected.window),
        }
    }

    fn queue(&mut self, variants: &mut Variants, message: &Message<'_>, delivery: &Delivery<'_>) -> Outcome {
        if variants.memory == Level::Full {
            return Outcome::DroppedFull;
        }
        let Some(dropped) = self.outbound.make_room(message.bytes()) else { return Outcome::DroppedFull };
        self.outbound.enqueue(Queued::new(variants.stored(message), delivery));
        if dropped > 0 { Outcome::QueuedInstead(dropped) } else { Outcome::Queued }
    }

    fn is_kept(&self) -> bool {
        self.expiry != SessionExpiry::WithConnection
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

    /// Moves what waits into the outbox, as far as window and outbox allow: first what is sent again, then the queue. What the
    /// client may no longer receive is dropped.
    pub fn pump(&mut self, variants: &mut Variants, may_receive: impl Fn(&str) -> bool, now: Instant) -> Pumped {
        let mut pumped = Pumped::default();
        let Some(connected) = self.connected else { return pumped };
        while !self.outbox.is_full(variants.memory) {
            let Some(resend) = self.outbound.resend(connected.window) else { break };
            match resend {
                Resend::PubRel(id) => self.send_pubrel(id, connected.version),
                // The right was taken away meanwhile.
                Resend::Publish(id, queued) if !may_receive(&queued.message.topic) => {
                    self.outbound.forget(id);
                    pumped.denied += 1;
                }
                Resend::Publish(id, queued) => {
                    // An exchange under way runs to its end whatever its expiry [MQTT-4.3.3-7].
                    let message = queued.message.borrow();
                    variants.begin_stored(&queued.message);
                    let sent = variants.append(
                        &mut self.outbox,
                        &message,
                        &queued.delivery(),
                        connected.version,
                        Some(id),
                        true,
                        connected.packet_bytes_max,
                        now,
                    );
                    match sent {
                        Ok(()) => pumped.count_sent(message.payload.len()),
                        Err(_) => {
                            self.outbound.forget(id);
                            pumped.too_large += 1;
                        }
                    }
                }
            }
        }
        while !self.outbox.is_full(variants.memory) && self.outbound.may_dequeue(connected.window) {
            let Some(queued) = self.outbound.dequeue() else { break };
            if queued.message.expires_at.is_some_and(|at| at <= now) {
                pumped.expired += 1;
                continue;
            }
            if !may_receive(&queued.message.topic) {
                pumped.denied += 1;
                continue;
            }
            variants.begin_stored(&queued.message);
            let kept = self.is_kept().then(|| queued.clone());
            match self.send(variants, &queued.message.borrow(), &queued.delivery(), kept, connected, now) {
                true => pumped.count_sent(queued.message.payload.len()),
                false => pumped.too_large += 1,
            }
        }
        pumped
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
        message: &Arc<StoredMessage>,
        options: &SubscriptionOptions,
        now: Instant,
    ) -> Outcome {
        variants.begin_stored(message);
        let ids: &[u32] = options.subscription_id.as_slice();
        let delivery = Delivery { qos: message.qos.min(options.qos), retain: true, subscription_ids: ids };
        self.deliver(variants, &message.borrow(), &delivery, now).0
    }

    fn connect(&mut self, connected: Connected, expiry: SessionExpiry, will: Option<Will>, connack: &[u8]) -> u64 {
        self.epoch += 1;
        self.connected = Some(connected);
        self.expiry = expiry;
        self.will = will;
        self.outbox.reset();
        self.outbox.allow_aliases(connected.topic_alias_max);
        self.outbox.tail().extend_from_slice(connack);
        self.outbound.resume();
        self.inbound.resume();
        self.epoch
    }

    /// The connection is gone. What the outbox held of QoS 1 and 2 is still in flight.
    pub(crate) fn disconnect(&mut self) {
        self.connected = None;
        self.outbox.reset();
        // What a kept session was promised is part of it (MQTT 5.0 section 4.1).
        if !self.is_kept() {
            self.retained = RetainedBacklog::default();
        }
    }

    fn end(&mut self) -> Ended {
        self.ended = true;
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
