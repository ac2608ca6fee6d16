//! Every packet with every field, written out byte by byte: what it decodes to, and that it encodes to these bytes again.

use super::*;
use std::num::NonZeroU32;

/// `packet` is what `notation` says, in every version of `versions`, in both directions.
fn both_ways(versions: &[ProtocolVersion], notation: &str, packet: &Packet<'_>) {
    for version in versions {
        let wire = bytes(notation);
        assert_eq!(&decode_whole(*version, &wire).unwrap_or_else(|error| panic!("{version}: {notation}: {error}")), packet);
        let written = encoded(*version, packet);
        assert_eq!(written, wire, "{version}: {notation}\n written {written:02x?}\ninstead of {wire:02x?}");
    }
}

/// `count` user properties as a packet brings them.
fn user_properties<'a>(section: &'a [u8]) -> UserProperties<'a> {
    AckProperties::read(section).expect("user properties").user_properties
}

#[test]
fn connect_v5() {
    let users = bytes("26 s'k' s'1' 26 s'k' s'2'");
    let wills = bytes("26 s'' s''");
    let connect = Connect {
        is_bridge: false,
        version: ProtocolVersion::V5,
        clean_start: true,
        keep_alive_seconds: 60,
        properties: ConnectProperties {
            session_expiry_seconds: Some(3_600),
            receive_maximum: NonZeroU16::new(20),
            maximum_packet_size: NonZeroU32::new(65_536),
            topic_alias_maximum: Some(0),
            request_response_information: Some(true),
            request_problem_information: Some(false),
            user_properties: user_properties(&users),
            authentication_method: Some("m"),
            authentication_data: Some(b"d"),
        },
        client_id: "c",
        will: Some(Will {
            topic: "w",
            payload: b"bye",
            qos: QoS::ExactlyOnce,
            retain: true,
            properties: WillProperties {
                delay_seconds: Some(5),
                payload_format: Some(true),
                message_expiry_seconds: Some(9),
                content_type: Some("text"),
                response_topic: Some("r"),
                correlation_data: Some(b"x"),
                user_properties: user_properties(&wills),
            },
        }),
        user_name: Some("u"),
        password: Some(b"p"),
    };
    let packet = Packet::Connect(Box::new(connect));
    let notation = "10 ( s'MQTT' 05 f6 003c
        ( 11 00000e10  21 0014  27 00010000  22 0000  19 01  17 00  26 s'k' s'1'  26 s'k' s'2'  15 s'm'  16 s'd' )
        s'c'
        ( 18 00000005  01 01  02 00000009  03 s'text'  08 s'r'  09 s'x'  26 s'' s'' ) s'w' s'bye'
        s'u' s'p' )";
    both_ways(V5, notation, &packet);
    let wire = bytes(notation);
    let (decoded, length) = decode_connect(&wire, u32::MAX).expect("well-formed").expect("whole");
    assert_eq!((decoded, length), (connect, wire.len()));
    assert_eq!(connect.properties.user_properties.iter().collect::<Vec<_>>(), [("k", "1"), ("k", "2")]);
    assert!(!connect.properties.is_empty());
}

#[test]
fn connect_v3() {
    let mut connect = Connect {
        is_bridge: false,
        version: ProtocolVersion::V3_1_1,
        clean_start: false,
        keep_alive_seconds: 0xffff,
        properties: ConnectProperties::default(),
        client_id: "c",
        will: Some(Will { topic: "w", payload: b"", qos: QoS::AtLeastOnce, retain: false, properties: WillProperties::default() }),
        user_name: Some(""),
        password: Some(b"\xff\0"),
    };
    both_ways(ALL, "10 ( s'MQTT' 04 cc ffff s'c' s'w' s'' s'' 0002 ff00 )", &Packet::Connect(Box::new(connect)));
    connect.version = ProtocolVersion::V3_1;
    both_ways(ALL, "10 ( s'MQIsdp' 03 cc ffff s'c' s'w' s'' s'' 0002 ff00 )", &Packet::Connect(Box::new(connect)));
    connect = Connect { will: None, user_name: None, password: None, clean_start: true, ..connect };
    both_ways(ALL, "10 ( s'MQIsdp' 03 02 ffff s'c' )", &Packet::Connect(Box::new(connect)));
}

#[test]
fn connack() {
    let users = bytes("26 s'k' s'v'");
    let connack = ConnAck {
        session_present: true,
        reason: ReasonCode::Success,
        properties: ConnAckProperties {
            session_expiry_seconds: Some(1),
            receive_maximum: NonZeroU16::new(2),
            maximum_qos: Some(QoS::AtLeastOnce),
            retain_available: Some(true),
            maximum_packet_size: NonZeroU32::new(3),
            assigned_client_id: Some("id"),
            topic_alias_maximum: Some(4),
            reason_string: Some("why"),
            user_properties: user_properties(&users),
            wildcard_subscription_available: Some(false),
            subscription_ids_available: Some(true),
            shared_subscription_available: Some(false),
            server_keep_alive_seconds: Some(5),
            response_information: Some("ri"),
            server_reference: Some("sr"),
            authentication_method: Some("m"),
            authentication_data: Some(b"d"),
        },
    };
    both_ways(
        V5,
        "20 ( 01 00 ( 11 00000001  21 0002  24 01  25 01  27 00000003  12 s'id'  22 0004  1f s'why'  26 s'k' s'v'
            28 00  29 01  2a 00  13 0005  1a s'ri'  1c s'sr'  15 s'm'  16 s'd' ) )",
        &Packet::ConnAck(Box::new(connack)),
    );
    // Without any property the section is still there.
    let connack = ConnAck { session_present: true, reason: ReasonCode::Success, properties: ConnAckProperties::default() };
    both_ways(V5, "20 ( 01 00 () )", &Packet::ConnAck(Box::new(connack)));
    both_ways(V3_1_1, "20 ( 01 00 )", &Packet::ConnAck(Box::new(connack)));
    // MQTT 3.1 has no way to say that there is a session.
    assert_eq!(encoded(ProtocolVersion::V3_1, &Packet::ConnAck(Box::new(connack))), bytes("20 ( 00 00 )"));
}

#[test]
fn connack_refusals() {
    for (reason, v3) in [
        (ReasonCode::UnsupportedProtocolVersion, 1),
        (ReasonCode::ClientIdentifierNotValid, 2),
        (ReasonCode::ServerUnavailable, 3),
        (ReasonCode::BadUserNameOrPassword, 4),
        (ReasonCode::NotAuthorized, 5),
    ] {
        let connack = ConnAck { session_present: false, reason, properties: ConnAckProperties::default() };
        let packet = Packet::ConnAck(Box::new(connack));
        both_ways(V5, &format!("20 ( 00 {:02x} () )", reason as u8), &packet);
        both_ways(V3, &format!("20 ( 00 {v3:02x} )"), &packet);
        let contradiction = Packet::ConnAck(Box::new(ConnAck { session_present: true, ..connack }));
        assert_eq!(encode(&mut Vec::new(), ProtocolVersion::V5, &contradiction), Err(EncodeError::SessionPresent));
    }
    // 3.1.1 [MQTT-3.2.2-6]: what has no return code is not answered at all.
    let connack = ConnAck { session_present: false, reason: ReasonCode::MalformedPacket, properties: ConnAckProperties::default() };
    for version in V3 {
        let error = EncodeError::Reason { packet: PacketType::ConnAck, reason: connack.reason, version: *version };
        assert_eq!(encode(&mut Vec::new(), *version, &Packet::ConnAck(Box::new(connack))), Err(error));
    }
}

#[test]
fn publish_v5() {
    let section = bytes("26 s'k' s'1' 0b 01 26 s'k' s'2' 0b ffffff7f");
    let repeated = PublishProperties::read(&section).expect("properties");
    let publish = Publish {
        dup: true,
        qos: QoS::ExactlyOnce,
        retain: true,
        topic: "t/ä",
        packet_id: Some(packet_id(0x1234)),
        properties: PublishProperties {
            payload_format: Some(false),
            message_expiry_seconds: Some(0),
            topic_alias: NonZeroU16::new(7),
            response_topic: Some("r"),
            correlation_data: Some(b"\0c"),
            content_type: Some(""),
            ..repeated
        },
        payload: b"\0payload",
    };
    both_ways(
        V5,
        "3d ( s't/ä' 1234 ( 01 00  02 00000000  23 0007  08 s'r'  09 0002 00 'c'  26 s'k' s'1'  26 s'k' s'2'  0b 01  0b ffffff7f
            03 s'' ) 00 'payload' )",
        &Packet::Publish(publish),
    );
    assert_eq!(publish.properties.subscription_ids.iter().collect::<Vec<_>>(), [1, 268_435_455]);
    assert_eq!(publish.properties.user_properties.iter().collect::<Vec<_>>(), [("k", "1"), ("k", "2")]);
    // Alias, expiry and subscription identifiers stay behind.
    let mut forwarded = Vec::new();
    publish.properties.forward_into(&mut forwarded).expect("short");
    assert_eq!(forwarded, bytes("01 00  03 s''  08 s'r'  09 0002 00 'c'  26 s'k' s'1'  26 s'k' s'2'"));
    assert!(!publish.properties.is_forwardable_empty());
}

#[test]
fn what_another_broker_wants_forwarded_is_checked() {
    let misplaced = |id| Err(DecodeError::PropertyMisplaced(id));
    for (notation, expected) in [
        ("", Ok(())),
        ("01 00  03 s''  08 s'r'  09 0002 00 'c'  26 s'k' s'1'  26 s'k' s'2'", Ok(())),
        ("02 00000001", misplaced(PropertyId::MessageExpiryInterval)),
        ("23 0007", misplaced(PropertyId::TopicAlias)),
        ("0b 01", misplaced(PropertyId::SubscriptionIdentifier)),
        ("11 00000001", misplaced(PropertyId::SessionExpiryInterval)),
        ("01 02", Err(DecodeError::PropertyValue { id: PropertyId::PayloadFormatIndicator, value: 2 })),
        ("01 00  01 00", Err(DecodeError::PropertyTwice(PropertyId::PayloadFormatIndicator))),
        ("26 s'k'", Err(DecodeError::Truncated { wanted: 2, left: 0 })),
        ("03 0001 ff", Err(DecodeError::Utf8 { valid_bytes: 0 })),
    ] {
        assert_eq!(check_forwardable(&bytes(notation)), expected, "{notation}");
    }
}

#[test]
fn publish_v3() {
    let publish = Publish {
        dup: false,
        qos: QoS::AtMostOnce,
        retain: true,
        topic: "t",
        packet_id: None,
        properties: PublishProperties::default(),
        payload: b"",
    };
    both_ways(V3, "31 ( s't' )", &Packet::Publish(publish));
    both_ways(V5, "31 ( s't' () )", &Packet::Publish(publish));
    let publish = Publish { qos: QoS::AtLeastOnce, retain: false, packet_id: Some(packet_id(1)), payload: &[7; 200], ..publish };
    both_ways(V3, &format!("32 ( s't' 0001 {} )", "07".repeat(200)), &Packet::Publish(publish));
}

#[test]
fn publish_takes_slices_of_its_input() {
    let wire = bytes("30 ( s'topic' ( 09 s'data' ) 'payload' )");
    let Ok(Packet::Publish(publish)) = decode_whole(ProtocolVersion::V5, &wire) else { panic!("a PUBLISH") };
    let inside = wire.as_ptr_range();
    for slice in [publish.topic.as_bytes(), publish.payload, publish.properties.correlation_data.expect("is there")] {
        assert!(inside.contains(&slice.as_ptr()));
    }
}

#[test]
fn acknowledgements() {
    let users = bytes("26 s'k' s'v'");
    type Make<'a> = fn(Ack<'a>) -> Packet<'a>;
    let kinds: [(u8, Make<'_>, ReasonCode); 4] = [
        (0x40, Packet::PubAck, ReasonCode::NoMatchingSubscribers),
        (0x50, Packet::PubRec, ReasonCode::QuotaExceeded),
        (0x62, Packet::PubRel, ReasonCode::PacketIdentifierNotFound),
        (0x70, Packet::PubComp, ReasonCode::PacketIdentifierNotFound),
    ];
    for (first, make, reason) in kinds {
        let code = reason as u8;
        let short = Ack::success(packet_id(0xfffe));
        both_ways(ALL, &format!("{first:02x} ( fffe )"), &make(short));
        both_ways(V5, &format!("{first:02x} ( fffe {code:02x} )"), &make(Ack { reason, ..short }));
        let properties = AckProperties { reason_string: Some("why"), user_properties: user_properties(&users) };
        let notation = format!("{first:02x} ( fffe {code:02x} ( 1f s'why' 26 s'k' s'v' ) )");
        both_ways(V5, &notation, &make(Ack { reason, properties, ..short }));
        // Properties need their reason in front of them, even if it is success.
        both_ways(V5, &format!("{first:02x} ( fffe 00 ( 1f s'why' 26 s'k' s'v' ) )"), &make(Ack { properties, ..short }));
        // The other ways to write the same.
        for same in ["fffe 00", "fffe 00 ()"] {
            assert_eq!(decode_whole(ProtocolVersion::V5, &bytes(&format!("{first:02x} ( {same} )"))), Ok(make(short)));
        }
        // Older versions have no room for properties, and must not turn a refusal into consent.
        assert_eq!(encoded(ProtocolVersion::V3_1_1, &make(Ack { properties, ..short })), bytes(&format!("{first:02x} ( fffe )")));
        let refusal = make(Ack { reason: ReasonCode::PacketIdentifierInUse, ..short });
        assert!(matches!(encode(&mut Vec::new(), ProtocolVersion::V3_1_1, &refusal), Err(EncodeError::Reason { .. })));
    }
}

#[test]
fn subscribe() {
    let users = bytes("26 s'k' s'v'");
    let all = SubscriptionOptions {
        qos: QoS::ExactlyOnce,
        no_local: true,
        retain_as_published: true,
        retain_handling: RetainHandling::DoNotSend,
    };
    let id = SubscriptionId::try_from(128).expect("in range");
    let subscribe = Subscribe {
        packet_id: packet_id(10),
        properties: SubscribeProperties { subscription_id: Some(id), user_properties: user_properties(&users) },
        filters: vec![
            SubscribeFilter { filter: "a/+", options: all },
            SubscribeFilter {
                filter: "#",
                options: SubscriptionOptions { retain_handling: RetainHandling::SendIfNew, ..QoS::AtMostOnce.into() },
            },
        ],
    };
    assert_eq!(u32::from(id), 128);
    both_ways(V5, "82 ( 000a ( 0b 8001 26 s'k' s'v' ) s'a/+' 2e s'#' 10 )", &Packet::Subscribe(subscribe.clone()));
    assert_eq!(encoded(ProtocolVersion::V3_1, &Packet::Subscribe(subscribe)), bytes("82 ( 000a s'a/+' 02 s'#' 00 )"));
    let plain = Subscribe {
        packet_id: packet_id(10),
        properties: SubscribeProperties::default(),
        filters: vec![SubscribeFilter { filter: "a", options: QoS::AtLeastOnce.into() }],
    };
    both_ways(V3, "82 ( 000a s'a' 01 )", &Packet::Subscribe(plain.clone()));
    both_ways(V5, "82 ( 000a () s'a' 01 )", &Packet::Subscribe(plain));
}

#[test]
fn suback() {
    let users = bytes("26 s'k' s'v'");
    let properties = AckProperties { reason_string: Some("why"), user_properties: user_properties(&users) };
    let suback = SubAck {
        packet_id: packet_id(10),
        properties,
        reasons: vec![ReasonCode::Success, ReasonCode::GrantedQoS1, ReasonCode::GrantedQoS2, ReasonCode::TopicFilterInvalid],
    };
    both_ways(V5, "90 ( 000a ( 1f s'why' 26 s'k' s'v' ) 00 01 02 8f )", &Packet::SubAck(suback.clone()));
    assert_eq!(encoded(ProtocolVersion::V3_1_1, &Packet::SubAck(suback.clone())), bytes("90 ( 000a 00 01 02 80 )"));
    let plain = SubAck { properties: AckProperties::default(), reasons: vec![ReasonCode::UnspecifiedError], ..suback };
    both_ways(V3, "90 ( 000a 80 )", &Packet::SubAck(plain.clone()));
    both_ways(V5, "90 ( 000a () 80 )", &Packet::SubAck(plain));
}

#[test]
fn unsubscribe_and_unsuback() {
    let users = bytes("26 s'k' s'v'");
    let user_properties = user_properties(&users);
    let unsubscribe =
        Unsubscribe { packet_id: packet_id(10), properties: UnsubscribeProperties { user_properties }, filters: vec!["a", "b/#"] };
    both_ways(V5, "a2 ( 000a ( 26 s'k' s'v' ) s'a' s'b/#' )", &Packet::Unsubscribe(unsubscribe.clone()));
    let plain = Unsubscribe { properties: UnsubscribeProperties::default(), ..unsubscribe };
    both_ways(V3, "a2 ( 000a s'a' s'b/#' )", &Packet::Unsubscribe(plain));

    let unsuback = UnsubAck {
        packet_id: packet_id(10),
        properties: AckProperties { reason_string: Some("why"), user_properties },
        reasons: vec![ReasonCode::Success, ReasonCode::NoSubscriptionExisted],
    };
    both_ways(V5, "b0 ( 000a ( 1f s'why' 26 s'k' s'v' ) 00 11 )", &Packet::UnsubAck(unsuback.clone()));
    assert_eq!(encoded(ProtocolVersion::V3_1, &Packet::UnsubAck(unsuback.clone())), bytes("b0 ( 000a )"));
    let plain = UnsubAck { properties: AckProperties::default(), reasons: Vec::new(), ..unsuback };
    both_ways(V3, "b0 ( 000a )", &Packet::UnsubAck(plain.clone()));
    assert_eq!(
        encode(&mut Vec::new(), ProtocolVersion::V5, &Packet::UnsubAck(plain)),
        Err(EncodeError::Empty(PacketType::UnsubAck))
    );
}

#[test]
fn ping_disconnect_auth() {
    both_ways(ALL, "c0 ()", &Packet::PingReq);
    both_ways(ALL, "d0 ()", &Packet::PingResp);

    let users = bytes("26 s'k' s'v'");
    let user_properties = user_properties(&users);
    let farewell = Disconnect { reason: ReasonCode::Success, properties: DisconnectProperties::default() };
    both_ways(ALL, "e0 ()", &Packet::Disconnect(farewell));
    let taken_over = Disconnect { reason: ReasonCode::SessionTakenOver, ..farewell };
    both_ways(V5, "e0 ( 8e )", &Packet::Disconnect(taken_over));
    for same in ["e0 ( 00 )", "e0 ( 00 () )"] {
        assert_eq!(decode_whole(ProtocolVersion::V5, &bytes(same)), Ok(Packet::Disconnect(farewell)));
    }
    let properties = DisconnectProperties {
        session_expiry_seconds: Some(u32::MAX),
        reason_string: Some("why"),
        user_properties,
        server_reference: Some("there"),
    };
    let full = Disconnect { reason: ReasonCode::Success, properties };
    both_ways(V5, "e0 ( 00 ( 11 ffffffff 1f s'why' 26 s'k' s'v' 1c s'there' ) )", &Packet::Disconnect(full));
    let error = encode(&mut Vec::new(), ProtocolVersion::V3_1_1, &Packet::Disconnect(taken_over));
    assert!(matches!(error, Err(EncodeError::Reason { packet: PacketType::Disconnect, .. })));

    let properties = AuthProperties {
        authentication_method: Some("m"),
        authentication_data: Some(b"d"),
        reason_string: Some("why"),
        user_properties,
    };
    let auth = Auth { reason: ReasonCode::ContinueAuthentication, properties };
    both_ways(V5, "f0 ( 18 ( 15 s'm' 16 s'd' 1f s'why' 26 s'k' s'v' ) )", &Packet::Auth(auth));
    both_ways(V5, "f0 ()", &Packet::Auth(Auth { reason: ReasonCode::Success, properties: AuthProperties::default() }));
    let error = EncodeError::NotInVersion { packet: PacketType::Auth, version: ProtocolVersion::V3_1_1 };
    assert_eq!(encode(&mut Vec::new(), ProtocolVersion::V3_1_1, &Packet::Auth(auth)), Err(error));
}

/// The head of a PUBLISH and a whole one are the same bytes.
#[test]
fn publish_heads() {
    let head = PublishHead {
        dup: false,
        qos: QoS::AtLeastOnce,
        retain: true,
        topic: "t",
        packet_id: Some(packet_id(0x0102)),
        message_expiry_seconds: Some(5),
        topic_alias: Some(9),
        subscription_ids: &[1, 128],
        properties: &bytes("03 s'text'"),
        payload_len: 7,
    };
    for (version, notation) in [
        (ProtocolVersion::V3_1, "33 ( s't' 0102 'payload' )"),
        (ProtocolVersion::V3_1_1, "33 ( s't' 0102 'payload' )"),
        (ProtocolVersion::V5, "33 ( s't' 0102 ( 02 00000005  23 0009  0b 01  0b 8001  03 s'text' ) 'payload' )"),
    ] {
        let mut out = b"before".to_vec();
        let packet_id_at = encode_publish_head(&mut out, version, &head).expect("well-formed");
        assert_eq!(out[packet_id_at..packet_id_at + 2], [1, 2]);
        out.extend(b"payload");
        assert_eq!(out[6..], bytes(notation), "{version}");
    }
    // At QoS 0 there is no identifier to patch.
    let mut out = Vec::new();
    let plain = PublishHead {
        qos: QoS::AtMostOnce,
        packet_id: None,
        message_expiry_seconds: None,
        topic_alias: None,
        subscription_ids: &[],
        properties: &[],
        ..head
    };
    assert_eq!(encode_publish_head(&mut out, ProtocolVersion::V5, &plain), Ok(5));
    assert_eq!(out, bytes("31 0b s't' 00"));
}

#[test]
fn what_does_not_fit_is_not_written() {
    let long = "x".repeat(65_536);
    let head = PublishHead {
        dup: false,
        qos: QoS::AtMostOnce,
        retain: false,
        topic: "t",
        packet_id: None,
        message_expiry_seconds: None,
        topic_alias: None,
        subscription_ids: &[],
        properties: &[],
        payload_len: 0,
    };
    let id = Some(packet_id(1));
    for (head, error) in [
        (PublishHead { topic: &long, ..head }, EncodeError::FieldTooLong(65_536)),
        (PublishHead { payload_len: 268_435_455, ..head }, EncodeError::TooLong(268_435_459)),
        (PublishHead { packet_id: id, ..head }, EncodeError::PacketId),
        (PublishHead { qos: QoS::AtLeastOnce, ..head }, EncodeError::PacketId),
        (PublishHead { dup: true, ..head }, EncodeError::DupWithoutQoS),
        (PublishHead { topic_alias: Some(0), ..head }, EncodeError::PropertyValue { id: PropertyId::TopicAlias, value: 0 }),
        (
            PublishHead { subscription_ids: &[0], ..head },
            EncodeError::PropertyValue { id: PropertyId::SubscriptionIdentifier, value: 0 },
        ),
        (
            PublishHead { subscription_ids: &[1, 268_435_456], ..head },
            EncodeError::PropertyValue { id: PropertyId::SubscriptionIdentifier, value: 268_435_456 },
        ),
    ] {
        let mut out = b"before".to_vec();
        assert_eq!(encode_publish_head(&mut out, ProtocolVersion::V5, &head), Err(error));
        assert_eq!(out, b"before");
    }
    let connect = Connect {
        is_bridge: false,
        version: ProtocolVersion::V3_1_1,
        clean_start: true,
        keep_alive_seconds: 0,
        properties: ConnectProperties::default(),
        client_id: &long,
        will: None,
        user_name: None,
        password: None,
    };
    let suback = SubAck { packet_id: packet_id(1), properties: AckProperties::default(), reasons: Vec::new() };
    let subscribe = Subscribe { packet_id: packet_id(1), properties: SubscribeProperties::default(), filters: Vec::new() };
    let unsubscribe = Unsubscribe { packet_id: packet_id(1), properties: UnsubscribeProperties::default(), filters: vec![&long] };
    let reason = ReasonCode::BadAuthenticationMethod;
    let maximum_qos = ConnAckProperties { maximum_qos: Some(QoS::ExactlyOnce), ..Default::default() };
    let version = ProtocolVersion::V5;
    for (packet, error) in [
        (Packet::Connect(Box::new(connect)), EncodeError::FieldTooLong(65_536)),
        (Packet::Connect(Box::new(Connect { client_id: "", password: Some(b"p"), ..connect })), EncodeError::PasswordAlone),
        (
            Packet::ConnAck(Box::new(ConnAck { session_present: false, reason: ReasonCode::Success, properties: maximum_qos })),
            EncodeError::PropertyValue { id: PropertyId::MaximumQoS, value: 2 },
        ),
        (Packet::SubAck(suback), EncodeError::Empty(PacketType::SubAck)),
        (Packet::Subscribe(subscribe), EncodeError::Empty(PacketType::Subscribe)),
        (Packet::Unsubscribe(unsubscribe), EncodeError::FieldTooLong(65_536)),
        (
            Packet::PubAck(Ack { reason, ..Ack::success(packet_id(1)) }),
            EncodeError::Reason { packet: PacketType::PubAck, reason, version },
        ),
        (
            Packet::Disconnect(Disconnect {
                reason: ReasonCode::Success,
                properties: DisconnectProperties { reason_string: Some(&long), ..Default::default() },
            }),
            EncodeError::FieldTooLong(65_536),
        ),
    ] {
        let mut out = b"before".to_vec();
        assert_eq!(encode(&mut out, version, &packet), Err(error));
        assert_eq!(out, b"before", "{packet:?}");
    }
    assert!(SubscriptionId::try_from(0).is_err());
}

/// Table 2-6 read the other way: how many codes each packet may carry.
#[test]
fn reason_codes() {
    use PacketType as T;
    for (packet, count) in [
        (T::ConnAck, 22),
        (T::PubAck, 9),
        (T::PubRec, 9),
        (T::PubRel, 2),
        (T::PubComp, 2),
        (T::SubAck, 12),
        (T::UnsubAck, 7),
        (T::Disconnect, 30),
        (T::Auth, 3),
        (T::Publish, 0),
        (T::Connect, 0),
    ] {
        assert_eq!(ReasonCode::ALL.iter().filter(|reason| reason.is_allowed_in(packet)).count(), count, "{packet}");
    }
    let known = (0..=u8::MAX).filter_map(ReasonCode::from_u8).collect::<Vec<_>>();
    assert_eq!(known, ReasonCode::ALL);
    assert!(known.iter().all(|reason| ReasonCode::from_u8(*reason as u8) == Some(*reason)));
    assert!(ReasonCode::UnspecifiedError.is_error() && !ReasonCode::ReAuthenticate.is_error());
}

/// Table 2-4 read the other way: in how many packets each property may be.
#[test]
fn property_places() {
    type Read = fn(&[u8]) -> Option<DecodeError>;
    let places: [Read; 10] = [
        |section| ConnectProperties::read(section).err(),
        |section| WillProperties::read(section).err(),
        |section| ConnAckProperties::read(section).err(),
        |section| PublishProperties::read(section).err(),
        |section| AckProperties::read(section).err(),
        |section| SubscribeProperties::read(section).err(),
        |section| UnsubscribeProperties::read(section).err(),
        |section| DisconnectProperties::read(section).err(),
        |section| AuthProperties::read(section).err(),
        |section| section.is_empty().then_some(DecodeError::TopicEmpty),
    ];
    let count =
        |id: PropertyId| places[..9].iter().filter(|read| read(&[id as u8]) != Some(DecodeError::PropertyMisplaced(id))).count();
    let counts: Vec<(u8, usize)> = PropertyId::ALL.iter().map(|id| (*id as u8, count(*id))).collect();
    // PUBACK to UNSUBACK share one structure here, so they count once.
    let expected = [
        (0x01, 2),
        (0x02, 2),
        (0x03, 2),
        (0x08, 2),
        (0x09, 2),
        (0x0b, 2),
        (0x11, 3),
        (0x12, 1),
        (0x13, 1),
        (0x15, 3),
        (0x16, 3),
        (0x17, 1),
        (0x18, 1),
        (0x19, 1),
        (0x1a, 1),
        (0x1c, 2),
        (0x1f, 4),
        (0x21, 2),
        (0x22, 2),
        (0x23, 1),
        (0x24, 1),
        (0x25, 1),
        (0x26, 9),
        (0x27, 2),
        (0x28, 1),
        (0x29, 1),
        (0x2a, 1),
    ];
    assert_eq!(counts, expected);
}
