//! PUBLISH (section 3.3), the packet that everything else is there for: decoded without a copy, written around a payload that is elsewhere.

use std::num::NonZeroU16;

use super::{
    DecodeError, EncodeError, PacketId, PacketType, PropertyId, ProtocolVersion, PublishProperties, QoS,
    properties::{Field, put_subscription_id},
    wire::{Reader, put_string, put_varint, varint_len},
};

const DUP: u8 = 0b1000;
const QOS_SHIFT: u8 = 1;
const RETAIN: u8 = 0b0001;

/// An application message on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Publish<'a> {
    /// Whether this may be a repetition.
    pub dup: bool,
    /// The level of assurance.
    pub qos: QoS,
    /// From a client: to be kept; from a server: was kept.
    pub retain: bool,
    /// Topic name without wildcards; empty where an alias stands for it.
    pub topic: &'a str,
    /// There exactly above QoS 0.
    pub packet_id: Option<PacketId>,
    /// Properties, none before version 5.
    pub properties: PublishProperties<'a>,
    /// The message itself.
    pub payload: &'a [u8],
}

impl<'a> Publish<'a> {
    /// Inlined and built in one place, so that the packet is written once, to where the caller wants it, and not copied on the way.
    #[inline(always)]
    pub(super) fn read(version: ProtocolVersion, flags: u8, body: &'a [u8], topic_before: &'a str) -> Result<Self, DecodeError> {
        let qos = QoS::try_from(flags >> QOS_SHIFT & 0b11)?;
        let dup = flags & DUP != 0;
        if dup && qos == QoS::AtMostOnce {
            return Err(DecodeError::DupWithoutQoS);
        }
        let mut reader = Reader::new(body);
        let topic = reader.topic_name_behind(topic_before)?;
        let packet_id = if qos == QoS::AtMostOnce { None } else { Some(reader.packet_id()?) };
        let section = if version == ProtocolVersion::V5 { reader.section()? } else { &[] };
        let properties = PublishProperties::default();
        let mut publish = Self { dup, qos, retain: flags & RETAIN != 0, topic, packet_id, properties, payload: reader.rest() };
        if !section.is_empty() {
            publish.properties = PublishProperties::read(section)?;
        }
        if topic.is_empty() && publish.properties.topic_alias.is_none() {
            return Err(DecodeError::TopicEmpty);
        }
        Ok(publish)
    }

    pub(super) fn put(&self, version: ProtocolVersion, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        let mut section = Vec::new();
        if version == ProtocolVersion::V5 {
            self.properties.put(&mut section)?;
        }
        let Self { dup, qos, retain, topic, packet_id, .. } = *self;
        put_front(out, &Front { dup, qos, retain, topic, packet_id, rest_len: section.len() + self.payload.len() })?;
        out.extend_from_slice(&section);
        out.extend_from_slice(self.payload);
        Ok(())
    }
}

/// All of a PUBLISH but the payload, of which only the length is said: the caller appends it, or shares one copy among many receivers.
#[derive(Clone, Copy, Debug)]
pub struct PublishHead<'a> {
    /// See [`Publish::dup`].
    pub dup: bool,
    /// See [`Publish::qos`].
    pub qos: QoS,
    /// See [`Publish::retain`].
    pub retain: bool,
    /// See [`Publish::topic`].
    pub topic: &'a str,
    /// See [`Publish::packet_id`].
    pub packet_id: Option<PacketId>,
    /// Seconds that are left of the message's life. Like all that follows up to the payload: left out before version 5.
    pub message_expiry_seconds: Option<u32>,
    /// What stands for the topic on the receiver's connection; never 0.
    pub topic_alias: Option<u16>,
    /// Identifiers of the receiver's subscriptions that match.
    pub subscription_ids: &'a [u32],
    /// The properties that only pass through, from [`PublishProperties::forward_into`].
    pub properties: &'a [u8],
    /// Bytes of payload that will follow.
    pub payload_len: usize,
}

impl PublishHead<'_> {
    /// Bytes of the property section without its length.
    fn properties_len(&self) -> usize {
        let expiry = if self.message_expiry_seconds.is_some() { 5 } else { 0 };
        let alias = if self.topic_alias.is_some() { 3 } else { 0 };
        let ids: usize = self.subscription_ids.iter().map(|id| 1 + varint_len(*id as usize)).sum();
        expiry + alias + ids + self.properties.len()
    }

    /// What the packet's front says, and the length of all that follows it.
    fn front(&self, version: ProtocolVersion) -> Front<'_> {
        let Self { dup, qos, retain, topic, packet_id, payload_len, .. } = *self;
        let section_len = match version {
            ProtocolVersion::V5 => {
                let length = self.properties_len();
                varint_len(length) + length
            }
            ProtocolVersion::V3_1 | ProtocolVersion::V3_1_1 => 0,
        };
        Front { dup, qos, retain, topic, packet_id, rest_len: section_len + payload_len }
    }
}

/// Appends everything but the payload and returns where in `out` the packet identifier stands, so that a copy for another receiver needs
/// two bytes patched only; at QoS 0 it is the end of the topic, where nothing is to be patched.
///
/// # Errors
/// When the head does not fit the wire or contradicts itself; `out` is unaltered then.
#[inline]
pub fn encode_publish_head(out: &mut Vec<u8>, version: ProtocolVersion, head: &PublishHead<'_>) -> Result<usize, EncodeError> {
    let start = out.len();
    let result = put_head(out, version, head);
    if result.is_err() {
        out.truncate(start);
    }
    result
}

#[inline]
fn put_head(out: &mut Vec<u8>, version: ProtocolVersion, head: &PublishHead<'_>) -> Result<usize, EncodeError> {
    let packet_id_at = put_front(out, &head.front(version))?;
    if version == ProtocolVersion::V5 {
        put_varint(out, head.properties_len())?;
        head.message_expiry_seconds.put(PropertyId::MessageExpiryInterval, out)?;
        if let Some(alias) = head.topic_alias {
            let id = PropertyId::TopicAlias;
            let alias = NonZeroU16::new(alias).ok_or(EncodeError::PropertyValue { id, value: 0 })?;
            Some(alias).put(id, out)?;
        }
        for id in head.subscription_ids {
            put_subscription_id(out, *id)?;
        }
        out.extend_from_slice(head.properties);
    }
    Ok(packet_id_at)
}

/// Fixed header, topic and packet identifier: the part that all versions share.
struct Front<'a> {
    dup: bool,
    qos: QoS,
    retain: bool,
    topic: &'a str,
    packet_id: Option<PacketId>,
    /// Bytes of property section and payload.
    rest_len: usize,
}

impl Front<'_> {
    fn remaining_len(&self) -> usize {
        2 + self.topic.len() + if self.packet_id.is_some() { 2 } else { 0 } + self.rest_len
    }
}

/// Returns where the packet identifier stands.
#[inline]
fn put_front(out: &mut Vec<u8>, front: &Front<'_>) -> Result<usize, EncodeError> {
    if front.packet_id.is_some() != (front.qos > QoS::AtMostOnce) {
        return Err(EncodeError::PacketId);
    }
    if front.dup && front.qos == QoS::AtMostOnce {
        return Err(EncodeError::DupWithoutQoS);
    }
    let flags = (if front.dup { DUP } else { 0 }) | (front.qos as u8) << QOS_SHIFT | if front.retain { RETAIN } else { 0 };
    out.push(PacketType::Publish.first_byte() | flags);
    put_varint(out, front.remaining_len())?;
    put_string(out, front.topic)?;
    let packet_id_at = out.len();
    if let Some(packet_id) = front.packet_id {
        out.extend_from_slice(&packet_id.get().to_be_bytes());
    }
    Ok(packet_id_at)
}
