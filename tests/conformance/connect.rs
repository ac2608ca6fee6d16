//! CONNECT and CONNACK (MQTT 5.0 sections 3.1 and 3.2): who is let in, as whom, and what becomes of an older connection.

use std::collections::HashSet;

use crate::broker::Broker;
use crate::client::{Client, Connect, Publish, Will};
use crate::wire::*;

#[test]
fn mqtt_3_1_0_1_the_first_packet_is_connect() {
    let broker = Broker::start();
    for first in [
        Publish { topic: "t", ..Publish::default() }.encode(4),
        packet(kind::PINGREQ, 0, &[]),
        packet(0, 0, &[]),
        packet(kind::DISCONNECT, 0, &[]),
        b"GET / HTTP/1.1\r\n\r\n".to_vec(),
        vec![0x30, 0xff, 0xff, 0xff, 0x7f],
    ] {
        let mut client = Client::open(&broker, 4);
        client.send(&first);
        assert_eq!(client.expect_end().packets, [], "nothing is said to {first:x?}");
    }
    Client::new(&broker, 4).expect_nothing();
}

#[test]
fn mqtt_3_1_0_2_a_second_connect_is_a_protocol_error() {
    let broker = Broker::start();
    for version in [3, 4, 5] {
        let connect = Connect::new(version);
        let mut client = Client::connect(&broker, &connect);
        client.send(&connect.encode());
        client.expect_disconnect(&[0x82]);
    }
}

#[test]
fn mqtt_3_1_2_1_an_unknown_protocol_name_closes() {
    let broker = Broker::start();
    for name in ["MQTX", "mqtt", "", "MQTTMQTTMQTT"] {
        let mut client = Client::open(&broker, 4);
        client.send(&packet(kind::CONNECT, 0, &[string(name), vec![4, 2, 0, 60], string("a")].concat()));
        assert!(matches!(client.expect_end().reason, None | Some(0x84)), "{name:?}");
    }
}

#[test]
fn mqtt_3_1_2_2_an_unknown_version_is_refused() {
    let broker = Broker::start();
    // Older ones are told in the words of 3.1.1 ([MQTT-3.1.2-2] there), newer ones in those of 5.0.
    for (level, version, reason) in [(0, 4, 0x01), (1, 4, 0x01), (2, 4, 0x01), (6, 5, 0x84), (255, 5, 0x84)] {
        let mut client = Client::open(&broker, version);
        client.send(&packet(kind::CONNECT, 0, &[string("MQTT"), vec![level, 2, 0, 60], string("a")].concat()));
        let end = client.expect_end();
        assert_eq!(end.reason, Some(reason), "level {level}: {end:?}");
    }
}

/// [MQTT-3.1.2-3], [MQTT-3.1.2-11] to [MQTT-3.1.2-19], [MQTT-3.1.3-1]; statement numbers of MQTT 5.0.
#[test]
fn mqtt_3_1_2_3_a_malformed_connect_closes() {
    let broker = Broker::start();
    for version in [4, 5] {
        let none = properties_of(version, &[]);
        let head = |flags: u8| [string("MQTT"), vec![version, flags, 0, 60], none.clone()].concat();
        let (id, will) = (string("id"), [none.clone(), string("t"), string("w")].concat());
        for (why, body) in [
            ("reserved flag", [head(0x03), id.clone()].concat()),
            ("will QoS 3", [head(0x1e), id.clone(), will.clone()].concat()),
            ("will QoS without a will", [head(0x0a), id.clone()].concat()),
            ("will retain without a will", [head(0x22), id.clone()].concat()),
            ("will flag without a will", [head(0x06), id.clone()].concat()),
            ("will topic with a wildcard", [head(0x06), id.clone(), none.clone(), string("t/#"), string("w")].concat()),
            ("user name flag without a user name", [head(0x82), id.clone()].concat()),
            ("password flag without a password", [head(0xc2), id.clone(), string("u")].concat()),
            ("user name without its flag", [head(0x02), id.clone(), string("u")].concat()),
            ("password without its flag", [head(0x82), id.clone(), string("u"), string("p")].concat()),
            ("no client id", head(0x02)),
            ("client id beyond the end", [head(0x02), vec![0, 9, b'x']].concat()),
            ("client id with U+0000", [head(0x02), string("a\0b")].concat()),
            ("client id of ill-formed UTF-8", [head(0x02), string([0xc3, 0x28])].concat()),
            ("client id with a surrogate", [head(0x02), string([0xed, 0xa0, 0x80])].concat()),
            ("will topic of ill-formed UTF-8", [head(0x06), id.clone(), none.clone(), string([0xff]), string("w")].concat()),
            ("user name of ill-formed UTF-8", [head(0x82), id.clone(), string([0xff])].concat()),
            ("user name with a control character", [head(0x82), id.clone(), string("a\nb")].concat()),
            ("bytes left over", [head(0x02), id.clone(), b"x".to_vec()].concat()),
            ("no flags", [string("MQTT"), vec![version]].concat()),
        ] {
            let mut client = Client::open(&broker, version);
            client.send(&packet(kind::CONNECT, 0, &body));
            let end = client.expect_end();
            assert_ne!(end.reason, Some(0), "version {version}, {why}: let in");
        }
        let mut client = Client::open(&broker, version);
        client.send(&packet(kind::CONNECT, 1, &[head(0x02), id].concat()));
        assert_ne!(client.expect_end().reason, Some(0), "reserved flags of the fixed header [MQTT-2.1.3-1]");
    }
    Client::new(&broker, 4).expect_nothing();
}

#[test]
fn v3_mqtt_3_1_2_22_a_password_needs_a_user_name() {
    let broker = Broker::start();
    let mut client = Client::open(&broker, 4);
    client.send(&packet(kind::CONNECT, 0, &[string("MQTT"), vec![4, 0x42, 0, 60], string("id"), string("secret")].concat()));
    assert_ne!(client.expect_end().reason, Some(0));
}

#[test]
fn mqtt_2_2_2_2_connect_properties_are_checked() {
    let broker = Broker::start();
    for (why, list) in [
        ("session expiry twice", vec![four(property::SESSION_EXPIRY, 1), four(property::SESSION_EXPIRY, 2)]),
        ("Receive Maximum 0", vec![two(property::RECEIVE_MAXIMUM, 0)]),
        ("Maximum Packet Size 0", vec![four(property::MAXIMUM_PACKET_SIZE, 0)]),
        ("Topic Alias", vec![two(property::TOPIC_ALIAS, 1)]),
        ("Request Problem Information 2", vec![byte(property::REQUEST_PROBLEM_INFORMATION, 2)]),
        ("Request Response Information 2", vec![byte(property::REQUEST_RESPONSE_INFORMATION, 2)]),
    ] {
        let mut client = Client::open(&broker, 5);
        client.send(&Connect { properties: list, ..Connect::new(5) }.encode());
        let end = client.expect_end();
        assert!(matches!(end.reason, None | Some(0x81 | 0x82)), "{why}: {end:?}");
    }
}

#[test]
fn v3_mqtt_3_1_3_8_an_empty_client_id_needs_a_clean_session() {
    let broker = Broker::start();
    let mut client = Client::open(&broker, 4);
    client.send(&Connect { clean: false, ..Connect::new(4).id("") }.encode());
    assert_eq!(client.expect_end().reason, Some(0x02));
}

#[test]
fn v3_mqtt_3_1_3_7_empty_client_ids_do_not_throw_each_other_out() {
    let broker = Broker::start();
    let mut first = Client::connect(&broker, &Connect::new(4).id(""));
    let mut second = Client::connect(&broker, &Connect::new(4).id(""));
    second.expect_nothing();
    first.expect_nothing();
}

#[test]
fn mqtt_3_2_2_16_a_client_without_an_id_is_told_the_one_it_gets() {
    let broker = Broker::start();
    let mut clients: Vec<_> = (0..5).map(|_| Client::connect(&broker, &Connect::new(5).id(""))).collect();
    let ids: HashSet<_> =
        clients.iter().map(|client| format!("{:?}", client.connack.all(property::ASSIGNED_CLIENT_ID)[0])).collect();
    assert_eq!(ids.len(), clients.len(), "{ids:?}");
    clients.iter_mut().for_each(Client::expect_nothing);
    assert!(Client::new(&broker, 5).connack.all(property::ASSIGNED_CLIENT_ID).is_empty());
}

#[test]
fn mqtt_3_1_3_5_client_ids_of_every_length_are_taken() {
    let broker = Broker::start();
    for (version, id) in [
        (3, "short".to_owned()),
        (3, "l".repeat(60)),
        (4, "m".repeat(23)),
        (4, "n".repeat(1_000)),
        (5, "o/é#+ \u{feff}".to_owned()),
    ] {
        Client::connect(&broker, &Connect::new(version).id(&id)).expect_nothing();
    }
}

#[test]
fn mqtt_3_1_4_3_a_new_connection_takes_the_client_over() {
    let broker = Broker::start();
    for (old, new) in [(4, 4), (5, 5), (4, 5), (5, 4), (3, 5)] {
        let id = format!("taken-{old}-{new}");
        let mut first = Client::connect(&broker, &Connect::new(old).id(&id));
        let mut second = Client::connect(&broker, &Connect::new(new).id(&id));
        first.expect_disconnect(&[0x8e]);
        second.expect_nothing();
    }
}

#[test]
fn mqtt_3_1_2_4_a_clean_start_forgets_the_session() {
    let broker = Broker::start();
    for version in [4, 5] {
        let session = Connect::new(version).resume(300);
        let mut client = Client::connect(&broker, &session);
        assert!(!client.connack.session_present, "[MQTT-3.1.2-6]");
        client.subscribe(&[("t", 1)]);
        client.disconnect();

        let again = Client::connect(&broker, &session);
        assert!(again.connack.session_present, "[MQTT-3.2.2-3]");
        again.disconnect();

        let clean = Client::connect(&broker, &Connect { clean: true, ..session.clone() });
        assert!(!clean.connack.session_present, "[MQTT-3.2.2-2]");
        clean.disconnect();
        let mut other = Client::new(&broker, version);
        other.say("t", "for nobody");

        // Of 3.1.1 a clean session ends with its connection; of 5.0 this one has an expiry and goes on, without what was before.
        let mut last = Client::connect(&broker, &session);
        assert_eq!(last.connack.session_present, version == 5);
        last.expect_nothing();
    }
}

#[test]
fn mqtt_3_2_2_6_a_refusal_has_no_session() {
    let broker = Broker::start();
    for (version, level) in [(4, 2), (5, 9)] {
        let mut client = Client::open(&broker, version);
        client.send(&packet(kind::CONNECT, 0, &[string("MQTT"), vec![level, 2, 0, 60], string("a")].concat()));
        let end = client.expect_end();
        assert!(end.packets.len() == 1 && !end.packets[0].session_present, "{end:?}");
    }
}

#[test]
fn mqtt_3_1_4_6_a_client_need_not_wait_for_connack() {
    let broker = Broker::start();
    for version in [4, 5] {
        let mut client = Client::open(&broker, version);
        let (_, subscribe) = client.encode_subscribe(&[("pipelined", 0)], &[]);
        let publish = Publish { topic: "pipelined", payload: "m", ..Publish::default() }.encode(version);
        client.send(&[Connect::new(version).encode(), subscribe, publish].concat());
        let connack = client.expect(kind::CONNACK); // before anything else [MQTT-3.2.0-1]
        assert!(connack.all(0x15).is_empty(), "no authentication method without one [MQTT-4.12.0-6]: {connack:?}");
        expect_suback_and_message(&mut client);
    }
}

/// A message may come before the SUBACK of its subscription (section 3.8.4).
fn expect_suback_and_message(client: &mut Client) {
    let mut kinds = [client.receive().kind, client.receive().kind];
    kinds.sort_unstable();
    assert_eq!(kinds, [kind::PUBLISH, kind::SUBACK]);
}

#[test]
fn packets_may_come_byte_by_byte() {
    let broker = Broker::start();
    let mut client = Client::open(&broker, 5);
    let (_, subscribe) = client.encode_subscribe(&[("slow", 0)], &[]);
    let publish = Publish { topic: "slow", payload: "m", ..Publish::default() }.encode(5);
    for bytes in [Connect::new(5).encode(), subscribe, publish].concat().chunks(1) {
        client.send(bytes);
    }
    client.expect(kind::CONNACK);
    expect_suback_and_message(&mut client);
}

#[test]
fn mqtt_3_1_2_21_the_server_may_shorten_the_keep_alive() {
    let broker = Broker::with(|config| config.limits.max_keepalive = Some(30));
    for (asked, told) in [(0, Some(30)), (31, Some(30)), (30, None), (5, None)] {
        let client = Client::connect(&broker, &Connect::new(5).keep_alive(asked));
        assert_eq!(client.connack.number(property::SERVER_KEEP_ALIVE), told, "asked for {asked}");
    }
}

#[test]
fn a_listener_without_anonymous_clients_refuses_them() {
    let broker = Broker::with(|config| config.listeners[0].allow_anonymous = Some(false));
    for (version, reasons) in [(4, [0x05, 0x04]), (5, [0x87, 0x86])] {
        let mut client = Client::open(&broker, version);
        client.send(&Connect::new(version).encode());
        let reason = client.expect_end().reason.expect("a refusal says why");
        assert!(reasons.contains(&reason), "version {version}: {reason:#x}");
    }
}

#[test]
fn mqtt_4_12_0_1_authentication_methods_that_are_not_there_are_refused() {
    let broker = Broker::start();
    let mut client = Client::open(&broker, 5);
    client.send(&Connect::new(5).with(text(0x15, "SCRAM-SHA-1")).encode());
    assert_eq!(client.expect_end().reason, Some(0x8c));
}

/// A client id that is a string, but none that is taken.
#[test]
fn mqtt_3_1_3_8_a_client_id_that_is_not_taken_is_refused() {
    let broker = Broker::start();
    let mut client = Client::open(&broker, 5);
    client.send(&Connect::new(5).id("two\nlines").encode());
    assert_eq!(client.expect_end().reason, Some(0x85));
}

/// What comes behind a CONNECT that is refused is not looked at.
#[test]
fn mqtt_3_1_4_6_nothing_behind_a_refused_connect_is_done() {
    let broker = Broker::start();
    for version in [4, 5] {
        let mut watcher = Client::subscribed(&broker, 5, "t", 0);
        let mut client = Client::open(&broker, version);
        let publish = Publish { topic: "t", payload: "m", retain: true, ..Publish::default() }.encode(version);
        let refused = Connect { clean: false, ..Connect::new(version).id("two\nlines") }.encode();
        client.send(&[refused, publish].concat());
        let end = client.expect_end();
        assert!(end.reason != Some(0) && end.packets.len() <= 1, "one CONNACK or none [MQTT-3.2.0-2]: {end:?}");
        watcher.expect_nothing();
        Client::subscribed(&broker, 5, "t", 0).expect_nothing();
    }
}

/// A Maximum Packet Size that nothing fits, or no CONNACK of success.
#[test]
fn mqtt_3_1_2_24_a_client_that_takes_no_connack_gets_none_that_is_too_large() {
    let broker = Broker::start();
    for (size, reason) in [(1, None), (4, None), (5, Some(0x95)), (15, Some(0x95)), (16, Some(0)), (64, Some(0))] {
        let mut client = Client::open(&broker, 5);
        client.send(&Connect::new(5).with(four(property::MAXIMUM_PACKET_SIZE, size)).encode());
        match client.receive_within(std::time::Duration::from_secs(20)).expect("an answer or the end") {
            Some(connack) => assert!(connack.bytes <= size as usize && Some(connack.reason) == reason, "{size}: {connack:?}"),
            None => assert_eq!(reason, None, "{size}"),
        }
    }
}

/// [MQTT-3.1.2-24] holds for a refusal as well: who does not take its five bytes is closed without it.
#[test]
fn a_refusal_that_the_client_does_not_take_is_not_sent() {
    let broker = Broker::start();
    for (maximum, is_told) in [(4, false), (5, true)] {
        let connect = Connect::new(5).will(Will::new("$SYS/will", "m")).with(four(property::MAXIMUM_PACKET_SIZE, maximum));
        let mut client = Client::open(&broker, 5);
        client.send(&connect.encode());
        assert_eq!(client.expect_end().reason, is_told.then_some(0x87), "a maximum of {maximum}");
    }
}
