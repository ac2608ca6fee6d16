//! What is wrong with bytes that came, or with a packet that shall go. Each decoding error names its own answer to the sender.

use super::{PacketType, PropertyId, ProtocolVersion, ReasonCode};

/// Why bytes are not a control packet. The connection they came on cannot go on [MQTT-4.13.1-1]; [`DecodeError::reason`] says with which
/// code to end it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// The first packet of a connection begins with this byte, which is not CONNECT's [MQTT-3.1.0-1].
    #[error("the first packet is no CONNECT: it begins with {0:#04x}")]
    NotConnect(u8),
    /// A packet type that the version does not have (section 2.1.2): 0, or AUTH before version 5.
    #[error("packet type {0} does not exist in this version")]
    PacketType(u8),
    /// Flags in the fixed header that the packet must not have [MQTT-2.1.3-1].
    #[error("{packet} with the reserved flags {flags:#06b}")]
    Flags {
        /// The packet.
        packet: PacketType,
        /// Low four bits of its first byte.
        flags: u8,
    },
    /// A variable byte integer goes on after its fourth byte [MQTT-1.5.5-1].
    #[error("a variable byte integer of more than four bytes")]
    VarintTooLong,
    /// A variable byte integer of more bytes than its value needs [MQTT-1.5.5-1].
    #[error("the variable byte integer {0} is not in its shortest form")]
    VarintNotMinimal(u32),
    /// A packet that is larger than what this side accepts [MQTT-3.1.2-24]; known from its header alone.
    #[error("a packet of {bytes} bytes where at most {bytes_max} are accepted")]
    PacketTooLarge {
        /// Size of the whole packet.
        bytes: usize,
        /// What is accepted.
        bytes_max: u32,
    },
    /// A field reaches beyond the end of its packet or property section.
    #[error("a field of {wanted} bytes where {left} are left")]
    Truncated {
        /// Bytes that the field needs.
        wanted: usize,
        /// Bytes that there are.
        left: usize,
    },
    /// The packet goes on after its last field.
    #[error("{0} bytes after the end of the packet's fields")]
    TrailingBytes(usize),
    /// A string that is not well-formed UTF-8 [MQTT-1.5.4-1].
    #[error("a string that is not well-formed UTF-8 from byte {valid_bytes} on")]
    Utf8 {
        /// Length of the well-formed beginning.
        valid_bytes: usize,
    },
    /// A string with U+0000 in it [MQTT-1.5.4-2].
    #[error("a string with a null character")]
    NullCharacter,
    /// A topic, filter or user name with a control character; a receiver may refuse them (section 1.5.4).
    #[error("a name with a control character")]
    ControlCharacter,
    /// The same in a client identifier, of which version 5 has a way to say so [MQTT-3.1.3-8].
    #[error("a client identifier with a control character")]
    ClientIdCharacter,
    /// A protocol name that is neither `MQTT` nor `MQIsdp` [MQTT-3.1.2-1].
    #[error("the protocol name is not MQTT")]
    ProtocolName,
    /// A protocol level that is not served [MQTT-3.1.2-2].
    #[error("protocol level {0} is not supported")]
    ProtocolLevel(u8),
    /// Connect flags that contradict each other or use the reserved bit [MQTT-3.1.2-3, -11, -12, -13] (3.1.1: [MQTT-3.1.2-22]).
    #[error("connect flags {0:#010b}")]
    ConnectFlags(u8),
    /// An empty client identifier where the version, or a session that is to be kept, needs one (3.1.1: [MQTT-3.1.3-8]).
    #[error("an empty client identifier")]
    ClientIdEmpty,
    /// A QoS that does not exist [MQTT-3.3.1-4].
    #[error("QoS {0}")]
    QoS(u8),
    /// DUP on a message of QoS 0 [MQTT-3.3.1-2].
    #[error("DUP on a message of QoS 0")]
    DupWithoutQoS,
    /// Packet identifier 0 [MQTT-2.2.1-3].
    #[error("packet identifier 0")]
    PacketIdZero,
    /// A topic name with a wildcard in it [MQTT-3.3.2-2], [MQTT-3.3.2-14].
    #[error("a topic name with a wildcard")]
    TopicWildcard,
    /// An empty topic name [MQTT-4.7.3-1] without an alias that would stand for it.
    #[error("an empty topic name")]
    TopicEmpty,
    /// A list that must have an element has none [MQTT-3.8.3-2], [MQTT-3.10.3-2].
    #[error("{0} with nothing in it")]
    Empty(PacketType),
    /// More filters or reason codes in one packet than are accepted.
    #[error("{packet} with more than {count_max} entries")]
    TooMany {
        /// The packet.
        packet: PacketType,
        /// What is accepted.
        count_max: usize,
    },
    /// Subscription options with reserved bits [MQTT-3.8.3-5] or a value that does not exist.
    #[error("subscription options {0:#010b}")]
    SubscriptionOptions(u8),
    /// No Local on a shared subscription [MQTT-3.8.3-4].
    #[error("no local on a shared subscription")]
    NoLocalShared,
    /// A property identifier that does not exist.
    #[error("property {0:#04x} does not exist")]
    PropertyUnknown(u8),
    /// A property that does not belong to this packet (section 2.2.2.2).
    #[error("property {0} does not belong here")]
    PropertyMisplaced(PropertyId),
    /// A property that may be there once and is there twice.
    #[error("property {0} twice")]
    PropertyTwice(PropertyId),
    /// A property with a value that it must not have.
    #[error("property {id} with the value {value}")]
    PropertyValue {
        /// The property.
        id: PropertyId,
        /// The value.
        value: u32,
    },
    /// More user properties than are accepted.
    #[error("more than {0} user properties")]
    TooManyUserProperties(usize),
    /// Authentication data without a method (section 3.1.2.11.10), or AUTH without one (section 3.15.2.2.2).
    #[error("authentication without an authentication method")]
    AuthenticationMethodMissing,
    /// A reason code that does not exist or that this packet must not carry [MQTT-3.4.2-1] and its like.
    #[error("{packet} with reason code {code:#04x}")]
    Reason {
        /// The packet.
        packet: PacketType,
        /// The code.
        code: u8,
    },
    /// Acknowledge flags of CONNACK that are reserved [MQTT-3.2.2-1], or a session with a refusal [MQTT-3.2.2-6].
    #[error("CONNACK with acknowledge flags {flags:#04x} and reason code {code:#04x}")]
    ConnAckFlags {
        /// The flags.
        flags: u8,
        /// The code beside them.
        code: u8,
    },
}

impl DecodeError {
    /// The code for a version 5 CONNACK or DISCONNECT (section 4.13); [`ReasonCode::v3_return_code`] of it is the code for the CONNACK of
    /// an older version, if one fits.
    #[must_use]
    pub fn reason(&self) -> ReasonCode {
        match self {
            Self::Flags { .. }
            | Self::VarintTooLong
            | Self::VarintNotMinimal(_)
            | Self::Truncated { .. }
            | Self::TrailingBytes(_)
            | Self::Utf8 { .. }
            | Self::NullCharacter
            | Self::ControlCharacter
            | Self::TopicWildcard
            | Self::ConnectFlags(_)
            | Self::QoS(_)
            | Self::DupWithoutQoS
            | Self::SubscriptionOptions(_)
            | Self::PropertyUnknown(_)
            | Self::PropertyMisplaced(_)
            | Self::ConnAckFlags { .. } => ReasonCode::MalformedPacket,
            Self::PropertyValue { id: PropertyId::TopicAlias, .. } => ReasonCode::TopicAliasInvalid,
            Self::NotConnect(_)
            | Self::PacketType(_)
            | Self::PacketIdZero
            | Self::TopicEmpty
            | Self::Empty(_)
            | Self::NoLocalShared
            | Self::PropertyTwice(_)
            | Self::PropertyValue { .. }
            | Self::AuthenticationMethodMissing
            | Self::Reason { .. } => ReasonCode::ProtocolError,
            Self::ProtocolName | Self::ProtocolLevel(_) => ReasonCode::UnsupportedProtocolVersion,
            Self::ClientIdEmpty | Self::ClientIdCharacter => ReasonCode::ClientIdentifierNotValid,
            Self::PacketTooLarge { .. } => ReasonCode::PacketTooLarge,
            Self::TooMany { .. } | Self::TooManyUserProperties(_) => ReasonCode::QuotaExceeded,
        }
    }
}

/// Why a packet cannot be written. Nothing was appended then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EncodeError {
    /// A string or binary field above 65,535 bytes: its length has two bytes.
    #[error("a field of {0} bytes, at most 65535 fit")]
    FieldTooLong(usize),
    /// A packet or property section above 268,435,455 bytes: its length has four bytes of seven bits.
    #[error("a packet of {0} bytes, at most 268435455 fit")]
    TooLong(usize),
    /// QoS 1 or 2 without a packet identifier, or QoS 0 with one [MQTT-2.2.1-2].
    #[error("a packet identifier must be there above QoS 0 and only there")]
    PacketId,
    /// DUP on a message of QoS 0 [MQTT-3.3.1-2].
    #[error("DUP on a message of QoS 0")]
    DupWithoutQoS,
    /// The packet does not exist in this version.
    #[error("{packet} does not exist in MQTT {version}")]
    NotInVersion {
        /// The packet.
        packet: PacketType,
        /// The version.
        version: ProtocolVersion,
    },
    /// A reason code that this packet cannot carry in this version.
    #[error("{packet} cannot say \"{reason}\" in MQTT {version}")]
    Reason {
        /// The packet.
        packet: PacketType,
        /// The code.
        reason: ReasonCode,
        /// The version.
        version: ProtocolVersion,
    },
    /// A list that must have an element has none.
    #[error("{0} with nothing in it")]
    Empty(PacketType),
    /// A property with a value that it must not have.
    #[error("property {id} with the value {value}")]
    PropertyValue {
        /// The property.
        id: PropertyId,
        /// The value.
        value: u32,
    },
    /// A password without a user name before version 5 (3.1.1: [MQTT-3.1.2-22]).
    #[error("a password without a user name")]
    PasswordAlone,
    /// Session present in a CONNACK that refuses [MQTT-3.2.2-6].
    #[error("a refusal that says that there is a session")]
    SessionPresent,
}
