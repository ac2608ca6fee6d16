//! DISCONNECT (section 3.14) and AUTH (section 3.15): a reason and properties, either of which may be left out.

use super::{
    AuthProperties, DecodeError, DisconnectProperties, EncodeError, PacketType, ProtocolVersion, ReasonCode,
    ack::{put_reason, read_reason},
    wire::Reader,
};

/// The last packet of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Disconnect<'a> {
    /// Why; before version 5 always success.
    pub reason: ReasonCode,
    /// Properties, none before version 5.
    pub properties: DisconnectProperties<'a>,
}

impl<'a> Disconnect<'a> {
    pub(super) fn read(version: ProtocolVersion, body: &'a [u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(body);
        let mut disconnect = Self { reason: ReasonCode::Success, properties: DisconnectProperties::default() };
        // Sections 3.14.2.1 and 3.14.2.2.1: both may be left out, from the end.
        if version == ProtocolVersion::V5 && !reader.is_empty() {
            disconnect.reason = read_reason(PacketType::Disconnect, &mut reader)?;
            if !reader.is_empty() {
                disconnect.properties = DisconnectProperties::read(reader.section()?)?;
            }
        }
        reader.finish()?;
        Ok(disconnect)
    }

    /// Before version 5 a DISCONNECT is only a client's farewell: it has no way to give a reason.
    pub(super) fn put_body(&self, version: ProtocolVersion, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        let packet = PacketType::Disconnect;
        if version != ProtocolVersion::V5 {
            return match self.reason {
                ReasonCode::Success => Ok(()),
                reason => Err(EncodeError::Reason { packet, reason, version }),
            };
        }
        if self.reason == ReasonCode::Success && self.properties.is_empty() {
            return Ok(());
        }
        put_reason(packet, version, self.reason, out)?;
        if self.properties.is_empty() { Ok(()) } else { self.properties.put(out) }
    }
}

/// A step of extended authentication. Version 5 only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Auth<'a> {
    /// Success, continue or re-authenticate.
    pub reason: ReasonCode,
    /// Properties.
    pub properties: AuthProperties<'a>,
}

impl<'a> Auth<'a> {
    pub(super) fn read(body: &'a [u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(body);
        if reader.is_empty() {
            // Section 3.15.2.1: reason and properties are left out together, and with them the method that 3.15.2.2.2 wants.
            return Ok(Self { reason: ReasonCode::Success, properties: AuthProperties::default() });
        }
        let reason = read_reason(PacketType::Auth, &mut reader)?;
        let properties = AuthProperties::read(reader.section()?)?;
        if properties.authentication_method.is_none() {
            return Err(DecodeError::AuthenticationMethodMissing);
        }
        reader.finish()?;
        Ok(Self { reason, properties })
    }

    pub(super) fn put_body(&self, version: ProtocolVersion, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        let packet = PacketType::Auth;
        if version != ProtocolVersion::V5 {
            return Err(EncodeError::NotInVersion { packet, version });
        }
        if self.reason == ReasonCode::Success && self.properties.is_empty() {
            return Ok(());
        }
        put_reason(packet, version, self.reason, out)?;
        self.properties.put(out)
    }
}
