//! The replica of another broker's session: what is in it, known by where the messages stand in the logs of their brokers, so that none has to be copied.
//!
//! It is subscribed as the session is, and is given all messages itself ([`Shadow::arrive`]). What the session's broker says of them comes with their *order* in the session, at its
//! beginning also as a [`Copy`](struct@Copy) of what was in it by then, and in the order in which the broker has written it down. Both come as they come: a message before it is
//! spoken of, or after; what has arrived and was not spoken of is *unlisted*: either the broker has not come so far, or it gave the message to nobody ([`Shadow::trim`]).
//!
//! Invariant, once it is [whole](Shadow::is_whole): of QoS 2 messages that the client may have been sent it has the messages and their identifiers, or knows that the client has
//! released them. So it can go on in the session's place ([`Subscriber::emerge`]).

use std::collections::hash_map::Entry as Slot;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use atomic_waker::AtomicWaker;

use super::change::{Change, Entry, Order, Stage};
use super::durable::{RESTORED_EPOCH, suppose_sent};
use super::journal::Journal;
use super::message::{Delivery, Message};
use super::moved::{MovedContent, Moving, Source};
use super::outbound::{OutboundLimits, Queued};
use super::subscriber::{Outcome, SessionExpiry, State, Subscriber};
use super::variants::Variants;
use crate::auth::Access;
use crate::codec::{PacketId, QoS};
use crate::ids::MessageId;
use crate::limits::SHADOW_SPARE_MESSAGES;
use crate::pressure::Level;

/// What is in a session, with the orders of its entries.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Copy {
    pub(crate) content: MovedContent,
    /// One each entry.
    pub(crate) orders: Vec<Order>,
    /// How many messages were placed so far: what is said of the placing of these comes late.
    pub(crate) placed: Order,
}

impl Copy {
    /// Of a session. QoS 0 is not replicated.
    pub(crate) fn of(state: &State) -> Self {
        let kept = state.outbound.entries().filter(|(order, entry)| *order > 0 && entry.qos != QoS::AtMostOnce);
        let (orders, entries) = kept.unzip();
        let content = MovedContent { entries, received: state.inbound.open().collect() };
        Self { content, orders, placed: state.placed() }
    }
}

/// A message of which the session's broker has spoken.
#[derive(Debug)]
struct Item {
    id: Option<MessageId>,
    qos: QoS,
    stage: Stage,
    /// None: it has not arrived, or is not needed any more.
    message: Option<Entry>,
    /// The session's broker waits for it to arrive.
    is_awaited: bool,
}

#[derive(Clone, Copy, Debug)]
enum Early {
    Staged(Stage),
    Removed,
}

/// That a replica has been given what was awaited there, or has given up.
#[derive(Debug, Default)]
pub(crate) struct News {
    is_there: AtomicBool,
    waker: AtomicWaker,
}

impl News {
    /// Gives whom to wake.
    fn tell(&self) -> Option<Waker> {
        self.is_there.store(true, Ordering::Release);
        self.waker.take()
    }

    /// Ready where there is some; until then the one task that looks is woken when there is.
    pub(crate) fn poll(&self, context: &mut Context<'_>) -> Poll<()> {
        self.waker.register(context.waker());
        if self.is_there.swap(false, Ordering::AcqRel) { Poll::Ready(()) } else { Poll::Pending }
    }
}

/// See the module's page.
#[derive(Debug)]
pub(crate) struct Shadow {
    items: BTreeMap<Order, Item>,
    /// Those that have not arrived, and are to.
    missing: HashMap<MessageId, Order, ahash::RandomState>,
    /// What was said of messages before they were placed.
    early: HashMap<Order, Early, ahash::RandomState>,
    /// Placings up to this one come late.
    placed: Order,
    /// Messages that are needed no more before they have arrived.
    gone: HashSet<MessageId, ahash::RandomState>,
    /// What has arrived, by its turn.
    unlisted: BTreeMap<u64, (MessageId, Entry)>,
    turns: HashMap<MessageId, u64, ahash::RandomState>,
    /// Likewise, published here in a batch that may not have ended.
    unnamed: Vec<(u64, Arc<OnceLock<MessageId>>, Entry)>,
    arrived: u64,
    /// How often an identifier was received more than it was completed.
    received: HashMap<PacketId, i32, ahash::RandomState>,
    /// Of QoS 2, and the client may have been sent them: until they have arrived it is not whole.
    owed: HashSet<MessageId, ahash::RandomState>,
    is_copied: bool,
    is_guarded: bool,
    /// It could not keep up.
    is_broken: bool,
    messages_max: usize,
    bytes_max: usize,
    bytes: usize,
    /// What the session itself may hold, messages and bytes, and whether it drops the oldest beyond: so does this while [nobody speaks of it](Self::set_alone).
    bounds: (usize, usize, bool),
    is_alone: bool,
    /// It has dropped something while it was.
    has_dropped: bool,
    news: Arc<News>,
    has_news: bool,
}

impl Shadow {
    /// Empty. It may hold more than the session that it follows, which has come further than the messages at times.
    fn new(limits: OutboundLimits, news: Arc<News>) -> Self {
        let twice =
            |queued: usize, in_flight: usize, more: usize| queued.saturating_add(in_flight).saturating_mul(2).saturating_add(more);
        Self {
            items: BTreeMap::new(),
            missing: HashMap::default(),
            early: HashMap::default(),
            placed: 0,
            gone: HashSet::default(),
            unlisted: BTreeMap::new(),
            turns: HashMap::default(),
            unnamed: Vec::new(),
            arrived: 0,
            received: HashMap::default(),
            owed: HashSet::default(),
            is_copied: false,
            is_guarded: false,
            is_broken: false,
            messages_max: twice(
                usize::try_from(limits.queued_messages_max).unwrap_or(usize::MAX),
                limits.inflight_max.into(),
                SHADOW_SPARE_MESSAGES,
            ),
            bytes_max: twice(limits.queued_bytes_max, limits.inflight_bytes_max, SHADOW_SPARE_MESSAGES * 1_024),
            bytes: 0,
            bounds: (
                usize::try_from(limits.queued_messages_max).unwrap_or(usize::MAX).saturating_add(limits.inflight_max.into()),
                limits.queued_bytes_max.saturating_add(limits.inflight_bytes_max),
                limits.drop_oldest,
            ),
            is_alone: false,
            has_dropped: false,
            news,
            has_news: false,
        }
    }

    /// It could not keep up, and holds nothing any more.
    pub(crate) fn is_broken(&self) -> bool {
        self.is_broken
    }

    /// It can take the session's place.
    pub(crate) fn is_whole(&self) -> bool {
        self.is_copied && self.is_guarded && self.owed.is_empty() && !self.is_broken
    }

    /// It can take the session's place no more.
    pub(crate) fn give_up(&mut self) {
        self.is_broken = true;
        self.items = BTreeMap::new();
        self.unlisted = BTreeMap::new();
        (self.missing, self.turns, self.early) = Default::default();
        (self.gone, self.owed) = Default::default();
        self.unnamed = Vec::new();
        self.has_news = true;
    }

    fn check(&mut self) {
        let spoken_of = self.early.len().max(self.gone.len());
        let count = self.items.len() + self.unlisted.len() + self.unnamed.len();
        if count > self.messages_max || spoken_of > self.messages_max || self.bytes > self.bytes_max {
            self.give_up();
        }
    }

    /// The session's broker cannot be reached, and does not say what becomes of messages; or can again. What was dropped meanwhile as a session would drop it is there no more when that broker
    /// speaks of it.
    pub(crate) fn set_alone(&mut self, is_alone: bool) {
        self.is_alone = is_alone;
        if !is_alone && self.has_dropped {
            self.give_up();
        }
    }

    /// Whether there is room for a message, where the oldest may have gone for it.
    fn make_room(&mut self) -> bool {
        let (messages_max, bytes_max, drop_oldest) = self.bounds;
        while self.items.len() + self.unlisted.len() + self.unnamed.len() >= messages_max || self.bytes >= bytes_max {
            self.has_dropped = true;
            let Some((_, (id, entry))) = drop_oldest.then(|| self.unlisted.pop_first()).flatten() else { return false };
            self.turns.remove(&id);
            self.bytes = self.bytes.saturating_sub(entry.message.bytes());
        }
        true
    }

    /// A message that the session is to be given has come to this broker.
    pub(super) fn arrive(&mut self, variants: &mut Variants, message: &Message<'_>, delivery: &Delivery<'_>) -> Outcome {
        let Some(source) = variants.source.clone().filter(|_| !self.is_broken && variants.memory != Level::Full) else {
            self.give_up();
            // Nobody has lost it: the session's own broker has it.
            return Outcome::Away;
        };
        if self.is_alone && !self.make_room() {
            return Outcome::DroppedFull;
        }
        let entry = Queued::new(variants.stored(message), delivery).entry(Stage::Queued);
        self.arrived += 1;
        match source {
            Source::Link(id) => self.put(self.arrived, id, entry),
            Source::Own(id) => {
                self.bytes += entry.message.bytes();
                self.unnamed.push((self.arrived, id, entry));
            }
        }
        self.check();
        // Nobody's queue here is longer for it: whoever publishes need not wait.
        Outcome::Staged
    }

    /// Whom to wake for what has arrived.
    pub(super) fn take_waker(&mut self) -> Option<Waker> {
        if std::mem::take(&mut self.has_news) { self.news.tell() } else { None }
    }

    fn put(&mut self, turn: u64, id: MessageId, entry: Entry) {
        self.owed.remove(&id);
        if self.gone.remove(&id) {
            return;
        }
        let item = self.missing.remove(&id).and_then(|order| self.items.get_mut(&order));
        self.bytes += entry.message.bytes();
        match item {
            Some(item) => {
                item.message = Some(entry);
                self.has_news |= std::mem::take(&mut item.is_awaited);
            }
            None => {
                self.turns.insert(id, turn);
                self.unlisted.insert(turn, (id, entry));
            }
        }
    }

    /// What was published here and has an id by now.
    fn name(&mut self) {
        if self.unnamed.is_empty() {
            return;
        }
        for (turn, id, entry) in std::mem::take(&mut self.unnamed) {
            match id.get() {
                Some(named) => {
                    self.bytes = self.bytes.saturating_sub(entry.message.bytes());
                    self.put(turn, *named, entry);
                }
                None => self.unnamed.push((turn, id, entry)),
            }
        }
    }

    fn take_unlisted(&mut self, id: &MessageId) -> Option<Entry> {
        let turn = self.turns.remove(id)?;
        self.unlisted.remove(&turn).map(|(_, entry)| entry)
    }

    /// Drops what has arrived and was not spoken of, and will not be: `is_dealt_with`.
    pub(crate) fn trim(&mut self, is_dealt_with: impl Fn(&MessageId) -> bool) {
        self.name();
        let Self { unlisted, turns, bytes, .. } = self;
        unlisted.retain(|_, (id, entry)| {
            let is_over = is_dealt_with(id);
            if is_over {
                turns.remove(id);
                *bytes = bytes.saturating_sub(entry.message.bytes());
            }
            !is_over
        });
    }

    /// Whether something has arrived that was not spoken of.
    pub(crate) fn has_unlisted(&self) -> bool {
        !(self.unlisted.is_empty() && self.unnamed.is_empty())
    }

    /// What was in the session.
    pub(crate) fn copy(&mut self, copy: Copy) {
        let Copy { content: MovedContent { entries, received }, orders, placed } = copy;
        for (order, entry) in orders.into_iter().zip(entries) {
            self.bytes += entry.message.bytes();
            let (qos, stage) = (entry.qos, entry.stage);
            let message = (!matches!(stage, Stage::Released(_))).then_some(entry);
            self.items.insert(order, Item { id: None, qos, stage, message, is_awaited: false });
        }
        self.received = received.into_iter().map(|id| (id, 1)).collect();
        (self.placed, self.is_copied) = (placed, true);
        self.check();
    }

    /// A message was placed: one with an `id`, which arrives here by itself, or one that comes with it.
    pub(crate) fn place(&mut self, order: Order, id: Option<MessageId>, qos: QoS, stage: Stage, whole: Option<Entry>) {
        if order <= self.placed || self.is_broken {
            return;
        }
        self.name();
        let (stage, is_removed) = match self.early.remove(&order) {
            Some(Early::Removed) => (stage, true),
            Some(Early::Staged(stage)) => (stage, false),
            None => (stage, false),
        };
        let is_needed = !is_removed && !matches!(stage, Stage::Released(_));
        let arrived = id.and_then(|id| self.take_unlisted(&id));
        if let Some(id) = id.filter(|_| arrived.is_none()) {
            if is_needed {
                self.missing.insert(id, order);
            } else {
                self.forget(id, qos);
            }
        }
        if arrived.is_some() && !is_needed {
            self.bytes = self.bytes.saturating_sub(arrived.as_ref().map_or(0, |entry| entry.message.bytes()));
        }
        if let Some(whole) = &whole
            && is_needed
        {
            self.bytes += whole.message.bytes();
        }
        if !is_removed {
            let message = arrived.or(whole).filter(|_| is_needed);
            self.items.insert(order, Item { id, qos, stage, message, is_awaited: false });
        }
        self.check();
    }

    /// It is not needed any more when it arrives.
    fn forget(&mut self, id: MessageId, qos: QoS) {
        self.gone.insert(id);
        if qos == QoS::ExactlyOnce && !self.is_guarded {
            self.owed.insert(id);
        }
    }

    fn release(&mut self, item: &mut Item) {
        match (item.message.take(), item.id) {
            (Some(entry), _) => self.bytes = self.bytes.saturating_sub(entry.message.bytes()),
            (None, Some(id)) if self.missing.remove(&id).is_some() => self.forget(id, item.qos),
            _ => {}
        }
    }

    /// A message has come further.
    pub(crate) fn stage(&mut self, order: Order, stage: Stage) {
        if self.is_broken {
            return;
        }
        let Some(mut item) = self.items.remove(&order) else {
            if order > self.placed {
                self.early.insert(order, Early::Staged(stage));
                self.check();
            }
            return;
        };
        item.stage = stage;
        if matches!(stage, Stage::Released(_)) {
            self.release(&mut item);
        }
        self.items.insert(order, item);
    }

    /// A message is not in the session any more.
    pub(crate) fn remove(&mut self, order: Order) {
        if self.is_broken {
            return;
        }
        match self.items.remove(&order) {
            Some(mut item) => self.release(&mut item),
            None if order > self.placed => {
                self.early.insert(order, Early::Removed);
                self.check();
            }
            None => {}
        }
    }

    /// Whether the client may be sent the message of that order as far as this replica goes: if it is of QoS 2, it has arrived. If not, whoever waits for it is
    /// told when it does.
    pub(crate) fn has(&mut self, order: Order) -> bool {
        self.name();
        let Some(item) = self.items.get_mut(&order) else { return true };
        let has = item.qos != QoS::ExactlyOnce || !matches!(item.stage, Stage::Published(_)) || item.message.is_some();
        item.is_awaited = !has;
        has
    }

    /// A QoS 2 message of the client's has come.
    pub(crate) fn receive(&mut self, id: PacketId) {
        self.count(id, 1);
    }

    /// The client has released it.
    pub(crate) fn complete(&mut self, id: PacketId) {
        self.count(id, -1);
    }

    fn count(&mut self, id: PacketId, by: i32) {
        match self.received.entry(id) {
            Slot::Occupied(mut occupied) => {
                *occupied.get_mut() += by;
                if *occupied.get() == 0 {
                    occupied.remove();
                }
            }
            Slot::Vacant(vacant) => {
                vacant.insert(by);
            }
        }
    }

    /// From here on the client is sent nothing of QoS 2 of which this replica has not said that it [has](Self::has) it.
    pub(crate) fn guard(&mut self) {
        self.name();
        let sent = self.missing.iter().filter(|(_, order)| {
            let item = self.items.get(order);
            item.is_some_and(|item| item.qos == QoS::ExactlyOnce && matches!(item.stage, Stage::Published(_)))
        });
        self.owed.extend(sent.map(|(id, _)| *id));
        self.is_guarded = true;
    }

    /// All that is in the session, in its order: what the broker has placed, then what it has not spoken of.
    fn into_content(mut self, was_connected: bool, inflight_max: u16) -> MovedContent {
        self.name();
        let placed = self.items.into_values().filter_map(|Item { stage, message, .. }| match (stage, message) {
            (Stage::Released(serial), _) => Some(Entry::released(serial)),
            // One that has not arrived was not sent, or may come twice. When it arrives, it is new.
            (stage, message) => message.map(|entry| Entry { stage, ..entry }),
        });
        let mut arrived: BTreeMap<u64, Entry> = self.unlisted.into_iter().map(|(turn, (_, entry))| (turn, entry)).collect();
        arrived.extend(self.unnamed.into_iter().map(|(turn, _, entry)| (turn, entry)));
        let mut entries: Vec<Entry> = placed.chain(arrived.into_values()).collect();
        if was_connected {
            suppose_sent(entries.iter_mut(), inflight_max);
        }
        let received = self.received.into_iter().filter(|(_, count)| *count > 0).map(|(id, _)| id).collect();
        MovedContent { entries, received }
    }
}

/// What is known of a session that goes on from its replica, beside what is in that.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Emerging {
    pub(crate) expiry: SessionExpiry,
    /// Its client was connected when its broker was lost.
    pub(crate) was_connected: bool,
    /// From then on it expires.
    pub(crate) left_at: Instant,
    pub(crate) claim: u64,
}

impl State {
    /// When the client of a durable session left.
    pub(crate) fn left_at(&self) -> Option<Instant> {
        self.durable.as_ref().and_then(|durable| durable.left_at)
    }

    /// The replica that this is.
    pub(crate) fn shadow(&mut self) -> Option<&mut Shadow> {
        if let Some(Moving::Shadow(shadow)) = &mut self.moving { Some(shadow) } else { None }
    }

    /// What its client is to see only when it is safe waits from now on until the replica knows of it as well that was copied for the `time`-th time.
    pub(crate) fn guard(&mut self, time: u64) {
        if let Some(durable) = &mut self.durable {
            durable.is_guarded = true;
            durable.journal.push(Change::Guarded(durable.session, time));
        }
    }

    /// All that is in it is copied for its replica, for the `time`-th time.
    pub(crate) fn copied(&self, time: u64) {
        if let Some(durable) = &self.durable {
            durable.journal.push(Change::Copied(durable.session, time));
        }
    }

    fn placed(&self) -> Order {
        self.durable.as_ref().map_or(0, |durable| durable.placed)
    }
}

impl Subscriber {
    /// A new session is the replica of another broker's, of a client that may do what `access` says. `news` is told of what was waited for.
    pub(crate) fn shade(&self, access: Option<Arc<Access>>, limits: OutboundLimits, news: &Arc<News>) {
        self.set_access(access);
        let mut state = self.lock();
        (state.expiry, state.epoch) = (SessionExpiry::Never, RESTORED_EPOCH);
        state.moving = Some(Moving::Shadow(Box::new(Shadow::new(limits, Arc::clone(news)))));
        self.restored(RESTORED_EPOCH);
        self.set_moving(true);
        self.set_owed();
    }

    /// The replica takes the session's place: from now on it is a session like others, away. Gives the change with which it is safe, where it is to be; the
    /// journal is to be kicked afterwards.
    pub(crate) fn emerge(&self, emerging: Emerging, journal: Option<&Arc<Journal>>) -> Option<u64> {
        let Emerging { expiry, was_connected, left_at, claim } = emerging;
        let mut state = self.lock();
        let shadow = match state.moving.take() {
            Some(Moving::Shadow(shadow)) => shadow,
            other => {
                state.moving = other;
                return None;
            }
        };
        (state.expiry, state.claimed) = (expiry, claim);
        let MovedContent { entries, received } = shadow.into_content(was_connected, state.outbound.limits().inflight_max);
        let number = state.take_in(self, entries.into_iter(), &received, journal, left_at);
        self.set_moving(false);
        Some(number)
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::ids::{BrokerId, LaneId, LogId, OriginLane};
    use crate::session::StoredMessage;

    const LIMITS: OutboundLimits = OutboundLimits {
        inflight_max: 20,
        inflight_bytes_max: 1_000,
        queued_messages_max: 10,
        queued_bytes_max: 1_000,
        drop_oldest: false,
        queue_qos0: false,
    };
    const QOS_2: QoS = QoS::ExactlyOnce;

    fn id(sequence: u64) -> MessageId {
        MessageId { origin_lane: OriginLane { origin: BrokerId(1), log: LogId(1), lane: LaneId(2) }, sequence }
    }

    fn entry(payload: &'static [u8]) -> Entry {
        let (topic, payload, properties) = ("t".into(), Bytes::from_static(payload), Bytes::new());
        let message = Arc::new(StoredMessage { topic, payload, properties, qos: QOS_2, retain: false, expires_at: None });
        Entry { message, qos: QOS_2, retain: false, subscription_ids: None, stage: Stage::Queued }
    }

    /// Of an empty session.
    fn shadow() -> Shadow {
        let mut shadow = Shadow::new(LIMITS, Arc::default());
        shadow.copy(Copy::default());
        shadow
    }

    /// What is in it, by the payloads.
    fn content(shadow: Shadow) -> Vec<(Vec<u8>, Stage)> {
        let entries = shadow.into_content(false, 20).entries;
        entries.into_iter().map(|entry| (entry.message.payload.to_vec(), entry.stage)).collect()
    }

    #[derive(Clone, Copy, Debug)]
    enum Event {
        Placed,
        Sent,
        Arrived,
    }

    #[test]
    fn in_whatever_order_a_message_is_placed_and_sent_and_arrives_the_client_is_not_sent_it_before_it_is_here() {
        use Event::{Arrived, Placed, Sent};
        for order in [
            [Placed, Sent, Arrived],
            [Placed, Arrived, Sent],
            [Sent, Placed, Arrived],
            [Sent, Arrived, Placed],
            [Arrived, Placed, Sent],
            [Arrived, Sent, Placed],
        ] {
            let mut shadow = shadow();
            shadow.guard();
            let (mut is_told, mut is_here) = (0, false);
            for event in order {
                match event {
                    Placed => shadow.place(1, Some(id(5)), QOS_2, Stage::Queued, None),
                    Sent => shadow.stage(1, Stage::Published(3)),
                    Arrived => shadow.put(1, id(5), entry(b"x")),
                }
                is_told += u8::from(!matches!(event, Arrived));
                is_here |= matches!(event, Arrived);
                // Of what was not placed nothing can be said.
                assert_eq!(shadow.has(1), is_told < 2 || is_here, "{order:?}, {event:?}");
            }
            assert!(shadow.is_whole() && shadow.bytes > 0 && !shadow.has_unlisted(), "{order:?}");
            assert_eq!(content(shadow), [(b"x".to_vec(), Stage::Published(3))], "{order:?}");
        }
    }

    #[test]
    fn what_was_removed_before_it_was_placed_or_arrived_is_not_in_it() {
        for is_placed_first in [true, false] {
            let mut shadow = shadow();
            shadow.guard();
            let place = |shadow: &mut Shadow| shadow.place(1, Some(id(5)), QOS_2, Stage::Published(0), None);
            if is_placed_first {
                place(&mut shadow);
                shadow.remove(1);
            } else {
                shadow.remove(1);
                place(&mut shadow);
            }
            shadow.put(1, id(5), entry(b"x"));
            assert!(!shadow.has_unlisted() && shadow.is_whole() && shadow.bytes == 0);
            assert_eq!(content(shadow), []);
        }
    }

    #[test]
    fn while_nobody_speaks_of_it_it_drops_what_a_session_would() {
        // Ten that wait and twenty on their way are what the session takes.
        for (drop_oldest, first, last) in [(false, 0_u8, 29), (true, 10, 39)] {
            let mut shadow = Shadow::new(OutboundLimits { drop_oldest, ..LIMITS }, Arc::default());
            shadow.copy(Copy::default());
            shadow.guard();
            shadow.set_alone(true);
            for number in 0..40_u8 {
                if shadow.make_room() {
                    let payload: &'static [u8] = Box::leak(vec![number].into_boxed_slice());
                    shadow.put(number.into(), id(number.into()), entry(payload));
                }
            }
            assert!(shadow.is_whole());
            shadow.trim(|_| false);
            let payloads = |shadow: &Shadow| -> Vec<u8> {
                shadow.unlisted.values().filter_map(|(_, entry)| entry.message.payload.first().copied()).collect()
            };
            assert_eq!(payloads(&shadow), (first..=last).collect::<Vec<_>>());
            // What it has dropped its broker may speak of when it is back.
            shadow.set_alone(false);
            assert!(shadow.is_broken());
        }
    }

    #[test]
    fn it_is_not_whole_before_what_was_sent_when_it_was_not_guarded_has_arrived() {
        for is_released in [true, false] {
            let mut shadow = shadow();
            shadow.place(1, Some(id(5)), QOS_2, Stage::Published(0), None);
            if is_released {
                shadow.stage(1, Stage::Released(0));
            }
            shadow.guard();
            assert!(!shadow.is_whole());
            shadow.put(1, id(5), entry(b"x"));
            assert!(shadow.is_whole());
            let stages: Vec<_> = content(shadow).into_iter().map(|(_, stage)| stage).collect();
            assert_eq!(stages, [if is_released { Stage::Released(0) } else { Stage::Published(0) }]);
        }
    }

    #[test]
    fn an_identifier_that_is_completed_first_is_not_open() {
        let mut shadow = shadow();
        let [first, second] = [7, 8].map(|id| PacketId::new(id).unwrap());
        shadow.complete(first);
        shadow.receive(first);
        shadow.receive(second);
        assert_eq!(shadow.into_content(false, 20).received, [second]);
    }

    #[test]
    fn what_holds_more_than_it_may_holds_nothing_and_nobody_waits_for_it() {
        let mut shadow = shadow();
        shadow.guard();
        shadow.place(1, Some(id(1)), QOS_2, Stage::Published(0), None);
        assert!(!shadow.has(1));
        for order in 2..2_000 {
            shadow.place(order, Some(id(order)), QOS_2, Stage::Queued, None);
        }
        assert!(shadow.is_broken() && !shadow.is_whole() && shadow.has(1) && shadow.take_waker().is_none());
    }
}
