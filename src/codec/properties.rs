//! Properties (MQTT 5.0, section 2.2.2): one typed structure a packet, read in one pass without allocation.
//!
//! A property's type follows from its identifier, whatever the packet; which packet may have it, and how often, follows from the structure
//! that has a field for it. So the structures below *are* table 2-4: what has no field is misplaced, a field that is an `Option` and set
//! already is "twice".

use std::{
    fmt,
    num::{NonZeroU16, NonZeroU32},
};

use super::{
    DecodeError, EncodeError, QoS,
    wire::{Reader, put_binary, put_section, put_string, put_varint},
};
use crate::limits::{MQTT_REMAINING_LENGTH_MAX, USER_PROPERTIES_MAX};

/// The types of section 1.5, as far as skipping needs them.
enum Kind {
    Byte,
    TwoBytes,
    FourBytes,
    Varint,
    /// String or binary: a length of two bytes and so many bytes.
    Field,
    TwoFields,
}

macro_rules! property_ids {
    ($($name:ident = $id:literal, $kind:ident, $text:literal;)+) => {
        /// A property identifier.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub enum PropertyId {
            $(#[doc = concat!("`", stringify!($id), "`: ", $text, ".")] $name = $id,)+
        }

        impl PropertyId {
            /// All identifiers, in their order.
            #[cfg(test)]
            pub(super) const ALL: &[Self] = &[$(Self::$name),+];

            /// All identifiers are below 128, so a byte is the whole Variable Byte Integer; what has its high bit set is none of ours.
            fn from_u8(id: u8) -> Option<Self> {
                match id {
                    $($id => Some(Self::$name),)+
                    _ => None,
                }
            }

            fn kind(self) -> Kind {
                match self {
                    $(Self::$name => Kind::$kind,)+
                }
            }

            fn text(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)+
                }
            }
        }
    };
}

property_ids! {
    PayloadFormatIndicator = 0x01, Byte, "payload format indicator";
    MessageExpiryInterval = 0x02, FourBytes, "message expiry interval";
    ContentType = 0x03, Field, "content type";
    ResponseTopic = 0x08, Field, "response topic";
    CorrelationData = 0x09, Field, "correlation data";
    SubscriptionIdentifier = 0x0b, Varint, "subscription identifier";
    SessionExpiryInterval = 0x11, FourBytes, "session expiry interval";
    AssignedClientIdentifier = 0x12, Field, "assigned client identifier";
    ServerKeepAlive = 0x13, TwoBytes, "server keep alive";
    AuthenticationMethod = 0x15, Field, "authentication method";
    AuthenticationData = 0x16, Field, "authentication data";
    RequestProblemInformation = 0x17, Byte, "request problem information";
    WillDelayInterval = 0x18, FourBytes, "will delay interval";
    RequestResponseInformation = 0x19, Byte, "request response information";
    ResponseInformation = 0x1a, Field, "response information";
    ServerReference = 0x1c, Field, "server reference";
    ReasonString = 0x1f, Field, "reason string";
    ReceiveMaximum = 0x21, TwoBytes, "receive maximum";
    TopicAliasMaximum = 0x22, TwoBytes, "topic alias maximum";
    TopicAlias = 0x23, TwoBytes, "topic alias";
    MaximumQoS = 0x24, Byte, "maximum QoS";
    RetainAvailable = 0x25, Byte, "retain available";
    UserProperty = 0x26, TwoFields, "user property";
    MaximumPacketSize = 0x27, FourBytes, "maximum packet size";
    WildcardSubscriptionAvailable = 0x28, Byte, "wildcard subscription available";
    SubscriptionIdentifiersAvailable = 0x29, Byte, "subscription identifiers available";
    SharedSubscriptionAvailable = 0x2a, Byte, "shared subscription available";
}

impl PropertyId {
    #[inline]
    pub(super) fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let id = reader.u8()?;
        Self::from_u8(id).ok_or(DecodeError::PropertyUnknown(id))
    }

    /// Passes over the value of this property.
    fn skip(self, reader: &mut Reader<'_>) -> Result<(), DecodeError> {
        match self.kind() {
            Kind::Byte => reader.bytes(1).map(drop),
            Kind::TwoBytes => reader.bytes(2).map(drop),
            Kind::FourBytes => reader.bytes(4).map(drop),
            Kind::Varint => reader.varint().map(drop),
            Kind::Field => reader.binary().map(drop),
            Kind::TwoFields => reader.binary().and_then(|_| reader.binary()).map(drop),
        }
    }
}

impl fmt::Display for PropertyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

/// What a property may hold: each type refuses the values that the specification forbids.
pub(super) trait Value<'a>: Copy {
    fn read(id: PropertyId, reader: &mut Reader<'a>) -> Result<Self, DecodeError>;
    fn write(self, id: PropertyId, out: &mut Vec<u8>) -> Result<(), EncodeError>;
}

impl<'a> Value<'a> for u16 {
    #[inline]
    fn read(_: PropertyId, reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        reader.u16()
    }

    fn write(self, _: PropertyId, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        out.extend_from_slice(&self.to_be_bytes());
        Ok(())
    }
}

impl<'a> Value<'a> for u32 {
    #[inline]
    fn read(_: PropertyId, reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        reader.u32()
    }

    fn write(self, _: PropertyId, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        out.extend_from_slice(&self.to_be_bytes());
        Ok(())
    }
}

impl<'a> Value<'a> for NonZeroU16 {
    #[inline]
    fn read(id: PropertyId, reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        Self::new(reader.u16()?).ok_or(DecodeError::PropertyValue { id, value: 0 })
    }

    fn write(self, id: PropertyId, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        self.get().write(id, out)
    }
}

impl<'a> Value<'a> for NonZeroU32 {
    fn read(id: PropertyId, reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        Self::new(reader.u32()?).ok_or(DecodeError::PropertyValue { id, value: 0 })
    }

    fn write(self, id: PropertyId, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        self.get().write(id, out)
    }
}

impl<'a> Value<'a> for bool {
    fn read(id: PropertyId, reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        match reader.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            value => Err(DecodeError::PropertyValue { id, value: value.into() }),
        }
    }

    fn write(self, _: PropertyId, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        out.push(self.into());
        Ok(())
    }
}

/// Maximum QoS is 0 or 1; that there is no maximum is said by leaving it out (section 3.2.2.3.4).
impl<'a> Value<'a> for QoS {
    fn read(id: PropertyId, reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        match reader.u8()? {
            0 => Ok(QoS::AtMostOnce),
            1 => Ok(QoS::AtLeastOnce),
            value => Err(DecodeError::PropertyValue { id, value: value.into() }),
        }
    }

    fn write(self, id: PropertyId, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        if self == QoS::ExactlyOnce {
            return Err(EncodeError::PropertyValue { id, value: self as u32 });
        }
        out.push(self as u8);
        Ok(())
    }
}

impl<'a> Value<'a> for &'a str {
    fn read(id: PropertyId, reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        if id != PropertyId::ResponseTopic {
            return reader.string();
        }
        // A response topic is a topic name [MQTT-3.3.2-14].
        let topic = reader.topic_name()?;
        if topic.is_empty() { Err(DecodeError::TopicEmpty) } else { Ok(topic) }
    }

    fn write(self, _: PropertyId, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        put_string(out, self)
    }
}

impl<'a> Value<'a> for &'a [u8] {
    fn read(_: PropertyId, reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        reader.binary()
    }

    fn write(self, _: PropertyId, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        put_binary(out, self)
    }
}

/// A subscription identifier: 1 to 268,435,455 (section 3.8.2.1.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SubscriptionId(u32);

impl TryFrom<u32> for SubscriptionId {
    type Error = EncodeError;

    fn try_from(value: u32) -> Result<Self, Self::Error> {
        if (1..=MQTT_REMAINING_LENGTH_MAX).contains(&value) {
            Ok(Self(value))
        } else {
            Err(EncodeError::PropertyValue { id: PropertyId::SubscriptionIdentifier, value })
        }
    }
}

impl From<SubscriptionId> for u32 {
    fn from(id: SubscriptionId) -> Self {
        id.0
    }
}

impl<'a> Value<'a> for SubscriptionId {
    fn read(id: PropertyId, reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let value = reader.varint()?;
        if value == 0 { Err(DecodeError::PropertyValue { id, value }) } else { Ok(Self(value)) }
    }

    fn write(self, _: PropertyId, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        put_varint(out, self.0 as usize)
    }
}

/// A field of a property structure: how a property that arrives gets into it, how it is written.
pub(super) trait Field<'a> {
    /// Takes the value of the property `id`, whose identifier was just read. `section` is the whole property section around it.
    fn take(&mut self, id: PropertyId, reader: &mut Reader<'a>, section: &'a [u8]) -> Result<(), DecodeError>;
    /// Writes identifier and value as often as the field holds one.
    fn put(&self, id: PropertyId, out: &mut Vec<u8>) -> Result<(), EncodeError>;
    /// Whether nothing would be written.
    fn is_absent(&self) -> bool;
}

impl<'a, T: Value<'a>> Field<'a> for Option<T> {
    #[inline]
    fn take(&mut self, id: PropertyId, reader: &mut Reader<'a>, _: &'a [u8]) -> Result<(), DecodeError> {
        if self.is_some() {
            return Err(DecodeError::PropertyTwice(id));
        }
        *self = Some(T::read(id, reader)?);
        Ok(())
    }

    fn put(&self, id: PropertyId, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        let Some(value) = self else { return Ok(()) };
        out.push(id as u8);
        value.write(id, out)
    }

    fn is_absent(&self) -> bool {
        self.is_none()
    }
}

/// The properties of one kind that may be there more than once, in their order: they stay in the section they came in.
#[derive(Clone, Copy, Default)]
struct Repeated<'a> {
    /// A property section that was checked as a whole.
    section: &'a [u8],
    /// How many of this kind are in it.
    count: usize,
}

impl<'a> Repeated<'a> {
    fn take(&mut self, section: &'a [u8]) {
        self.section = section;
        self.count += 1;
    }

    /// The values of the properties `id`. The section was checked, so the only end that this meets is the last of them.
    fn iter<T>(self, id: PropertyId, read: fn(&mut Reader<'a>) -> Result<T, DecodeError>) -> impl Iterator<Item = T> {
        let mut reader = Reader::new(self.section);
        std::iter::from_fn(move || {
            loop {
                let found = PropertyId::read(&mut reader).ok()?;
                if found == id {
                    return read(&mut reader).ok();
                }
                found.skip(&mut reader).ok()?;
            }
        })
        .take(self.count)
    }
}

/// The user properties of one packet in their order (section 2.2.2.2), names and values. The default has none.
#[derive(Clone, Copy, Default)]
pub struct UserProperties<'a>(Repeated<'a>);

impl<'a> UserProperties<'a> {
    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.count == 0
    }

    /// These and one more, written over `into`.
    ///
    /// # Errors
    /// When a string is too long, or they are more than a packet may have.
    pub fn with<'b>(&self, name: &str, value: &str, into: &'b mut Vec<u8>) -> Result<UserProperties<'b>, EncodeError> {
        into.clear();
        self.put(PropertyId::UserProperty, into)?;
        into.push(PropertyId::UserProperty as u8);
        put_string(into, name)?;
        put_string(into, value)?;
        Ok(UserProperties(Repeated { section: into, count: self.0.count + 1 }))
    }

    /// Names and values.
    pub fn iter(&self) -> impl Iterator<Item = (&'a str, &'a str)> + use<'a> {
        self.0.iter(PropertyId::UserProperty, |reader| Ok((reader.string()?, reader.string()?)))
    }
}

impl<'a> Field<'a> for UserProperties<'a> {
    fn take(&mut self, _: PropertyId, reader: &mut Reader<'a>, section: &'a [u8]) -> Result<(), DecodeError> {
        if self.0.count == USER_PROPERTIES_MAX {
            return Err(DecodeError::TooManyUserProperties(USER_PROPERTIES_MAX));
        }
        reader.string()?;
        reader.string()?;
        self.0.take(section);
        Ok(())
    }

    fn put(&self, id: PropertyId, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        for (name, value) in self.iter() {
            out.push(id as u8);
            put_string(out, name)?;
            put_string(out, value)?;
        }
        Ok(())
    }

    fn is_absent(&self) -> bool {
        self.is_empty()
    }
}

impl PartialEq for UserProperties<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl Eq for UserProperties<'_> {}

impl fmt::Debug for UserProperties<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// The subscription identifiers of a PUBLISH (section 3.3.2.3.8), each 1 to 268,435,455. The default has none.
#[derive(Clone, Copy, Default)]
pub struct SubscriptionIds<'a>(Repeated<'a>);

impl<'a> SubscriptionIds<'a> {
    /// Whether there is none. From a client there must be none [MQTT-3.3.4-6].
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.count == 0
    }

    /// The identifiers in their order.
    pub fn iter(&self) -> impl Iterator<Item = u32> + use<'a> {
        self.0.iter(PropertyId::SubscriptionIdentifier, Reader::varint)
    }
}

impl<'a> Field<'a> for SubscriptionIds<'a> {
    fn take(&mut self, id: PropertyId, reader: &mut Reader<'a>, section: &'a [u8]) -> Result<(), DecodeError> {
        SubscriptionId::read(id, reader)?;
        self.0.take(section);
        Ok(())
    }

    fn put(&self, _: PropertyId, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        self.iter().try_for_each(|value| put_subscription_id(out, value))
    }

    fn is_absent(&self) -> bool {
        self.is_empty()
    }
}

impl PartialEq for SubscriptionIds<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl Eq for SubscriptionIds<'_> {}

impl fmt::Debug for SubscriptionIds<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

macro_rules! property_structs {
    ($(
        $(#[$doc:meta])*
        $name:ident { $($(#[$field_doc:meta])* $field:ident: $type:ty = $id:ident,)+ }
    )+) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $name<'a> {
            $($(#[$field_doc])* pub $field: $type,)+
        }

        impl<'a> $name<'a> {
            /// Takes a whole property section, without its length.
            #[inline(never)]
            pub(super) fn read(section: &'a [u8]) -> Result<Self, DecodeError> {
                let mut found = Self::default();
                let mut reader = Reader::new(section);
                while !reader.is_empty() {
                    match PropertyId::read(&mut reader)? {
                        $(id @ PropertyId::$id => Field::take(&mut found.$field, id, &mut reader, section)?,)+
                        #[allow(unreachable_patterns)]
                        id => return Err(DecodeError::PropertyMisplaced(id)),
                    }
                }
                Ok(found)
            }

            /// Appends the section with its length.
            pub(super) fn put(&self, out: &mut Vec<u8>) -> Result<(), EncodeError> {
                put_section(out, |out| {
                    $(Field::put(&self.$field, PropertyId::$id, out)?;)+
                    Ok(())
                })
            }

            /// Whether there is no property at all.
            #[must_use]
            pub fn is_empty(&self) -> bool {
                $(Field::is_absent(&self.$field))&&+
            }
        }
    )+};
}

property_structs! {
    /// Properties of CONNECT (section 3.1.2.11).
    ConnectProperties {
        /// Seconds that the session lives on after the connection; absent is 0, `u32::MAX` is for ever.
        session_expiry_seconds: Option<u32> = SessionExpiryInterval,
        /// QoS 1 and 2 messages that the client takes at once; absent is 65,535.
        receive_maximum: Option<NonZeroU16> = ReceiveMaximum,
        /// Bytes of the largest packet that the client takes; absent is no limit.
        maximum_packet_size: Option<NonZeroU32> = MaximumPacketSize,
        /// Highest alias that the client takes; absent is 0: none.
        topic_alias_maximum: Option<u16> = TopicAliasMaximum,
        /// Whether the client wants response information in CONNACK; absent is no.
        request_response_information: Option<bool> = RequestResponseInformation,
        /// Whether reason strings and user properties may come in packets other than PUBLISH, CONNACK and DISCONNECT; absent is yes.
        request_problem_information: Option<bool> = RequestProblemInformation,
        /// User properties.
        user_properties: UserProperties<'a> = UserProperty,
        /// Name of the method of extended authentication.
        authentication_method: Option<&'a str> = AuthenticationMethod,
        /// What that method says.
        authentication_data: Option<&'a [u8]> = AuthenticationData,
    }

    /// Properties of the will in CONNECT (section 3.1.3.2).
    WillProperties {
        /// Seconds between the connection's end and the will's publication; absent is 0.
        delay_seconds: Option<u32> = WillDelayInterval,
        /// Whether the payload is UTF-8 text.
        payload_format: Option<bool> = PayloadFormatIndicator,
        /// Seconds that the message lives from its publication on.
        message_expiry_seconds: Option<u32> = MessageExpiryInterval,
        /// What the payload is.
        content_type: Option<&'a str> = ContentType,
        /// Topic for an answer.
        response_topic: Option<&'a str> = ResponseTopic,
        /// What an answer shall carry.
        correlation_data: Option<&'a [u8]> = CorrelationData,
        /// User properties.
        user_properties: UserProperties<'a> = UserProperty,
    }

    /// Properties of CONNACK (section 3.2.2.3).
    ConnAckProperties {
        /// Seconds that the session lives on, where it is not what the client asked for.
        session_expiry_seconds: Option<u32> = SessionExpiryInterval,
        /// QoS 1 and 2 messages that the server takes at once; absent is 65,535.
        receive_maximum: Option<NonZeroU16> = ReceiveMaximum,
        /// Highest QoS that the server takes, 0 or 1; absent is 2.
        maximum_qos: Option<QoS> = MaximumQoS,
        /// Whether the server keeps retained messages; absent is yes.
        retain_available: Option<bool> = RetainAvailable,
        /// Bytes of the largest packet that the server takes; absent is no limit.
        maximum_packet_size: Option<NonZeroU32> = MaximumPacketSize,
        /// The client identifier that the server gave to a client that brought none.
        assigned_client_id: Option<&'a str> = AssignedClientIdentifier,
        /// Highest alias that the server takes; absent is 0: none.
        topic_alias_maximum: Option<u16> = TopicAliasMaximum,
        /// Text for a person.
        reason_string: Option<&'a str> = ReasonString,
        /// User properties.
        user_properties: UserProperties<'a> = UserProperty,
        /// Whether the server serves wildcard subscriptions; absent is yes.
        wildcard_subscription_available: Option<bool> = WildcardSubscriptionAvailable,
        /// Whether the server serves subscription identifiers; absent is yes.
        subscription_ids_available: Option<bool> = SubscriptionIdentifiersAvailable,
        /// Whether the server serves shared subscriptions; absent is yes.
        shared_subscription_available: Option<bool> = SharedSubscriptionAvailable,
        /// Seconds that the client must use for its keep alive instead of what it asked for.
        server_keep_alive_seconds: Option<u16> = ServerKeepAlive,
        /// What response topics may be built from.
        response_information: Option<&'a str> = ResponseInformation,
        /// Another server to use.
        server_reference: Option<&'a str> = ServerReference,
        /// Name of the method of extended authentication.
        authentication_method: Option<&'a str> = AuthenticationMethod,
        /// What that method says.
        authentication_data: Option<&'a [u8]> = AuthenticationData,
    }

    /// Properties of PUBLISH (section 3.3.2.3).
    PublishProperties {
        /// Whether the payload is UTF-8 text.
        payload_format: Option<bool> = PayloadFormatIndicator,
        /// Seconds that the message lives.
        message_expiry_seconds: Option<u32> = MessageExpiryInterval,
        /// Stands for the topic name on this connection.
        topic_alias: Option<NonZeroU16> = TopicAlias,
        /// Topic for an answer.
        response_topic: Option<&'a str> = ResponseTopic,
        /// What an answer shall carry.
        correlation_data: Option<&'a [u8]> = CorrelationData,
        /// User properties.
        user_properties: UserProperties<'a> = UserProperty,
        /// Identifiers of the subscriptions that brought the message here.
        subscription_ids: SubscriptionIds<'a> = SubscriptionIdentifier,
        /// What the payload is.
        content_type: Option<&'a str> = ContentType,
    }

    /// Properties of PUBACK, PUBREC, PUBREL, PUBCOMP, SUBACK and UNSUBACK (section 3.4.2.2 and its like).
    AckProperties {
        /// Text for a person.
        reason_string: Option<&'a str> = ReasonString,
        /// User properties.
        user_properties: UserProperties<'a> = UserProperty,
    }

    /// Properties of SUBSCRIBE (section 3.8.2.1).
    SubscribeProperties {
        /// Comes back with each message that these subscriptions bring.
        subscription_id: Option<SubscriptionId> = SubscriptionIdentifier,
        /// User properties.
        user_properties: UserProperties<'a> = UserProperty,
    }

    /// Properties of UNSUBSCRIBE (section 3.10.2.1).
    UnsubscribeProperties {
        /// User properties.
        user_properties: UserProperties<'a> = UserProperty,
    }

    /// Properties of DISCONNECT (section 3.14.2.2).
    DisconnectProperties {
        /// Seconds that the session lives on from now; only a client may say so [MQTT-3.14.2-2].
        session_expiry_seconds: Option<u32> = SessionExpiryInterval,
        /// Text for a person.
        reason_string: Option<&'a str> = ReasonString,
        /// User properties.
        user_properties: UserProperties<'a> = UserProperty,
        /// Another server to use.
        server_reference: Option<&'a str> = ServerReference,
    }

    /// Properties of AUTH (section 3.15.2.2).
    AuthProperties {
        /// Name of the method.
        authentication_method: Option<&'a str> = AuthenticationMethod,
        /// What the method says.
        authentication_data: Option<&'a [u8]> = AuthenticationData,
        /// Text for a person.
        reason_string: Option<&'a str> = ReasonString,
        /// User properties.
        user_properties: UserProperties<'a> = UserProperty,
    }
}

/// The properties that a server hands on unaltered with an application message [MQTT-3.3.2-4, -15, -16, -17, -18, -20].
macro_rules! forwardable {
    ($($name:ident)+) => {$(
        impl $name<'_> {
            /// Appends the properties that go on to subscribers as they are, without a length: all but the alias and the subscription
            /// identifiers, which belong to one connection, and the intervals, which run.
            ///
            /// # Errors
            /// When a field that was set by hand is too long; what came from [`decode`](super::decode) fits.
            pub fn forward_into(&self, out: &mut Vec<u8>) -> Result<(), EncodeError> {
                self.payload_format.put(PropertyId::PayloadFormatIndicator, out)?;
                self.content_type.put(PropertyId::ContentType, out)?;
                self.response_topic.put(PropertyId::ResponseTopic, out)?;
                self.correlation_data.put(PropertyId::CorrelationData, out)?;
                self.user_properties.put(PropertyId::UserProperty, out)
            }

            /// Whether [`Self::forward_into`] would append nothing.
            #[must_use]
            pub fn is_forwardable_empty(&self) -> bool {
                self.payload_format.is_none()
                    && self.content_type.is_none()
                    && self.response_topic.is_none()
                    && self.correlation_data.is_none()
                    && self.user_properties.is_empty()
            }
        }
    )+};
}

forwardable! { PublishProperties WillProperties }

/// Whether `section` is what [`PublishProperties::forward_into`] could have written: it came from another broker and shall go to
/// subscribers as it is.
///
/// # Errors
/// What is wrong with it; [`DecodeError::PropertyMisplaced`] for a property that is not handed on.
pub fn check_forwardable(section: &[u8]) -> Result<(), DecodeError> {
    let found = PublishProperties::read(section)?;
    let own = [
        (found.message_expiry_seconds.is_some(), PropertyId::MessageExpiryInterval),
        (found.topic_alias.is_some(), PropertyId::TopicAlias),
        (!found.subscription_ids.is_empty(), PropertyId::SubscriptionIdentifier),
    ];
    own.into_iter().find(|(is_there, _)| *is_there).map_or(Ok(()), |(_, id)| Err(DecodeError::PropertyMisplaced(id)))
}

/// Appends one subscription identifier of a PUBLISH.
pub(super) fn put_subscription_id(out: &mut Vec<u8>, value: u32) -> Result<(), EncodeError> {
    let id = PropertyId::SubscriptionIdentifier;
    out.push(id as u8);
    SubscriptionId::try_from(value)?.write(id, out)
}

/// Authentication data makes sense only with a method (sections 3.1.2.11.10 and 3.2.2.3.18).
pub(super) fn check_authentication(method: Option<&str>, data: Option<&[u8]>) -> Result<(), DecodeError> {
    if data.is_some() && method.is_none() { Err(DecodeError::AuthenticationMethodMissing) } else { Ok(()) }
}
