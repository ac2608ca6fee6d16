//! What is encoded decodes to the same packet, whatever it is made of.

use proptest::{collection::vec, option, prelude::*, strategy::Union};
use std::num::NonZeroU32;

use super::*;

/// Packets borrow, strategies own: each generated text is leaked, a few kilobytes in a test run.
fn text() -> impl Strategy<Value = &'static str> {
    prop_oneof![
        4 => "[a-z/$ ä]{0,12}".prop_map(|text| &*text.leak()),
        1 => "[^\0]{0,40}".prop_map(|text| &*text.leak()),
        1 => "[x]{120,140}".prop_map(|text| &*text.leak()),
    ]
}

/// What stands in names has no control characters.
fn name() -> impl Strategy<Value = &'static str> {
    prop_oneof![4 => "[a-z/$ ä]{0,12}".prop_map(|name| &*name.leak()), 1 => r"\P{Cc}{0,40}".prop_map(|name| &*name.leak())]
}

fn topic_name() -> impl Strategy<Value = &'static str> {
    r"[^\p{Cc}+#]{1,20}".prop_map(|text| &*text.leak())
}

fn data() -> impl Strategy<Value = &'static [u8]> {
    vec(any::<u8>(), 0..200).prop_map(|data| &*data.leak())
}

fn id() -> impl Strategy<Value = PacketId> {
    any::<PacketId>()
}

fn qos() -> impl Strategy<Value = QoS> {
    prop_oneof![Just(QoS::AtMostOnce), Just(QoS::AtLeastOnce), Just(QoS::ExactlyOnce)]
}

fn reason(packet: PacketType) -> impl Strategy<Value = ReasonCode> {
    let allowed: Vec<_> = ReasonCode::ALL.iter().copied().filter(|reason| reason.is_allowed_in(packet)).collect();
    proptest::sample::select(allowed)
}

fn user_properties() -> impl Strategy<Value = UserProperties<'static>> {
    vec((text(), text()), 0..4).prop_map(|pairs| {
        let mut section = Vec::new();
        for (name, value) in pairs {
            section.push(PropertyId::UserProperty as u8);
            wire::put_string(&mut section, name).expect("short");
            wire::put_string(&mut section, value).expect("short");
        }
        UnsubscribeProperties::read(section.leak()).expect("user properties").user_properties
    })
}

fn subscription_ids() -> impl Strategy<Value = SubscriptionIds<'static>> {
    vec(1..=crate::limits::MQTT_REMAINING_LENGTH_MAX, 0..4).prop_map(|ids| {
        let mut section = Vec::new();
        for id in ids {
            section.push(PropertyId::SubscriptionIdentifier as u8);
            wire::put_varint(&mut section, id as usize).expect("in range");
        }
        PublishProperties::read(section.leak()).expect("identifiers").subscription_ids
    })
}

fn authentication() -> impl Strategy<Value = (Option<&'static str>, Option<&'static [u8]>)> {
    prop_oneof![Just((None, None)), (text(), option::of(data())).prop_map(|(method, data)| (Some(method), data))]
}

fn connect_properties() -> impl Strategy<Value = ConnectProperties<'static>> {
    (
        option::of(any::<u32>()),
        option::of(any::<NonZeroU16>()),
        option::of(any::<NonZeroU32>()),
        option::of(any::<u16>()),
        option::of(any::<bool>()),
        option::of(any::<bool>()),
        user_properties(),
        authentication(),
    )
        .prop_map(|(expiry, receive, size, alias, response, problem, user_properties, (method, data))| ConnectProperties {
            session_expiry_seconds: expiry,
            receive_maximum: receive,
            maximum_packet_size: size,
            topic_alias_maximum: alias,
            request_response_information: response,
            request_problem_information: problem,
            user_properties,
            authentication_method: method,
            authentication_data: data,
        })
}

fn will(version: ProtocolVersion) -> impl Strategy<Value = Will<'static>> {
    let properties = (
        option::of(any::<u32>()),
        option::of(any::<bool>()),
        option::of(any::<u32>()),
        option::of(text()),
        option::of(topic_name()),
        option::of(data()),
        user_properties(),
    )
        .prop_map(move |(delay, format, expiry, content, response, correlation, user_properties)| match version {
            ProtocolVersion::V5 => WillProperties {
                delay_seconds: delay,
                payload_format: format,
                message_expiry_seconds: expiry,
                content_type: content,
                response_topic: response,
                correlation_data: correlation,
                user_properties,
            },
            ProtocolVersion::V3_1 | ProtocolVersion::V3_1_1 => WillProperties::default(),
        });
    (topic_name(), data(), qos(), any::<bool>(), properties).prop_map(|(topic, payload, qos, retain, properties)| Will {
        topic,
        payload,
        qos,
        retain,
        properties,
    })
}

fn connect(version: ProtocolVersion) -> impl Strategy<Value = Packet<'static>> {
    let credentials = (option::of(name()), option::of(data())).prop_map(move |(name, password)| match (version, name) {
        (ProtocolVersion::V3_1 | ProtocolVersion::V3_1_1, None) => (None, None),
        _ => (name, password),
    });
    (any::<bool>(), any::<u16>(), connect_properties(), name(), option::of(will(version)), credentials).prop_map(
        move |(clean_start, keep_alive_seconds, properties, client_id, will, (user_name, password))| {
            let is_v5 = version == ProtocolVersion::V5;
            Packet::Connect(Box::new(Connect {
                is_bridge: false,
                version,
                clean_start,
                keep_alive_seconds,
                properties: if is_v5 { properties } else { ConnectProperties::default() },
                client_id: if client_id.is_empty() && !is_v5 { "c" } else { client_id },
                will,
                user_name,
                password,
            }))
        },
    )
}

fn connack(version: ProtocolVersion) -> impl Strategy<Value = Packet<'static>> {
    let numbers = (
        option::of(any::<u32>()),
        option::of(any::<NonZeroU16>()),
        option::of(prop_oneof![Just(QoS::AtMostOnce), Just(QoS::AtLeastOnce)]),
        option::of(any::<NonZeroU32>()),
        option::of(any::<u16>()),
        option::of(any::<u16>()),
    );
    let flags = [(); 4].map(|()| option::of(any::<bool>()));
    let texts = [(); 4].map(|()| option::of(text()));
    let properties = (numbers, flags, texts, user_properties(), authentication()).prop_map(
        |((expiry, receive, maximum_qos, size, alias, keep_alive), flags, texts, user_properties, (method, data))| {
            let [retain_available, wildcard_subscription_available, subscription_ids_available, shared_subscription_available] =
                flags;
            let [assigned_client_id, reason_string, response_information, server_reference] = texts;
            ConnAckProperties {
                session_expiry_seconds: expiry,
                receive_maximum: receive,
                maximum_qos,
                retain_available,
                maximum_packet_size: size,
                assigned_client_id,
                topic_alias_maximum: alias,
                reason_string,
                user_properties,
                wildcard_subscription_available,
                subscription_ids_available,
                shared_subscription_available,
                server_keep_alive_seconds: keep_alive,
                response_information,
                server_reference,
                authentication_method: method,
                authentication_data: data,
            }
        },
    );
    (any::<bool>(), reason(PacketType::ConnAck), properties).prop_map(move |(present, reason, properties)| {
        let reason = match version {
            ProtocolVersion::V5 => reason,
            _ => reason.v3_return_code().and_then(ReasonCode::from_v3_return_code).unwrap_or(ReasonCode::Success),
        };
        Packet::ConnAck(Box::new(ConnAck {
            session_present: present && reason == ReasonCode::Success && version != ProtocolVersion::V3_1,
            reason,
            properties: if version == ProtocolVersion::V5 { properties } else { ConnAckProperties::default() },
        }))
    })
}

fn publish(version: ProtocolVersion) -> impl Strategy<Value = Packet<'static>> {
    let properties = (
        option::of(any::<bool>()),
        option::of(any::<u32>()),
        option::of(any::<NonZeroU16>()),
        option::of(topic_name()),
        option::of(data()),
        user_properties(),
        subscription_ids(),
        option::of(text()),
    )
        .prop_map(|(format, expiry, alias, response, correlation, user_properties, subscription_ids, content)| {
            PublishProperties {
                payload_format: format,
                message_expiry_seconds: expiry,
                topic_alias: alias,
                response_topic: response,
                correlation_data: correlation,
                user_properties,
                subscription_ids,
                content_type: content,
            }
        });
    (any::<bool>(), qos(), any::<bool>(), topic_name(), any::<bool>(), id(), properties, data()).prop_map(
        move |(dup, qos, retain, topic, by_alias, id, properties, payload)| {
            let properties = if version == ProtocolVersion::V5 { properties } else { PublishProperties::default() };
            Packet::Publish(Publish {
                dup: dup && qos > QoS::AtMostOnce,
                qos,
                retain,
                topic: if by_alias && properties.topic_alias.is_some() { "" } else { topic },
                packet_id: (qos > QoS::AtMostOnce).then_some(id),
                properties,
                payload,
            })
        },
    )
}

fn ack_properties(version: ProtocolVersion) -> impl Strategy<Value = AckProperties<'static>> {
    (option::of(text()), user_properties()).prop_map(move |(reason_string, user_properties)| match version {
        ProtocolVersion::V5 => AckProperties { reason_string, user_properties },
        ProtocolVersion::V3_1 | ProtocolVersion::V3_1_1 => AckProperties::default(),
    })
}

fn ack(version: ProtocolVersion) -> impl Strategy<Value = Packet<'static>> {
    type Make = fn(Ack<'static>) -> Packet<'static>;
    let kind = |packet: PacketType, make: Make| {
        (id(), reason(packet), ack_properties(version)).prop_map(move |(packet_id, reason, properties)| {
            let reason = if version == ProtocolVersion::V5 { reason } else { ReasonCode::Success };
            make(Ack { packet_id, reason, properties })
        })
    };
    prop_oneof![
        kind(PacketType::PubAck, Packet::PubAck),
        kind(PacketType::PubRec, Packet::PubRec),
        kind(PacketType::PubRel, Packet::PubRel),
        kind(PacketType::PubComp, Packet::PubComp),
    ]
}

fn options(version: ProtocolVersion) -> impl Strategy<Value = SubscriptionOptions> {
    let handling = prop_oneof![Just(RetainHandling::Send), Just(RetainHandling::SendIfNew), Just(RetainHandling::DoNotSend)];
    (qos(), any::<bool>(), any::<bool>(), handling).prop_map(move |(qos, no_local, retain_as_published, retain_handling)| {
        match version {
            ProtocolVersion::V5 => SubscriptionOptions { qos, no_local, retain_as_published, retain_handling },
            ProtocolVersion::V3_1 | ProtocolVersion::V3_1_1 => qos.into(),
        }
    })
}

fn lists(version: ProtocolVersion) -> impl Strategy<Value = Packet<'static>> {
    let is_v5 = version == ProtocolVersion::V5;
    let subscription_id =
        option::of((1..=crate::limits::MQTT_REMAINING_LENGTH_MAX).prop_map(|id| SubscriptionId::try_from(id).expect("in range")));
    let filter = (name(), options(version)).prop_map(|(filter, options)| SubscribeFilter { filter, options });
    let subscribe = (id(), subscription_id, user_properties(), vec(filter, 1..5)).prop_map(
        move |(packet_id, subscription_id, user_properties, filters)| {
            let properties = SubscribeProperties { subscription_id, user_properties };
            let properties = if is_v5 { properties } else { SubscribeProperties::default() };
            Packet::Subscribe(Subscribe { packet_id, properties, filters })
        },
    );
    let suback = (id(), ack_properties(version), vec(reason(PacketType::SubAck), 1..5)).prop_map(
        move |(packet_id, properties, mut reasons)| {
            for reason in reasons.iter_mut().filter(|reason| !is_v5 && reason.is_error()) {
                *reason = ReasonCode::UnspecifiedError;
            }
            Packet::SubAck(SubAck { packet_id, properties, reasons })
        },
    );
    let unsubscribe = (id(), user_properties(), vec(name(), 1..5)).prop_map(move |(packet_id, user_properties, filters)| {
        let properties = if is_v5 { UnsubscribeProperties { user_properties } } else { UnsubscribeProperties::default() };
        Packet::Unsubscribe(Unsubscribe { packet_id, properties, filters })
    });
    let unsuback = (id(), ack_properties(version), vec(reason(PacketType::UnsubAck), 1..5)).prop_map(
        move |(packet_id, properties, reasons)| {
            Packet::UnsubAck(UnsubAck { packet_id, properties, reasons: if is_v5 { reasons } else { Vec::new() } })
        },
    );
    prop_oneof![subscribe, suback, unsubscribe, unsuback]
}

fn farewell(version: ProtocolVersion) -> impl Strategy<Value = Packet<'static>> {
    (reason(PacketType::Disconnect), option::of(any::<u32>()), option::of(text()), user_properties(), option::of(text())).prop_map(
        move |(reason, session_expiry_seconds, reason_string, user_properties, server_reference)| {
            Packet::Disconnect(match version {
                ProtocolVersion::V5 => Disconnect {
                    reason,
                    properties: DisconnectProperties { session_expiry_seconds, reason_string, user_properties, server_reference },
                },
                _ => Disconnect { reason: ReasonCode::Success, properties: DisconnectProperties::default() },
            })
        },
    )
}

fn auth() -> impl Strategy<Value = Packet<'static>> {
    let properties = (text(), option::of(data()), option::of(text()), user_properties()).prop_map(
        |(method, authentication_data, reason_string, user_properties)| AuthProperties {
            authentication_method: Some(method),
            authentication_data,
            reason_string,
            user_properties,
        },
    );
    prop_oneof![
        1 => Just(Auth { reason: ReasonCode::Success, properties: AuthProperties::default() }),
        9 => (reason(PacketType::Auth), properties).prop_map(|(reason, properties)| Auth { reason, properties }),
    ]
    .prop_map(Packet::Auth)
}

/// Any packet that `version` can say in full.
pub(super) fn packet(version: ProtocolVersion) -> impl Strategy<Value = Packet<'static>> {
    let mut kinds = vec![
        connect(version).boxed(),
        connack(version).boxed(),
        publish(version).boxed(),
        ack(version).boxed(),
        lists(version).boxed(),
        farewell(version).boxed(),
        prop_oneof![Just(Packet::PingReq), Just(Packet::PingResp)].boxed(),
    ];
    if version == ProtocolVersion::V5 {
        kinds.push(auth().boxed());
    }
    Union::new(kinds)
}

pub(super) fn version_and_packet() -> impl Strategy<Value = (ProtocolVersion, Packet<'static>)> {
    proptest::sample::select(ALL).prop_flat_map(|version| packet(version).prop_map(move |packet| (version, packet)))
}

/// No Local on what looks like a shared subscription is refused [MQTT-3.8.3-4]; the texts above may make one by chance.
fn is_sayable(packet: &Packet<'_>) -> bool {
    !matches!(packet, Packet::Subscribe(subscribe)
        if subscribe.filters.iter().any(|filter| filter.options.no_local && filter.filter.starts_with("$share/")))
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(2_000) })]

    #[test]
    fn what_encodes_decodes_to_the_same((version, packet) in version_and_packet()) {
        prop_assume!(is_sayable(&packet));
        let wire = encoded(version, &packet);
        prop_assert_eq!(frame_length(&wire), Ok(Some(wire.len())));
        prop_assert_eq!(&decode_whole(version, &wire)?, &packet);
        if let Packet::Connect(connect) = &packet {
            prop_assert_eq!(decode_connect(&wire, u32::MAX), Ok(Some((**connect, wire.len()))));
            prop_assert_eq!(connect_version(&wire), Some(version));
        }
    }

    /// What a server does with a PUBLISH: what it forwards is what came, but for what belongs to one connection.
    #[test]
    fn a_forwarded_publish_is_the_same_message(
        packet in publish(ProtocolVersion::V5),
        packet_id in id(),
        subscription_ids in vec(1..=crate::limits::MQTT_REMAINING_LENGTH_MAX, 0..4),
        version in proptest::sample::select(ALL),
    ) {
        let Packet::Publish(came) = packet else { unreachable!("only those are generated") };
        prop_assume!(!came.topic.is_empty());
        let mut properties = Vec::new();
        came.properties.forward_into(&mut properties)?;
        prop_assert_eq!(properties.is_empty(), came.properties.is_forwardable_empty());
        prop_assert_eq!(check_forwardable(&properties), Ok(()));
        let head = PublishHead {
            dup: false,
            qos: QoS::AtLeastOnce,
            retain: came.retain,
            topic: came.topic,
            packet_id: Some(packet_id),
            message_expiry_seconds: came.properties.message_expiry_seconds,
            topic_alias: None,
            subscription_ids: &subscription_ids,
            properties: &properties,
            payload_len: came.payload.len(),
        };
        let mut wire = Vec::new();
        let packet_id_at = encode_publish_head(&mut wire, version, &head)?;
        prop_assert_eq!(&wire[packet_id_at..packet_id_at + 2], packet_id.get().to_be_bytes());
        wire.extend(came.payload);
        let Packet::Publish(went) = decode_whole(version, &wire)? else { panic!("a PUBLISH") };
        let expected = match version {
            ProtocolVersion::V5 => PublishProperties {
                topic_alias: None,
                subscription_ids: went.properties.subscription_ids,
                ..came.properties
            },
            _ => PublishProperties::default(),
        };
        let expected_ids = if version == ProtocolVersion::V5 { subscription_ids } else { Vec::new() };
        prop_assert_eq!(went.properties.subscription_ids.iter().collect::<Vec<_>>(), expected_ids);
        prop_assert_eq!(
            went,
            Publish { dup: false, qos: QoS::AtLeastOnce, packet_id: Some(packet_id), properties: expected, ..came }
        );
    }
}
