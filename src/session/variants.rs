//! One message, however many subscribers, is encoded once a variant: protocol, QoS and RETAIN flag make twelve; the packet identifier is written
//! over afterwards, and of the next message to the same topic, if it is as long, only the payload. What carries subscription identifiers or a topic alias is encoded for its receiver.
//!
//! Small payloads are copied with their head, from [`SHARE_PAYLOAD_BYTES`] on the payload is shared (measured: sharing costs more below and is cheaper above).

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;

use super::aliases::Alias;
use super::message::{Delivery, Message, StoredMessage, remaining_seconds};
use super::moved::Source;
use super::outbox::Outbox;
use crate::codec::{self, PacketId, ProtocolVersion, PublishHead, QoS};
use crate::limits::SHARE_PAYLOAD_BYTES;
use crate::pressure::Level;

/// Head (and small payload) of a PUBLISH, ready to copy.
#[derive(Debug, Default)]
struct Variant {
    ready: bool,
    bytes: Vec<u8>,
    packet_id_at: usize,
    packet_bytes: usize,
    payload_bytes: usize,
    /// There is nothing in the head but the topic, of so many bytes: the next message to that topic has the same, if it is as long.
    bare: Option<usize>,
}

/// The encodings of the message that is being routed. Reused from message to message: in steady state nothing is allocated.
#[derive(Debug, Default)]
pub struct Variants {
    variants: [Variant; 12],
    single: Variant,
    payload: Option<Bytes>,
    stored: Option<Arc<StoredMessage>>,
    /// How much memory there was when the message came.
    pub(crate) memory: Level,
    /// Whence the message is, where a session is on its way for which that matters.
    pub(crate) source: Option<Source>,
    /// It was published before this broker was started, or while it was down.
    pub(crate) is_late: bool,
}

/// Why a message was not appended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unsendable {
    /// It exceeds the client's Maximum Packet Size [MQTT-3.1.2-24].
    TooLarge,
}

impl Variants {
    /// Forgets the last message.
    pub fn begin(&mut self) {
        self.variants.iter_mut().for_each(|v| v.ready = false);
        self.payload = None;
        self.stored = None;
    }

    /// The message is one that is stored already: what waits shares it.
    pub fn begin_stored(&mut self, message: &Arc<StoredMessage>) {
        self.begin();
        self.source = None;
        self.payload = Some(message.payload.clone());
        self.stored = Some(Arc::clone(message));
    }

    /// The owned form, made once for all sessions in which the message has to wait.
    pub fn stored(&mut self, message: &Message<'_>) -> Arc<StoredMessage> {
        let payload = &mut self.payload;
        Arc::clone(self.stored.get_or_insert_with(|| {
            Arc::new(StoredMessage {
                topic: message.topic.into(),
                payload: payload.get_or_insert_with(|| Bytes::copy_from_slice(message.payload)).clone(),
                qos: message.qos,
                retain: message.retain,
                expires_at: message.expires_at,
                properties: Bytes::copy_from_slice(message.properties),
            })
        }))
    }

    /// Appends the PUBLISH for one receiver; whole or not at all.
    #[expect(clippy::too_many_arguments, reason = "each is a dimension of the packet; a struct would be built for every delivery")]
    pub(super) fn append(
        &mut self,
        outbox: &mut Outbox,
        message: &Message<'_>,
        delivery: &Delivery<'_>,
        version: ProtocolVersion,
        packet_id: Option<PacketId>,
        dup: bool,
        packet_bytes_max: usize,
        now: Instant,
    ) -> Result<(), Unsendable> {
        let dup = dup || delivery.dup;
        let share = message.payload.len() >= SHARE_PAYLOAD_BYTES;
        let v5 = version == ProtocolVersion::V5;
        let mut alias = outbox.aliases().map_or(Alias::None, |aliases| aliases.look_up(message.topic));
        let plain = !dup && (delivery.subscription_ids.is_empty() || !v5) && alias == Alias::None;
        let slot = usize::from(v5) * 6 + usize::from(delivery.qos as u8) * 2 + usize::from(delivery.retain);
        let variant = match self.variants.get_mut(slot) {
            Some(variant) if plain => variant,
            _ => {
                self.single.ready = false;
                &mut self.single
            }
        };
        let is_ready = variant.ready || (plain && !share && variant.change(message));
        if !is_ready {
            variant.encode(message, delivery, version, dup, share, alias, now)?;
            variant.bare = (plain && is_bare(message)).then_some(message.topic.len());
        }
        if variant.packet_bytes > packet_bytes_max && matches!(alias, Alias::New(_)) {
            // Without the alias it may fit to the byte.
            alias = Alias::None;
            variant.encode(message, delivery, version, dup, share, alias, now)?;
        }
        if variant.packet_bytes > packet_bytes_max {
            return Err(Unsendable::TooLarge);
        }
        let tail = outbox.tail();
        let start = tail.len();
        tail.extend_from_slice(&variant.bytes);
        if let (Some(id), true) = (packet_id, delivery.qos != QoS::AtMostOnce) {
            let at = start + variant.packet_id_at;
            if let Some(place) = tail.get_mut(at..at + 2) {
                place.copy_from_slice(&id.get().to_be_bytes());
            }
        }
        if share {
            outbox.push_shared(self.payload.get_or_insert_with(|| Bytes::copy_from_slice(message.payload)).clone());
        }
        if let (Alias::New(alias), Some(aliases)) = (alias, outbox.aliases()) {
            aliases.set(message.topic, alias);
        }
        Ok(())
    }
}

/// Whether its packet has nothing but topic and payload.
fn is_bare(message: &Message<'_>) -> bool {
    message.expires_at.is_none() && message.properties.is_empty()
}

impl Variant {
    /// Puts the payload of `message` in place of the last one's, if that is all in which their packets differ.
    fn change(&mut self, message: &Message<'_>) -> bool {
        let length = message.payload.len();
        let has_head = is_bare(message)
            && self.bare == Some(message.topic.len())
            && self.packet_bytes == self.bytes.len()
            && self.payload_bytes == length;
        let topic_at = self.packet_id_at.saturating_sub(message.topic.len());
        if !has_head || self.bytes.get(topic_at..self.packet_id_at) != Some(message.topic.as_bytes()) {
            return false;
        }
        self.bytes.truncate(self.packet_bytes - length);
        self.bytes.extend_from_slice(message.payload);
        self.ready = true;
        true
    }

    #[expect(clippy::too_many_arguments, reason = "see Variants::append")]
    fn encode(
        &mut self,
        message: &Message<'_>,
        delivery: &Delivery<'_>,
        version: ProtocolVersion,
        dup: bool,
        share: bool,
        alias: Alias,
        now: Instant,
    ) -> Result<(), Unsendable> {
        let (topic, topic_alias) = match alias {
            Alias::None => (message.topic, None),
            Alias::New(alias) => (message.topic, Some(alias.get())),
            Alias::Known(alias) => ("", Some(alias.get())),
        };
        let head = PublishHead {
            dup,
            qos: delivery.qos,
            retain: delivery.retain,
            topic,
            packet_id: (delivery.qos != QoS::AtMostOnce).then_some(PacketId::MIN),
            message_expiry_seconds: message.expires_at.map(|at| remaining_seconds(at, now)),
            subscription_ids: delivery.subscription_ids,
            properties: message.properties,
            payload_len: message.payload.len(),
            topic_alias,
        };
        self.bytes.clear();
        self.bare = None;
        // The only refusal is a packet beyond 256 MiB: what fitted its publisher's packet may outgrow it by properties.
        self.packet_id_at = codec::encode_publish_head(&mut self.bytes, version, &head).map_err(|_| Unsendable::TooLarge)?;
        self.packet_bytes = self.bytes.len() + message.payload.len();
        self.payload_bytes = message.payload.len();
        if !share {
            self.bytes.extend_from_slice(message.payload);
        }
        self.ready = true;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rand::rngs::StdRng;
    use rand::{RngExt, SeedableRng};

    use super::*;

    #[expect(clippy::disallowed_methods, reason = "virtual time starts somewhere")]
    fn now() -> Instant {
        Instant::now()
    }

    #[test]
    #[expect(clippy::print_stdout, reason = "a failure is found again by its seed")]
    fn what_is_left_of_the_message_before_changes_nothing() {
        let seed: u64 = rand::random();
        println!("seed {seed}");
        let mut random = StdRng::seed_from_u64(seed);
        let (now, large) = (now(), vec![b'x'; SHARE_PAYLOAD_BYTES + 1]);
        let mut used = Variants::default();
        for _ in 0..5_000 {
            let mut pick = |count: usize| random.random_range(0..count);
            let message = Message {
                topic: ["a", "b", "a/b", "b/b", "aa/b", "/b"][pick(6)],
                payload: [&b""[..], b"1", b"2", b"/b", b"b2", &large, &large[1..]][pick(7)],
                qos: QoS::ExactlyOnce,
                retain: false,
                expires_at: (pick(20) == 0).then_some(now + Duration::from_secs(9)),
                properties: if pick(20) == 0 { &[0x03, 0, 1, b'x'] } else { &[] },
            };
            used.begin();
            let mut fresh = Variants::default();
            for _ in 0..1 + pick(3) {
                let qos = [QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce][pick(3)];
                let subscription_ids: &[u32] = if pick(20) == 0 { &[7] } else { &[] };
                let delivery =
                    Delivery { qos, retain: pick(4) == 0, dup: qos == QoS::AtLeastOnce && pick(20) == 0, subscription_ids };
                let version = [ProtocolVersion::V3_1_1, ProtocolVersion::V5][pick(2)];
                let id = (qos != QoS::AtMostOnce).then(|| PacketId::new(1 + pick(60_000) as u16).unwrap());
                let bytes_max = if pick(20) == 0 { 9 } else { usize::MAX };
                let append = |variants: &mut Variants| {
                    let mut outbox = Outbox::default();
                    let appended = variants.append(&mut outbox, &message, &delivery, version, id, false, bytes_max, now);
                    let mut drained = super::super::Drained::default();
                    outbox.take(&mut drained);
                    let mut bytes: Vec<u8> = drained.segments.iter().flat_map(|segment| segment.bytes().to_vec()).collect();
                    bytes.extend(drained.tail);
                    (appended, bytes)
                };
                assert_eq!(append(&mut used), append(&mut fresh), "{message:?}, {delivery:?}");
            }
        }
    }
}
