//! What each control packet of a client does.

use std::time::{Duration, Instant};

use parking_lot::MutexGuard;

use super::io::Scratch;
use super::{Client, Fault};
use crate::auth::Identity;
use crate::codec::{
    self, Ack, AckProperties, Alike, Packet, PacketId, PacketType, ProtocolVersion, Publish, QoS, ReasonCode, SubAck, UnsubAck,
};
use crate::limits::{FORWARDED_PROPERTIES_BYTES_MAX, RECEIVE_MAXIMUM};
use crate::router::{Farewell, Ingress, Routed, Subscribe, is_own_state, is_system};
use crate::session::{Message, SessionExpiry, State, SubscriptionOptions};
use crate::topic::{self, TopicError};

/// Topic aliases that the client has set on this connection [MQTT-3.3.2-7]. Empty, it owns no memory.
#[derive(Debug)]
pub(super) struct Aliases {
    #[expect(clippy::box_collection, reason = "few clients set any, and each would have room for the list's head")]
    topics: Option<Box<Vec<Option<Box<str>>>>>,
    /// The highest that it may set.
    max: u16,
}

impl Aliases {
    pub(super) fn new(max: u16) -> Self {
        Self { topics: None, max }
    }

    fn set(&mut self, alias: u16, topic: &str) -> Result<(), Fault> {
        let place = self.place(alias)?;
        *place = Some(topic.into());
        Ok(())
    }

    /// Takes the topic out; give it back with [`Aliases::put_back`].
    fn take(&mut self, alias: u16) -> Result<Box<str>, Fault> {
        // An alias that was never set is a protocol error (MQTT 5.0 section 3.3.4).
        self.place(alias)?.take().ok_or(Fault::Close(ReasonCode::ProtocolError))
    }

    fn put_back(&mut self, alias: u16, topic: Box<str>) {
        if let Ok(place) = self.place(alias) {
            *place = Some(topic);
        }
    }

    fn place(&mut self, alias: u16) -> Result<&mut Option<Box<str>>, Fault> {
        if alias == 0 || alias > self.max {
            return Err(Fault::Close(ReasonCode::TopicAliasInvalid));
        }
        let index = usize::from(alias) - 1;
        let topics = self.topics.get_or_insert_default();
        if topics.len() <= index {
            topics.resize_with(index + 1, || None);
        }
        topics.get_mut(index).ok_or(Fault::Close(ReasonCode::TopicAliasInvalid))
    }
}

/// A packet with a filter that is none is malformed, and nothing of it is done [MQTT-4.7.1-1], [MQTT-4.7.1-2], [MQTT-4.7.3-1], [MQTT-4.8.2-1].
fn check_filters<'a>(mut filters: impl Iterator<Item = &'a str>) -> Result<(), Fault> {
    filters.try_for_each(|filter| match topic::parse_filter(filter) {
        Ok(_) | Err(TopicError::TooManyLevels { .. }) => Ok(()),
        Err(_) => Err(Fault::Close(ReasonCode::MalformedPacket)),
    })
}

impl Client {
    pub(super) fn handle(&mut self, packet: &Packet<'_>, scratch: &mut Scratch, now: Instant) -> Result<(), Fault> {
        match packet {
            Packet::Publish(publish) => self.publish(publish, scratch, now),
            Packet::PubAck(ack) => {
                let known = self.session()?.puback(ack.packet_id);
                known.map_err(Fault::from)
            }
            Packet::PubRec(ack) => self.pubrec(ack, scratch),
            Packet::PubRel(ack) => self.pubrel(ack, scratch),
            Packet::PubComp(ack) => {
                let known = self.session()?.pubcomp(ack.packet_id);
                known.map_err(Fault::from)
            }
            Packet::Subscribe(subscribe) => self.subscribe(subscribe, scratch),
            Packet::Unsubscribe(unsubscribe) => self.unsubscribe(unsubscribe, scratch),
            Packet::PingReq => self.reply(&mut scratch.answers, &mut scratch.answers_count, &Packet::PingResp),
            Packet::Disconnect(disconnect) => Err(self.disconnect(disconnect)),
            Packet::Auth(auth) => self.authenticate_anew(auth, scratch),
            // No second CONNECT [MQTT-3.1.0-2], nothing that only a server sends.
            Packet::Connect(_) | Packet::ConnAck(_) | Packet::SubAck(_) | Packet::UnsubAck(_) | Packet::PingResp => {
                Err(Fault::Close(ReasonCode::ProtocolError))
            }
        }
    }

    pub(super) fn reply(&self, answers: &mut Vec<u8>, count: &mut u64, packet: &Packet<'_>) -> Result<(), Fault> {
        let start = answers.len();
        // Our own packets are within all bounds: a failure would be a bug of ours, and ends this connection only.
        codec::encode(answers, self.version, packet).map_err(|error| {
            tracing::error!(%error, "an answer could not be encoded");
            Fault::Close(ReasonCode::UnspecifiedError)
        })?;
        if answers.len() - start > self.client_packet_bytes_max {
            // An answer that the client cannot take, and cannot do without [MQTT-3.1.2-24]: the SUBACK of very many filters.
            answers.truncate(start);
            return Err(Fault::Close(ReasonCode::ImplementationSpecificError));
        }
        *count += 1;
        Ok(())
    }

    fn publish(&mut self, publish: &Publish<'_>, scratch: &mut Scratch, now: Instant) -> Result<(), Fault> {
        if !publish.properties.subscription_ids.is_empty() {
            return Err(Fault::Close(ReasonCode::ProtocolError)); // [MQTT-3.3.4-6]
        }
        let Some(alias) = publish.properties.topic_alias else {
            return self.publish_to(publish.topic, publish, scratch, now);
        };
        if !publish.topic.is_empty() {
            self.aliases.set(alias.get(), publish.topic)?;
            return self.publish_to(publish.topic, publish, scratch, now);
        }
        let topic = self.aliases.take(alias.get())?;
        let result = self.publish_to(&topic, publish, scratch, now);
        self.aliases.put_back(alias.get(), topic);
        result
    }

    fn publish_to(&mut self, topic: &str, publish: &Publish<'_>, scratch: &mut Scratch, now: Instant) -> Result<(), Fault> {
        topic::check_decoded_name(topic).map_err(|_| Fault::Close(ReasonCode::TopicNameInvalid))?;
        if let Some(id) = publish.packet_id
            && self.router.must_refuse(&mut self.routes, topic, publish.qos, publish.retain, &self.connection.subscriber, id)
        {
            return match self.version {
                ProtocolVersion::V5 => self.acknowledge(publish.qos, id, ReasonCode::QuotaExceeded, scratch),
                // As below.
                _ => Err(Fault::Close(ReasonCode::QuotaExceeded)),
            };
        }
        if let (QoS::ExactlyOnce, Some(id)) = (publish.qos, publish.packet_id) {
            // Before: whoever is alone with the sessions finds the identifier in the session and in the journal, or in neither.
            if self.router.replicates() {
                self.router.enter(&mut scratch.batch);
            }
            let received = self.session()?.receive(scratch.batch.writes(), id, self.inbound_maximum());
            match received {
                Ok(true) => {}
                Ok(false) => {
                    scratch.has_repeats = true;
                    return self.acknowledge(publish.qos, id, ReasonCode::Success, scratch);
                }
                Err(_) => return Err(Fault::Close(ReasonCode::ReceiveMaximumExceeded)),
            }
        }
        scratch.batch.count_received(1, publish.payload.len());
        match (self.route(topic, publish, scratch, now), publish.packet_id) {
            (Ok(reason), Some(id)) => self.acknowledge(publish.qos, id, reason, scratch),
            (Ok(_), None) => Ok(()),
            (Err(fault), id) => {
                // Closing is no answer: the client will send it again, and then it is no repeat of what was taken.
                if let (QoS::ExactlyOnce, Some(id)) = (publish.qos, id) {
                    let mut state = self.connection.subscriber.lock();
                    // Of a connection that was taken over it is the next one's to say.
                    if state.epoch == self.connection.epoch {
                        state.release(scratch.batch.writes(), id);
                    }
                }
                Err(fault)
            }
        }
    }

    /// Publishes what follows the first packet of `packets`, `publish` of `first_bytes` bytes, as far as it differs from it in the payload only and that one had nothing but
    /// a payload to be looked at. Gives how many packets, and their bytes.
    pub(super) fn publish_alike(
        &mut self,
        publish: &Publish<'_>,
        (packets, first_bytes): (&[u8], usize),
        scratch: &mut Scratch,
        now: Instant,
    ) -> (usize, usize) {
        let (first, behind) = packets.split_at_checked(first_bytes).unwrap_or_default();
        // What most often differs is looked at first: of publishers that are to gain nothing by this little is asked.
        if publish.qos != QoS::AtMostOnce || behind.first() != first.first() {
            return (0, 0);
        }
        let alike = Alike::to(first, publish, self.version, self.terms.packet_bytes_max);
        let Some(alike) = alike.filter(|alike| alike.measure(behind).is_some()) else { return (0, 0) };
        let subscriber = &self.connection.subscriber;
        self.router.gather_alike(&mut scratch.batch, &alike, (publish.topic, packets, first_bytes), subscriber, now)
    }

    /// Gives the message to its receivers. Says what the publisher is answered, if it awaits an answer; after a fault nobody has got it.
    fn route(&mut self, topic: &str, publish: &Publish<'_>, scratch: &mut Scratch, now: Instant) -> Result<ReasonCode, Fault> {
        if is_system(topic) {
            let subscriber = &self.connection.subscriber;
            let may_say = is_own_state(topic, publish.payload, &subscriber.client_id) && subscriber.may_publish(topic);
            return match may_say && self.router.publish_state(&mut scratch.batch, subscriber, publish.payload, publish.retain, now)
            {
                true => Ok(ReasonCode::Success),
                false => Ok(ReasonCode::NotAuthorized),
            };
        }
        scratch.properties.clear();
        if !publish.properties.is_forwardable_empty() {
            // What was decoded can be encoded.
            let _ = publish.properties.forward_into(&mut scratch.properties);
            if scratch.properties.len() > FORWARDED_PROPERTIES_BYTES_MAX {
                scratch.properties = Vec::new();
                return Err(Fault::Close(ReasonCode::QuotaExceeded));
            }
        }
        let expiry = publish.properties.message_expiry_seconds;
        let message = Message {
            topic,
            payload: publish.payload,
            qos: publish.qos,
            retain: publish.retain,
            expires_at: expiry.map(|seconds| now + Duration::from_secs(u64::from(seconds))),
            properties: &scratch.properties,
        };
        let from = Ingress::Session(&self.connection.subscriber);
        match self.router.publish(&mut scratch.batch, &mut self.routes, &message, from, now) {
            // Before MQTT 5 there is no way to refuse it but not to acknowledge it: the client will send it again (3.1.1, section 3.3.5.2).
            Routed::NoMemory if publish.packet_id.is_some() && self.version != ProtocolVersion::V5 => {
                Err(Fault::Close(ReasonCode::QuotaExceeded))
            }
            // A bridge hands 0x97 on by ending its connection, so that the message comes again; this one would do so for ever.
            Routed::NotRetained if self.is_bridge() => Ok(ReasonCode::ImplementationSpecificError),
            routed => Ok(routed.reason()),
        }
    }

    /// Whether a bridge of this broker speaks.
    fn is_bridge(&self) -> bool {
        self.connection.subscriber.access().is_some_and(|access| matches!(access.identity(), Identity::Bridge { .. }))
    }

    /// The session, locked, unless it has gone on at another broker: what of an exchange is not known there the client says again.
    fn session(&self) -> Result<MutexGuard<'_, State>, Fault> {
        let state = self.connection.subscriber.lock();
        if state.is_elsewhere() { Err(Fault::Close(ReasonCode::SessionTakenOver)) } else { Ok(state) }
    }

    /// Before MQTT 5 nobody was told a Receive Maximum: the packet identifiers are the bound.
    fn inbound_maximum(&self) -> usize {
        usize::from(if self.version == ProtocolVersion::V5 { RECEIVE_MAXIMUM } else { u16::MAX })
    }

    /// PUBACK or PUBREC. Before MQTT 5 there is no way to refuse: the message is taken and dropped (3.1.1, section 3.3.5.2).
    fn acknowledge(&mut self, qos: QoS, id: PacketId, reason: ReasonCode, scratch: &mut Scratch) -> Result<(), Fault> {
        let reason = if self.version == ProtocolVersion::V5 { reason } else { ReasonCode::Success };
        let ack = Ack { packet_id: id, reason, properties: AckProperties::default() };
        let packet = match qos {
            QoS::AtMostOnce => return Ok(()),
            QoS::AtLeastOnce => Packet::PubAck(ack),
            QoS::ExactlyOnce => {
                if reason.is_error() {
                    // A refused exchange is over (MQTT 5.0 section 4.3.3).
                    self.connection.subscriber.lock().release(scratch.batch.writes(), id);
                }
                Packet::PubRec(ack)
            }
        };
        self.reply(&mut scratch.acknowledgements, &mut scratch.answers_count, &packet)
    }

    fn pubrec(&mut self, ack: &Ack<'_>, scratch: &mut Scratch) -> Result<(), Fault> {
        let refused = ack.reason.is_error();
        let (known, number) = self.session()?.pubrec(ack.packet_id, refused)?;
        if refused {
            return Ok(());
        }
        let released = Packet::PubRel(self.found(known, ack.packet_id));
        let Some(awaited) = number else { return self.reply(&mut scratch.answers, &mut scratch.answers_count, &released) };
        // Once the client has seen PUBREL it forgets the identifier: a restarted broker must know that the message has arrived.
        scratch.batch.writes().await_for(awaited);
        self.reply(&mut scratch.acknowledgements, &mut scratch.answers_count, &released)
    }

    fn pubrel(&mut self, ack: &Ack<'_>, scratch: &mut Scratch) -> Result<(), Fault> {
        if self.router.replicates() {
            self.router.enter(&mut scratch.batch);
        }
        let known = self.session()?.pubrel(scratch.batch.writes(), ack.packet_id);
        // Behind acknowledgements that are held: a PUBCOMP must not overtake its PUBREC.
        self.reply(&mut scratch.acknowledgements, &mut scratch.answers_count, &Packet::PubComp(self.found(known, ack.packet_id)))
    }

    fn found(&self, known: bool, packet_id: PacketId) -> Ack<'static> {
        let reason = match known || self.version != ProtocolVersion::V5 {
            true => ReasonCode::Success,
            false => ReasonCode::PacketIdentifierNotFound,
        };
        Ack { packet_id, reason, properties: AckProperties::default() }
    }

    fn subscribe(&mut self, subscribe: &codec::Subscribe<'_>, scratch: &mut Scratch) -> Result<(), Fault> {
        check_filters(subscribe.filters.iter().map(|filter| filter.filter))?;
        let mut reasons = Vec::with_capacity(subscribe.filters.len());
        for filter in &subscribe.filters {
            // A shared subscription never has No Local [MQTT-3.8.3-4].
            let is_bridges_own = self.is_bridge && !filter.filter.starts_with("$share/");
            let options = SubscriptionOptions {
                qos: filter.options.qos,
                no_local: filter.options.no_local || is_bridges_own,
                retain_as_published: filter.options.retain_as_published || self.is_bridge,
                subscription_id: subscribe.properties.subscription_id.map(u32::from),
            };
            let request = Subscribe { filter: filter.filter, options, retain_handling: filter.options.retain_handling };
            reasons.push(match self.router.subscribe(&self.connection, &request) {
                Ok(number) => {
                    scratch.barrier = scratch.barrier.max(number.unwrap_or(0));
                    match filter.options.qos {
                        QoS::AtMostOnce => ReasonCode::Success,
                        QoS::AtLeastOnce => ReasonCode::GrantedQoS1,
                        QoS::ExactlyOnce => ReasonCode::GrantedQoS2,
                    }
                }
                Err(error) if !error.reason().is_allowed_in(PacketType::SubAck) => return Err(Fault::Close(error.reason())),
                // 3.1 has no failure code in SUBACK: its clients are closed.
                Err(error) if self.version == ProtocolVersion::V3_1 => return Err(Fault::Close(error.reason())),
                Err(error) => error.reason(),
            });
        }
        // What was refused is told to nobody.
        if reasons.iter().any(|reason| !reason.is_error()) {
            scratch.echo = self.router.ask_echo().or(scratch.echo.take());
        }
        let packet_id = subscribe.packet_id;
        self.reply(
            &mut scratch.answers,
            &mut scratch.answers_count,
            &Packet::SubAck(SubAck { packet_id, properties: AckProperties::default(), reasons }),
        )
    }

    fn unsubscribe(&mut self, unsubscribe: &codec::Unsubscribe<'_>, scratch: &mut Scratch) -> Result<(), Fault> {
        check_filters(unsubscribe.filters.iter().copied())?;
        let reasons = unsubscribe
            .filters
            .iter()
            .map(|filter| match self.router.unsubscribe(&self.connection, filter) {
                Ok((existed, number)) => {
                    scratch.barrier = scratch.barrier.max(number.unwrap_or(0));
                    if existed { ReasonCode::Success } else { ReasonCode::NoSubscriptionExisted }
                }
                Err(error) => error.reason(),
            })
            .collect();
        let packet_id = unsubscribe.packet_id;
        self.reply(
            &mut scratch.answers,
            &mut scratch.answers_count,
            &Packet::UnsubAck(UnsubAck { packet_id, properties: AckProperties::default(), reasons }),
        )
    }

    fn disconnect(&self, disconnect: &codec::Disconnect<'_>) -> Fault {
        let expiry = disconnect.properties.session_expiry_seconds.map(SessionExpiry::from_interval_seconds);
        if self.expiry_fixed && expiry.is_some_and(|expiry| expiry != SessionExpiry::WithConnection) {
            return Fault::Close(ReasonCode::ProtocolError); // MQTT 5.0 section 3.14.2.2.2
        }
        let farewell = match disconnect.reason {
            ReasonCode::Success => Farewell::Normal,
            _ => Farewell::Lost,
        };
        Fault::Disconnect(farewell, expiry)
    }
}
