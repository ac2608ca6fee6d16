//! PUBACK, PUBREC, PUBREL, PUBCOMP (sections 3.4 to 3.7): one shape, four meanings.

use super::{
    AckProperties, DecodeError, EncodeError, PacketId, PacketType, ProtocolVersion, ReasonCode,
    wire::{Reader, put_section},
};

/// A step of the QoS 1 or QoS 2 hand-shake; which one is said by the variant of [`Packet`](super::Packet).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ack<'a> {
    /// The message that it is about.
    pub packet_id: PacketId,
    /// What became of it; before version 5 always success.
    pub reason: ReasonCode,
    /// Properties, none before version 5.
    pub properties: AckProperties<'a>,
}

impl<'a> Ack<'a> {
    /// What is almost always said: success, no properties.
    #[must_use]
    pub fn success(packet_id: PacketId) -> Self {
        Self { packet_id, reason: ReasonCode::Success, properties: AckProperties::default() }
    }

    #[inline(always)]
    pub(super) fn read(packet: PacketType, version: ProtocolVersion, body: &'a [u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(body);
        let mut ack = Self::success(reader.packet_id()?);
        // Section 3.4.2.1: reason and properties may be left out, from the end.
        if version == ProtocolVersion::V5 && !reader.is_empty() {
            ack.reason = read_reason(packet, &mut reader)?;
            if !reader.is_empty() {
                ack.properties = AckProperties::read(reader.section()?)?;
            }
        }
        reader.finish()?;
        Ok(ack)
    }

    #[inline]
    pub(super) fn put(&self, packet: PacketType, version: ProtocolVersion, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        let [high, low] = self.packet_id.get().to_be_bytes();
        let is_short = match version {
            ProtocolVersion::V5 => self.reason == ReasonCode::Success && self.properties.is_empty(),
            // The older versions know no refusal: there is nothing to say but the whole thing.
            ProtocolVersion::V3_1 | ProtocolVersion::V3_1_1 if self.reason.is_error() => {
                return Err(EncodeError::Reason { packet, reason: self.reason, version });
            }
            ProtocolVersion::V3_1 | ProtocolVersion::V3_1_1 => true,
        };
        if is_short {
            out.extend_from_slice(&[packet.first_byte(), 2, high, low]);
            return Ok(());
        }
        out.push(packet.first_byte());
        put_section(out, |out| {
            out.extend_from_slice(&[high, low]);
            put_reason(packet, version, self.reason, out)?;
            if self.properties.is_empty() { Ok(()) } else { self.properties.put(out) }
        })
    }
}

/// A reason code that `packet` may carry.
pub(super) fn read_reason(packet: PacketType, reader: &mut Reader<'_>) -> Result<ReasonCode, DecodeError> {
    let code = reader.u8()?;
    ReasonCode::from_u8(code).filter(|reason| reason.is_allowed_in(packet)).ok_or(DecodeError::Reason { packet, code })
}

pub(super) fn put_reason(
    packet: PacketType,
    version: ProtocolVersion,
    reason: ReasonCode,
    out: &mut Vec<u8>,
) -> Result<(), EncodeError> {
    if !reason.is_allowed_in(packet) {
        return Err(EncodeError::Reason { packet, reason, version });
    }
    out.push(reason as u8);
    Ok(())
}
