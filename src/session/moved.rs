//! A session that goes on at another broker: what is in it, its form on the way, which is that of the records on disk, and what becomes of it at either end.
//!
//! It keeps its packet identifiers, so that neither side of an exchange that is under way notices. Retained messages that a new subscription was still to
//! get do not go along, as over a restart; nor do messages of QoS 0.
//!
//! At its old broker it is *leaving* until it is known what became of it: away, and going on to queue. At the new one it is *coming* until all of it is there: away, queueing what is
//! published there from now on, each message with its [`Source`], and nothing of it is written down. Then it [settles](Subscriber::settle).

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::change::{Change, Entry, Head, Order, Stage};
use super::durable::{Durable, RESTORED_EPOCH};
use super::journal::{Journal, Writes};
use super::message::{Message, StoredMessage, Will};
use super::outbound::Outbound;
use super::record::{self, Content, Record, RecordError};
use super::shadow::Shadow;
use super::subscriber::{SessionExpiry, State, Subscriber, SubscriptionOptions};
use crate::codec::{PacketId, QoS};
use crate::ids::{MessageId, ShareId};
use crate::limits::SUBSCRIPTION_OVERHEAD_BYTES;

/// Where a message stands in the log of the broker at which it was published.
#[derive(Clone, Debug)]
pub enum Source {
    /// It has come over a link.
    Link(MessageId),
    /// It was published here; its id is known when its batch has ended.
    Own(Arc<OnceLock<MessageId>>),
}

impl Source {
    /// Its id, once it is known.
    #[must_use]
    pub fn id(&self) -> Option<&MessageId> {
        match self {
            Self::Link(id) => Some(id),
            Self::Own(id) => id.get(),
        }
    }
}

/// A session that is on its way from one broker to another.
#[derive(Debug)]
#[expect(clippy::box_collection, reason = "few sessions are, and each would have room for the list's head")]
pub(crate) enum Moving {
    /// From here. What share groups gave it that does not go along.
    Leaving { left_behind: Box<Vec<(ShareId, Arc<StoredMessage>)>> },
    /// To here. Whence the messages are that wait in it, by their order.
    Coming { sources: Box<Vec<Option<Source>>> },
    /// Nowhere: it is a replica of another broker's.
    Shadow(Box<Shadow>),
}

/// A session without what waits in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MovedHead {
    /// The client's own name.
    pub client_id: Arc<str>,
    /// Whose it is, as [`crate::auth::Access::owner`] says.
    pub owner: Arc<str>,
    /// How long it outlives its connection.
    pub expiry: SessionExpiry,
    /// Filters, as subscribed.
    pub subscriptions: Vec<(Box<str>, SubscriptionOptions)>,
}

/// What waits in a session, or is under way to or from its client.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MovedContent {
    /// What is kept for the client, in its order.
    pub entries: Vec<Entry>,
    /// Identifiers of QoS 2 messages that the client has not released.
    pub received: Vec<PacketId>,
}

/// A will, and whose it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MovedWill {
    /// The client's own name.
    pub client_id: Arc<str>,
    /// Whose it is, as [`crate::auth::Access::owner`] says.
    pub owner: Arc<str>,
    /// What is to be published.
    pub will: Will,
}

impl MovedWill {
    /// Appends the form in which it travels.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let Self { client_id, owner, will: Will { message, message_expiry, delay } } = self;
        let expiry = SessionExpiry::WithConnection;
        Record::Session { session: 0, client_id, owner, expiry, left_at_ms: None, claim: 0 }.encode(out);
        let StoredMessage { topic, payload, qos, retain, properties, .. } = message;
        let content = Content { topic, payload, properties, qos: *qos, retain: *retain };
        Record::Will { session: 0, content, delay: *delay, message_expiry: *message_expiry }.encode(out);
    }

    /// Reads the form in which it travels.
    ///
    /// # Errors
    /// What is none.
    pub fn decode(bytes: &[u8]) -> Result<Self, RecordError> {
        let mut rest = bytes;
        let whose = record::decode(&mut rest)?;
        let (Some(Record::Session { client_id, owner, .. }), Some(Record::Will { content, delay, message_expiry, .. })) =
            (whose, record::decode(&mut rest)?)
        else {
            return Err(RecordError::TooLong(bytes.len()));
        };
        let Content { topic, payload, properties, qos, retain } = content;
        let message = Message { topic, payload, properties, qos, retain, expires_at: None }.to_stored();
        let will = Will { message, message_expiry, delay };
        Ok(Self { client_id: Arc::from(client_id), owner: Arc::from(owner), will })
    }
}

impl Message<'_> {
    /// With memory of its own.
    fn to_stored(self) -> StoredMessage {
        StoredMessage {
            topic: self.topic.into(),
            payload: Bytes::copy_from_slice(self.payload),
            qos: self.qos,
            retain: self.retain,
            expires_at: self.expires_at,
            properties: Bytes::copy_from_slice(self.properties),
        }
    }
}

impl MovedHead {
    /// Of a session.
    pub(crate) fn of(subscriber: &Subscriber, state: &State) -> Self {
        Self {
            client_id: Arc::clone(&subscriber.client_id),
            owner: subscriber.access().map(|access| access.owner()).unwrap_or_default(),
            expiry: state.expiry,
            subscriptions: state.subscriptions.iter().map(|(filter, options)| (filter.clone(), options.clone())).collect(),
        }
    }

    /// Appends the form in which it travels.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let Self { client_id, owner, expiry, subscriptions } = self;
        Record::Session { session: 0, client_id, owner, expiry: *expiry, left_at_ms: None, claim: 0 }.encode(out);
        for (filter, options) in subscriptions {
            Record::Subscribed { session: 0, filter, options: options.clone() }.encode(out);
        }
    }

    /// Reads the form in which it travels.
    ///
    /// # Errors
    /// What is none.
    pub fn decode(bytes: &[u8]) -> Result<Self, RecordError> {
        let mut rest = bytes;
        let Some(Record::Session { client_id, owner, expiry, .. }) = record::decode(&mut rest)? else {
            return Err(RecordError::TooLong(bytes.len()));
        };
        let (client_id, owner) = (Arc::from(client_id), Arc::from(owner));
        let mut subscriptions = Vec::new();
        while !rest.is_empty() {
            if let Some(Record::Subscribed { filter, options, .. }) = record::decode(&mut rest)? {
                subscriptions.push((filter.into(), options));
            }
        }
        Ok(Self { client_id, owner, expiry, subscriptions })
    }
}

impl MovedContent {
    /// Of a session.
    pub(crate) fn of(state: &State) -> Self {
        Self { entries: state.outbound.entries().map(|(_, entry)| entry).collect(), received: state.inbound.open().collect() }
    }

    /// Appends the form in which it travels.
    pub fn encode(&self, now: Instant, out: &mut Vec<u8>) {
        self.received.iter().for_each(|id| Record::Received { session: 0, id: *id }.encode(out));
        for Entry { message, qos, retain, subscription_ids, stage } in &self.entries {
            let content = Content {
                topic: &message.topic,
                payload: &message.payload,
                properties: &message.properties,
                qos: message.qos,
                retain: message.retain,
            };
            // What is left, for the other broker has another clock.
            let left = message.expires_at.map(|at| at.saturating_duration_since(now));
            let expires_at_ms = left.map(|left| u64::try_from(left.as_millis()).unwrap_or(u64::MAX / 2));
            Record::Message { message: 0, content, expires_at_ms }.encode(out);
            let subscription_ids = subscription_ids.as_deref().unwrap_or_default().to_vec();
            Record::Entry { session: 0, order: 0, message: 0, qos: *qos, retain: *retain, stage: *stage, subscription_ids }
                .encode(out);
        }
    }

    /// Reads the form in which it travels.
    ///
    /// # Errors
    /// What is none.
    pub fn decode(bytes: &[u8], now: Instant) -> Result<Self, RecordError> {
        let (mut content, mut rest, mut last) = (Self::default(), bytes, None);
        while !rest.is_empty() {
            match record::decode(&mut rest)? {
                Some(Record::Received { id, .. }) => content.received.push(id),
                Some(Record::Message { content, expires_at_ms, .. }) => {
                    let expires_at = expires_at_ms.and_then(|left| now.checked_add(Duration::from_millis(left)));
                    let Content { topic, payload, properties, qos, retain } = content;
                    last = Some(Message { topic, payload, properties, qos, retain, expires_at }.to_stored());
                }
                Some(Record::Entry { qos, retain, stage, subscription_ids, .. }) => {
                    let message = Arc::new(last.take().ok_or(RecordError::Number)?);
                    let subscription_ids = (!subscription_ids.is_empty()).then(|| Arc::from(subscription_ids));
                    content.entries.push(Entry { message, qos, retain, subscription_ids, stage });
                }
                Some(_) | None => {}
            }
        }
        Ok(content)
    }
}

impl Entry {
    /// A message that was released: it is needed no more.
    pub(super) fn released(serial: u64) -> Self {
        let qos = QoS::ExactlyOnce;
        let nothing = StoredMessage {
            topic: "".into(),
            payload: Bytes::new(),
            qos,
            retain: false,
            expires_at: None,
            properties: Bytes::new(),
        };
        Self { message: Arc::new(nothing), qos, retain: false, subscription_ids: None, stage: Stage::Released(serial) }
    }
}

impl Subscriber {
    /// The session, whose locked state is `state`, begins to leave for another broker: from now on it has no connection, and what its last one says is not heard.
    /// Says whether it had one.
    pub(crate) fn leave(&self, state: &mut State, stamp: u64, now: Instant) -> bool {
        let was_connected = state.connected.is_some();
        if was_connected {
            state.disconnect(None, now);
            // As if there were a newer one. The deadlines of a session that was away count on.
            state.epoch += 1;
            self.set_epoch(state.epoch);
        }
        state.moving = Some(Moving::Leaving { left_behind: Box::default() });
        state.claims_above = state.claims_above.max(stamp);
        self.set_moving(true);
        was_connected
    }

    /// It stays where it is.
    pub(crate) fn stay(&self, state: &mut State) {
        state.moving = None;
        self.set_moving(false);
    }

    /// A new session is one that comes from another broker.
    pub(crate) fn come(&self, head: &MovedHead) {
        let mut state = self.lock();
        (state.expiry, state.epoch) = (head.expiry, RESTORED_EPOCH);
        state.subscribe_as(head);
        state.moving = Some(Moving::Coming { sources: Box::default() });
        self.restored(RESTORED_EPOCH);
        self.set_moving(true);
        self.set_owed();
    }

    /// All of it is there: `content` is what waited at the old broker, of which `is_in_it` says what else came here. From now on it is a session like
    /// others, away. Gives the change with which it is safe, where it is to be; the journal is to be kicked afterwards.
    pub(crate) fn settle(
        &self,
        content: MovedContent,
        is_in_it: impl Fn(&MessageId) -> bool,
        stamp: u64,
        journal: Option<&Arc<Journal>>,
        now: Instant,
    ) -> u64 {
        let mut state = self.lock();
        let Some(Moving::Coming { sources }) = state.moving.take() else { return 0 };
        state.claimed = stamp;
        let limits = state.outbound.limits();
        let came_here = std::mem::replace(&mut state.outbound, Outbound::new(limits));
        let is_new = |order: Order| {
            let place = usize::try_from(order).unwrap_or(usize::MAX).checked_sub(1);
            let source = place.and_then(|place| sources.get(place)).and_then(Option::as_ref);
            // Of what has no id yet the old broker cannot have heard.
            !source.and_then(Source::id).is_some_and(&is_in_it)
        };
        let came_here = came_here.into_queue().filter(|queued| is_new(queued.order)).map(|queued| queued.entry(Stage::Queued));
        let entries = content.entries.into_iter().chain(came_here);
        let number = state.take_in(self, entries, &content.received, journal, now);
        self.set_moving(false);
        number
    }
}

impl State {
    /// It has these subscriptions.
    pub(crate) fn subscribe_as(&mut self, head: &MovedHead) {
        let bytes = |(filter, _): &(Box<str>, SubscriptionOptions)| filter.len() + SUBSCRIPTION_OVERHEAD_BYTES;
        self.subscriptions_bytes = head.subscriptions.iter().map(bytes).sum();
        self.subscriptions = head.subscriptions.iter().cloned().collect();
    }

    /// A share group has given it a message. That matters while it leaves, and of one that was read from the disk until its client has come: it may be another
    /// broker's by then, which does not know of the message.
    pub(crate) fn leave_behind(&mut self, share: ShareId, message: Arc<StoredMessage>) {
        if let Some(Moving::Leaving { left_behind }) = &mut self.moving {
            left_behind.push((share, message));
        } else if self.epoch == RESTORED_EPOCH
            && self.moving.is_none()
            && let Some(durable) = &mut self.durable
        {
            durable.given_by_groups.push_back((share, message));
            // What was dropped for it is not given to anybody again.
            while durable.given_by_groups.len() > self.outbound.owed().0 {
                durable.given_by_groups.pop_front();
            }
        }
    }

    /// What share groups have given to a session whose client has not come, for others now that it is over here.
    pub(crate) fn take_given_by_groups(&mut self) -> Vec<(ShareId, Arc<StoredMessage>)> {
        self.durable.as_mut().map(|durable| std::mem::take(&mut durable.given_by_groups).into()).unwrap_or_default()
    }

    pub(super) fn take_in(
        &mut self,
        subscriber: &Subscriber,
        entries: impl Iterator<Item = Entry>,
        received: &[PacketId],
        journal: Option<&Arc<Journal>>,
        left_at: Instant,
    ) -> u64 {
        let (mut writes, mut placed, id) = (Writes::default(), 0, subscriber.id);
        let owner = subscriber.access().map(|access| access.owner()).unwrap_or_default();
        let head = || Head {
            client_id: Arc::clone(&subscriber.client_id),
            owner: Arc::clone(&owner),
            expiry: self.expiry,
            left_at: Some(left_at),
            claim: self.claimed,
        };
        writes.push(Change::Session(id, head()));
        for (filter, options) in self.subscriptions.iter() {
            writes.push(Change::Subscribed(id, filter.clone(), options.clone()));
        }
        for entry in entries {
            // QoS 0 is not kept on disk.
            if entry.qos == QoS::AtMostOnce {
                self.outbound.restore(0, entry, false);
                continue;
            }
            placed += 1;
            let stage = entry.stage;
            // Released is what was published before.
            let at_first = if let Stage::Released(serial) = stage { Stage::Published(serial) } else { stage };
            writes.push(Change::Placed(id, placed, Entry { stage: at_first, ..entry.clone() }));
            if stage != at_first {
                writes.push(Change::Staged(id, placed, stage));
            }
            self.outbound.restore(placed, entry, false);
        }
        for packet in received {
            writes.push(Change::Received(id, *packet));
            self.inbound.restore(*packet);
        }
        self.look_for_qos0();
        let Some(journal) = journal else { return 0 };
        let mut durable = Durable::new(id, Arc::clone(&subscriber.client_id), Arc::clone(journal));
        (durable.owner, durable.claim, durable.placed) = (owner, self.claimed, placed);
        durable.left_at = Some(left_at);
        self.durable = Some(Box::new(durable));
        // Under the session's lock, and as a whole: whatever is said of it later comes behind.
        journal.append(&mut writes);
        writes.take_number()
    }
}
