//! Between the two sides of a connected bridge: packets are handed across with their identifiers, and only topics are renamed.
//!
//! Each side is the server of a session and takes the bridge for its client, so each keeps its own half of every exchange, on its own disk:
//! what one side sends under an identifier, the other acknowledges under it. The relay remembers nothing of a message, and nothing is lost or doubled
//! when it ends in the middle, whoever ends it. What it says itself is SUBSCRIBE, UNSUBSCRIBE, PINGREQ, and the answer to messages that do not cross.
//!
//! One side is read from only while what goes to the other is being written, and the foreign one only while it takes what it is answered, so a slow
//! side slows the other and nothing grows.
//!
//! Invariant: a message is acknowledged by the relay itself only if it matches no topic of the bridge, or is none that the other side could have; that is
//! counted.
//!
//! Specification: MQTT 5.0 sections 4.3 and 4.4.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::status::Status;
use super::topics::{Topics, Wanted};
use crate::clock;
use crate::codec::{
    self, Ack, AckProperties, DecodeError, EncodeError, Packet, PacketId, ProtocolVersion, Publish, PublishProperties, QoS,
    ReasonCode, RetainHandling, SubAck, Subscribe, SubscribeFilter, SubscribeProperties, SubscriptionIds, SubscriptionOptions,
    Unsubscribe, UnsubscribeProperties,
};
use crate::limits::{FORWARDED_PROPERTIES_BYTES_MAX, PACKET_BYTES_MAX, READ_BYTES};
use crate::router::is_system;

/// So much waits to be written to one side before the other is not read from.
const UNWRITTEN_BYTES_MAX: usize = 256 * 1024;
/// Filters of one SUBSCRIBE or UNSUBSCRIBE: there are servers that take no more.
const FILTERS_AT_ONCE: usize = 8;
/// The user property with [`Foreign::mark`].
const MARK: &str = "bridge";
/// A buffer that is larger is given back when it is empty.
const KEPT_BUFFER_BYTES: usize = 64 * 1024;

/// Why a connected bridge is no longer.
#[derive(Debug, thiserror::Error)]
pub(super) enum End {
    /// The broker stops, or the bridge is another's now.
    #[error("told to end")]
    Told,
    /// The foreign broker's socket.
    #[error("the connection to the foreign broker: {0}")]
    Remote(std::io::Error),
    /// The foreign broker has closed it.
    #[error("the foreign broker has closed the connection")]
    RemoteClosed,
    /// The foreign broker's DISCONNECT.
    #[error("the foreign broker says: {0}")]
    RemoteSaid(ReasonCode),
    /// It is not there any more.
    #[error("the foreign broker does not answer")]
    Silent,
    /// What it sends is not MQTT.
    #[error("from the foreign broker: {0}")]
    Decode(#[from] DecodeError),
    /// A packet that no server sends.
    #[error("from the foreign broker: {0}, which no server sends")]
    Unexpected(codec::PacketType),
    /// A packet that cannot be written in the other version.
    #[error("a packet that does not cross: {0}")]
    Encode(#[from] EncodeError),
    /// This broker has ended the session's connection.
    #[error("this broker has closed the bridge's session")]
    LocalClosed,
    /// The same, with a reason.
    #[error("this broker says to the bridge's session: {0}")]
    LocalSaid(ReasonCode),
    /// Not the end of a bridge: the foreign broker has nothing any more of what was in flight.
    #[error("what was in flight is released there")]
    Released,
    /// A message could not be taken here: it is not acknowledged, and comes again.
    #[error("this broker cannot take a message now: {0}")]
    LocalFull(ReasonCode),
}

/// What the foreign side is like.
#[derive(Clone, Copy, Debug)]
pub(super) struct Foreign<'a> {
    pub(super) version: ProtocolVersion,
    /// Bytes of the largest packet that is taken from it.
    pub(super) packet_bytes_max: u32,
    /// Whether retained messages are sent to it as such.
    pub(super) retain: bool,
    /// Zero: it is never asked whether it is there.
    pub(super) keep_alive: Duration,
    /// What marks messages that came from it, so that no other broker of the mesh takes them back there; empty: nothing.
    pub(super) mark: &'a str,
    /// Under which SUBSCRIBE and UNSUBSCRIBE go to it; no message in flight has it.
    pub(super) spare_id: PacketId,
    /// It still has the subscriptions that were made before. MQTT 3.1.1 would answer to new ones with all that is retained.
    pub(super) has_subscriptions: bool,
}

/// See the module's page. Pure but for the time: packets in, bytes out.
#[derive(Debug)]
pub(super) struct Relay<'a> {
    topics: &'a Topics,
    status: &'a Status,
    foreign: Foreign<'a>,
    pub(super) to_local: Vec<u8>,
    pub(super) to_remote: Vec<u8>,
    /// Bytes of `to_remote` that were caused by what it says, since all was written last.
    answered: usize,
    /// Bytes of a packet that is too large that are still to come.
    too_large: usize,
    /// Identifiers whose PUBCOMP is awaited; while there are some nothing crosses, either way. See [`Self::releasing`].
    sweeping: BTreeSet<PacketId>,
    topic: String,
    asked: Asked<'a>,
    /// User properties with the mark.
    marked: Vec<u8>,
}

/// What the foreign side is still asked for, some filters at a time.
#[derive(Debug, Default)]
struct Asked<'a> {
    subscribe: Vec<Wanted<'a>>,
    unsubscribe: Vec<&'a str>,
    /// What it has not answered yet: filters at the end of `subscribe`, or of `unsubscribe`.
    subscribing: usize,
    unsubscribing: usize,
    is_refused: bool,
}

impl<'a> Relay<'a> {
    /// Begins by subscribing on the foreign side.
    ///
    /// # Errors
    /// When the filters do not fit a packet.
    pub(super) fn new(topics: &'a Topics, status: &'a Status, foreign: Foreign<'a>, unsubscribes: bool) -> Result<Self, End> {
        let mut relay = Self::silent(topics, status, foreign);
        status.set_subscribed(foreign.has_subscriptions);
        // They are taken from the end.
        relay.asked.subscribe = topics.remote().into_iter().rev().filter(|_| !foreign.has_subscriptions).collect();
        relay.asked.unsubscribe =
            topics.remote_unwanted().into_iter().filter(|_| unsubscribes && !foreign.has_subscriptions).collect();
        relay.ask()?;
        Ok(relay)
    }

    fn silent(topics: &'a Topics, status: &'a Status, foreign: Foreign<'a>) -> Self {
        Self {
            topics,
            status,
            foreign,
            to_local: Vec::new(),
            to_remote: Vec::new(),
            answered: 0,
            too_large: 0,
            sweeping: BTreeSet::new(),
            topic: String::new(),
            asked: Asked::default(),
            marked: Vec::new(),
        }
    }

    /// Only releases whatever the foreign session has received of another's and this broker knows nothing of: a new message would be taken for the
    /// repeat of an old one. Ends with [`End::Released`]; what comes meanwhile is not answered and comes again on the next connection.
    ///
    /// PUBREL of what was not received is answered all the same (MQTT 5.0 section 4.3.3; 3.1.1, section 4.3.3).
    ///
    /// # Errors
    /// None that is known: these packets fit.
    pub(super) fn releasing(topics: &'a Topics, status: &'a Status, foreign: Foreign<'a>) -> Result<Self, End> {
        let mut relay = Self::silent(topics, status, foreign);
        relay.sweeping = (1..=u16::MAX).filter_map(PacketId::new).collect();
        for id in 1..=u16::MAX {
            let Some(id) = PacketId::new(id) else { continue };
            codec::encode(&mut relay.to_remote, foreign.version, &Packet::PubRel(Ack::success(id)))?;
        }
        Ok(relay)
    }

    fn is_sweeping(&self) -> bool {
        !self.sweeping.is_empty()
    }

    /// The next SUBSCRIBE or UNSUBSCRIBE; each waits for the answer to the last, for there is one identifier.
    fn ask(&mut self) -> Result<(), End> {
        let packet_id = self.foreign.spare_id;
        let asked = &mut self.asked;
        let next = |len: usize| len.saturating_sub(FILTERS_AT_ONCE);
        if !asked.subscribe.is_empty() {
            let options = |qos| SubscriptionOptions {
                qos,
                no_local: true,
                retain_as_published: true,
                retain_handling: RetainHandling::SendIfNew,
            };
            let these = asked.subscribe.get(next(asked.subscribe.len())..).unwrap_or_default();
            asked.subscribing = these.len();
            let filters = these.iter().map(|one| SubscribeFilter { filter: one.filter, options: options(one.qos) }).collect();
            let packet = Subscribe { packet_id, properties: SubscribeProperties::default(), filters };
            return Ok(codec::encode(&mut self.to_remote, self.foreign.version, &Packet::Subscribe(packet))?);
        }
        self.status.set_subscribed(!asked.is_refused);
        if asked.unsubscribe.is_empty() {
            return Ok(());
        }
        let these = asked.unsubscribe.get(next(asked.unsubscribe.len())..).unwrap_or_default();
        asked.unsubscribing = these.len();
        let packet = Unsubscribe { packet_id, properties: UnsubscribeProperties::default(), filters: these.to_vec() };
        Ok(codec::encode(&mut self.to_remote, self.foreign.version, &Packet::Unsubscribe(packet))?)
    }

    fn subscribed(&mut self, answer: &SubAck<'_>) -> Result<(), End> {
        let count = std::mem::take(&mut self.asked.subscribing);
        if count == 0 || answer.packet_id != self.foreign.spare_id {
            return Ok(());
        }
        let these = self.asked.subscribe.split_off(self.asked.subscribe.len().saturating_sub(count));
        for (one, reason) in these.iter().zip(&answer.reasons).filter(|(_, reason)| reason.is_error()) {
            self.asked.is_refused = true;
            if let Some(left_out) = self.status.log_rate.permit("subscription", clock::now()) {
                tracing::warn!(filter = one.filter, %reason, left_out, "the foreign broker refuses a subscription of the bridge");
            }
        }
        self.ask()
    }

    fn unsubscribed(&mut self, id: PacketId) -> Result<(), End> {
        let count = std::mem::take(&mut self.asked.unsubscribing);
        if count == 0 || id != self.foreign.spare_id {
            return Ok(());
        }
        self.asked.unsubscribe.truncate(self.asked.unsubscribe.len().saturating_sub(count));
        self.ask()
    }

    /// Tells the foreign side, retained, that the bridge is there.
    ///
    /// # Errors
    /// When the topic does not fit a packet.
    pub(super) fn notify(&mut self, topic: &str) -> Result<(), End> {
        let properties = PublishProperties::default();
        let packet = Publish { dup: false, qos: QoS::AtMostOnce, retain: true, topic, packet_id: None, properties, payload: b"1" };
        Ok(codec::encode(&mut self.to_remote, self.foreign.version, &Packet::Publish(packet))?)
    }

    /// A packet of this broker.
    ///
    /// # Errors
    /// When the bridge has to end.
    pub(super) fn hear_local(&mut self, packet: &Packet<'_>) -> Result<(), End> {
        match packet {
            Packet::Publish(publish) => self.outward(publish),
            // What is not taken here for want of room must not be taken for delivered there.
            Packet::PubAck(ack) | Packet::PubRec(ack) if ack.reason == ReasonCode::QuotaExceeded => Err(End::LocalFull(ack.reason)),
            Packet::PubAck(ack) => self.acknowledge_outward(Packet::PubAck, ack),
            Packet::PubRec(ack) => self.acknowledge_outward(Packet::PubRec, ack),
            Packet::PubRel(ack) => self.acknowledge_outward(Packet::PubRel, ack),
            Packet::PubComp(ack) => self.acknowledge_outward(Packet::PubComp, ack),
            Packet::SubAck(answer) => {
                if let Some(reason) = answer.reasons.iter().find(|reason| reason.is_error()) {
                    return Err(End::LocalSaid(*reason));
                }
                Ok(())
            }
            Packet::Disconnect(disconnect) => Err(End::LocalSaid(disconnect.reason)),
            _ => Ok(()),
        }
    }

    /// A packet of the foreign broker.
    ///
    /// # Errors
    /// When the bridge has to end.
    pub(super) fn hear_remote(&mut self, packet: &Packet<'_>) -> Result<(), End> {
        if self.is_sweeping() {
            return match packet {
                Packet::Disconnect(disconnect) => Err(End::RemoteSaid(disconnect.reason)),
                Packet::PubComp(ack) if self.sweeping.remove(&ack.packet_id) && !self.is_sweeping() => Err(End::Released),
                _ => Ok(()),
            };
        }
        match packet {
            Packet::Publish(publish) => self.inward(publish),
            Packet::PubAck(ack) => self.acknowledge_inward(Packet::PubAck, ack),
            Packet::PubRec(ack) => self.acknowledge_inward(Packet::PubRec, ack),
            Packet::PubRel(ack) => self.acknowledge_inward(Packet::PubRel, ack),
            Packet::PubComp(ack) => self.acknowledge_inward(Packet::PubComp, ack),
            Packet::SubAck(answer) => self.subscribed(answer),
            Packet::UnsubAck(answer) => self.unsubscribed(answer.packet_id),
            Packet::PingResp => Ok(()),
            Packet::Disconnect(disconnect) => Err(End::RemoteSaid(disconnect.reason)),
            other => Err(End::Unexpected(other.packet_type())),
        }
    }

    fn outward(&mut self, publish: &Publish<'_>) -> Result<(), End> {
        let mark = self.foreign.mark;
        let is_from_there = !mark.is_empty() && publish.properties.user_properties.iter().any(|one| one == (MARK, mark));
        if is_from_there || !self.topics.outward(publish.topic, &mut self.topic) {
            return self.answer_local(publish);
        }
        let crossing = Publish { topic: &self.topic, retain: publish.retain && self.foreign.retain, ..*publish };
        if codec::encode(&mut self.to_remote, self.foreign.version, &Packet::Publish(crossing)).is_err() {
            return self.answer_local(publish);
        }
        self.status.sent.add(1);
        Ok(())
    }

    fn inward(&mut self, publish: &Publish<'_>) -> Result<(), End> {
        self.status.received.add(1);
        // What could never be taken here would come again and again.
        if !self.topics.inward(publish.topic, &mut self.topic) || is_system(&self.topic) || has_too_many_properties(publish) {
            return self.answer_remote(publish.qos, publish.packet_id);
        }
        // Identifiers of subscriptions are the bridge's own affair [MQTT-3.3.4-6].
        let properties =
            PublishProperties { topic_alias: None, subscription_ids: SubscriptionIds::default(), ..publish.properties };
        let mut crossing = Publish { topic: &self.topic, properties, ..*publish };
        if !self.foreign.mark.is_empty()
            && let Ok(user_properties) = properties.user_properties.with(MARK, self.foreign.mark, &mut self.marked)
        {
            let marked = Publish { properties: PublishProperties { user_properties, ..properties }, ..crossing };
            if !has_too_many_properties(&marked) {
                crossing = marked;
            }
        }
        match codec::encode(&mut self.to_local, ProtocolVersion::V5, &Packet::Publish(crossing)) {
            Ok(()) => Ok(()),
            Err(_) => self.answer_remote(publish.qos, publish.packet_id),
        }
    }

    /// The message does not cross. Of QoS 2 the rest of the exchange crosses as ever: who has not received a message answers PUBREL all the same.
    fn answer_local(&mut self, publish: &Publish<'_>) -> Result<(), End> {
        self.refused("to the foreign broker", ReasonCode::TopicNameInvalid);
        answer(&mut self.to_local, ProtocolVersion::V5, publish.qos, publish.packet_id)
    }

    /// See [`Self::answer_local`].
    fn answer_remote(&mut self, qos: QoS, id: Option<PacketId>) -> Result<(), End> {
        self.refused("from the foreign broker", ReasonCode::TopicNameInvalid);
        answer(&mut self.to_remote, self.foreign.version, qos, id)
    }

    /// A message does not cross, and will not.
    fn refused(&self, which: &'static str, reason: ReasonCode) {
        self.status.refused.add(1);
        if let Some(left_out) = self.status.log_rate.permit(which, clock::now()) {
            let bridge = self.status.name();
            tracing::warn!(bridge, which, %reason, left_out, "a message does not cross the bridge and is dropped");
        }
    }

    fn acknowledge_outward(&mut self, kind: impl Fn(Ack<'static>) -> Packet<'static>, ack: &Ack<'_>) -> Result<(), End> {
        if is_refusal(&kind, ack) {
            self.refused("from the foreign broker", ack.reason);
        }
        put_ack(&mut self.to_remote, self.foreign.version, kind, ack)
    }

    fn acknowledge_inward(&mut self, kind: impl Fn(Ack<'static>) -> Packet<'static>, ack: &Ack<'_>) -> Result<(), End> {
        if is_refusal(&kind, ack) {
            self.refused("to the foreign broker", ack.reason);
        }
        put_ack(&mut self.to_local, ProtocolVersion::V5, kind, ack)
    }

    /// Is the foreign broker there?
    fn ping(&mut self) -> Result<(), End> {
        Ok(codec::encode(&mut self.to_remote, self.foreign.version, &Packet::PingReq)?)
    }

    /// Carries packets both ways until something ends.
    pub(super) async fn run(
        &mut self,
        local: impl AsyncRead + AsyncWrite,
        remote: impl AsyncRead + AsyncWrite,
        rest: Vec<u8>,
        mut told: impl Future<Output = ()> + Unpin,
    ) -> End {
        let (mut local_in, mut local_out) = tokio::io::split(local);
        let (mut remote_in, mut remote_out) = tokio::io::split(remote);
        let (mut from_local, mut from_remote) = (Vec::new(), rest);
        let (mut written_local, mut written_remote) = (0, 0);
        let mut is_flushed = true;
        let mut life = Life::new(self.foreign.keep_alive, clock::now());
        if let Err(end) = self.take_remote(&mut from_remote) {
            return end;
        }
        loop {
            let (to_local, to_remote) =
                (self.to_local.get(written_local..).unwrap_or_default(), self.to_remote.get(written_remote..).unwrap_or_default());
            let taken = tokio::select! {
                () = &mut told => return End::Told,
                wrote = local_out.write(to_local), if !to_local.is_empty() => match wrote {
                    Ok(count) if count > 0 => {
                        written_local += count;
                        trim(&mut self.to_local, &mut written_local);
                        Ok(())
                    }
                    _ => return End::LocalClosed,
                },
                wrote = write_or_flush(&mut remote_out, to_remote), if !to_remote.is_empty() || !is_flushed => match wrote {
                    Ok(None) => {
                        is_flushed = true;
                        Ok(())
                    }
                    Ok(Some(0)) => return End::RemoteClosed,
                    Ok(Some(count)) => {
                        written_remote += count;
                        trim(&mut self.to_remote, &mut written_remote);
                        is_flushed = false;
                        if self.to_remote.is_empty() {
                            self.answered = 0;
                        }
                        life.spoke(clock::now());
                        Ok(())
                    }
                    Err(error) => return End::Remote(error),
                },
                read = read(&mut local_in, &mut from_local), if to_remote.len() < UNWRITTEN_BYTES_MAX && !self.is_sweeping() => match read {
                    Ok(count) if count > 0 => self.take_local(&mut from_local),
                    _ => return End::LocalClosed,
                },
                read = read(&mut remote_in, &mut from_remote), if to_local.len() < UNWRITTEN_BYTES_MAX && self.answered < UNWRITTEN_BYTES_MAX => match read {
                    Ok(0) => return End::RemoteClosed,
                    Ok(_) => {
                        life.heard(clock::now());
                        self.take_remote(&mut from_remote)
                    }
                    Err(error) => return End::Remote(error),
                },
                () = tokio::time::sleep_until(life.due().into()), if life.is_watched() => match life.pass(clock::now()) {
                    Pass::Ask => self.ping(),
                    Pass::Gone => return End::Silent,
                    Pass::Nothing => Ok(()),
                },
            };
            if let Err(end) = taken {
                return end;
            }
        }
    }

    fn take_local(&mut self, input: &mut Vec<u8>) -> Result<(), End> {
        let mut taken = 0;
        while let Some((packet, length)) =
            codec::decode(input.get(taken..).unwrap_or_default(), ProtocolVersion::V5, PACKET_BYTES_MAX)?
        {
            self.hear_local(&packet)?;
            taken += length;
        }
        give_back(input, taken);
        Ok(())
    }

    fn take_remote(&mut self, input: &mut Vec<u8>) -> Result<(), End> {
        let Foreign { version, packet_bytes_max, .. } = self.foreign;
        let (mut taken, before) = (0, self.to_remote.len());
        loop {
            let rest = input.get(taken..).unwrap_or_default();
            let passed = self.too_large.min(rest.len());
            if passed > 0 {
                (taken, self.too_large) = (taken + passed, self.too_large - passed);
                continue;
            }
            match codec::decode(rest, version, packet_bytes_max) {
                Ok(Some((packet, length))) => {
                    self.hear_remote(&packet)?;
                    taken += length;
                }
                Ok(None) => break,
                // Before MQTT 5 nobody was told what is too large, and it would come again and again.
                Err(error @ DecodeError::PacketTooLarge { bytes, .. }) => {
                    let Some((qos, id)) = large_message(rest).ok_or(error)? else { break };
                    self.too_large = bytes;
                    if !self.is_sweeping() {
                        self.status.received.add(1);
                        self.answer_remote(qos, id)?;
                    }
                }
                Err(error) => return Err(error.into()),
            }
        }
        give_back(input, taken);
        self.answered += self.to_remote.len() - before;
        Ok(())
    }
}

/// QoS and identifier of a PUBLISH of which the front is here; inner `None`: more of it is needed. `None`: it is no PUBLISH.
fn large_message(front: &[u8]) -> Option<Option<(QoS, Option<PacketId>)>> {
    let first = *front.first()?;
    let qos = match (first >> 4, first >> 1 & 3) {
        (3, 0) => return Some(Some((QoS::AtMostOnce, None))),
        (3, 1) => QoS::AtLeastOnce,
        (3, 2) => QoS::ExactlyOnce,
        _ => return None,
    };
    // Behind a length of at most four bytes that was decoded already.
    let number = |at: usize| Some(u16::from_be_bytes([*front.get(at)?, *front.get(at + 1)?]));
    let topic_at = front.iter().skip(1).position(|byte| byte & 0x80 == 0)? + 2;
    let id = number(topic_at).and_then(|topic| number(topic_at + 2 + usize::from(topic)));
    match id.map(PacketId::new) {
        None => Some(None),
        Some(None) => None,
        Some(id) => Some(Some((qos, id))),
    }
}

fn is_refusal(kind: impl Fn(Ack<'static>) -> Packet<'static>, ack: &Ack<'_>) -> bool {
    ack.reason.is_error() && matches!(kind(Ack::success(ack.packet_id)), Packet::PubAck(_) | Packet::PubRec(_))
}

/// Whether they are more than a message may have here.
fn has_too_many_properties(publish: &Publish<'_>) -> bool {
    let mut properties = Vec::new();
    !publish.properties.is_forwardable_empty()
        && (publish.properties.forward_into(&mut properties).is_err() || properties.len() > FORWARDED_PROPERTIES_BYTES_MAX)
}

/// Bytes that were written; where there are none to be written, what TLS keeps back is sent. May be dropped in the middle.
async fn write_or_flush(to: &mut (impl AsyncWrite + Unpin), bytes: &[u8]) -> std::io::Result<Option<usize>> {
    if bytes.is_empty() { to.flush().await.map(|()| None) } else { to.write(bytes).await.map(Some) }
}

async fn read(from: &mut (impl AsyncRead + Unpin), into: &mut Vec<u8>) -> std::io::Result<usize> {
    into.reserve(READ_BYTES);
    from.read_buf(into).await
}

/// Forgets what was written once all of it is, or most of much.
fn trim(bytes: &mut Vec<u8>, written: &mut usize) {
    if *written == bytes.len() || *written >= UNWRITTEN_BYTES_MAX {
        give_back(bytes, *written);
        *written = 0;
    }
}

fn give_back(bytes: &mut Vec<u8>, taken: usize) {
    bytes.drain(..taken.min(bytes.len()));
    if bytes.is_empty() && bytes.capacity() > KEPT_BUFFER_BYTES {
        *bytes = Vec::new();
    }
}

/// Before MQTT 5 there is no refusal: what it would be said of is over all the same.
fn put_ack(
    out: &mut Vec<u8>,
    version: ProtocolVersion,
    kind: impl Fn(Ack<'static>) -> Packet<'static>,
    ack: &Ack<'_>,
) -> Result<(), End> {
    let reason = if version == ProtocolVersion::V5 { ack.reason } else { ReasonCode::Success };
    let ack = Ack { packet_id: ack.packet_id, reason, properties: AckProperties::default() };
    Ok(codec::encode(out, version, &kind(ack))?)
}

fn answer(out: &mut Vec<u8>, version: ProtocolVersion, qos: QoS, id: Option<PacketId>) -> Result<(), End> {
    let packet = match (qos, id) {
        (QoS::AtLeastOnce, Some(id)) => Packet::PubAck(Ack::success(id)),
        (QoS::ExactlyOnce, Some(id)) => Packet::PubRec(Ack::success(id)),
        _ => return Ok(()),
    };
    Ok(codec::encode(out, version, &packet)?)
}

/// Whether the foreign broker is there (MQTT 5.0 section 3.1.2.10).
#[derive(Debug)]
struct Life {
    keep_alive: Duration,
    spoke_at: Instant,
    heard_at: Instant,
    /// It was asked then, and has said nothing since.
    asked_at: Option<Instant>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pass {
    Nothing,
    Ask,
    Gone,
}

impl Life {
    fn new(keep_alive: Duration, now: Instant) -> Self {
        Self { keep_alive, spoke_at: now, heard_at: now, asked_at: None }
    }

    fn is_watched(&self) -> bool {
        !self.keep_alive.is_zero()
    }

    fn spoke(&mut self, now: Instant) {
        self.spoke_at = now;
    }

    fn heard(&mut self, now: Instant) {
        self.heard_at = now;
        self.asked_at = None;
    }

    /// When there is something to do next.
    fn due(&self) -> Instant {
        match self.asked_at {
            // Half as much again, as a server waits.
            Some(asked_at) => asked_at + self.keep_alive / 2,
            None => self.spoke_at.min(self.heard_at) + self.keep_alive,
        }
    }

    fn pass(&mut self, now: Instant) -> Pass {
        if now < self.due() {
            return Pass::Nothing;
        }
        match self.asked_at {
            Some(_) => Pass::Gone,
            None => {
                self.asked_at = Some(now);
                Pass::Ask
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::task::{Context, Poll};

    use tokio::io::ReadBuf;

    use super::*;
    use crate::codec::UserProperties;

    const V5: ProtocolVersion = ProtocolVersion::V5;
    const V3: ProtocolVersion = ProtocolVersion::V3_1_1;

    fn id(n: u16) -> PacketId {
        PacketId::new(n).unwrap()
    }

    fn foreign(version: ProtocolVersion) -> Foreign<'static> {
        Foreign {
            version,
            packet_bytes_max: 10_000,
            retain: true,
            keep_alive: Duration::from_secs(10),
            mark: "",
            spare_id: id(900),
            has_subscriptions: false,
        }
    }

    fn topics(lines: &[&str]) -> Topics {
        Topics::new(&lines.iter().map(|line| line.parse().unwrap()).collect::<Vec<_>>())
    }

    fn publish(topic: &str, qos: QoS, n: u16) -> Publish<'_> {
        let packet_id = (qos != QoS::AtMostOnce).then(|| id(n));
        Publish { dup: false, qos, retain: false, topic, packet_id, properties: PublishProperties::default(), payload: b"x" }
    }

    /// What was said to a side since it was asked last.
    fn said(bytes: &mut Vec<u8>, version: ProtocolVersion) -> Vec<String> {
        let mut all = Vec::new();
        while let Ok(Some((packet, length))) = codec::decode(bytes, version, PACKET_BYTES_MAX) {
            all.push(match &packet {
                Packet::Publish(one) => format!(
                    "PUBLISH {} {} {:?} r{}",
                    one.topic,
                    one.qos as u8,
                    one.packet_id.map(PacketId::get),
                    u8::from(one.retain)
                ),
                Packet::PubAck(ack) | Packet::PubRec(ack) | Packet::PubRel(ack) | Packet::PubComp(ack) => {
                    format!("{} {} {:#x}", packet.packet_type(), ack.packet_id, ack.reason as u8)
                }
                Packet::Subscribe(one) => format!(
                    "SUBSCRIBE {} {}",
                    one.packet_id,
                    one.filters.iter().map(|one| one.filter).collect::<Vec<_>>().join(" ")
                ),
                Packet::Unsubscribe(one) => format!("UNSUBSCRIBE {} {}", one.packet_id, one.filters.join(" ")),
                other => other.packet_type().to_string(),
            });
            bytes.drain(..length);
        }
        assert!(bytes.is_empty());
        all
    }

    #[test]
    fn identifiers_cross_and_topics_are_renamed() {
        for version in [V3, V5] {
            let (topics, status) = (topics(&["a/# out 2 \"\" there/", "# in 2 here/ \"\""]), Status::new("b"));
            let mut relay = Relay::new(&topics, &status, foreign(version), true).unwrap();
            assert_eq!(said(&mut relay.to_remote, version), ["SUBSCRIBE 900 #"]);
            let suback =
                codec::SubAck { packet_id: id(900), properties: AckProperties::default(), reasons: vec![ReasonCode::GrantedQoS2] };
            relay.hear_remote(&Packet::SubAck(suback)).unwrap();
            assert_eq!(said(&mut relay.to_remote, version), ["UNSUBSCRIBE 900 there/a/#"]);
            for packet in [
                Packet::Publish(publish("a/1", QoS::AtMostOnce, 0)),
                Packet::Publish(publish("a/1", QoS::ExactlyOnce, 7)),
                Packet::PubRel(Ack::success(id(7))),
                Packet::PubRec(Ack::success(id(3))),
            ] {
                relay.hear_local(&packet).unwrap();
            }
            let expected = ["PUBLISH there/a/1 0 None r0", "PUBLISH there/a/1 2 Some(7) r0", "PUBREL 7 0x0", "PUBREC 3 0x0"];
            assert_eq!(said(&mut relay.to_remote, version), expected);
            for packet in [
                Packet::PubRec(Ack::success(id(7))),
                Packet::Publish(publish("x", QoS::AtLeastOnce, 3)),
                Packet::PubComp(Ack::success(id(7))),
                Packet::PingResp,
            ] {
                relay.hear_remote(&packet).unwrap();
            }
            assert_eq!(said(&mut relay.to_local, V5), ["PUBREC 7 0x0", "PUBLISH here/x 1 Some(3) r0", "PUBCOMP 7 0x0"]);
        }
    }

    #[test]
    fn what_does_not_cross_is_acknowledged_and_counted() {
        let (topics, status) = (topics(&["a out 2", "b in 2 $SYS/ \"\"", "c in 2"]), Status::new("b"));
        let mut relay = Relay::new(&topics, &status, foreign(V3), false).unwrap();
        said(&mut relay.to_remote, V3);
        for (n, qos) in [(0, QoS::AtMostOnce), (1, QoS::AtLeastOnce), (2, QoS::ExactlyOnce)] {
            relay.hear_local(&Packet::Publish(publish("old", qos, n))).unwrap();
            relay.hear_remote(&Packet::Publish(publish("old", qos, n))).unwrap();
        }
        // Two of these are more properties than a message may have here.
        let data = vec![0; 60_000];
        let text = "x".repeat(10_000);
        let properties =
            PublishProperties { correlation_data: Some(&data), content_type: Some(&text), ..PublishProperties::default() };
        relay.hear_remote(&Packet::Publish(Publish { properties, ..publish("c", QoS::AtMostOnce, 0) })).unwrap();
        // Nobody but the broker itself says anything there.
        relay.hear_remote(&Packet::Publish(publish("b", QoS::AtLeastOnce, 4))).unwrap();
        assert_eq!(said(&mut relay.to_local, V5), ["PUBACK 1 0x0", "PUBREC 2 0x0"]);
        assert_eq!(said(&mut relay.to_remote, V3), ["PUBACK 1 0x0", "PUBREC 2 0x0", "PUBACK 4 0x0"]);
        // The exchange goes on between the two.
        relay.hear_local(&Packet::PubRel(Ack::success(id(2)))).unwrap();
        assert_eq!(said(&mut relay.to_remote, V3), ["PUBREL 2 0x0"]);
        assert_eq!((status.refused.value(), status.sent.value()), (8, 0));
    }

    #[test]
    fn what_cannot_be_taken_here_is_not_acknowledged_there() {
        let (topics, status) = (topics(&["# in 2"]), Status::new("b"));
        let mut relay = Relay::new(&topics, &status, foreign(V3), false).unwrap();
        said(&mut relay.to_remote, V3);
        let refusal = Ack { reason: ReasonCode::QuotaExceeded, ..Ack::success(id(5)) };
        for packet in [Packet::PubAck(refusal), Packet::PubRec(refusal)] {
            assert!(matches!(relay.hear_local(&packet), Err(End::LocalFull(_))));
        }
        // Other refusals are final; before MQTT 5 they cannot be said.
        relay.hear_local(&Packet::PubRec(Ack { reason: ReasonCode::NotAuthorized, ..refusal })).unwrap();
        assert_eq!(said(&mut relay.to_remote, V3), ["PUBREC 5 0x0"]);
    }

    #[test]
    fn identifiers_that_the_foreign_broker_may_still_know_are_released_and_nothing_crosses() {
        let (topics, status) = (topics(&["# both 2"]), Status::new("b"));
        let mut relay = Relay::releasing(&topics, &status, foreign(V5)).unwrap();
        let all = said(&mut relay.to_remote, V5);
        assert_eq!((all.len(), all[0].as_str(), all[65_534].as_str()), (65_535, "PUBREL 1 0x0", "PUBREL 65535 0x0"));
        relay.hear_remote(&Packet::Publish(publish("a", QoS::AtLeastOnce, 1))).unwrap();
        for n in 1..u16::MAX {
            let unknown = Ack { reason: ReasonCode::PacketIdentifierNotFound, ..Ack::success(id(n)) };
            relay.hear_remote(&Packet::PubComp(unknown)).unwrap();
            relay.hear_remote(&Packet::PubComp(unknown)).unwrap();
        }
        assert!(matches!(relay.hear_remote(&Packet::PubComp(Ack::success(id(u16::MAX)))), Err(End::Released)));
        assert!(relay.to_local.is_empty() && relay.to_remote.is_empty());
    }

    #[test]
    fn what_came_in_by_a_bridge_is_not_taken_out_by_it_elsewhere() {
        let (topics, status) = (topics(&["# both 2"]), Status::new("b"));
        let mut relay = Relay::new(&topics, &status, Foreign { mark: "m.b", ..foreign(V5) }, false).unwrap();
        let mut elsewhere = Relay::new(&topics, &status, Foreign { mark: "m.b", ..foreign(V5) }, false).unwrap();
        let mut other = Relay::new(&topics, &status, Foreign { mark: "m.c", ..foreign(V5) }, false).unwrap();
        for relay in [&mut relay, &mut elsewhere, &mut other] {
            said(&mut relay.to_remote, V5);
        }
        let mut bytes = Vec::new();
        let user_properties = UserProperties::default().with("a", "b", &mut bytes).unwrap();
        let properties = PublishProperties { user_properties, ..PublishProperties::default() };
        relay.hear_remote(&Packet::Publish(Publish { properties, ..publish("x", QoS::AtLeastOnce, 5) })).unwrap();
        let (taken, _) = codec::decode(&relay.to_local, V5, PACKET_BYTES_MAX).unwrap().unwrap();
        let Packet::Publish(message) = &taken else { panic!("{taken:?}") };
        assert_eq!(message.properties.user_properties.iter().collect::<Vec<_>>(), [("a", "b"), ("bridge", "m.b")]);
        elsewhere.hear_local(&taken).unwrap();
        assert_eq!((said(&mut elsewhere.to_local, V5), elsewhere.to_remote.len()), (vec!["PUBACK 5 0x0".to_owned()], 0));
        other.hear_local(&taken).unwrap();
        assert_eq!(said(&mut other.to_remote, V5), ["PUBLISH x 1 Some(5) r0"]);
    }

    #[test]
    fn filters_are_asked_for_a_few_at_a_time_and_an_answer_counts_once() {
        let lines: Vec<String> = (0..20).map(|n| format!("{n:02} {} 1", if n < 10 { "in" } else { "out" })).collect();
        let (topics, status) = (topics(&lines.iter().map(String::as_str).collect::<Vec<_>>()), Status::new("b"));
        for (refusal, is_subscribed) in [(ReasonCode::GrantedQoS1, true), (ReasonCode::QuotaExceeded, false)] {
            let mut relay = Relay::new(&topics, &status, foreign(V5), true).unwrap();
            let suback = |n, reason| {
                Packet::SubAck(SubAck { packet_id: id(n), properties: AckProperties::default(), reasons: vec![reason; 8] })
            };
            assert_eq!(said(&mut relay.to_remote, V5), ["SUBSCRIBE 900 07 06 05 04 03 02 01 00"]);
            relay.hear_remote(&suback(900, refusal)).unwrap();
            assert_eq!(said(&mut relay.to_remote, V5), ["SUBSCRIBE 900 09 08"]);
            assert!(!status.is_subscribed());
            relay.hear_remote(&suback(900, ReasonCode::GrantedQoS1)).unwrap();
            assert_eq!(said(&mut relay.to_remote, V5), ["UNSUBSCRIBE 900 12 13 14 15 16 17 18 19"]);
            // Whoever says it again and again gets nothing for it.
            relay.hear_remote(&suback(900, ReasonCode::GrantedQoS1)).unwrap();
            relay.hear_remote(&suback(900, ReasonCode::GrantedQoS1)).unwrap();
            assert!(relay.to_remote.is_empty());
            assert_eq!(status.is_subscribed(), is_subscribed);
        }
    }

    #[test]
    fn a_packet_that_is_too_large_is_passed_over_and_acknowledged() {
        for version in [V3, V5] {
            let (topics, status) = (topics(&["# in 2"]), Status::new("b"));
            let mut relay = Relay::new(&topics, &status, foreign(version), false).unwrap();
            said(&mut relay.to_remote, version);
            let payload = vec![b'x'; 20_000];
            let mut wire = Vec::new();
            for (n, qos) in [(0, QoS::AtMostOnce), (1, QoS::AtLeastOnce), (2, QoS::ExactlyOnce)] {
                let large = Publish { payload: &payload, ..publish("large", qos, n) };
                codec::encode(&mut wire, version, &Packet::Publish(large)).unwrap();
                codec::encode(&mut wire, version, &Packet::Publish(publish("small", qos, n + 10))).unwrap();
            }
            // However it is cut.
            let mut input = Vec::new();
            for byte in wire {
                input.push(byte);
                relay.take_remote(&mut input).unwrap();
                assert!(input.len() < 100);
            }
            assert_eq!(said(&mut relay.to_remote, version), ["PUBACK 1 0x0", "PUBREC 2 0x0"]);
            let small = ["PUBLISH small 0 None r0", "PUBLISH small 1 Some(11) r0", "PUBLISH small 2 Some(12) r0"];
            assert_eq!(said(&mut relay.to_local, V5), small);
            assert_eq!(status.refused.value(), 3);
        }
    }

    /// Takes a little, and then nothing more; what is written is flushed never.
    struct Stuck(tokio::io::DuplexStream);

    impl AsyncRead for Stuck {
        fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<std::io::Result<()>> {
            Pin::new(&mut self.0).poll_read(cx, into)
        }
    }

    impl AsyncWrite for Stuck {
        fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<std::io::Result<usize>> {
            Pin::new(&mut self.0).poll_write(cx, bytes)
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
            Poll::Pending
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    #[tokio::test]
    async fn a_foreign_broker_that_takes_nothing_is_noticed_and_costs_no_memory() {
        let (topics, status) = (topics(&["a in 2"]), Status::new("b"));
        // It says nothing, and what TLS holds back is never flushed.
        let keep_alive = Duration::from_millis(200);
        let mut relay = Relay::new(&topics, &status, Foreign { keep_alive, ..foreign(V5) }, false).unwrap();
        let ((near, _local), (far, _remote)) = (tokio::io::duplex(100), tokio::io::duplex(10_000));
        let end = relay.run(near, Stuck(far), Vec::new(), Box::pin(std::future::pending())).await;
        assert!(matches!(end, End::Silent), "{end}");
        // It says much that is answered, and does not read.
        let mut relay = Relay::new(&topics, &status, Foreign { keep_alive, ..foreign(V5) }, false).unwrap();
        let ((near, _local), (far, mut remote)) = (tokio::io::duplex(100), tokio::io::duplex(10_000));
        let mut packet = Vec::new();
        codec::encode(&mut packet, V5, &Packet::Publish(publish("b", QoS::AtLeastOnce, 1))).unwrap();
        let flood = packet.repeat(1_000);
        let speak = async move { while remote.write_all(&flood).await.is_ok() {} };
        let run = async {
            let end = relay.run(near, far, Vec::new(), Box::pin(std::future::pending())).await;
            assert!(matches!(end, End::Silent), "{end}");
            assert!(relay.to_remote.len() < 2 * UNWRITTEN_BYTES_MAX, "{}", relay.to_remote.len());
        };
        tokio::select! {
            () = run => {}
            () = speak => panic!("it is read for ever"),
        }
    }

    #[test]
    fn who_is_silent_is_asked_and_then_given_up() {
        let start = clock::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut life = Life::new(Duration::from_secs(10), start);
        assert_eq!((life.due(), life.pass(at(9))), (at(10), Pass::Nothing));
        // Only speaking is not enough, and neither is only hearing.
        life.spoke(at(8));
        assert_eq!(life.pass(at(10)), Pass::Ask);
        assert_eq!((life.due(), life.pass(at(14))), (at(15), Pass::Nothing));
        life.heard(at(14));
        life.spoke(at(15));
        assert_eq!((life.due(), life.pass(at(24))), (at(24), Pass::Ask));
        assert_eq!(life.pass(at(29)), Pass::Gone);
        assert!(!Life::new(Duration::ZERO, start).is_watched());
    }
}
