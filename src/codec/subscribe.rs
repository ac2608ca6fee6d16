//! SUBSCRIBE, SUBACK, UNSUBSCRIBE, UNSUBACK (sections 3.8 to 3.11).
//!
//! Not here: the grammar of topic filters, which is `topic`'s; here they are strings. The lists are vectors, bounded by
//! [`FILTERS_PER_PACKET_MAX`] and by the bytes that came.

use super::{
    AckProperties, DecodeError, EncodeError, PacketId, PacketType, ProtocolVersion, QoS, ReasonCode, SubscribeProperties,
    UnsubscribeProperties,
    ack::{put_reason, read_reason},
    wire::{Reader, put_string},
};
use crate::limits::FILTERS_PER_PACKET_MAX;

const QOS: u8 = 0b0000_0011;
const NO_LOCAL: u8 = 0b0000_0100;
const RETAIN_AS_PUBLISHED: u8 = 0b0000_1000;
const RETAIN_HANDLING_SHIFT: u8 = 4;
const RESERVED: u8 = 0b1100_0000;

/// The failure of a SUBACK before version 5.
const V3_FAILURE: ReasonCode = ReasonCode::UnspecifiedError;

/// A client asks for messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subscribe<'a> {
    /// Comes back in SUBACK.
    pub packet_id: PacketId,
    /// Properties, none before version 5.
    pub properties: SubscribeProperties<'a>,
    /// At least one.
    pub filters: Vec<SubscribeFilter<'a>>,
}

/// One subscription that is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SubscribeFilter<'a> {
    /// Topic filter, not looked into here.
    pub filter: &'a str,
    /// How to serve it.
    pub options: SubscriptionOptions,
}

/// How a subscription is to be served (section 3.8.3.1). Before version 5 there is only the QoS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SubscriptionOptions {
    /// Highest QoS of messages for this subscription.
    pub qos: QoS,
    /// Not to bring the client's own messages.
    pub no_local: bool,
    /// To keep the RETAIN flag as it was published.
    pub retain_as_published: bool,
    /// What to do with retained messages now.
    pub retain_handling: RetainHandling,
}

impl From<QoS> for SubscriptionOptions {
    /// The options that a subscription before version 5 has.
    fn from(qos: QoS) -> Self {
        Self { qos, no_local: false, retain_as_published: false, retain_handling: RetainHandling::Send }
    }
}

/// When a subscription brings retained messages (section 3.8.3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum RetainHandling {
    /// At once.
    Send = 0,
    /// Only if the subscription was not there.
    SendIfNew = 1,
    /// Never.
    DoNotSend = 2,
}

impl SubscriptionOptions {
    fn read(version: ProtocolVersion, reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let byte = reader.u8()?;
        let reserved = if version == ProtocolVersion::V5 { RESERVED } else { !QOS };
        if byte & reserved != 0 {
            return Err(DecodeError::SubscriptionOptions(byte));
        }
        let retain_handling = match byte >> RETAIN_HANDLING_SHIFT {
            0 => RetainHandling::Send,
            1 => RetainHandling::SendIfNew,
            2 => RetainHandling::DoNotSend,
            _ => return Err(DecodeError::SubscriptionOptions(byte)),
        };
        Ok(Self {
            qos: QoS::try_from(byte & QOS)?,
            no_local: byte & NO_LOCAL != 0,
            retain_as_published: byte & RETAIN_AS_PUBLISHED != 0,
            retain_handling,
        })
    }

    fn byte(self, version: ProtocolVersion) -> u8 {
        let more = (if self.no_local { NO_LOCAL } else { 0 })
            | (if self.retain_as_published { RETAIN_AS_PUBLISHED } else { 0 })
            | (self.retain_handling as u8) << RETAIN_HANDLING_SHIFT;
        self.qos as u8 | if version == ProtocolVersion::V5 { more } else { 0 }
    }
}

impl<'a> Subscribe<'a> {
    pub(super) fn read(version: ProtocolVersion, body: &'a [u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(body);
        let packet_id = reader.packet_id()?;
        let properties = match version {
            ProtocolVersion::V5 => SubscribeProperties::read(reader.section()?)?,
            ProtocolVersion::V3_1 | ProtocolVersion::V3_1_1 => SubscribeProperties::default(),
        };
        let filters = read_list(PacketType::Subscribe, reader, |reader| {
            let filter = SubscribeFilter { filter: reader.name()?, options: SubscriptionOptions::read(version, reader)? };
            if filter.options.no_local && filter.filter.starts_with("$share/") {
                return Err(DecodeError::NoLocalShared);
            }
            Ok(filter)
        })?;
        Ok(Self { packet_id, properties, filters })
    }

    pub(super) fn put_body(&self, version: ProtocolVersion, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        check_list(PacketType::Subscribe, &self.filters)?;
        out.extend_from_slice(&self.packet_id.get().to_be_bytes());
        if version == ProtocolVersion::V5 {
            self.properties.put(out)?;
        }
        for SubscribeFilter { filter, options } in &self.filters {
            put_string(out, filter)?;
            out.push(options.byte(version));
        }
        Ok(())
    }
}

/// A server's answer to SUBSCRIBE.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubAck<'a> {
    /// That of the SUBSCRIBE.
    pub packet_id: PacketId,
    /// Properties, none before version 5.
    pub properties: AckProperties<'a>,
    /// One for each filter, in their order [MQTT-3.9.3-1]. Before version 5 every failure is the same one.
    pub reasons: Vec<ReasonCode>,
}

impl<'a> SubAck<'a> {
    pub(super) fn read(version: ProtocolVersion, body: &'a [u8]) -> Result<Self, DecodeError> {
        let packet = PacketType::SubAck;
        let mut reader = Reader::new(body);
        let packet_id = reader.packet_id()?;
        let properties = match version {
            ProtocolVersion::V5 => AckProperties::read(reader.section()?)?,
            ProtocolVersion::V3_1 | ProtocolVersion::V3_1_1 => AckProperties::default(),
        };
        let reasons = read_list(packet, reader, |reader| {
            let reason = read_reason(packet, reader)?;
            if version != ProtocolVersion::V5 && reason.is_error() && reason != V3_FAILURE {
                return Err(DecodeError::Reason { packet, code: reason as u8 });
            }
            Ok(reason)
        })?;
        Ok(Self { packet_id, properties, reasons })
    }

    /// Deviation: MQTT 3.1 has no failure code; a refusal there is the `0x80` of 3.1.1, rather than a QoS that will not be kept.
    pub(super) fn put_body(&self, version: ProtocolVersion, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        check_list(PacketType::SubAck, &self.reasons)?;
        out.extend_from_slice(&self.packet_id.get().to_be_bytes());
        if version == ProtocolVersion::V5 {
            self.properties.put(out)?;
        }
        self.reasons.iter().try_for_each(|reason| {
            let is_plain = version != ProtocolVersion::V5 && reason.is_error();
            put_reason(PacketType::SubAck, version, if is_plain { V3_FAILURE } else { *reason }, out)
        })
    }
}

/// A client wants no more of something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unsubscribe<'a> {
    /// Comes back in UNSUBACK.
    pub packet_id: PacketId,
    /// Properties, none before version 5.
    pub properties: UnsubscribeProperties<'a>,
    /// At least one.
    pub filters: Vec<&'a str>,
}

impl<'a> Unsubscribe<'a> {
    pub(super) fn read(version: ProtocolVersion, body: &'a [u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(body);
        let packet_id = reader.packet_id()?;
        let properties = match version {
            ProtocolVersion::V5 => UnsubscribeProperties::read(reader.section()?)?,
            ProtocolVersion::V3_1 | ProtocolVersion::V3_1_1 => UnsubscribeProperties::default(),
        };
        Ok(Self { packet_id, properties, filters: read_list(PacketType::Unsubscribe, reader, Reader::name)? })
    }

    pub(super) fn put_body(&self, version: ProtocolVersion, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        check_list(PacketType::Unsubscribe, &self.filters)?;
        out.extend_from_slice(&self.packet_id.get().to_be_bytes());
        if version == ProtocolVersion::V5 {
            self.properties.put(out)?;
        }
        self.filters.iter().try_for_each(|filter| put_string(out, filter))
    }
}

/// A server's answer to UNSUBSCRIBE.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnsubAck<'a> {
    /// That of the UNSUBSCRIBE.
    pub packet_id: PacketId,
    /// Properties, none before version 5.
    pub properties: AckProperties<'a>,
    /// One for each filter, in their order [MQTT-3.11.3-1]; before version 5 there are none, and none are written.
    pub reasons: Vec<ReasonCode>,
}

impl<'a> UnsubAck<'a> {
    pub(super) fn read(version: ProtocolVersion, body: &'a [u8]) -> Result<Self, DecodeError> {
        let packet = PacketType::UnsubAck;
        let mut reader = Reader::new(body);
        let packet_id = reader.packet_id()?;
        if version != ProtocolVersion::V5 {
            reader.finish()?;
            return Ok(Self { packet_id, properties: AckProperties::default(), reasons: Vec::new() });
        }
        let properties = AckProperties::read(reader.section()?)?;
        Ok(Self { packet_id, properties, reasons: read_list(packet, reader, |reader| read_reason(packet, reader))? })
    }

    pub(super) fn put_body(&self, version: ProtocolVersion, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        out.extend_from_slice(&self.packet_id.get().to_be_bytes());
        if version != ProtocolVersion::V5 {
            return Ok(());
        }
        check_list(PacketType::UnsubAck, &self.reasons)?;
        self.properties.put(out)?;
        self.reasons.iter().try_for_each(|reason| put_reason(PacketType::UnsubAck, version, *reason, out))
    }
}

/// The rest of a packet as a list of one to [`FILTERS_PER_PACKET_MAX`] entries.
fn read_list<'a, T>(
    packet: PacketType,
    mut reader: Reader<'a>,
    read: impl Fn(&mut Reader<'a>) -> Result<T, DecodeError>,
) -> Result<Vec<T>, DecodeError> {
    let mut list = Vec::new();
    while !reader.is_empty() {
        if list.len() == FILTERS_PER_PACKET_MAX {
            return Err(DecodeError::TooMany { packet, count_max: FILTERS_PER_PACKET_MAX });
        }
        list.push(read(&mut reader)?);
    }
    if list.is_empty() { Err(DecodeError::Empty(packet)) } else { Ok(list) }
}

fn check_list<T>(packet: PacketType, list: &[T]) -> Result<(), EncodeError> {
    if list.is_empty() { Err(EncodeError::Empty(packet)) } else { Ok(()) }
}
