//! What is accepted and what is refused, a row a rule. A statement number without a version is MQTT 5.0's.

use super::*;
use crate::limits::{FILTERS_PER_PACKET_MAX, USER_PROPERTIES_MAX};
use DecodeError as E;
use PacketType as T;
use PropertyId as P;

/// Rule, versions it holds in, packet (see [`bytes`]), the error or none.
type Row = (&'static str, &'static [ProtocolVersion], &'static str, Option<DecodeError>);

const fn value(id: PropertyId, value: u32) -> Option<DecodeError> {
    Some(E::PropertyValue { id, value })
}

const fn twice(id: PropertyId) -> Option<DecodeError> {
    Some(E::PropertyTwice(id))
}

const fn misplaced(id: PropertyId) -> Option<DecodeError> {
    Some(E::PropertyMisplaced(id))
}

const fn flags(packet: PacketType, flags: u8) -> Option<DecodeError> {
    Some(E::Flags { packet, flags })
}

const fn reason(packet: PacketType, code: u8) -> Option<DecodeError> {
    Some(E::Reason { packet, code })
}

const fn truncated(wanted: usize, left: usize) -> Option<DecodeError> {
    Some(E::Truncated { wanted, left })
}

const UTF8_AT_0: Option<DecodeError> = Some(E::Utf8 { valid_bytes: 0 });

const FIXED_HEADER: &[Row] = &[
    ("2.1.2 type 0", ALL, "00 ()", Some(E::PacketType(0))),
    ("2.1.2 AUTH is new in 5", V3, "f0 ()", Some(E::PacketType(15))),
    ("[MQTT-2.1.3-1] CONNECT", ALL, "11 ( s'MQTT' 04 02 003c s'a' )", flags(T::Connect, 1)),
    ("[MQTT-2.1.3-1] CONNACK", ALL, "28 ( 00 00 )", flags(T::ConnAck, 8)),
    ("[MQTT-2.1.3-1] PUBACK", ALL, "42 ( 0001 )", flags(T::PubAck, 2)),
    ("[MQTT-2.1.3-1] PUBREC", ALL, "52 ( 0001 )", flags(T::PubRec, 2)),
    ("[MQTT-3.6.1-1] PUBREL", ALL, "60 ( 0001 )", flags(T::PubRel, 0)),
    ("[MQTT-3.6.1-1] PUBREL", ALL, "63 ( 0001 )", flags(T::PubRel, 3)),
    ("[MQTT-2.1.3-1] PUBCOMP", ALL, "72 ( 0001 )", flags(T::PubComp, 2)),
    ("[MQTT-3.8.1-1] SUBSCRIBE", V3, "80 ( 0001 s'a' 00 )", flags(T::Subscribe, 0)),
    ("[MQTT-3.8.1-1] SUBSCRIBE", V5, "8a ( 0001 () s'a' 00 )", flags(T::Subscribe, 10)),
    ("[MQTT-2.1.3-1] SUBACK", ALL, "92 ( 0001 00 )", flags(T::SubAck, 2)),
    ("[MQTT-3.10.1-1] UNSUBSCRIBE", ALL, "a0 ( 0001 s'a' )", flags(T::Unsubscribe, 0)),
    ("[MQTT-2.1.3-1] UNSUBACK", ALL, "b2 ( 0001 )", flags(T::UnsubAck, 2)),
    ("[MQTT-2.1.3-1] PINGREQ", ALL, "c1 ()", flags(T::PingReq, 1)),
    ("[MQTT-2.1.3-1] PINGRESP", ALL, "d4 ()", flags(T::PingResp, 4)),
    ("[MQTT-3.14.1-1] DISCONNECT", ALL, "e1 ()", flags(T::Disconnect, 1)),
    ("[MQTT-3.15.1-1] AUTH", V5, "f2 ()", flags(T::Auth, 2)),
    ("3.1: 3.6, 3.8, 3.10 repeat with DUP", V3_1, "6a ( 0001 )", None),
    ("3.1: 3.8 repeats with DUP", V3_1, "8a ( 0001 s'a' 01 )", None),
    ("3.1: 3.10 repeats with DUP", V3_1, "aa ( 0001 s'a' )", None),
    ("3.1: nothing else does", V3_1, "48 ( 0001 )", flags(T::PubAck, 8)),
    ("3.1.1 has no DUP there", V3_1_1, "6a ( 0001 )", flags(T::PubRel, 10)),
    ("[MQTT-1.5.5-1] five bytes", ALL, "c0 8080808001", Some(E::VarintTooLong)),
    ("[MQTT-1.5.5-1] five bytes, all ones", ALL, "c0 ffffffff7f", Some(E::VarintTooLong)),
    ("[MQTT-1.5.5-1] not minimal", ALL, "c0 8000", Some(E::VarintNotMinimal(0))),
    ("[MQTT-1.5.5-1] not minimal", ALL, "40 828000 0001", Some(E::VarintNotMinimal(2))),
    ("[MQTT-1.5.5-1] not minimal in four", ALL, "40 82808000 0001", Some(E::VarintNotMinimal(2))),
    ("3.12 PINGREQ has no body", ALL, "c0 ( 00 )", Some(E::TrailingBytes(1))),
    ("3.13 PINGRESP has no body", ALL, "d0 ( 00 )", Some(E::TrailingBytes(1))),
    ("3.12", ALL, "c0 ()", None),
    ("3.13", ALL, "d0 ()", None),
];

const CONNECT: &[Row] = &[
    ("3.1.1", ALL, "10 ( s'MQTT' 04 02 003c s'a' )", None),
    ("3.1", ALL, "10 ( s'MQIsdp' 03 02 003c s'a' )", None),
    ("5.0", ALL, "10 ( s'MQTT' 05 02 003c () s'a' )", None),
    ("[MQTT-3.1.2-1] name", ALL, "10 ( s'MQTTX' 04 02 003c s'a' )", Some(E::ProtocolName)),
    ("[MQTT-3.1.2-1] name is not mqtt", ALL, "10 ( s'mqtt' 04 02 003c s'a' )", Some(E::ProtocolName)),
    ("[MQTT-3.1.2-1] empty name", ALL, "10 ( s'' 04 02 003c s'a' )", Some(E::ProtocolName)),
    ("[MQTT-3.1.2-1] name of no text", ALL, "10 ( 0001 ff 04 02 003c s'a' )", Some(E::ProtocolName)),
    ("[MQTT-3.1.2-2] level 6", ALL, "10 ( s'MQTT' 06 02 003c s'a' )", Some(E::ProtocolLevel(6))),
    ("[MQTT-3.1.2-2] level 0", ALL, "10 ( s'MQTT' 00 02 003c s'a' )", Some(E::ProtocolLevel(0))),
    ("[MQTT-3.1.2-2] MQTT is not 3", ALL, "10 ( s'MQTT' 03 02 003c s'a' )", Some(E::ProtocolLevel(3))),
    ("[MQTT-3.1.2-2] MQIsdp is not 4", ALL, "10 ( s'MQIsdp' 04 02 003c s'a' )", Some(E::ProtocolLevel(4))),
    ("a bridge's private bit", ALL, "10 ( s'MQTT' 84 02 003c s'a' )", None),
    ("a bridge's private bit", ALL, "10 ( s'MQIsdp' 83 02 003c s'a' )", None),
    ("[MQTT-3.1.2-2] which version 5 does not have", ALL, "10 ( s'MQTT' 85 02 003c 00 s'a' )", Some(E::ProtocolLevel(0x85))),
    ("[MQTT-3.1.2-3] reserved flag", ALL, "10 ( s'MQTT' 04 03 003c s'a' )", Some(E::ConnectFlags(3))),
    ("[MQTT-3.1.2-3] reserved flag", ALL, "10 ( s'MQTT' 05 03 003c () s'a' )", Some(E::ConnectFlags(3))),
    ("3.1: the flag is not used", ALL, "10 ( s'MQIsdp' 03 03 003c s'a' )", None),
    ("[MQTT-3.1.2-11] will QoS without will", ALL, "10 ( s'MQTT' 04 0a 003c s'a' )", Some(E::ConnectFlags(0x0a))),
    ("[MQTT-3.1.2-13] will retain without will", ALL, "10 ( s'MQTT' 05 22 003c () s'a' )", Some(E::ConnectFlags(0x22))),
    ("[MQTT-3.1.2-12] will QoS 3", ALL, "10 ( s'MQTT' 04 1e 003c s'a' s't' s'm' )", Some(E::QoS(3))),
    ("[MQTT-3.1.2-12] will QoS 3", ALL, "10 ( s'MQTT' 05 1e 003c () s'a' () s't' s'm' )", Some(E::QoS(3))),
    ("3.1.1 [MQTT-3.1.2-22] password alone", ALL, "10 ( s'MQTT' 04 42 003c s'a' s'p' )", Some(E::ConnectFlags(0x42))),
    ("3.1: password alone", ALL, "10 ( s'MQIsdp' 03 42 003c s'a' s'p' )", Some(E::ConnectFlags(0x42))),
    ("3.1.2.9 version 5 allows a password alone", ALL, "10 ( s'MQTT' 05 42 003c () s'a' s'p' )", None),
    ("3.1.3.6 a password is bytes", ALL, "10 ( s'MQTT' 04 c2 003c s'a' s'u' 0003 ff0080 )", None),
    ("empty is not absent", ALL, "10 ( s'MQTT' 04 c2 003c s'a' s'' s'' )", None),
    ("[MQTT-3.1.2-17] user name missing", ALL, "10 ( s'MQTT' 04 82 003c s'a' )", truncated(2, 0)),
    ("[MQTT-3.1.2-19] password missing", ALL, "10 ( s'MQTT' 05 c2 003c () s'a' s'u' )", truncated(2, 0)),
    ("3.1: 3.1, the length takes precedence", ALL, "10 ( s'MQIsdp' 03 c2 003c s'a' )", None),
    ("3.1: 3.1, also for the password", ALL, "10 ( s'MQIsdp' 03 c2 003c s'a' s'u' )", None),
    ("3.1: a string that begins must end", ALL, "10 ( s'MQIsdp' 03 82 003c s'a' 0005 'u' )", truncated(5, 1)),
    ("[MQTT-3.1.2-9] will missing", ALL, "10 ( s'MQTT' 04 06 003c s'a' )", truncated(2, 0)),
    ("[MQTT-3.1.2-9] will payload missing", ALL, "10 ( s'MQTT' 04 06 003c s'a' s't' )", truncated(2, 0)),
    ("will with an empty payload", ALL, "10 ( s'MQTT' 04 06 003c s'a' s't' s'' )", None),
    ("[MQTT-4.7.3-1] empty will topic", ALL, "10 ( s'MQTT' 04 06 003c s'a' s'' s'm' )", Some(E::TopicEmpty)),
    ("[MQTT-4.7.1-1] wildcard in the will topic", ALL, "10 ( s'MQTT' 04 06 003c s'a' s't/#' s'm' )", Some(E::TopicWildcard)),
    ("[MQTT-3.1.3-11] will topic not UTF-8", ALL, "10 ( s'MQTT' 04 06 003c s'a' 0001 80 s'm' )", UTF8_AT_0),
    ("[MQTT-3.1.3-4] client identifier not UTF-8", ALL, "10 ( s'MQTT' 04 02 003c 0001 ff )", UTF8_AT_0),
    ("[MQTT-1.5.4-2] client identifier with U+0000", ALL, "10 ( s'MQTT' 05 02 003c () 0003 'a' 00 'b' )", Some(E::NullCharacter)),
    ("[MQTT-3.1.3-12] user name not UTF-8", ALL, "10 ( s'MQTT' 04 82 003c s'a' 0001 c3 )", UTF8_AT_0),
    ("3.1.1 [MQTT-3.1.3-8] no identifier, session kept", ALL, "10 ( s'MQTT' 04 00 003c s'' )", Some(E::ClientIdEmpty)),
    ("3.1.1 [MQTT-3.1.3-6] no identifier, clean", ALL, "10 ( s'MQTT' 04 02 003c s'' )", None),
    ("3.1: 3.1 no identifier", ALL, "10 ( s'MQIsdp' 03 02 003c s'' )", Some(E::ClientIdEmpty)),
    ("[MQTT-3.1.3-6] no identifier", ALL, "10 ( s'MQTT' 05 00 003c () s'' )", None),
    ("3.1: more than 23 characters", ALL, "10 ( s'MQIsdp' 03 02 003c s'123456789012345678901234' )", None),
    ("trailing byte", ALL, "10 ( s'MQTT' 04 02 003c s'a' 00 )", Some(E::TrailingBytes(1))),
    ("trailing byte", ALL, "10 ( s'MQTT' 05 02 003c () s'a' 00 )", Some(E::TrailingBytes(1))),
    ("trailing byte", ALL, "10 ( s'MQIsdp' 03 02 003c s'a' 00 )", Some(E::TrailingBytes(1))),
    ("ends in the header", ALL, "10 ( s'MQTT' 04 02 00 )", truncated(2, 1)),
    ("no body at all", ALL, "10 ()", truncated(2, 0)),
    ("version 5 without a property length", ALL, "10 ( s'MQTT' 05 02 003c )", truncated(1, 0)),
    ("will without a property length", ALL, "10 ( s'MQTT' 05 06 003c () s'a' )", truncated(1, 0)),
];

const CONNECT_PROPERTIES: &[Row] = &[
    ("3.1.2.11.3 receive maximum 0", V5, "10 ( s'MQTT' 05 02 003c ( 21 0000 ) s'a' )", value(P::ReceiveMaximum, 0)),
    ("3.1.2.11.4 maximum packet size 0", V5, "10 ( s'MQTT' 05 02 003c ( 27 00000000 ) s'a' )", value(P::MaximumPacketSize, 0)),
    ("3.1.2.11.6", V5, "10 ( s'MQTT' 05 02 003c ( 19 02 ) s'a' )", value(P::RequestResponseInformation, 2)),
    ("3.1.2.11.7", V5, "10 ( s'MQTT' 05 02 003c ( 17 02 ) s'a' )", value(P::RequestProblemInformation, 2)),
    ("3.1.2.11.5 alias maximum may be 0", V5, "10 ( s'MQTT' 05 02 003c ( 22 0000 ) s'a' )", None),
    ("3.1.2.11.2 twice", V5, "10 ( s'MQTT' 05 02 003c ( 11 00000001 11 00000001 ) s'a' )", twice(P::SessionExpiryInterval)),
    ("3.1.2.11.3 twice", V5, "10 ( s'MQTT' 05 02 003c ( 21 0001 21 0002 ) s'a' )", twice(P::ReceiveMaximum)),
    ("3.1.2.11.9 twice", V5, "10 ( s'MQTT' 05 02 003c ( 15 s'm' 15 s'm' ) s'a' )", twice(P::AuthenticationMethod)),
    ("3.1.2.11.10 data without method", V5, "10 ( s'MQTT' 05 02 003c ( 16 s'd' ) s'a' )", Some(E::AuthenticationMethodMissing)),
    ("3.1.2.11.10 data before method", V5, "10 ( s'MQTT' 05 02 003c ( 16 s'd' 15 s'm' ) s'a' )", None),
    ("2.2.2.2 of another packet", V5, "10 ( s'MQTT' 05 02 003c ( 23 0001 ) s'a' )", misplaced(P::TopicAlias)),
    ("2.2.2.2 of the will", V5, "10 ( s'MQTT' 05 06 003c ( 18 00000001 ) s'a' () s't' s'm' )", misplaced(P::WillDelayInterval)),
    (
        "2.2.2.2 of CONNECT, in the will",
        V5,
        "10 ( s'MQTT' 05 06 003c () s'a' ( 11 00000001 ) s't' s'm' )",
        misplaced(P::SessionExpiryInterval),
    ),
    ("3.1.3.2.2 twice", V5, "10 ( s'MQTT' 05 06 003c () s'a' ( 18 00000001 18 00000001 ) s't' s'm' )", twice(P::WillDelayInterval)),
    ("3.1.3.2.3", V5, "10 ( s'MQTT' 05 06 003c () s'a' ( 01 02 ) s't' s'm' )", value(P::PayloadFormatIndicator, 2)),
    ("2.2.2.2 unknown", V5, "10 ( s'MQTT' 05 02 003c ( 00 ) s'a' )", Some(E::PropertyUnknown(0))),
    ("2.2.2.2 unknown", V5, "10 ( s'MQTT' 05 02 003c ( 2b 00 ) s'a' )", Some(E::PropertyUnknown(0x2b))),
    ("[MQTT-1.5.5-1] identifier not minimal", V5, "10 ( s'MQTT' 05 02 003c ( a100 0001 ) s'a' )", Some(E::PropertyUnknown(0xa1))),
    ("[MQTT-1.5.5-1] property length of five bytes", V5, "10 ( s'MQTT' 05 02 003c 8080808001 s'a' )", Some(E::VarintTooLong)),
    ("[MQTT-1.5.5-1] property length not minimal", V5, "10 ( s'MQTT' 05 02 003c 8000 s'a' )", Some(E::VarintNotMinimal(0))),
    ("property length beyond the packet", V5, "10 ( s'MQTT' 05 02 003c 7f s'a' )", truncated(127, 3)),
    ("property length that cuts a property", V5, "10 ( s'MQTT' 05 02 003c ( 21 00 ) s'a' )", truncated(2, 1)),
    ("property length that cuts a string", V5, "10 ( s'MQTT' 05 02 003c ( 15 0005 'm' ) s'a' )", truncated(5, 1)),
    ("property without a value", V5, "10 ( s'MQTT' 05 02 003c ( 26 ) s'a' )", truncated(2, 0)),
    ("user property without a value", V5, "10 ( s'MQTT' 05 02 003c ( 26 s'k' ) s'a' )", truncated(2, 0)),
    ("3.1.2.11.8 the same name twice", V5, "10 ( s'MQTT' 05 02 003c ( 26 s'k' s'1' 26 s'k' s'2' ) s'a' )", None),
    ("[MQTT-1.5.7-1] user property not UTF-8", V5, "10 ( s'MQTT' 05 02 003c ( 26 s'k' 0001 ff ) s'a' )", UTF8_AT_0),
    ("[MQTT-1.5.4-2] user property with U+0000", V5, "10 ( s'MQTT' 05 02 003c ( 26 0001 00 s'v' ) s'a' )", Some(E::NullCharacter)),
];

const CONNACK: &[Row] = &[
    ("3.2", V3, "20 ( 00 00 )", None),
    ("3.2", V5, "20 ( 00 00 () )", None),
    ("3.2.2.1.1 session present", V3_1_1, "20 ( 01 00 )", None),
    ("3.2.2.1.1 session present", V5, "20 ( 01 00 () )", None),
    ("3.2 a version 5 CONNACK has a property length", V5, "20 ( 00 00 )", truncated(1, 0)),
    ("3.2 an older one has not", V3, "20 ( 00 00 () )", Some(E::TrailingBytes(1))),
    ("[MQTT-3.2.2-1] reserved flags", V5, "20 ( 02 00 () )", Some(E::ConnAckFlags { flags: 2, code: 0 })),
    ("[MQTT-3.2.2-1] reserved flags", V3_1_1, "20 ( 81 00 )", Some(E::ConnAckFlags { flags: 0x81, code: 0 })),
    ("3.1: 3.2 the byte is not used", V3_1, "20 ( 02 00 )", None),
    ("[MQTT-3.2.2-6] session with a refusal", V5, "20 ( 01 87 () )", Some(E::ConnAckFlags { flags: 1, code: 0x87 })),
    ("3.1.1 [MQTT-3.2.2-4] session with a refusal", V3_1_1, "20 ( 01 05 )", Some(E::ConnAckFlags { flags: 1, code: 5 })),
    ("[MQTT-3.2.2-8] code of another packet", V5, "20 ( 00 8e () )", reason(T::ConnAck, 0x8e)),
    ("[MQTT-3.2.2-8] unknown code", V5, "20 ( 00 42 () )", reason(T::ConnAck, 0x42)),
    ("3.1.1: 3.2.2.3 code 6", V3, "20 ( 00 06 )", reason(T::ConnAck, 6)),
    ("[MQTT-3.2.2-9] maximum QoS 2", V5, "20 ( 00 00 ( 24 02 ) )", value(P::MaximumQoS, 2)),
    ("3.2.2.3.3 receive maximum 0", V5, "20 ( 00 00 ( 21 0000 ) )", value(P::ReceiveMaximum, 0)),
    ("3.2.2.3.5", V5, "20 ( 00 00 ( 25 02 ) )", value(P::RetainAvailable, 2)),
    ("3.2.2.3.6 maximum packet size 0", V5, "20 ( 00 00 ( 27 00000000 ) )", value(P::MaximumPacketSize, 0)),
    ("3.2.2.3.11", V5, "20 ( 00 00 ( 28 02 ) )", value(P::WildcardSubscriptionAvailable, 2)),
    ("3.2.2.3.12", V5, "20 ( 00 00 ( 29 03 ) )", value(P::SubscriptionIdentifiersAvailable, 3)),
    ("3.2.2.3.13", V5, "20 ( 00 00 ( 2a ff ) )", value(P::SharedSubscriptionAvailable, 255)),
    ("3.2.2.3.7 twice", V5, "20 ( 00 00 ( 12 s'a' 12 s'a' ) )", twice(P::AssignedClientIdentifier)),
    ("2.2.2.2 of another packet", V5, "20 ( 00 00 ( 17 01 ) )", misplaced(P::RequestProblemInformation)),
    ("3.2.2.3.18 data without method", V5, "20 ( 00 00 ( 16 s'd' ) )", Some(E::AuthenticationMethodMissing)),
    ("trailing byte", V5, "20 ( 00 00 () 00 )", Some(E::TrailingBytes(1))),
];

const PUBLISH: &[Row] = &[
    ("3.3 QoS 0", V3, "30 ( s'a' 'payload' )", None),
    ("3.3 QoS 0", V5, "30 ( s'a' () 'payload' )", None),
    ("3.3 QoS 1, again, kept", V3, "3b ( s'a' 0001 'payload' )", None),
    ("3.3.3 an empty payload", V3, "30 ( s'a' )", None),
    ("3.3.3 a payload of any bytes", V3, "30 ( s'a' 0000ff )", None),
    ("[MQTT-3.3.1-2] DUP at QoS 0", V3, "38 ( s'a' )", Some(E::DupWithoutQoS)),
    ("[MQTT-3.3.1-2] DUP at QoS 0", V5, "38 ( s'a' () )", Some(E::DupWithoutQoS)),
    ("[MQTT-3.3.1-4] QoS 3", ALL, "36 ( s'a' 0001 )", Some(E::QoS(3))),
    ("[MQTT-2.2.1-3] packet identifier 0", ALL, "32 ( s'a' 0000 () )", Some(E::PacketIdZero)),
    ("2.2.1 no packet identifier", ALL, "34 ( s'a' )", truncated(2, 0)),
    ("2.2.1 half a packet identifier", ALL, "34 ( s'a' 00 )", truncated(2, 1)),
    ("[MQTT-3.3.2-2] wildcard", ALL, "30 ( s'a/+' () )", Some(E::TopicWildcard)),
    ("[MQTT-3.3.2-2] wildcard", ALL, "30 ( s'a#' () )", Some(E::TopicWildcard)),
    ("[MQTT-4.7.3-1] empty topic", V3, "30 ( s'' )", Some(E::TopicEmpty)),
    ("3.3.2.1 empty topic without alias", V5, "30 ( s'' () )", Some(E::TopicEmpty)),
    ("3.3.2.1 empty topic with alias", V5, "30 ( s'' ( 23 0001 ) )", None),
    ("[MQTT-3.3.2-1] topic beyond the packet", ALL, "30 ( 0005 'a' )", truncated(5, 1)),
    ("no body at all", ALL, "30 ()", truncated(2, 0)),
    ("[MQTT-1.5.4-2] U+0000", ALL, "30 ( 0003 'a' 00 'b' () )", Some(E::NullCharacter)),
    ("[MQTT-1.5.4-1] surrogate U+D800", ALL, "30 ( 0003 eda080 () )", UTF8_AT_0),
    ("[MQTT-1.5.4-1] overlong", ALL, "30 ( 0002 c080 () )", UTF8_AT_0),
    ("[MQTT-1.5.4-1] beyond U+10FFFF", ALL, "30 ( 0004 f4908080 () )", UTF8_AT_0),
    ("[MQTT-1.5.4-1] cut character", ALL, "30 ( 0002 'a' e2 () )", Some(E::Utf8 { valid_bytes: 1 })),
    ("1.5.4 U+10FFFF", V3, "30 ( 0004 f48fbfbf )", None),
    ("1.5.4 a control character", ALL, "30 ( 0002 'a' 01 () )", Some(E::ControlCharacter)),
    ("1.5.4 a control character of two bytes", ALL, "30 ( 0003 'a' c285 () )", Some(E::ControlCharacter)),
    ("1.5.4 in what only passes through", V5, "30 ( s'a' ( 03 0001 01 ) )", None),
    ("[MQTT-3.3.2-8] alias 0", V5, "30 ( s'a' ( 23 0000 ) )", value(P::TopicAlias, 0)),
    ("3.3.2.3.4 alias twice", V5, "30 ( s'a' ( 23 0001 23 0001 ) )", twice(P::TopicAlias)),
    ("3.3.2.3.2", V5, "30 ( s'a' ( 01 02 ) )", value(P::PayloadFormatIndicator, 2)),
    ("3.3.2.3.2 twice", V5, "30 ( s'a' ( 01 01 01 01 ) )", twice(P::PayloadFormatIndicator)),
    ("3.3.2.3.3 an expiry of 0", V5, "30 ( s'a' ( 02 00000000 ) )", None),
    ("3.3.2.3.3 twice", V5, "30 ( s'a' ( 02 00000000 02 00000000 ) )", twice(P::MessageExpiryInterval)),
    ("[MQTT-3.3.2-14] response topic with a wildcard", V5, "30 ( s'a' ( 08 s'r/+' ) )", Some(E::TopicWildcard)),
    ("[MQTT-4.7.3-1] empty response topic", V5, "30 ( s'a' ( 08 s'' ) )", Some(E::TopicEmpty)),
    ("[MQTT-3.3.2-13] response topic not UTF-8", V5, "30 ( s'a' ( 08 0001 ff ) )", UTF8_AT_0),
    ("3.3.2.3.5 twice", V5, "30 ( s'a' ( 08 s'r' 08 s'r' ) )", twice(P::ResponseTopic)),
    ("3.3.2.3.6 twice", V5, "30 ( s'a' ( 09 s'c' 09 s'c' ) )", twice(P::CorrelationData)),
    ("3.3.2.3.8 identifier 0", V5, "30 ( s'a' ( 0b 00 ) )", value(P::SubscriptionIdentifier, 0)),
    ("3.3.2.3.8 identifier not minimal", V5, "30 ( s'a' ( 0b 8100 ) )", Some(E::VarintNotMinimal(1))),
    ("3.3.2.3.8 identifier too large", V5, "30 ( s'a' ( 0b ffffffff01 ) )", Some(E::VarintTooLong)),
    ("3.3.2.3.8 identifier cut", V5, "30 ( s'a' ( 0b 81 ) )", truncated(2, 1)),
    ("3.3.2.3.8 several", V5, "30 ( s'a' ( 0b 01 0b ffffff7f 0b 01 ) )", None),
    ("[MQTT-3.3.2-19] content type not UTF-8", V5, "30 ( s'a' ( 03 0001 ff ) )", UTF8_AT_0),
    ("3.3.2.3.9 twice", V5, "30 ( s'a' ( 03 s't' 03 s't' ) )", twice(P::ContentType)),
    ("2.2.2.2 of another packet", V5, "30 ( s'a' ( 1f s'r' ) )", misplaced(P::ReasonString)),
    ("property length beyond the packet", V5, "30 ( s'a' 05 01 01 )", truncated(5, 2)),
    ("no property length", V5, "30 ( s'a' )", truncated(1, 0)),
];

const ACKS: &[Row] = &[
    ("3.4", ALL, "40 ( 0001 )", None),
    ("3.5", ALL, "50 ( ffff )", None),
    ("3.6", ALL, "62 ( 0001 )", None),
    ("3.7", ALL, "70 ( 0001 )", None),
    ("[MQTT-2.2.1-3] PUBACK of 0", ALL, "40 ( 0000 )", Some(E::PacketIdZero)),
    ("[MQTT-2.2.1-3] PUBREC of 0", ALL, "50 ( 0000 )", Some(E::PacketIdZero)),
    ("[MQTT-2.2.1-3] PUBREL of 0", ALL, "62 ( 0000 )", Some(E::PacketIdZero)),
    ("[MQTT-2.2.1-3] PUBCOMP of 0", ALL, "70 ( 0000 )", Some(E::PacketIdZero)),
    ("no body at all", ALL, "40 ()", truncated(2, 0)),
    ("half a packet identifier", ALL, "62 ( 00 )", truncated(2, 1)),
    ("trailing byte before version 5", V3, "40 ( 0001 00 )", Some(E::TrailingBytes(1))),
    ("3.4.2.1 reason without property length", V5, "40 ( 0001 10 )", None),
    ("3.4.2.2.1 reason with empty properties", V5, "40 ( 0001 10 () )", None),
    ("3.5.2.1 reason without property length", V5, "50 ( 0001 97 )", None),
    ("3.6.2.1 reason without property length", V5, "62 ( 0001 92 )", None),
    ("3.7.2.1 reason without property length", V5, "70 ( 0001 92 )", None),
    ("trailing byte", V5, "40 ( 0001 00 () 00 )", Some(E::TrailingBytes(1))),
    ("[MQTT-3.4.2-1] unknown code", V5, "40 ( 0001 01 )", reason(T::PubAck, 1)),
    ("[MQTT-3.4.2-1] code of PUBREL", V5, "40 ( 0001 92 )", reason(T::PubAck, 0x92)),
    ("[MQTT-3.5.2-1] code of PUBREL", V5, "50 ( 0001 92 )", reason(T::PubRec, 0x92)),
    ("[MQTT-3.6.2-1] code of PUBACK", V5, "62 ( 0001 10 )", reason(T::PubRel, 0x10)),
    ("[MQTT-3.7.2-1] code of PUBACK", V5, "70 ( 0001 80 )", reason(T::PubComp, 0x80)),
    ("3.4.2.2.2 twice", V5, "40 ( 0001 00 ( 1f s'r' 1f s'r' ) )", twice(P::ReasonString)),
    ("2.2.2.2 of another packet", V5, "40 ( 0001 00 ( 1c s'r' ) )", misplaced(P::ServerReference)),
];

const SUBSCRIBE: &[Row] = &[
    ("3.8", V3, "82 ( 0001 s'a/+' 00 s'#' 02 )", None),
    ("3.8", V5, "82 ( 0001 () s'a/+' 2d s'#' 02 )", None),
    ("[MQTT-2.2.1-3] packet identifier 0", ALL, "82 ( 0000 () s'a' 00 )", Some(E::PacketIdZero)),
    ("[MQTT-3.8.3-2] nothing in it", V3, "82 ( 0001 )", Some(E::Empty(T::Subscribe))),
    ("[MQTT-3.8.3-2] nothing in it", V5, "82 ( 0001 () )", Some(E::Empty(T::Subscribe))),
    ("no options", V3, "82 ( 0001 s'a' )", truncated(1, 0)),
    ("no options", V5, "82 ( 0001 () s'a' )", truncated(1, 0)),
    ("3.8.3.1 QoS 3", V3, "82 ( 0001 s'a' 03 )", Some(E::QoS(3))),
    ("3.8.3.1 QoS 3", V5, "82 ( 0001 () s'a' 03 )", Some(E::QoS(3))),
    ("3.1.1 [MQTT-3-8.3-4] reserved bits", V3, "82 ( 0001 s'a' 04 )", Some(E::SubscriptionOptions(4))),
    ("[MQTT-3.8.3-5] reserved bits", V5, "82 ( 0001 () s'a' 40 )", Some(E::SubscriptionOptions(0x40))),
    ("[MQTT-3.8.3-5] reserved bits", V5, "82 ( 0001 () s'a' 80 )", Some(E::SubscriptionOptions(0x80))),
    ("3.8.3.1 retain handling 3", V5, "82 ( 0001 () s'a' 30 )", Some(E::SubscriptionOptions(0x30))),
    ("[MQTT-3.8.3-4] no local, shared", V5, "82 ( 0001 () s'$share/g/a' 04 )", Some(E::NoLocalShared)),
    ("3.8.3.1 shared", V5, "82 ( 0001 () s'$share/g/a' 01 )", None),
    ("[MQTT-3.8.3-1] filter not UTF-8", V3, "82 ( 0001 0001 ff 00 )", UTF8_AT_0),
    ("[MQTT-1.5.4-2] filter with U+0000", V3, "82 ( 0001 0001 00 00 )", Some(E::NullCharacter)),
    ("3.8.2.1.2 identifier 0", V5, "82 ( 0001 ( 0b 00 ) s'a' 00 )", value(P::SubscriptionIdentifier, 0)),
    ("3.8.2.1.2 twice", V5, "82 ( 0001 ( 0b 01 0b 02 ) s'a' 00 )", twice(P::SubscriptionIdentifier)),
    ("2.2.2.2 of another packet", V5, "82 ( 0001 ( 1f s'r' ) s'a' 00 )", misplaced(P::ReasonString)),
    ("3.10", V3, "a2 ( 0001 s'a' s'b' )", None),
    ("3.10", V5, "a2 ( 0001 () s'a' s'b' )", None),
    ("[MQTT-2.2.1-3] packet identifier 0", ALL, "a2 ( 0000 () s'a' )", Some(E::PacketIdZero)),
    ("[MQTT-3.10.3-2] nothing in it", V3, "a2 ( 0001 )", Some(E::Empty(T::Unsubscribe))),
    ("[MQTT-3.10.3-2] nothing in it", V5, "a2 ( 0001 () )", Some(E::Empty(T::Unsubscribe))),
    ("[MQTT-3.10.3-1] filter not UTF-8", V3, "a2 ( 0001 0001 ff )", UTF8_AT_0),
    ("filter beyond the packet", V3, "a2 ( 0001 s'a' 0004 'b' )", truncated(4, 1)),
    ("2.2.2.2 of another packet", V5, "a2 ( 0001 ( 0b 01 ) s'a' )", misplaced(P::SubscriptionIdentifier)),
];

const SUBACK: &[Row] = &[
    ("3.9", V3, "90 ( 0001 00 01 02 80 )", None),
    ("3.9", V5, "90 ( 0001 () 00 01 02 80 9e a2 )", None),
    ("[MQTT-2.2.1-6] packet identifier 0", ALL, "90 ( 0000 () 00 )", Some(E::PacketIdZero)),
    ("[MQTT-3.9.3-1] nothing in it", V3, "90 ( 0001 )", Some(E::Empty(T::SubAck))),
    ("[MQTT-3.9.3-1] nothing in it", V5, "90 ( 0001 () )", Some(E::Empty(T::SubAck))),
    ("[MQTT-3.9.3-2] unknown code", V5, "90 ( 0001 () 03 )", reason(T::SubAck, 3)),
    ("3.1.1 [MQTT-3.9.3-2] code 3", V3, "90 ( 0001 03 )", reason(T::SubAck, 3)),
    ("3.1.1 [MQTT-3.9.3-2] a version 5 code", V3, "90 ( 0001 87 )", reason(T::SubAck, 0x87)),
    ("[MQTT-3.9.3-2] code of another packet", V5, "90 ( 0001 () 92 )", reason(T::SubAck, 0x92)),
    ("2.2.2.2 of another packet", V5, "90 ( 0001 ( 0b 01 ) 00 )", misplaced(P::SubscriptionIdentifier)),
    ("3.11", V3, "b0 ( 0001 )", None),
    ("3.11", V5, "b0 ( 0001 () 00 11 )", None),
    ("[MQTT-2.2.1-6] packet identifier 0", ALL, "b0 ( 0000 () 00 )", Some(E::PacketIdZero)),
    ("3.11 no codes before version 5", V3, "b0 ( 0001 00 )", Some(E::TrailingBytes(1))),
    ("[MQTT-3.11.3-1] nothing in it", V5, "b0 ( 0001 () )", Some(E::Empty(T::UnsubAck))),
    ("[MQTT-3.11.3-2] code of SUBACK", V5, "b0 ( 0001 () 01 )", reason(T::UnsubAck, 1)),
];

const DISCONNECT: &[Row] = &[
    ("3.14", ALL, "e0 ()", None),
    ("3.14 no body before version 5", V3, "e0 ( 00 )", Some(E::TrailingBytes(1))),
    ("3.14.2.1 reason without property length", V5, "e0 ( 8e )", None),
    ("3.14.2.2.1 reason with empty properties", V5, "e0 ( 00 () )", None),
    ("3.14.2.2", V5, "e0 ( 04 ( 11 00000000 ) )", None),
    ("[MQTT-3.14.2-1] unknown code", V5, "e0 ( 01 )", reason(T::Disconnect, 1)),
    ("[MQTT-3.14.2-1] code of CONNACK", V5, "e0 ( 84 )", reason(T::Disconnect, 0x84)),
    ("3.14.2.2.2 twice", V5, "e0 ( 00 ( 11 00000000 11 00000000 ) )", twice(P::SessionExpiryInterval)),
    ("2.2.2.2 of another packet", V5, "e0 ( 00 ( 21 0001 ) )", misplaced(P::ReceiveMaximum)),
    ("property length beyond the packet", V5, "e0 ( 00 05 )", truncated(5, 0)),
    ("trailing byte", V5, "e0 ( 00 () 00 )", Some(E::TrailingBytes(1))),
    ("3.15.2.1 success, no properties", V5, "f0 ()", None),
    ("3.15", V5, "f0 ( 18 ( 15 s'm' 16 s'd' ) )", None),
    ("3.15.2.1 reason without property length", V5, "f0 ( 18 )", truncated(1, 0)),
    ("[MQTT-3.15.2-1] code of DISCONNECT", V5, "f0 ( 80 () )", reason(T::Auth, 0x80)),
    ("3.15.2.2.2 no method", V5, "f0 ( 18 () )", Some(E::AuthenticationMethodMissing)),
    ("3.15.2.2.3 data without method", V5, "f0 ( 18 ( 16 s'd' ) )", Some(E::AuthenticationMethodMissing)),
    ("3.15.2.2.2 twice", V5, "f0 ( 18 ( 15 s'm' 15 s'm' ) )", twice(P::AuthenticationMethod)),
    ("2.2.2.2 of another packet", V5, "f0 ( 18 ( 11 00000000 ) )", misplaced(P::SessionExpiryInterval)),
    ("trailing byte", V5, "f0 ( 18 ( 15 s'm' ) 00 )", Some(E::TrailingBytes(1))),
];

pub(super) const TABLES: &[&[Row]] =
    &[FIXED_HEADER, CONNECT, CONNECT_PROPERTIES, CONNACK, PUBLISH, ACKS, SUBSCRIBE, SUBACK, DISCONNECT];

#[test]
fn every_row_is_judged_as_its_rule_says() {
    for (rule, versions, notation, error) in TABLES.iter().copied().flatten() {
        let packet = bytes(notation);
        for version in *versions {
            match (decode(&packet, *version, u32::MAX), error) {
                (Ok(Some((_, length))), None) => assert_eq!(length, packet.len(), "{rule}, {version}: {notation}"),
                (Err(found), Some(error)) => assert_eq!(found, *error, "{rule}, {version}: {notation}"),
                (found, _) => panic!("{rule}, {version}: {notation}: {found:?}, not {error:?}"),
            }
        }
    }
}

#[test]
fn the_first_packet_is_judged_alike() {
    for (rule, _, notation, error) in CONNECT.iter().chain(CONNECT_PROPERTIES) {
        let packet = bytes(notation);
        match (decode_connect(&packet, u32::MAX), error) {
            (Ok(Some((_, length))), None) => assert_eq!(length, packet.len(), "{rule}: {notation}"),
            (Err(found), Some(error)) => assert_eq!(found, *error, "{rule}: {notation}"),
            (found, _) => panic!("{rule}: {notation}: {found:?}, not {error:?}"),
        }
    }
    // A CONNECT with other flags is read on: its version says whether they matter, and how to answer.
    for first in (0..=u8::MAX).filter(|first| first >> 4 != 1) {
        assert_eq!(decode_connect(&[first], u32::MAX), Err(E::NotConnect(first)), "[MQTT-3.1.0-1]");
    }
}

/// A part of a packet is never taken for a packet, and a part of a good one is never called bad; what comes after a packet is left alone.
#[test]
fn more_is_needed_is_never_malformed() {
    for (rule, versions, notation, error) in TABLES.iter().copied().flatten() {
        let packet = bytes(notation);
        for version in *versions {
            for end in 0..packet.len() {
                match decode(&packet[..end], *version, u32::MAX) {
                    Ok(None) => {}
                    Err(found) => assert_eq!(Some(found), *error, "{rule}, {version}: {notation}, {end} bytes"),
                    Ok(found) => panic!("{rule}, {version}: {notation}, {end} bytes: {found:?}"),
                }
            }
            let mut more = packet.clone();
            more.extend([0xff; 8]);
            assert_eq!(decode(&more, *version, u32::MAX), decode(&packet, *version, u32::MAX), "{rule}, {version}: {notation}");
        }
    }
}

/// [MQTT-1.5.4-3]
#[test]
fn a_byte_order_mark_stays() {
    let packet = bytes("30 ( 0004 efbbbf 'a' 'payload' )");
    let Ok(Packet::Publish(publish)) = decode_whole(ProtocolVersion::V3_1_1, &packet) else { panic!("a PUBLISH") };
    assert_eq!(publish.topic, "\u{feff}a");
}

/// Section 2.1.4: the limit is on the whole packet, and the header alone shows it.
#[test]
fn a_packet_that_is_too_large_is_refused_from_its_header() {
    let packet = bytes("30 ( s'a' 'payload' )");
    let bytes_max = packet.len() as u32 - 1;
    let error = Err(E::PacketTooLarge { bytes: packet.len(), bytes_max });
    assert_eq!(decode(&packet[..2], ProtocolVersion::V3_1_1, bytes_max), error);
    assert_eq!(decode(&packet[..2], ProtocolVersion::V3_1_1, bytes_max + 1), Ok(None));
    let largest = bytes("30 ffffff7f");
    let error = E::PacketTooLarge { bytes: 268_435_460, bytes_max };
    assert_eq!(decode(&largest, ProtocolVersion::V5, bytes_max), Err(error));
    assert_eq!(error.reason(), ReasonCode::PacketTooLarge);
    assert_eq!(decode_connect(&bytes("10 ffffff7f"), bytes_max), Err(error));
}

#[test]
fn the_frame_says_its_length_as_soon_as_it_can() {
    for (frame, length) in
        [("", None), ("30", None), ("30 80", None), ("30 8080", None), ("30 8001", Some(131)), ("c0 00", Some(2))]
    {
        assert_eq!(frame_length(&bytes(frame)), Ok(length), "{frame}");
    }
    assert_eq!(frame_length(&bytes("30 8000")), Err(E::VarintNotMinimal(0)));
    assert_eq!(frame_length(&bytes("30 80808080")), Err(E::VarintTooLong));
}

/// Variable Byte Integers at the borders of table 1-1.
#[test]
fn lengths_at_their_borders() {
    for (value, length) in [(0, 1), (127, 1), (128, 2), (16_383, 2), (16_384, 3), (2_097_151, 3), (2_097_152, 4), (268_435_455, 4)]
    {
        let mut out = Vec::new();
        wire::put_varint(&mut out, value).expect("fits");
        assert_eq!(out.len(), length);
        assert_eq!(wire::varint_len(value), length);
        assert_eq!(varint(&out), Ok(Some((value as u32, length))));
        assert_eq!(varint(&out[..length - 1]), Ok(None));
    }
    assert_eq!(wire::put_varint(&mut Vec::new(), 268_435_456), Err(EncodeError::TooLong(268_435_456)));
}

#[test]
fn lists_are_bounded() {
    for (count, error) in [
        (FILTERS_PER_PACKET_MAX, None),
        (FILTERS_PER_PACKET_MAX + 1, Some(E::TooMany { packet: T::Unsubscribe, count_max: FILTERS_PER_PACKET_MAX })),
    ] {
        let packet = bytes(&format!("a2 ( 0001 {} )", "s'a'".repeat(count)));
        assert_eq!(decode(&packet, ProtocolVersion::V3_1_1, u32::MAX).err(), error);
    }
    for (count, error) in
        [(USER_PROPERTIES_MAX, None), (USER_PROPERTIES_MAX + 1, Some(E::TooManyUserProperties(USER_PROPERTIES_MAX)))]
    {
        let packet = bytes(&format!("30 ( s'a' ( {} ) )", "26 s'k' s''".repeat(count)));
        assert_eq!(decode(&packet, ProtocolVersion::V5, u32::MAX).err(), error);
    }
}

/// What to answer a CONNECT that cannot be read in.
#[test]
fn a_broken_connect_still_tells_its_version() {
    for (start, version) in [
        ("10 ( s'MQTT' 05 03 003c () s'a' )", Some(ProtocolVersion::V5)),
        ("10 ( s'MQTT' 04 03 003c s'a' )", Some(ProtocolVersion::V3_1_1)),
        ("10 ( s'MQIsdp' 03 02 003c s'' )", Some(ProtocolVersion::V3_1)),
        ("10 ffffff7f s'MQTT' 05", Some(ProtocolVersion::V5)),
        ("10 ( s'MQTT' 06 02 003c s'a' )", None),
        ("10 0c s'MQTT'", None),
        ("10 8080808001", None),
        ("30 ( s'MQTT' 05 )", None),
        ("10", None),
        ("", None),
    ] {
        assert_eq!(connect_version(&bytes(start)), version, "{start}");
    }
}

/// Section 4.13 and 3.1.1, table 3.1.
#[test]
fn errors_know_their_answer() {
    for (error, reason, v3) in [
        (E::ProtocolLevel(6), ReasonCode::UnsupportedProtocolVersion, Some(1)),
        (E::ProtocolName, ReasonCode::UnsupportedProtocolVersion, Some(1)),
        (E::ClientIdEmpty, ReasonCode::ClientIdentifierNotValid, Some(2)),
        (E::ConnectFlags(1), ReasonCode::MalformedPacket, None),
        (E::NotConnect(0x30), ReasonCode::ProtocolError, None),
        (E::Empty(T::Subscribe), ReasonCode::ProtocolError, None),
        (E::PropertyTwice(P::TopicAlias), ReasonCode::ProtocolError, None),
        (E::PropertyValue { id: P::TopicAlias, value: 0 }, ReasonCode::TopicAliasInvalid, None),
        (E::PropertyValue { id: P::ReceiveMaximum, value: 0 }, ReasonCode::ProtocolError, None),
        (E::TopicWildcard, ReasonCode::MalformedPacket, None),
        (E::TooManyUserProperties(1), ReasonCode::QuotaExceeded, Some(3)),
    ] {
        assert_eq!((error.reason(), error.reason().v3_return_code()), (reason, v3), "{error}");
        assert!(reason.is_allowed_in(T::ConnAck) || reason.is_allowed_in(T::Disconnect));
    }
}
