//! Against `mqttbytes` 0.6.0, a codec of other people's making: what it gets right, ours says too; what it gets wrong is listed, with what is
//! right beside it, so that nobody takes it for a replacement.

use ::bytes::BytesMut;
use proptest::prelude::*;

use super::*;

/// `wire` through the foreign decoder and the foreign encoder.
fn through_mqttbytes(version: ProtocolVersion, wire: &[u8]) -> Result<Vec<u8>, mqttbytes::Error> {
    let mut input = BytesMut::from(wire);
    let mut out = BytesMut::new();
    if version == ProtocolVersion::V5 {
        use mqttbytes::v5::{self, Packet as P};
        match v5::read(&mut input, usize::MAX)? {
            P::Connect(packet) => packet.write(&mut out)?,
            P::ConnAck(packet) => packet.write(&mut out)?,
            P::Publish(packet) => packet.write(&mut out)?,
            P::PubAck(packet) => packet.write(&mut out)?,
            P::PubRec(packet) => packet.write(&mut out)?,
            P::PubRel(packet) => packet.write(&mut out)?,
            P::PubComp(packet) => packet.write(&mut out)?,
            P::Subscribe(packet) => packet.write(&mut out)?,
            P::SubAck(packet) => packet.write(&mut out)?,
            P::Unsubscribe(packet) => packet.write(&mut out)?,
            P::UnsubAck(packet) => packet.write(&mut out)?,
            P::PingReq => v5::PingReq.write(&mut out)?,
            P::PingResp => v5::PingResp.write(&mut out)?,
            P::Disconnect(packet) => packet.write(&mut out)?,
        };
    } else {
        use mqttbytes::v4::{self, Packet as P};
        match v4::read(&mut input, usize::MAX)? {
            P::Connect(packet) => packet.write(&mut out)?,
            P::ConnAck(packet) => packet.write(&mut out)?,
            P::Publish(packet) => packet.write(&mut out)?,
            P::PubAck(packet) => packet.write(&mut out)?,
            P::PubRec(packet) => packet.write(&mut out)?,
            P::PubRel(packet) => packet.write(&mut out)?,
            P::PubComp(packet) => packet.write(&mut out)?,
            P::Subscribe(packet) => packet.write(&mut out)?,
            P::SubAck(packet) => packet.write(&mut out)?,
            P::Unsubscribe(packet) => packet.write(&mut out)?,
            P::UnsubAck(packet) => packet.write(&mut out)?,
            P::PingReq => v4::PingReq.write(&mut out)?,
            P::PingResp => v4::PingResp.write(&mut out)?,
            P::Disconnect => v4::Disconnect.write(&mut out)?,
        };
    }
    assert!(input.is_empty(), "mqttbytes took a part of {wire:02x?}");
    Ok(out.to_vec())
}

/// Packets that mqttbytes is known to get wrong, each shown by a row or a test below.
fn is_known_wrong(version: ProtocolVersion, packet: &Packet<'_>) -> bool {
    let is_v5 = version == ProtocolVersion::V5;
    match packet {
        // No MQTT 3.1; passwords as text; empty credentials taken for none.
        Packet::Connect(connect) => {
            let is_text = |password: &[u8]| std::str::from_utf8(password).is_ok();
            version == ProtocolVersion::V3_1
                || connect.user_name == Some("")
                || connect.password == Some(b"")
                || !connect.password.is_none_or(is_text)
        }
        Packet::ConnAck(connack) => connack.properties.is_empty() && is_v5,
        Packet::Publish(publish) => !publish.properties.subscription_ids.is_empty(),
        Packet::Subscribe(subscribe) => subscribe.properties.subscription_id.is_some(),
        Packet::Disconnect(disconnect) => {
            is_v5 && (disconnect.properties.is_empty() || disconnect.reason == ReasonCode::BadAuthenticationMethod)
        }
        Packet::Auth(_) => true,
        _ => false,
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(2_000) })]

    /// Ours, read and written by mqttbytes, is still what it was.
    #[test]
    fn it_agrees_about_good_packets((version, packet) in identity::version_and_packet()) {
        prop_assume!(!is_known_wrong(version, &packet));
        let wire = encoded(version, &packet);
        let returned = through_mqttbytes(version, &wire);
        let returned = returned.map_err(|error| TestCaseError::fail(format!("{version}: {packet:?}: {error}")))?;
        prop_assert_eq!(decode_whole(version, &returned), Ok(packet));
    }
}

/// What mqttbytes makes of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Foreign {
    /// Takes it, and writes what it was.
    Accepts,
    /// Takes it for something else: what it writes is not what it read.
    Alters,
    Refuses,
    /// Asks for more bytes, having thrown away these: a caller that reads on has swallowed a malformed packet.
    Swallows,
}

fn foreign(version: ProtocolVersion, wire: &[u8]) -> Foreign {
    match through_mqttbytes(version, wire) {
        Err(mqttbytes::Error::InsufficientBytes(_)) => Foreign::Swallows,
        Err(_) => Foreign::Refuses,
        Ok(returned) if returned == wire => Foreign::Accepts,
        // Another way to write the same is no alteration.
        Ok(returned) => match (decode(&returned, version, u32::MAX), decode(wire, version, u32::MAX)) {
            (Ok(Some((after, _))), Ok(Some((before, _)))) if before == after => Foreign::Accepts,
            _ => Foreign::Alters,
        },
    }
}

/// Good packets and bad ones; of each, what mqttbytes makes of it.
const WRONG_VERDICTS: &[(&str, &[ProtocolVersion], &str, Foreign)] = &[
    // Good, but it does not take them for what they are.
    ("3.1 is unknown", V3_1, "10 ( s'MQIsdp' 03 02 003c s'a' )", Foreign::Refuses),
    ("AUTH is unknown", V5, "f0 ( 18 ( 15 s'm' ) )", Foreign::Refuses),
    ("the usual farewell of version 5", V5, "e0 ()", Foreign::Refuses),
    ("a farewell with a reason only", V5, "e0 ( 8e )", Foreign::Swallows),
    ("a CONNACK without properties loses their length", V5, "20 ( 00 00 () )", Foreign::Alters),
    ("a password is bytes", SINCE_3_1_1, "10 ( s'MQTT' 04 c2 003c s'a' s'u' 0002 fffe )", Foreign::Refuses),
    ("empty credentials are not absent ones", V3_1_1, "10 ( s'MQTT' 04 c2 003c s'a' s'' s'' )", Foreign::Alters),
    ("a will of 3.1.1 read as one of version 5", V5, "10 ( s'MQTT' 04 06 003c s'a' s'w' s'm' )", Foreign::Refuses),
    ("subscription identifiers move the payload", V5, "30 ( s'a' ( 0b 01 0b 02 0b 03 ) 'payload' )", Foreign::Alters),
    ("a CONNECT of version 5 read as one of 3.1.1", V3_1_1, "10 ( s'MQTT' 05 02 003c () s'a' )", Foreign::Alters),
    // Bad, but it takes them.
    ("reserved flags of the fixed header", ALL, "48 ( 0001 )", Foreign::Alters),
    ("a length that is not minimal", ALL, "40 828000 0001", Foreign::Alters),
    ("a body where there is none", ALL, "c0 ( 00 )", Foreign::Alters),
    ("a trailing byte in an acknowledgement", V3, "40 ( 0001 00 )", Foreign::Alters),
    ("a trailing byte in CONNECT", V3_1_1, "10 ( s'MQTT' 04 02 003c s'a' 00 )", Foreign::Alters),
    ("the reserved connect flag", V3_1_1, "10 ( s'MQTT' 04 03 003c s'a' )", Foreign::Alters),
    ("a password without a user name", V3_1_1, "10 ( s'MQTT' 04 42 003c s'a' s'p' )", Foreign::Accepts),
    ("packet identifier 0", ALL, "62 ( 0000 )", Foreign::Accepts),
    ("a SUBSCRIBE to nothing", V3, "82 ( 0001 )", Foreign::Accepts),
    ("an UNSUBSCRIBE from nothing", V3, "a2 ( 0001 )", Foreign::Accepts),
    ("reserved subscription options", V5, "82 ( 0001 () s'a' 40 )", Foreign::Alters),
    ("DUP at QoS 0", V3, "38 ( s'a' )", Foreign::Accepts),
    ("a wildcard in a topic name", V3, "30 ( s'a/+' )", Foreign::Accepts),
    ("an empty topic name", V3, "30 ( s'' )", Foreign::Accepts),
    ("U+0000", V3, "30 ( 0001 00 )", Foreign::Accepts),
    ("a property twice", V5, "30 ( s'a' ( 23 0001 23 0001 ) )", Foreign::Alters),
    ("a property beyond the section", V5, "30 ( s'a' ( 02 0000 ) 0001 )", Foreign::Alters),
    ("a section that does not end", V5, "30 ( s'a' 80 )", Foreign::Swallows),
    ("no section at all", V5, "30 ( s'a' )", Foreign::Swallows),
    ("receive maximum 0", V5, "20 ( 00 00 ( 21 0000 ) )", Foreign::Accepts),
    ("maximum packet size 0", V5, "20 ( 00 00 ( 27 00000000 ) )", Foreign::Accepts),
    ("a truth value of 2", V5, "20 ( 00 00 ( 25 02 ) )", Foreign::Accepts),
    ("maximum QoS 2", V5, "20 ( 00 00 ( 24 02 ) )", Foreign::Accepts),
    ("alias 0", V5, "30 ( s'a' ( 23 0000 ) )", Foreign::Accepts),
    ("subscription identifier 0", V5, "82 ( 0001 ( 0b 00 ) s'a' 00 )", Foreign::Accepts),
    ("authentication data without a method", V5, "20 ( 00 00 ( 16 s'd' ) )", Foreign::Accepts),
];

#[test]
fn it_is_wrong_about_some() {
    for (what, versions, notation, verdict) in WRONG_VERDICTS {
        for version in *versions {
            let wire = bytes(notation);
            assert_eq!(foreign(*version, &wire), *verdict, "{what}, {version}: {notation}");
            let is_good = decode_whole(*version, &wire).is_ok();
            let is_right = matches!((verdict, is_good), (Foreign::Accepts, true) | (Foreign::Refuses, false));
            assert!(!is_right, "{what}, {version}: {notation}: mqttbytes is right");
        }
    }
}

/// Its encoders, given what its decoders never make.
#[test]
fn it_writes_what_nobody_can_read() {
    use mqttbytes::v5::{self, ConnectReturnCode, DisconnectProperties, DisconnectReasonCode};

    let mut out = BytesMut::new();
    let connack = v5::ConnAck { session_present: false, code: ConnectReturnCode::Success, properties: None };
    connack.write(&mut out).expect("it sees nothing wrong");
    assert_eq!(out[..], bytes("20 ( 00 00 )"), "no property length");
    assert_eq!(decode_whole(ProtocolVersion::V5, &out), Err(DecodeError::Truncated { wanted: 1, left: 0 }));

    out.clear();
    let taken_over = DisconnectReasonCode::SessionTakenOver;
    let disconnect = v5::Disconnect { reason_code: taken_over, properties: Some(DisconnectProperties::new()) };
    disconnect.write(&mut out).expect("it sees nothing wrong");
    assert_eq!(out[..], bytes("e0 ()"), "the reason is lost");
    let ours = Disconnect { reason: ReasonCode::SessionTakenOver, properties: super::DisconnectProperties::default() };
    assert_eq!(encoded(ProtocolVersion::V5, &Packet::Disconnect(ours)), bytes("e0 ( 8e )"));

    out.clear();
    let topic = "t".repeat(65_536 + 3);
    let publish = mqttbytes::v4::Publish::new(&topic, mqttbytes::QoS::AtMostOnce, "payload");
    publish.write(&mut out).expect("it sees nothing wrong");
    let Ok(Packet::Publish(publish)) = decode_whole(ProtocolVersion::V3_1_1, &out) else { panic!("a PUBLISH") };
    assert_eq!((publish.topic, publish.payload.len()), ("ttt", 65_536 + 7), "the topic's length is cut");
    let ours = Publish { topic: &topic, ..publish };
    assert_eq!(
        encode(&mut Vec::new(), ProtocolVersion::V3_1_1, &Packet::Publish(ours)),
        Err(EncodeError::FieldTooLong(topic.len()))
    );
}
