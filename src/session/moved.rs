//! A session that goes on at another broker: taken out of one, put into the other, and its form on the way, which is that of the records on disk.
//!
//! It keeps its packet identifiers, so that neither side of an exchange that is under way notices. Retained messages that a new subscription was still to
//! get do not go along, as over a restart.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::change::{Change, Entry, Head, Order, Stage};
use super::durable::RESTORED_EPOCH;
use super::journal::{Journal, Writes};
use super::message::{Delivery, Message, StoredMessage};
use super::outbound::OutboundLimits;
use super::record::{self, Content, Record, RecordError};
use super::subscriber::{SessionExpiry, State, Subscriber, SubscriberId, SubscriptionOptions};
use crate::auth::Access;
use crate::codec::{PacketId, QoS};
use crate::limits::SUBSCRIPTION_OVERHEAD_BYTES;

/// What comes at its new broker gets orders from here on: before it there is room for what the old one still sends.
pub(super) const LIVE_FROM: Order = 1 << 40;

/// See the module's page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Moved {
    /// The client's own name.
    pub client_id: Arc<str>,
    /// Whose it is, as [`Access::owner`] says.
    pub owner: Arc<str>,
    /// How long it outlives its connection.
    pub expiry: SessionExpiry,
    /// Filters, as subscribed.
    pub subscriptions: Vec<(Box<str>, SubscriptionOptions)>,
    /// What is kept for the client, in its order.
    pub entries: Vec<Entry>,
    /// Identifiers of QoS 2 messages that the client has not released.
    pub received: Vec<PacketId>,
}

impl Entry {
    /// A message that was released: it is needed no more.
    pub(super) fn released(qos: QoS, serial: u64) -> Self {
        Self { message: Arc::new(nothing(qos)), qos, retain: false, subscription_ids: None, stage: Stage::Released(serial) }
    }

    /// A message that waits for a client, as its subscriptions want it.
    #[must_use]
    pub fn queued(message: Arc<StoredMessage>, delivery: &Delivery<'_>) -> Self {
        let subscription_ids = (!delivery.subscription_ids.is_empty()).then(|| Arc::from(delivery.subscription_ids));
        Self { message, qos: delivery.qos, retain: delivery.retain, subscription_ids, stage: Stage::Queued }
    }
}

fn nothing(qos: QoS) -> StoredMessage {
    StoredMessage { topic: "".into(), payload: Bytes::new(), qos, retain: false, expires_at: None, properties: Bytes::new() }
}

impl Message<'_> {
    /// With memory of its own.
    #[must_use]
    pub fn to_stored(&self) -> StoredMessage {
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

impl Moved {
    /// What is in a session.
    pub(crate) fn of(subscriber: &Subscriber, state: &State) -> Self {
        Self {
            client_id: Arc::clone(&subscriber.client_id),
            owner: subscriber.access().map(|access| access.owner()).unwrap_or_default(),
            expiry: state.expiry,
            subscriptions: state.subscriptions.iter().map(|(filter, options)| (filter.clone(), options.clone())).collect(),
            entries: state.outbound.entries().collect(),
            received: state.inbound.open().collect(),
        }
    }

    /// The session, away, with what it is to write down in a list of its own.
    pub(crate) fn into_subscriber(
        self,
        id: SubscriberId,
        limits: OutboundLimits,
        journal: Option<&Arc<Journal>>,
        access: Option<Arc<Access>>,
        writes: &mut Writes,
        now: Instant,
    ) -> Subscriber {
        let Self { client_id, owner, expiry, subscriptions, entries, received } = self;
        let subscriber = Subscriber::new(id, Arc::clone(&client_id), limits, journal);
        subscriber.set_access(access);
        subscriber.restored(RESTORED_EPOCH);
        let mut state = subscriber.lock();
        (state.expiry, state.epoch) = (expiry, RESTORED_EPOCH);
        if let Some(durable) = &mut state.durable {
            (durable.owner, durable.placed) = (Arc::clone(&owner), LIVE_FROM);
            writes.push(Change::Session(id, Head { client_id, owner, expiry, left_at: Some(now) }));
            for (filter, options) in &subscriptions {
                writes.push(Change::Subscribed(id, filter.clone(), options.clone()));
            }
            received.iter().for_each(|packet| writes.push(Change::Received(id, *packet)));
        }
        state.carry(id, 0, entries, writes);
        received.into_iter().for_each(|packet| state.inbound.restore(packet));
        state.subscriptions_bytes = subscriptions.iter().map(|(filter, _)| filter.len() + SUBSCRIPTION_OVERHEAD_BYTES).sum();
        state.subscriptions = subscriptions.into_iter().collect();
        drop(state);
        subscriber
    }

    /// The form in which it travels.
    #[must_use]
    pub fn encode(&self, now: Instant) -> Vec<u8> {
        let mut out = Vec::new();
        let (client_id, owner) = (&*self.client_id, &*self.owner);
        Record::Session { session: 0, client_id, owner, expiry: self.expiry, left_at_ms: None }.encode(&mut out);
        for (filter, options) in &self.subscriptions {
            Record::Subscribed { session: 0, filter, options: options.clone() }.encode(&mut out);
        }
        self.received.iter().for_each(|id| Record::Received { session: 0, id: *id }.encode(&mut out));
        encode_entries(&self.entries, now, &mut out);
        out
    }

    /// Reads the form in which it travels.
    ///
    /// # Errors
    /// What is none.
    pub fn decode(bytes: &[u8], now: Instant) -> Result<Self, RecordError> {
        let mut rest = bytes;
        let Some(Record::Session { client_id, owner, expiry, .. }) = record::decode(&mut rest)? else {
            return Err(RecordError::TooLong(bytes.len()));
        };
        let mut moved = Self {
            client_id: Arc::from(client_id),
            owner: Arc::from(owner),
            expiry,
            subscriptions: Vec::new(),
            entries: Vec::new(),
            received: Vec::new(),
        };
        moved.entries = decode_records(rest, now, |record| match record {
            Record::Subscribed { filter, options, .. } => moved.subscriptions.push((filter.into(), options)),
            Record::Received { id, .. } => moved.received.push(id),
            _ => {}
        })?;
        Ok(moved)
    }
}

impl State {
    /// Messages that were kept for the client at its old broker: behind those that came from there before, before what has come here. `carried` came before.
    pub(crate) fn carry(&mut self, id: SubscriberId, carried: usize, entries: Vec<Entry>, writes: &mut Writes) {
        let first = carried as Order + 1;
        let named: Vec<_> = (first..).zip(entries).collect();
        if self.durable.is_some() {
            named.iter().for_each(|(order, entry)| writes.push(Change::Placed(id, *order, entry.clone())));
        }
        self.outbound.enqueue_before(named);
    }
}

impl State {
    /// Messages that came while the session was held out of everything: behind all that it has.
    pub(crate) fn put_behind(&mut self, entries: Vec<Entry>, writes: &mut Writes) {
        for entry in entries {
            let mut order = 0;
            if let Some(durable) = &mut self.durable {
                durable.placed += 1;
                order = durable.placed;
                writes.push(Change::Placed(durable.session, order, entry.clone()));
            }
            self.outbound.restore(order, entry);
        }
    }
}

/// Appends messages, each with how it goes to the client.
pub(crate) fn encode_entries(entries: &[Entry], now: Instant, out: &mut Vec<u8>) {
    for Entry { message, qos, retain, subscription_ids, stage } in entries {
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
        Record::Entry { session: 0, order: 0, message: 0, qos: *qos, retain: *retain, stage: *stage, subscription_ids }.encode(out);
    }
}

/// Reads what [`encode_entries`] wrote.
///
/// # Errors
/// What is none.
pub(crate) fn decode_entries(bytes: &[u8], now: Instant) -> Result<Vec<Entry>, RecordError> {
    decode_records(bytes, now, |_| {})
}

fn decode_records(mut rest: &[u8], now: Instant, mut other: impl FnMut(Record<'_>)) -> Result<Vec<Entry>, RecordError> {
    let mut entries = Vec::new();
    let mut last = None;
    while !rest.is_empty() {
        match record::decode(&mut rest)? {
            Some(Record::Message { content, expires_at_ms, .. }) => {
                let expires_at = expires_at_ms.and_then(|left| now.checked_add(Duration::from_millis(left)));
                let Content { topic, payload, properties, qos, retain } = content;
                last = Some(Message { topic, payload, properties, qos, retain, expires_at }.to_stored());
            }
            Some(Record::Entry { qos, retain, stage, subscription_ids, .. }) => {
                let message = Arc::new(last.take().ok_or(RecordError::Number)?);
                let subscription_ids = (!subscription_ids.is_empty()).then(|| Arc::from(subscription_ids));
                entries.push(Entry { message, qos, retain, subscription_ids, stage });
            }
            Some(record) => other(record),
            None => {}
        }
    }
    Ok(entries)
}
