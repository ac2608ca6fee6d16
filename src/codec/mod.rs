//! Bytes to MQTT control packets and back: MQTT 3.1, 3.1.1 and 5.0, every packet and property, both directions.
//!
//! [`decode`] borrows from its input: topic, payload and properties are slices of it. PUBLISH and its acknowledgements allocate nothing;
//! the lists of SUBSCRIBE and its like are vectors, bounded by the bytes that have come. [`encode`] appends to a vector, and
//! [`encode_publish_head`] writes a PUBLISH around a payload that is elsewhere.
//!
//! Not here: state. Whether a packet may come now, from this side, with this alias or identifier, is the connection's and the session's
//! to say; whether a topic filter is well-formed is `topic`'s.
//!
//! Invariants:
//! - Decoding is strict. "More bytes are needed" is `Ok(None)` and decided from the fixed header alone; from then on a packet is whole, and
//!   whatever does not fit it is an error, never a wait.
//! - No byte that comes makes this panic or reserve memory that the bytes which have come do not account for.
//! - What encodes, decodes to the same packet, apart from what the version has no room for. Encoding never truncates, and appends nothing
//!   where it fails: lengths, identifiers, reason codes and empty lists are checked. Text is trusted: that a topic is one, that a string
//!   has no U+0000, that the fields agree with each other was seen to where they come from.
//!
//! Specification: MQTT Version 5.0 (OASIS, 2019), section and statement numbers without a version are its; MQTT Version 3.1.1 (OASIS,
//! 2014); MQTT V3.1 (IBM and Eurotech, 2010), whose "not used" bits are not held against a sender.

mod ack;
mod alike;
mod connect;
mod disconnect;
mod error;
mod properties;
mod publish;
mod reason;
mod subscribe;
mod wire;

#[cfg(test)]
mod tests;

use std::{fmt, num::NonZeroU16};

pub use ack::Ack;
pub use alike::{Alike, Measured};
pub use connect::{ConnAck, Connect, Will};
pub use disconnect::{Auth, Disconnect};
pub use error::{DecodeError, EncodeError};
pub use properties::{
    AckProperties, AuthProperties, ConnAckProperties, ConnectProperties, DisconnectProperties, PropertyId, PublishProperties,
    SubscribeProperties, SubscriptionId, SubscriptionIds, UnsubscribeProperties, UserProperties, WillProperties, check_forwardable,
};
pub use publish::{Publish, PublishHead, encode_publish_head};
pub use reason::ReasonCode;
pub use subscribe::{RetainHandling, SubAck, Subscribe, SubscribeFilter, SubscriptionOptions, UnsubAck, Unsubscribe};

use wire::{Reader, put_section, varint};

/// Names a message between its two ends until it is acknowledged; never 0 [MQTT-2.2.1-3].
pub type PacketId = NonZeroU16;

/// What a client speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ProtocolVersion {
    /// MQTT 3.1, protocol `MQIsdp`, level 3.
    V3_1,
    /// MQTT 3.1.1, level 4.
    V3_1_1,
    /// MQTT 5.0, level 5.
    V5,
}

impl ProtocolVersion {
    /// How a CONNECT names the version (sections 3.1.2.1 and 3.1.2.2).
    fn name_and_level(self) -> (&'static str, u8) {
        match self {
            Self::V3_1 => ("MQIsdp", 3),
            Self::V3_1_1 => ("MQTT", 4),
            Self::V5 => ("MQTT", 5),
        }
    }
}

impl fmt::Display for ProtocolVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::V3_1 => "3.1",
            Self::V3_1_1 => "3.1.1",
            Self::V5 => "5.0",
        })
    }
}

/// How surely a message arrives (section 4.3). `as u8` is the number on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum QoS {
    /// Once or not at all.
    AtMostOnce = 0,
    /// Once or more often.
    AtLeastOnce = 1,
    /// Once.
    ExactlyOnce = 2,
}

impl TryFrom<u8> for QoS {
    type Error = DecodeError;

    #[inline]
    fn try_from(qos: u8) -> Result<Self, Self::Error> {
        match qos {
            0 => Ok(Self::AtMostOnce),
            1 => Ok(Self::AtLeastOnce),
            2 => Ok(Self::ExactlyOnce),
            _ => Err(DecodeError::QoS(qos)),
        }
    }
}

/// The type of a control packet (section 2.1.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
#[expect(missing_docs, reason = "the names are the specification's")]
pub enum PacketType {
    Connect = 1,
    ConnAck = 2,
    Publish = 3,
    PubAck = 4,
    PubRec = 5,
    PubRel = 6,
    PubComp = 7,
    Subscribe = 8,
    SubAck = 9,
    Unsubscribe = 10,
    UnsubAck = 11,
    PingReq = 12,
    PingResp = 13,
    Disconnect = 14,
    Auth = 15,
}

impl PacketType {
    /// The type in a packet's first byte, if the version has it and its flags are what they must be [MQTT-2.1.3-1]. PUBLISH's flags mean
    /// something and are looked at later.
    #[inline]
    fn from_first_byte(first: u8, version: ProtocolVersion) -> Result<Self, DecodeError> {
        let packet = match first >> 4 {
            1 => Self::Connect,
            2 => Self::ConnAck,
            3 => return Ok(Self::Publish),
            4 => Self::PubAck,
            5 => Self::PubRec,
            6 => Self::PubRel,
            7 => Self::PubComp,
            8 => Self::Subscribe,
            9 => Self::SubAck,
            10 => Self::Unsubscribe,
            11 => Self::UnsubAck,
            12 => Self::PingReq,
            13 => Self::PingResp,
            14 => Self::Disconnect,
            15 if version == ProtocolVersion::V5 => Self::Auth,
            other => return Err(DecodeError::PacketType(other)),
        };
        let flags = first & 0x0f;
        // In 3.1 PUBREL, SUBSCRIBE and UNSUBSCRIBE are QoS 1 packets, with DUP when they are repeated (its sections 3.6, 3.8 and 3.10).
        let may_repeat = version == ProtocolVersion::V3_1 && packet.flags() != 0;
        let ignored = if may_repeat { 0b1000 } else { 0 };
        if flags & !ignored == packet.flags() { Ok(packet) } else { Err(DecodeError::Flags { packet, flags }) }
    }

    /// The flags that the fixed header of every packet but PUBLISH must have.
    #[inline]
    fn flags(self) -> u8 {
        match self {
            Self::PubRel | Self::Subscribe | Self::Unsubscribe => 0b0010,
            _ => 0,
        }
    }

    /// The first byte; that of a PUBLISH with no flag set.
    #[inline]
    fn first_byte(self) -> u8 {
        (self as u8) << 4 | self.flags()
    }
}

impl fmt::Display for PacketType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Connect => "CONNECT",
            Self::ConnAck => "CONNACK",
            Self::Publish => "PUBLISH",
            Self::PubAck => "PUBACK",
            Self::PubRec => "PUBREC",
            Self::PubRel => "PUBREL",
            Self::PubComp => "PUBCOMP",
            Self::Subscribe => "SUBSCRIBE",
            Self::SubAck => "SUBACK",
            Self::Unsubscribe => "UNSUBSCRIBE",
            Self::UnsubAck => "UNSUBACK",
            Self::PingReq => "PINGREQ",
            Self::PingResp => "PINGRESP",
            Self::Disconnect => "DISCONNECT",
            Self::Auth => "AUTH",
        })
    }
}

/// A control packet.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "each is documented at its structure")]
pub enum Packet<'a> {
    /// Boxed: it is large, and on a connection that has begun it is always an error [MQTT-3.1.0-2].
    Connect(Box<Connect<'a>>),
    /// Boxed: it is large, and comes once.
    ConnAck(Box<ConnAck<'a>>),
    Publish(Publish<'a>),
    /// QoS 1: the message has been taken over.
    PubAck(Ack<'a>),
    /// QoS 2, first answer: the message has been received.
    PubRec(Ack<'a>),
    /// QoS 2, second step: the identifier is to be released.
    PubRel(Ack<'a>),
    /// QoS 2, last answer: it has been.
    PubComp(Ack<'a>),
    Subscribe(Subscribe<'a>),
    SubAck(SubAck<'a>),
    Unsubscribe(Unsubscribe<'a>),
    UnsubAck(UnsubAck<'a>),
    /// Are you there?
    PingReq,
    /// Yes.
    PingResp,
    Disconnect(Disconnect<'a>),
    Auth(Auth<'a>),
}

impl Packet<'_> {
    /// What it is.
    #[must_use]
    pub fn packet_type(&self) -> PacketType {
        match self {
            Self::Connect(_) => PacketType::Connect,
            Self::ConnAck(_) => PacketType::ConnAck,
            Self::Publish(_) => PacketType::Publish,
            Self::PubAck(_) => PacketType::PubAck,
            Self::PubRec(_) => PacketType::PubRec,
            Self::PubRel(_) => PacketType::PubRel,
            Self::PubComp(_) => PacketType::PubComp,
            Self::Subscribe(_) => PacketType::Subscribe,
            Self::SubAck(_) => PacketType::SubAck,
            Self::Unsubscribe(_) => PacketType::Unsubscribe,
            Self::UnsubAck(_) => PacketType::UnsubAck,
            Self::PingReq => PacketType::PingReq,
            Self::PingResp => PacketType::PingResp,
            Self::Disconnect(_) => PacketType::Disconnect,
            Self::Auth(_) => PacketType::Auth,
        }
    }
}

/// Length in bytes of the whole packet at the front. `None`: its fixed header is not complete.
///
/// # Errors
/// When the remaining length is not a Variable Byte Integer in its shortest form.
#[inline]
pub fn frame_length(input: &[u8]) -> Result<Option<usize>, DecodeError> {
    let Some((_, after_first)) = input.split_first() else { return Ok(None) };
    Ok(varint(after_first)?.map(|(remaining, length_bytes)| 1 + length_bytes + remaining as usize))
}

/// The body of the packet at the front and the length of the whole. `None`: it has not all come.
#[inline]
fn body(input: &[u8], packet_bytes_max: u32) -> Result<Option<(&[u8], usize)>, DecodeError> {
    let Some((_, after_first)) = input.split_first() else { return Ok(None) };
    let Some((remaining, length_bytes)) = varint(after_first)? else { return Ok(None) };
    let bytes = 1 + length_bytes + remaining as usize;
    if bytes > packet_bytes_max as usize {
        return Err(DecodeError::PacketTooLarge { bytes, bytes_max: packet_bytes_max });
    }
    Ok(input.get(1 + length_bytes..bytes).map(|body| (body, bytes)))
}

/// The packet at the front of `input` and its length in bytes. `None`: more bytes are needed. A wrong type, wrong flags and a packet of more
/// than `packet_bytes_max` bytes are refused as soon as they can be seen.
///
/// # Errors
/// When the front of `input` is not, and cannot become, a packet of this version.
pub fn decode(input: &[u8], version: ProtocolVersion, packet_bytes_max: u32) -> Result<Option<(Packet<'_>, usize)>, DecodeError> {
    decode_behind("", input, version, packet_bytes_max)
}

/// Likewise, where a PUBLISH to `topic`, or none, was decoded before: the same topic again needs no second look at its characters.
///
/// # Errors
/// As [`decode`].
pub fn decode_behind<'a>(
    topic: &'a str,
    input: &'a [u8],
    version: ProtocolVersion,
    packet_bytes_max: u32,
) -> Result<Option<(Packet<'a>, usize)>, DecodeError> {
    let Some(first) = input.first() else { return Ok(None) };
    let packet_type = PacketType::from_first_byte(*first, version)?;
    let Some((body, bytes)) = body(input, packet_bytes_max)? else { return Ok(None) };
    // A packet is large, and moving it costs as much as decoding it: each is built where it is returned.
    let whole = |packet| Ok(Some((packet, bytes)));
    match packet_type {
        PacketType::Publish => whole(Packet::Publish(Publish::read(version, first & 0x0f, body, topic)?)),
        PacketType::PubAck => whole(Packet::PubAck(Ack::read(packet_type, version, body)?)),
        PacketType::PubRec => whole(Packet::PubRec(Ack::read(packet_type, version, body)?)),
        PacketType::PubRel => whole(Packet::PubRel(Ack::read(packet_type, version, body)?)),
        PacketType::PubComp => whole(Packet::PubComp(Ack::read(packet_type, version, body)?)),
        PacketType::Connect => whole(Packet::Connect(Box::new(Connect::read(body)?))),
        PacketType::ConnAck => whole(Packet::ConnAck(Box::new(ConnAck::read(version, body)?))),
        PacketType::Subscribe => whole(Packet::Subscribe(Subscribe::read(version, body)?)),
        PacketType::SubAck => whole(Packet::SubAck(SubAck::read(version, body)?)),
        PacketType::Unsubscribe => whole(Packet::Unsubscribe(Unsubscribe::read(version, body)?)),
        PacketType::UnsubAck => whole(Packet::UnsubAck(UnsubAck::read(version, body)?)),
        PacketType::PingReq => Reader::new(body).finish().and_then(|()| whole(Packet::PingReq)),
        PacketType::PingResp => Reader::new(body).finish().and_then(|()| whole(Packet::PingResp)),
        PacketType::Disconnect => whole(Packet::Disconnect(Disconnect::read(version, body)?)),
        PacketType::Auth => whole(Packet::Auth(Auth::read(body)?)),
    }
}

/// The CONNECT that a connection must begin with [MQTT-3.1.0-1], and its length in bytes; it says itself which version it is. `None`: more
/// bytes are needed.
///
/// # Errors
/// When the front of `input` is not, and cannot become, a CONNECT. [`connect_version`] says in which version to answer.
pub fn decode_connect(input: &[u8], packet_bytes_max: u32) -> Result<Option<(Connect<'_>, usize)>, DecodeError> {
    let Some(first) = input.first() else { return Ok(None) };
    if !is_connect(*first) {
        return Err(DecodeError::NotConnect(*first));
    }
    let Some((body, bytes)) = body(input, packet_bytes_max)? else { return Ok(None) };
    let connect = Connect::read(body)?;
    // In 3.1 the flags of the fixed header are "not used" (its section 3.1), from 3.1.1 on they are reserved.
    if *first != PacketType::Connect.first_byte() && connect.version != ProtocolVersion::V3_1 {
        return Err(DecodeError::Flags { packet: PacketType::Connect, flags: first & 0x0f });
    }
    Ok(Some((connect, bytes)))
}

fn is_connect(first: u8) -> bool {
    first >> 4 == PacketType::Connect as u8
}

/// Whether the packet at the front is one that a client does not send, once it is connected: then that is what is wrong with it, and not its form.
#[must_use]
pub fn is_servers(input: &[u8]) -> bool {
    let servers = [PacketType::ConnAck, PacketType::SubAck, PacketType::UnsubAck, PacketType::PingResp];
    input.first().is_some_and(|first| servers.iter().any(|packet| first >> 4 == *packet as u8))
}

/// The version that a CONNECT at the front of `input` claims to be, however broken or incomplete the rest of it is: what to answer in when
/// [`decode_connect`] fails. `None`: none that is served, so a CONNACK before version 5 is what any client understands.
#[must_use]
pub fn connect_version(input: &[u8]) -> Option<ProtocolVersion> {
    let (first, after_first) = input.split_first()?;
    if !is_connect(*first) {
        return None;
    }
    let (_, length_bytes) = varint(after_first).ok()??;
    connect::read_version(&mut Reader::new(after_first.get(length_bytes..)?)).ok().map(|(version, _)| version)
}

/// Appends a packet. What `version` has no room for (properties before version 5, the reason for a failed subscription) is left out; a CONNECT
/// is written in its own version.
///
/// # Errors
/// When the packet does not fit the wire, contradicts itself or would say something else in this version; `out` is unaltered then.
#[inline]
pub fn encode(out: &mut Vec<u8>, version: ProtocolVersion, packet: &Packet<'_>) -> Result<(), EncodeError> {
    let start = out.len();
    let result = put(out, version, packet);
    if result.is_err() {
        out.truncate(start);
    }
    result
}

fn put(out: &mut Vec<u8>, version: ProtocolVersion, packet: &Packet<'_>) -> Result<(), EncodeError> {
    let packet_type = packet.packet_type();
    match packet {
        Packet::Publish(publish) => publish.put(version, out),
        Packet::PubAck(ack) | Packet::PubRec(ack) | Packet::PubRel(ack) | Packet::PubComp(ack) => {
            ack.put(packet_type, version, out)
        }
        Packet::Connect(connect) => put_packet(packet_type, out, |out| connect.put_body(out)),
        Packet::ConnAck(connack) => put_packet(packet_type, out, |out| connack.put_body(version, out)),
        Packet::Subscribe(subscribe) => put_packet(packet_type, out, |out| subscribe.put_body(version, out)),
        Packet::SubAck(suback) => put_packet(packet_type, out, |out| suback.put_body(version, out)),
        Packet::Unsubscribe(unsubscribe) => put_packet(packet_type, out, |out| unsubscribe.put_body(version, out)),
        Packet::UnsubAck(unsuback) => put_packet(packet_type, out, |out| unsuback.put_body(version, out)),
        Packet::PingReq | Packet::PingResp => put_packet(packet_type, out, |_| Ok(())),
        Packet::Disconnect(disconnect) => put_packet(packet_type, out, |out| disconnect.put_body(version, out)),
        Packet::Auth(auth) => put_packet(packet_type, out, |out| auth.put_body(version, out)),
    }
}

/// Appends the fixed header of any packet but PUBLISH, and the body that `put_body` appends.
fn put_packet(
    packet: PacketType,
    out: &mut Vec<u8>,
    put_body: impl FnOnce(&mut Vec<u8>) -> Result<(), EncodeError>,
) -> Result<(), EncodeError> {
    out.push(packet.first_byte());
    put_section(out, put_body)
}
