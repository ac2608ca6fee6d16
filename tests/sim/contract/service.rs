//! A broker's side of one client's connection: what `connection` does with sockets and tasks, this does when it is called. It is woken as a connection is,
//! and looks at nothing before.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use mqtt_st_quic::auth::Access;
use mqtt_st_quic::codec::{
    self, Ack, AckProperties, ConnAck, ConnAckProperties, Packet, PacketId, Publish, QoS, ReasonCode, SubAck, UnsubAck,
};
use mqtt_st_quic::interest::EchoWait;
use mqtt_st_quic::limits::SUBSCRIBE_ACK_PATIENCE;
use mqtt_st_quic::replication;
use mqtt_st_quic::router::{Batch, ConnectRequest, Connection, Farewell, Ingress, RouteCache, Routed, Router, Subscribe};
use mqtt_st_quic::session::{Awaited, Connected, Drained, Message, NextToSend, SessionExpiry, SubscriptionOptions, Ticket, Waiter};

use super::account::SENT_MAX;
use super::client::{VERSION, put};

/// See the module's page.
pub(super) struct Service {
    pub(super) client: usize,
    connection: Connection,
    routes: RouteCache,
    unread: Vec<u8>,
    /// Acknowledgements of the batch that is being read, and other answers.
    acknowledgements: Vec<u8>,
    answers: Vec<u8>,
    held: VecDeque<Held>,
    /// What must be safe before anything is written.
    barrier: u64,
    /// Who must know, and how long it is waited for.
    echo: Option<(EchoWait, Instant)>,
    store: Option<Waiter>,
    mesh: Option<replication::Waiter>,
    sends: Option<Waiter>,
    blocks: Option<Waiter>,
    drained: Drained,
}

/// Acknowledgements that wait: for that change, and for the batches of others.
struct Held {
    bytes: Vec<u8>,
    awaited: Awaited,
    others: Vec<Arc<Ticket>>,
}

/// What became of a connection's turn.
#[derive(Default)]
pub(super) struct Turned {
    /// For the client.
    pub(super) bytes: Vec<u8>,
    /// It is over.
    pub(super) is_over: bool,
    /// It is to have another turn then, if it is not woken before.
    pub(super) again: Option<Instant>,
}

/// Who comes.
pub(super) struct Caller<'a> {
    pub(super) client: usize,
    pub(super) name: &'a str,
    pub(super) is_passing: bool,
    pub(super) access: Arc<Access>,
}

impl Service {
    /// A CONNECT has come.
    pub(super) fn open(router: &Router, batch: &mut Batch, caller: &Caller<'_>, now: Instant) -> Option<Self> {
        let request = ConnectRequest {
            client_id: caller.name,
            clean_start: caller.is_passing,
            expiry: if caller.is_passing { SessionExpiry::WithConnection } else { SessionExpiry::Never },
            silence_max: None,
            will: None,
            connected: Connected { version: VERSION, window: SENT_MAX, packet_bytes_max: usize::MAX, topic_alias_max: 0 },
            address: None,
            access: Some(Arc::clone(&caller.access)),
        };
        let connack = |session_present| {
            let (mut bytes, properties) = (Vec::new(), ConnAckProperties::default());
            put(&mut bytes, &Packet::ConnAck(Box::new(ConnAck { session_present, reason: ReasonCode::Success, properties })));
            bytes
        };
        batch.writes().begin();
        let connection = router.connect(batch, request, connack, now);
        router.finish(batch, now);
        let connection = connection.ok()?;
        Some(Self {
            client: caller.client,
            connection,
            routes: RouteCache::default(),
            unread: Vec::new(),
            acknowledgements: Vec::new(),
            answers: Vec::new(),
            held: VecDeque::new(),
            barrier: batch.writes().take_number(),
            echo: None,
            store: None,
            mesh: None,
            sends: None,
            blocks: None,
            drained: Drained::default(),
        })
    }

    fn is_latest(&self) -> bool {
        self.connection.subscriber.is_latest(self.connection.epoch)
    }

    /// Bytes of the client's have come. Says whether it has said good-bye.
    pub(super) fn read(&mut self, router: &Router, batch: &mut Batch, bytes: &[u8], now: Instant) -> bool {
        let mut unread = std::mem::take(&mut self.unread);
        unread.extend_from_slice(bytes);
        let (mut at, mut says_goodbye) = (0, false);
        batch.writes().begin();
        while self.is_latest() && !says_goodbye {
            let Some((packet, length)) = codec::decode(&unread[at..], VERSION, u32::MAX).unwrap() else { break };
            at += length;
            match &packet {
                Packet::Publish(publish) => self.publish(router, batch, publish, now),
                Packet::PubAck(ack) => self.connection.subscriber.lock().puback(ack.packet_id).unwrap(),
                Packet::PubRec(ack) => self.pubrec(batch, ack.packet_id),
                Packet::PubRel(ack) => {
                    router.enter(batch);
                    self.connection.subscriber.lock().pubrel(batch.writes(), ack.packet_id);
                    put(&mut self.acknowledgements, &Packet::PubComp(Ack::success(ack.packet_id)));
                }
                Packet::PubComp(ack) => self.connection.subscriber.lock().pubcomp(ack.packet_id).unwrap(),
                Packet::Subscribe(subscribe) => self.subscribe(router, subscribe, now),
                Packet::Unsubscribe(unsubscribe) => self.unsubscribe(router, unsubscribe),
                Packet::Disconnect(_) => says_goodbye = true,
                other => panic!("a client says {other:?}"),
            }
        }
        unread.drain(..at);
        self.unread = unread;
        router.finish(batch, now);
        self.answer(router, batch);
        says_goodbye
    }

    fn publish(&mut self, router: &Router, batch: &mut Batch, publish: &Publish<'_>, now: Instant) {
        let &Publish { topic, qos, packet_id, payload, .. } = publish;
        let subscriber = Arc::clone(&self.connection.subscriber);
        if let Some(id) = packet_id
            && router.must_refuse(&mut self.routes, topic, qos, false, &subscriber, id)
        {
            return self.acknowledge(batch, qos, id, ReasonCode::QuotaExceeded);
        }
        if let (QoS::ExactlyOnce, Some(id)) = (qos, packet_id) {
            router.enter(batch);
            if !subscriber.lock().receive(batch.writes(), id, usize::MAX).unwrap() {
                return self.acknowledge(batch, qos, id, ReasonCode::Success);
            }
        }
        let message = Message { topic, payload, qos, retain: false, expires_at: None, properties: &[] };
        let routed = router.publish(batch, &mut self.routes, &message, Ingress::Session(&subscriber), now);
        assert!(matches!(routed, Routed::Done | Routed::Unmatched), "{routed:?}");
        if let Some(id) = packet_id {
            self.acknowledge(batch, qos, id, routed.reason());
        }
    }

    fn acknowledge(&mut self, batch: &mut Batch, qos: QoS, packet_id: PacketId, reason: ReasonCode) {
        let ack = Ack { packet_id, reason, properties: AckProperties::default() };
        if qos == QoS::ExactlyOnce && reason.is_error() {
            self.connection.subscriber.lock().release(batch.writes(), packet_id);
        }
        let packet = if qos == QoS::ExactlyOnce { Packet::PubRec(ack) } else { Packet::PubAck(ack) };
        put(&mut self.acknowledgements, &packet);
    }

    fn pubrec(&mut self, batch: &mut Batch, id: PacketId) {
        let (_, awaited) = self.connection.subscriber.lock().pubrec(id, false).unwrap();
        let released = Packet::PubRel(Ack::success(id));
        match awaited {
            Some(awaited) => {
                batch.writes().await_for(awaited);
                put(&mut self.acknowledgements, &released);
            }
            None => put(&mut self.answers, &released),
        }
    }

    fn subscribe(&mut self, router: &Router, subscribe: &codec::Subscribe<'_>, now: Instant) {
        let mut reasons = Vec::new();
        for filter in &subscribe.filters {
            let codec::SubscriptionOptions { qos, no_local, retain_as_published, retain_handling } = filter.options;
            let options = SubscriptionOptions { qos, no_local, retain_as_published, subscription_id: None };
            let number =
                router.subscribe(&self.connection, &Subscribe { filter: filter.filter, options, retain_handling }).unwrap();
            self.barrier = self.barrier.max(number.unwrap_or(0));
            reasons.push(ReasonCode::Success);
        }
        let echo = router.ask_echo().map(|wait| (wait, now + SUBSCRIBE_ACK_PATIENCE));
        self.echo = echo.or(self.echo.take());
        let (packet_id, properties) = (subscribe.packet_id, AckProperties::default());
        put(&mut self.answers, &Packet::SubAck(SubAck { packet_id, properties, reasons }));
    }

    fn unsubscribe(&mut self, router: &Router, unsubscribe: &codec::Unsubscribe<'_>) {
        let mut reasons = Vec::new();
        for filter in &unsubscribe.filters {
            let (_, number) = router.unsubscribe(&self.connection, filter).unwrap();
            self.barrier = self.barrier.max(number.unwrap_or(0));
            reasons.push(ReasonCode::Success);
        }
        let (packet_id, properties) = (unsubscribe.packet_id, AckProperties::default());
        put(&mut self.answers, &Packet::UnsubAck(UnsubAck { packet_id, properties, reasons }));
    }

    /// The end of a read batch.
    fn answer(&mut self, router: &Router, batch: &mut Batch) {
        let others = batch.writes().take_others();
        let awaited = batch.writes().take_awaited();
        let acknowledgements = std::mem::take(&mut self.acknowledgements);
        let answers = std::mem::take(&mut self.answers);
        let is_safe = awaited.number == 0 || router.journal().is_none_or(|journal| journal.has(awaited));
        let lags = router.mesh().is_some_and(|mesh| mesh.lagging());
        let waits = lags || !is_safe || !others.is_empty() || !self.held.is_empty();
        let mut state = self.connection.subscriber.lock();
        let is_latest = state.epoch == self.connection.epoch;
        if !acknowledgements.is_empty() {
            if waits {
                self.held.push_back(Held { bytes: acknowledgements, awaited, others });
            } else if is_latest {
                state.outbox.tail().extend_from_slice(&acknowledgements);
            }
        }
        if is_latest {
            state.outbox.tail().extend_from_slice(&answers);
        }
    }

    /// The connection looks what there is to be written.
    pub(super) fn turn(&mut self, router: &Router, batch: &mut Batch, context: &mut Context<'_>, now: Instant) -> Turned {
        let turned = self.write(router, batch, context, now);
        router.finish(batch, now);
        turned
    }

    fn write(&mut self, router: &Router, batch: &mut Batch, context: &mut Context<'_>, now: Instant) -> Turned {
        let mut turned = Turned::default();
        if self.is_barred(router, context, now) {
            turned.again = self.echo.as_ref().map(|(_, until)| *until);
            let mut state = self.connection.subscriber.lock();
            turned.is_over = state.epoch != self.connection.epoch;
            if !turned.is_over {
                state.outbox.block(context.waker());
            }
            return turned;
        }
        self.release_held(router, context);
        loop {
            let mut more = false;
            let mut state = self.connection.subscriber.lock();
            if state.has_backlog() && state.epoch == self.connection.epoch {
                drop(state);
                more = router.pump(batch, &self.connection, now);
                state = self.connection.subscriber.lock();
            }
            if state.epoch != self.connection.epoch {
                turned.is_over = true;
                return turned;
            }
            if state.outbox.take(&mut self.drained) {
                drop(state);
                self.drained.segments.iter().for_each(|segment| turned.bytes.extend_from_slice(segment.bytes()));
                turned.bytes.extend_from_slice(&self.drained.tail);
                continue;
            }
            if state.outbox.closing().is_some() {
                turned.is_over = true;
                return turned;
            }
            if let Some(journal) = router.journal()
                && match state.next_to_send() {
                    NextToSend::Now => true,
                    NextToSend::After(awaited) => {
                        self.sends.get_or_insert_with(|| journal.waiter()).poll_for(awaited, context).is_ready()
                    }
                    NextToSend::Nothing => false,
                }
            {
                continue;
            }
            state.outbox.arm(context.waker());
            drop(state);
            if more {
                turned.again = Some(now);
            }
            return turned;
        }
    }

    fn is_barred(&mut self, router: &Router, context: &mut Context<'_>, now: Instant) -> bool {
        if let Some((wait, until)) = &self.echo {
            if wait.poll(context).is_pending() {
                if now < *until {
                    return true;
                }
                wait.give_up();
            }
            self.echo = None;
        }
        if let Some(journal) = router.journal().filter(|_| self.barrier > 0) {
            let waiter = self.blocks.get_or_insert_with(|| journal.waiter());
            if waiter.poll(self.barrier, context).is_pending() && !journal.is_failing() {
                return true;
            }
        }
        self.barrier = 0;
        false
    }

    fn release_held(&mut self, router: &Router, context: &mut Context<'_>) {
        if self.held.is_empty() {
            return;
        }
        if let Some(mesh) = router.mesh()
            && self.mesh.get_or_insert_with(|| mesh.waiter()).poll(context).is_pending()
        {
            return;
        }
        while let Some(held) = self.held.front_mut() {
            if let Some(journal) = router.journal() {
                let store = self.store.get_or_insert_with(|| journal.waiter());
                let mut poll = |awaited| store.poll_for(awaited, context);
                let is_pending = poll(held.awaited).is_pending()
                    || loop {
                        let Some(other) = held.others.last() else { break false };
                        match journal.awaited_at(other, held.awaited.reach).map(&mut poll) {
                            Some(Poll::Pending) => break true,
                            // There may be more of it meanwhile.
                            Some(Poll::Ready(())) => {}
                            None => drop(held.others.pop()),
                        }
                    };
                if is_pending {
                    return;
                }
            }
            let mut state = self.connection.subscriber.lock();
            if state.epoch == self.connection.epoch {
                state.outbox.tail().extend_from_slice(&held.bytes);
            }
            drop(state);
            self.held.pop_front();
        }
    }

    /// Something waits for the client, or of what it has sent.
    pub(super) fn is_busy(&self) -> bool {
        let state = self.connection.subscriber.lock();
        !self.held.is_empty() || self.barrier > 0 || self.echo.is_some() || state.has_backlog() || !state.outbox.is_empty()
    }

    /// It is over.
    pub(super) fn close(self, router: &Router, batch: &mut Batch, farewell: Farewell, now: Instant) {
        router.disconnect(batch, &self.connection, farewell, None, now);
        router.finish(batch, now);
    }
}
