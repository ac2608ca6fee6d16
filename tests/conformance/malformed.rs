//! What is not MQTT ends its own connection and nobody else's (MQTT 5.0 sections 1.5, 2.1 and 4.13).

use crate::broker::Broker;
use crate::client::{Client, Publish};
use crate::wire::*;

/// Why, and the bytes.
type Case = (&'static str, Vec<u8>);

fn cases(version: u8) -> Vec<Case> {
    let none = properties_of(version, &[]);
    let filter = |options: u8| [vec![0, 1], none.clone(), string("t"), vec![options]].concat();
    let publish = |head: &[u8]| [head, none.as_slice(), b"m"].concat();
    let mut cases = vec![
        ("2.1.3-1 SUBSCRIBE flags", packet(kind::SUBSCRIBE, 0, &filter(0))),
        ("2.1.3-1 UNSUBSCRIBE flags", packet(kind::UNSUBSCRIBE, 0, &[vec![0, 1], none.clone(), string("t")].concat())),
        ("2.1.3-1 PUBREL flags", packet(kind::PUBREL, 0, &[0, 1])),
        ("2.1.3-1 PUBACK flags", packet(kind::PUBACK, 1, &[0, 1])),
        ("2.1.3-1 PINGREQ flags", packet(kind::PINGREQ, 1, &[])),
        ("2.1.3-1 DISCONNECT flags", packet(kind::DISCONNECT, 1, &[])),
        ("2.1.2 type 0", packet(0, 0, &[])),
        ("2.1.4 a length of five bytes", vec![0x30, 0x80, 0x80, 0x80, 0x80, 0x01]),
        ("1.5.5-1 a length that is not minimal", vec![0xc0, 0x80, 0x00]),
        ("1.5.4-1 a topic of ill-formed UTF-8", packet(kind::PUBLISH, 0, &publish(&string([b'a', 0xff])))),
        ("1.5.4-1 a topic with a surrogate", packet(kind::PUBLISH, 0, &publish(&string([0xed, 0xbf, 0xbf])))),
        ("1.5.4-2 a topic with U+0000", packet(kind::PUBLISH, 0, &publish(&string("a\0b")))),
        ("1.5.4-2 a filter with U+0000", packet(kind::SUBSCRIBE, 2, &[vec![0, 1], none.clone(), string("a\0"), vec![0]].concat())),
        ("1.5.4 a topic with a control character", packet(kind::PUBLISH, 0, &publish(&string("a\nb")))),
        ("1.5.4 a topic with U+009F", packet(kind::PUBLISH, 0, &publish(&string("a\u{9f}b")))),
        ("1.5.4 a filter with U+007F", packet(kind::SUBSCRIBE, 2, &[vec![0, 1], none.clone(), string("a\x7f"), vec![0]].concat())),
        ("1.5.4 the same of UNSUBSCRIBE", packet(kind::UNSUBSCRIBE, 2, &[vec![0, 1], none.clone(), string("a\x7f")].concat())),
        (
            "3.8.3-1 a filter of ill-formed UTF-8",
            packet(kind::SUBSCRIBE, 2, &[vec![0, 1], none.clone(), string([0xff]), vec![0]].concat()),
        ),
        ("3.10.3-1 the same of UNSUBSCRIBE", packet(kind::UNSUBSCRIBE, 2, &[vec![0, 1], none.clone(), string([0xff])].concat())),
        ("3.3.1-4 PUBLISH QoS 3", packet(kind::PUBLISH, 6, &publish(&[string("t"), vec![0, 1]].concat()))),
        ("3.3.1-2 DUP at QoS 0", packet(kind::PUBLISH, 8, &publish(&string("t")))),
        ("3.3.2-2 a wildcard in a topic", packet(kind::PUBLISH, 0, &publish(&string("a/+")))),
        ("3.3.2-2 a wildcard in a topic", packet(kind::PUBLISH, 0, &publish(&string("#")))),
        ("2.2.1-3 PUBLISH identifier 0", packet(kind::PUBLISH, 2, &publish(&[string("t"), vec![0, 0]].concat()))),
        ("2.2.1-3 SUBSCRIBE identifier 0", packet(kind::SUBSCRIBE, 2, &[vec![0, 0], none.clone(), string("t"), vec![0]].concat())),
        ("2.2.1-3 UNSUBSCRIBE identifier 0", packet(kind::UNSUBSCRIBE, 2, &[vec![0, 0], none.clone(), string("t")].concat())),
        ("3.8.3-2 SUBSCRIBE without a filter", packet(kind::SUBSCRIBE, 2, &[vec![0, 1], none.clone()].concat())),
        ("3.10.3-2 UNSUBSCRIBE without a filter", packet(kind::UNSUBSCRIBE, 2, &[vec![0, 1], none.clone()].concat())),
        ("3.8.3-5 SUBSCRIBE QoS 3", packet(kind::SUBSCRIBE, 2, &filter(3))),
        ("3.8.3-5 reserved subscription options", packet(kind::SUBSCRIBE, 2, &filter(0x40))),
        ("3.8.3-5 reserved subscription options", packet(kind::SUBSCRIBE, 2, &filter(0x80))),
        ("SUBSCRIBE ends before its options", packet(kind::SUBSCRIBE, 2, &[vec![0, 1], none.clone(), string("t")].concat())),
        ("PUBLISH ends in its topic", packet(kind::PUBLISH, 0, b"\xff\xffa")),
        ("PUBLISH QoS 1 ends after its topic", packet(kind::PUBLISH, 2, &string("t"))),
        ("PUBACK of one byte", packet(kind::PUBACK, 0, &[0])),
        ("PUBACK identifier 0", packet(kind::PUBACK, 0, &[0, 0])),
        ("PINGREQ with a body", packet(kind::PINGREQ, 0, b"x")),
        ("CONNACK from a client", packet(kind::CONNACK, 0, &[vec![0, 0], none.clone()].concat())),
        ("SUBACK from a client", packet(kind::SUBACK, 0, &[vec![0, 1], none.clone(), vec![0]].concat())),
        ("UNSUBACK from a client", packet(kind::UNSUBACK, 0, &[vec![0, 1], none.clone()].concat())),
        ("PINGRESP from a client", packet(kind::PINGRESP, 0, &[])),
    ];
    if version == 5 {
        cases.extend([
            ("3.8.3-5 Retain Handling 3", packet(kind::SUBSCRIBE, 2, &filter(0x30))),
            ("AUTH without a method", packet(15, 0, &[])),
            ("3.15.1-1 AUTH flags", packet(15, 1, &[])),
            ("3.3.2-19 a content type of ill-formed UTF-8", {
                let list = [(property::CONTENT_TYPE, Value::Text(vec![0xff]))];
                packet(kind::PUBLISH, 0, &[string("t"), properties(&list)].concat())
            }),
            ("3.3.2-13 a response topic of ill-formed UTF-8", {
                let list = [(property::RESPONSE_TOPIC, Value::Text(vec![0xff]))];
                packet(kind::PUBLISH, 0, &[string("t"), properties(&list)].concat())
            }),
            (
                "2.2.2.2 a property of another packet",
                packet(kind::PUBACK, 0, &[vec![0, 1, 0], properties(&[two(property::TOPIC_ALIAS, 1)])].concat()),
            ),
            ("properties beyond the packet", packet(kind::PUBLISH, 0, &[string("t"), vec![9, 1]].concat())),
            ("a property cut short", packet(kind::PUBLISH, 0, &[string("t"), vec![2, property::MESSAGE_EXPIRY, 0]].concat())),
            ("a property length of five bytes", packet(kind::PUBLISH, 0, &[string("t"), vec![0x80, 0x80, 0x80, 0x80, 1]].concat())),
            ("a user property of ill-formed UTF-8", {
                let list = [(property::USER_PROPERTY, Value::Pair(b"k".to_vec(), vec![0xff]))];
                packet(kind::PUBLISH, 0, &[string("t"), properties(&list)].concat())
            }),
            ("DISCONNECT with a reason that is none", packet(kind::DISCONNECT, 0, &[0x55])),
            ("DISCONNECT with bytes left over", packet(kind::DISCONNECT, 0, &[0, 0, 0])),
            ("PUBACK with a reason that is none", packet(kind::PUBACK, 0, &[0, 1, 0x55])),
        ]);
    } else {
        cases.extend([
            ("3.1.1 has no AUTH", packet(15, 0, &[])),
            ("3.1.1 DISCONNECT has no body", packet(kind::DISCONNECT, 0, &[0])),
            ("3.1.1 PUBACK has no reason", packet(kind::PUBACK, 0, &[0, 1, 0])),
            ("3.1.1 has no subscription options", packet(kind::SUBSCRIBE, 2, &filter(0x04))),
        ]);
    }
    cases
}

#[test]
fn mqtt_4_13_1_1_a_malformed_packet_ends_its_connection_only() {
    let broker = Broker::start();
    for version in [4, 5] {
        let mut bystander = Client::subscribed(&broker, version, "#", 0);
        for (why, bytes) in cases(version) {
            println!("version {version}: {why}");
            let mut client = Client::new(&broker, version);
            client.send(&bytes);
            client.expect_disconnect(&[0x81, 0x82, 0x90]);
        }
        bystander.expect_nothing();
    }
}

/// What came before the bad packet in the same segment is served, what comes after is not.
#[test]
fn packets_before_a_malformed_one_are_served() {
    let broker = Broker::start();
    for version in [4, 5] {
        let mut subscriber = Client::subscribed(&broker, version, "t", 0);
        let mut client = Client::new(&broker, version);
        let publish = |payload| Publish { topic: "t", payload, ..Publish::default() }.encode(version);
        client.send(&[publish("before"), packet(kind::PINGREQ, 1, &[]), publish("after")].concat());
        client.expect_disconnect(&[0x81]);
        subscriber.expect_message("before");
        subscriber.expect_nothing();
    }
}

/// Announced lengths cost the broker nothing; the connections stay open, and others are served.
#[test]
fn half_packets_disturb_nobody() {
    let broker = Broker::start();
    let mut half: Vec<_> = (0..100).map(|_| Client::open(&broker, 5)).collect();
    for (client, bytes) in
        half.iter_mut().zip([&b"\x10"[..], b"\x10\xff", b"\x10\xff\xff\x0f", b"\x10\x20\x00\x04MQ"].into_iter().cycle())
    {
        client.send(bytes);
    }
    let mut client = Client::subscribed(&broker, 5, "t", 1);
    client.publish(Publish { topic: "t", payload: "m", ..Publish::default() });
    client.expect_message("m");
}

#[test]
fn u_feff_is_a_character_like_any_other() {
    let broker = Broker::start();
    let mut client = Client::subscribed(&broker, 5, "\u{feff}t", 0);
    let mut publisher = Client::new(&broker, 5);
    publisher.say("t", "without");
    publisher.say("\u{feff}t", "with"); // [MQTT-1.5.4-3]
    client.expect_message("with");
}
