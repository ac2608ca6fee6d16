//! CONNECT (section 3.1) and CONNACK (section 3.2).
//!
//! Invariant: what comes out of here has flags that agree with its fields, so a [`Connect`] has no flags any more.

use super::{
    ConnAckProperties, ConnectProperties, DecodeError, EncodeError, PacketType, ProtocolVersion, QoS, ReasonCode, WillProperties,
    properties::check_authentication,
    wire::{Reader, put_binary, put_string},
};

const USER_NAME: u8 = 0b1000_0000;
const PASSWORD: u8 = 0b0100_0000;
const WILL_RETAIN: u8 = 0b0010_0000;
const WILL_QOS: u8 = 0b0001_1000;
const WILL_QOS_SHIFT: u32 = WILL_QOS.trailing_zeros();
const WILL: u8 = 0b0000_0100;
const CLEAN_START: u8 = 0b0000_0010;
const RESERVED: u8 = 0b0000_0001;

/// In the protocol level: see [`Connect::is_bridge`].
const BRIDGE: u8 = 0b1000_0000;

const SESSION_PRESENT: u8 = 0b0000_0001;

/// A client asks to be served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connect<'a> {
    /// What the client speaks.
    pub version: ProtocolVersion,
    /// Whether it is a bridge of another broker, which wants nothing back of what it sends: a bit in the protocol level that Mosquitto sets before
    /// version 5.
    pub is_bridge: bool,
    /// Whether a session that is still there shall be forgotten first. Before version 5 (Clean Session) also whether it ends with the
    /// connection.
    pub clean_start: bool,
    /// Seconds within which the client will send something; 0 is never.
    pub keep_alive_seconds: u16,
    /// Properties, none before version 5.
    pub properties: ConnectProperties<'a>,
    /// Empty: the server is to choose one. Any length: the 23 characters of 3.1 are not insisted on.
    pub client_id: &'a str,
    /// What to publish when the connection ends without a farewell.
    pub will: Option<Will<'a>>,
    /// User name.
    pub user_name: Option<&'a str>,
    /// Password, or a token; any bytes.
    pub password: Option<&'a [u8]>,
}

/// The message that a server publishes in a client's stead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Will<'a> {
    /// Topic name, without wildcards.
    pub topic: &'a str,
    /// Payload.
    pub payload: &'a [u8],
    /// QoS of the publication.
    pub qos: QoS,
    /// Whether it shall be retained.
    pub retain: bool,
    /// Properties, none before version 5.
    pub properties: WillProperties<'a>,
}

impl<'a> Connect<'a> {
    pub(super) fn read(body: &'a [u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(body);
        let (version, is_bridge) = read_version(&mut reader)?;
        let flags = reader.u8()?;
        check_flags(version, flags)?;
        let keep_alive_seconds = reader.u16()?;
        let properties = if version == ProtocolVersion::V5 {
            let properties = ConnectProperties::read(reader.section()?)?;
            check_authentication(properties.authentication_method, properties.authentication_data)?;
            properties
        } else {
            ConnectProperties::default()
        };
        let client_id = reader.name().map_err(|error| match error {
            DecodeError::ControlCharacter if version == ProtocolVersion::V5 => DecodeError::ClientIdCharacter,
            error => error,
        })?;
        let clean_start = flags & CLEAN_START != 0;
        let may_choose = match version {
            ProtocolVersion::V3_1 => false,
            ProtocolVersion::V3_1_1 => clean_start,
            ProtocolVersion::V5 => true,
        };
        if client_id.is_empty() && !may_choose {
            return Err(DecodeError::ClientIdEmpty);
        }
        let will = if flags & WILL != 0 { Some(Will::read(version, flags, &mut reader)?) } else { None };
        // MQTT 3.1, section 3.1: the remaining length takes precedence over these two flags, a string that is missing is no error.
        let is_there =
            |flag: u8, reader: &Reader<'_>| flags & flag != 0 && !(version == ProtocolVersion::V3_1 && reader.is_empty());
        let user_name = if is_there(USER_NAME, &reader) { Some(reader.name()?) } else { None };
        let password = if is_there(PASSWORD, &reader) { Some(reader.binary()?) } else { None };
        reader.finish()?;
        Ok(Self { version, is_bridge, clean_start, keep_alive_seconds, properties, client_id, will, user_name, password })
    }

    pub(super) fn put_body(&self, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        if self.version != ProtocolVersion::V5 && self.password.is_some() && self.user_name.is_none() {
            return Err(EncodeError::PasswordAlone);
        }
        let (name, level) = self.version.name_and_level();
        put_string(out, name)?;
        out.push(if self.is_bridge && self.version != ProtocolVersion::V5 { level | BRIDGE } else { level });
        let will_flags =
            self.will.map_or(0, |will| WILL | (will.qos as u8) << WILL_QOS_SHIFT | if will.retain { WILL_RETAIN } else { 0 });
        let flag = |is_set: bool, flag: u8| if is_set { flag } else { 0 };
        out.push(
            will_flags
                | flag(self.clean_start, CLEAN_START)
                | flag(self.user_name.is_some(), USER_NAME)
                | flag(self.password.is_some(), PASSWORD),
        );
        out.extend_from_slice(&self.keep_alive_seconds.to_be_bytes());
        if self.version == ProtocolVersion::V5 {
            self.properties.put(out)?;
        }
        put_string(out, self.client_id)?;
        if let Some(will) = &self.will {
            if self.version == ProtocolVersion::V5 {
                will.properties.put(out)?;
            }
            put_string(out, will.topic)?;
            put_binary(out, will.payload)?;
        }
        if let Some(name) = self.user_name {
            put_string(out, name)?;
        }
        if let Some(password) = self.password {
            put_binary(out, password)?;
        }
        Ok(())
    }
}

/// The version that the front of a CONNECT's body claims, and whether a bridge does.
pub(super) fn read_version(reader: &mut Reader<'_>) -> Result<(ProtocolVersion, bool), DecodeError> {
    let name = reader.binary()?;
    if name != b"MQTT" && name != b"MQIsdp" {
        return Err(DecodeError::ProtocolName);
    }
    let level = reader.u8()?;
    let name = if name == b"MQTT" { "MQTT" } else { "MQIsdp" };
    let versions = [(ProtocolVersion::V3_1, true), (ProtocolVersion::V3_1_1, true), (ProtocolVersion::V5, false)];
    let claims = |version: ProtocolVersion, level| version.name_and_level() == (name, level);
    let found = versions.into_iter().find_map(|(version, may_be_bridge)| match level {
        _ if claims(version, level) => Some((version, false)),
        _ if may_be_bridge && claims(version, level ^ BRIDGE) => Some((version, true)),
        _ => None,
    });
    found.ok_or(DecodeError::ProtocolLevel(level))
}

fn check_flags(version: ProtocolVersion, flags: u8) -> Result<(), DecodeError> {
    // In 3.1 the last bit was "not used", from 3.1.1 on it must be 0 [MQTT-3.1.2-3].
    let is_reserved = flags & RESERVED != 0 && version != ProtocolVersion::V3_1;
    // [MQTT-3.1.2-11, -13]
    let is_will_without_will = flags & WILL == 0 && flags & (WILL_QOS | WILL_RETAIN) != 0;
    // 3.1.1 [MQTT-3.1.2-22]; version 5 allows it.
    let is_password_alone = flags & (USER_NAME | PASSWORD) == PASSWORD && version != ProtocolVersion::V5;
    if is_reserved || is_will_without_will || is_password_alone {
        return Err(DecodeError::ConnectFlags(flags));
    }
    Ok(())
}

impl<'a> Will<'a> {
    fn read(version: ProtocolVersion, flags: u8, reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let qos = QoS::try_from((flags & WILL_QOS) >> WILL_QOS_SHIFT)?;
        let properties = match version {
            ProtocolVersion::V5 => WillProperties::read(reader.section()?)?,
            ProtocolVersion::V3_1 | ProtocolVersion::V3_1_1 => WillProperties::default(),
        };
        let topic = reader.topic_name()?;
        if topic.is_empty() {
            return Err(DecodeError::TopicEmpty);
        }
        Ok(Self { topic, payload: reader.binary()?, qos, retain: flags & WILL_RETAIN != 0, properties })
    }
}

/// A server's answer to CONNECT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnAck<'a> {
    /// Whether the client's session is still there. MQTT 3.1 cannot say so.
    pub session_present: bool,
    /// The answer; before version 5 only what [`ReasonCode::v3_return_code`] has a code for.
    pub reason: ReasonCode,
    /// Properties, none before version 5.
    pub properties: ConnAckProperties<'a>,
}

impl<'a> ConnAck<'a> {
    pub(super) fn read(version: ProtocolVersion, body: &'a [u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(body);
        let flags = reader.u8()?;
        let code = reader.u8()?;
        let reason = match version {
            ProtocolVersion::V5 => ReasonCode::from_u8(code).filter(|reason| reason.is_allowed_in(PacketType::ConnAck)),
            ProtocolVersion::V3_1 | ProtocolVersion::V3_1_1 => ReasonCode::from_v3_return_code(code),
        };
        let reason = reason.ok_or(DecodeError::Reason { packet: PacketType::ConnAck, code })?;
        // In 3.1 the byte was "reserved, not used".
        let flags = if version == ProtocolVersion::V3_1 { 0 } else { flags };
        let session_present = flags & SESSION_PRESENT != 0;
        if flags & !SESSION_PRESENT != 0 || (session_present && reason != ReasonCode::Success) {
            return Err(DecodeError::ConnAckFlags { flags, code });
        }
        let properties = if version == ProtocolVersion::V5 {
            let properties = ConnAckProperties::read(reader.section()?)?;
            check_authentication(properties.authentication_method, properties.authentication_data)?;
            properties
        } else {
            ConnAckProperties::default()
        };
        reader.finish()?;
        Ok(Self { session_present, reason, properties })
    }

    pub(super) fn put_body(&self, version: ProtocolVersion, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        let packet = PacketType::ConnAck;
        let code = match version {
            ProtocolVersion::V5 => Some(self.reason as u8).filter(|_| self.reason.is_allowed_in(packet)),
            ProtocolVersion::V3_1 | ProtocolVersion::V3_1_1 => self.reason.v3_return_code(),
        };
        let code = code.ok_or(EncodeError::Reason { packet, reason: self.reason, version })?;
        if self.session_present && self.reason != ReasonCode::Success {
            return Err(EncodeError::SessionPresent);
        }
        out.push(if version == ProtocolVersion::V3_1 { 0 } else { self.session_present.into() });
        out.push(code);
        if version == ProtocolVersion::V5 { self.properties.put(out) } else { Ok(()) }
    }
}
