//! PUBLISH and its exchanges (MQTT 5.0 sections 3.3 to 3.7 and 4.3).

use std::time::{Duration, Instant};

use crate::broker::Broker;
use crate::client::{Client, Connect, Publish};
use crate::wire::*;

#[test]
fn mqtt_3_8_4_8_a_message_has_the_lower_of_published_and_granted_qos() {
    let broker = Broker::start();
    for version in [3, 4, 5] {
        for granted in [0, 1, 2] {
            let mut subscriber = Client::subscribed(&broker, version, "t", granted);
            let mut publisher = Client::new(&broker, version);
            for qos in [0, 1, 2] {
                publisher.publish(Publish { topic: "t", payload: "m", qos, ..Publish::default() });
                assert_eq!(subscriber.expect_message("m").qos(), qos.min(granted), "published at {qos}, granted {granted}");
            }
            subscriber.expect_nothing();
        }
    }
}

#[test]
fn mqtt_3_3_2_messages_cross_between_the_versions() {
    let broker = Broker::start();
    let mut subscribers: Vec<_> = [3, 4, 5].into_iter().map(|version| Client::subscribed(&broker, version, "t/+", 2)).collect();
    for version in [3, 4, 5] {
        let mut publisher = Client::new(&broker, version);
        let payload = format!("from {version}");
        publisher.publish(Publish { topic: "t/é", payload: &payload, qos: 2, ..Publish::default() });
        for subscriber in &mut subscribers {
            let message = subscriber.expect_message(&payload);
            assert_eq!((message.topic.as_str(), message.properties), ("t/é", vec![]));
        }
    }
}

#[test]
fn mqtt_3_3_1_3_dup_is_not_handed_on() {
    let broker = Broker::start();
    let mut subscriber = Client::subscribed(&broker, 4, "t", 1);
    let mut publisher = Client::new(&broker, 4);
    publisher.publish(Publish { topic: "t", payload: "m", qos: 1, dup: true, ..Publish::default() });
    assert!(!subscriber.expect_message("m").dup());
}

#[test]
fn mqtt_4_3_3_10_a_repeated_qos_2_publish_is_delivered_once() {
    let broker = Broker::start();
    for version in [4, 5] {
        let mut subscriber = Client::subscribed(&broker, 4, "t", 2);
        let mut publisher = Client::new(&broker, version);
        for repeat in 0..4 {
            publisher.send(
                &Publish { topic: "t", payload: "one", qos: 2, id: 7, dup: repeat > 0, ..Publish::default() }.encode(version),
            );
            let answer = publisher.expect(kind::PUBREC);
            assert!(answer.id == 7 && answer.reason < 0x80, "{answer:?}");
        }
        publisher.send(&ack(kind::PUBREL, 7));
        assert_eq!(publisher.expect(kind::PUBCOMP).reason, 0);
        // After PUBCOMP the identifier is free: this is a new message [MQTT-4.3.3-12].
        publisher.send(&Publish { topic: "t", payload: "two", qos: 2, id: 7, ..Publish::default() }.encode(version));
        publisher.expect(kind::PUBREC);
        publisher.send(&ack(kind::PUBREL, 7));
        publisher.expect(kind::PUBCOMP);
        assert_eq!(subscriber.take_messages(2), ["one", "two"]);
        subscriber.expect_nothing();
    }
}

#[test]
fn mqtt_3_7_2_1_pubrel_for_an_unknown_identifier_is_answered() {
    let broker = Broker::start();
    for version in [4, 5] {
        let mut client = Client::new(&broker, version);
        for _ in 0..2 {
            client.send(&ack(kind::PUBREL, 4_242));
            let answer = client.expect(kind::PUBCOMP);
            assert_eq!((answer.id, answer.reason), (4_242, if version == 5 { 0x92 } else { 0 }));
        }
        client.expect_nothing();
    }
}

#[test]
fn acknowledgements_of_unknown_identifiers_do_not_end_the_connection() {
    let broker = Broker::start();
    for version in [4, 5] {
        let mut client = Client::new(&broker, version);
        client.send(&ack(kind::PUBACK, 9));
        client.send(&ack(kind::PUBCOMP, 9));
        client.expect_nothing();
        client.send(&ack(kind::PUBREC, 9));
        let answer = client.expect(kind::PUBREL);
        assert_eq!((answer.id, answer.reason), (9, if version == 5 { 0x92 } else { 0 }), "section 3.6.2.1");
    }
}

#[test]
fn mqtt_4_4_a_publisher_resumes_its_qos_2_exchange() {
    let broker = Broker::start();
    for version in [4, 5] {
        let mut subscriber = Client::subscribed(&broker, 4, "t", 2);
        let session = Connect::new(version).resume(300);
        let mut publisher = Client::connect(&broker, &session);
        let publish = Publish { topic: "t", payload: "m", qos: 2, id: 5, ..Publish::default() };
        publisher.send(&publish.encode(version));
        publisher.expect(kind::PUBREC);
        publisher.lose();

        let mut publisher = Client::connect(&broker, &session);
        publisher.send(&Publish { dup: true, ..publish }.encode(version));
        publisher.expect(kind::PUBREC);
        publisher.send(&ack(kind::PUBREL, 5));
        assert_eq!(publisher.expect(kind::PUBCOMP).reason, 0);
        subscriber.expect_message("m");
        subscriber.expect_nothing();
    }
}

#[test]
fn mqtt_4_6_0_6_messages_of_one_topic_keep_their_order() {
    let broker = Broker::start();
    for qos in [0, 1, 2] {
        let mut subscriber = Client::subscribed(&broker, 5, "t", qos);
        let mut publisher = Client::new(&broker, 5);
        let sent: Vec<_> = (0..200_u16).map(|number| number.to_string()).collect();
        let packets =
            sent.iter().zip(1..).map(|(payload, id)| Publish { topic: "t", payload, qos, id, ..Publish::default() }.encode(5));
        publisher.send(&packets.collect::<Vec<_>>().concat());
        let mut expect_in_order = |kind, why| (1..=200).for_each(|id| assert_eq!(publisher.expect(kind).id, id, "{why}"));
        match qos {
            0 => {}
            1 => expect_in_order(kind::PUBACK, "[MQTT-4.6.0-2]"),
            _ => {
                expect_in_order(kind::PUBREC, "[MQTT-4.6.0-3]");
                publisher.send(&(1..=200).flat_map(|id| ack(kind::PUBREL, id)).collect::<Vec<_>>());
                (1..=200).for_each(|id| assert_eq!(publisher.expect(kind::PUBCOMP).id, id));
            }
        }
        assert_eq!(subscriber.take_messages(200), sent);
    }
}

#[test]
fn empty_payloads_and_large_ones_arrive_as_they_were() {
    let broker = Broker::start();
    for version in [4, 5] {
        let mut subscriber = Client::subscribed(&broker, version, "t", 1);
        let mut publisher = Client::new(&broker, version);
        for length in [0, 1, 100, 1_023, 1_024, 70_000, 2_000_000] {
            let payload: String = ('a'..='z').cycle().take(length).collect();
            publisher.publish(Publish { topic: "t", payload: &payload, qos: 1, ..Publish::default() });
            let message = subscriber.expect(kind::PUBLISH);
            assert!(message.payload == payload.as_bytes(), "{length} bytes came as {}", message.payload.len());
            subscriber.acknowledge(&message);
        }
    }
}

/// [MQTT-3.3.2-4], [MQTT-3.3.2-15] to [MQTT-3.3.2-18], [MQTT-3.3.2-20].
#[test]
fn mqtt_3_3_2_18_properties_are_handed_on_unaltered_and_in_order() {
    let broker = Broker::start();
    let list = [
        user("b", "1"),
        byte(property::PAYLOAD_FORMAT, 1),
        text(property::CONTENT_TYPE, "text/plain; charset=utf-8"),
        user("a", ""),
        text(property::RESPONSE_TOPIC, "answers/é"),
        text(property::CORRELATION_DATA, "\0\u{1}7"),
        user("b", "2"),
        user("b", "1"),
    ];
    let mut subscribers = [Client::subscribed(&broker, 5, "t", 0), Client::subscribed(&broker, 5, "t", 1)];
    let mut old = Client::subscribed(&broker, 4, "t", 2);
    Client::new(&broker, 5).publish(Publish { topic: "t", payload: "m", qos: 1, properties: &list, ..Publish::default() });
    for subscriber in &mut subscribers {
        let message = subscriber.expect_message("m");
        let users = |list: &[Property]| list.iter().filter(|(id, _)| *id == property::USER_PROPERTY).cloned().collect::<Vec<_>>();
        assert_eq!(users(&message.properties), users(&list));
        assert!(list.iter().all(|property| message.properties.contains(property)), "{message:?}");
        assert_eq!(message.properties.len(), list.len());
    }
    old.expect_message("m");
}

#[test]
fn mqtt_3_3_2_6_message_expiry_is_handed_on_as_what_is_left() {
    let broker = Broker::start();
    let session = Connect::new(5).resume(300);
    let mut away = Client::connect(&broker, &session);
    away.subscribe(&[("t", 1)]);
    away.disconnect();
    let mut present = Client::subscribed(&broker, 5, "t", 0);
    let begin = Instant::now();
    let list = [four(property::MESSAGE_EXPIRY, 100)];
    Client::new(&broker, 5).publish(Publish {
        topic: "t",
        payload: "m",
        qos: 1,
        retain: true,
        properties: &list,
        ..Publish::default()
    });
    let check = |message: Received, waited: Duration| {
        let left = message.number(property::MESSAGE_EXPIRY).expect("the interval is handed on");
        let expected = 100 - waited.as_secs() as u32;
        assert!((expected - 1..=expected).contains(&left), "{left} s left after {waited:?}");
    };
    check(present.expect_message("m"), begin.elapsed());
    std::thread::sleep(Duration::from_millis(1_100)); // the interval is in seconds
    let waited = begin.elapsed();
    check(Client::connect(&broker, &session).expect_message("m"), waited);
    check(Client::subscribed(&broker, 5, "t", 0).expect_message("m"), waited);
}

#[test]
fn mqtt_3_3_2_5_an_expired_message_is_not_sent() {
    let broker = Broker::start();
    let session = Connect::new(5).resume(300);
    let mut away = Client::connect(&broker, &session);
    away.subscribe(&[("t", 1)]);
    away.disconnect();
    let mut publisher = Client::new(&broker, 5);
    let list = [four(property::MESSAGE_EXPIRY, 1)];
    publisher.publish(Publish { topic: "t", payload: "old", qos: 1, retain: true, properties: &list, ..Publish::default() });
    publisher.say("t", "lasting");
    std::thread::sleep(Duration::from_millis(1_200)); // the interval is in seconds
    Client::connect(&broker, &session).expect_message("lasting");
    Client::subscribed(&broker, 5, "t", 0).expect_nothing();
}

/// [MQTT-4.3.3-7], [MQTT-4.3.3-13]: what has begun ends, expired or not.
#[test]
fn mqtt_4_3_3_13_expiry_does_not_break_an_exchange_under_way() {
    let broker = Broker::start();
    let session = Connect::new(5).resume(300);
    let mut subscriber = Client::connect(&broker, &session);
    subscriber.subscribe(&[("t", 2)]);
    let mut publisher = Client::new(&broker, 5);
    let list = [four(property::MESSAGE_EXPIRY, 1)];
    publisher.publish(Publish { topic: "t", payload: "m", qos: 2, properties: &list, ..Publish::default() });
    let message = subscriber.expect(kind::PUBLISH);
    subscriber.send(&ack(kind::PUBREC, message.id));
    subscriber.expect(kind::PUBREL);
    subscriber.lose();
    publisher.send(&Publish { topic: "u", payload: "n", qos: 2, id: 77, properties: &list, ..Publish::default() }.encode(5));
    publisher.expect(kind::PUBREC);
    std::thread::sleep(Duration::from_millis(1_200)); // the interval is in seconds
    publisher.send(&ack(kind::PUBREL, 77));
    assert_eq!(publisher.expect(kind::PUBCOMP).reason, 0);

    let mut subscriber = Client::connect(&broker, &session);
    assert_eq!(subscriber.expect(kind::PUBREL).id, message.id);
    subscriber.send(&ack(kind::PUBCOMP, message.id));
    subscriber.expect_nothing();
}

/// [MQTT-3.3.2-14] and section 3.3.2.3: what a client may not say in a PUBLISH is neither taken nor handed on.
#[test]
fn mqtt_3_3_4_6_properties_that_do_not_belong_close_and_go_nowhere() {
    let broker = Broker::start();
    let mut subscriber = Client::subscribed(&broker, 5, "t", 0);
    for (why, list) in [
        ("Subscription Identifier", vec![variable(property::SUBSCRIPTION_ID, 5)]),
        ("Server Reference", vec![text(property::SERVER_REFERENCE, "x")]),
        ("Session Expiry", vec![four(property::SESSION_EXPIRY, 5)]),
        ("Will Delay", vec![four(property::WILL_DELAY, 5)]),
        ("Message Expiry twice", vec![four(property::MESSAGE_EXPIRY, 5), four(property::MESSAGE_EXPIRY, 6)]),
        ("Content Type twice", vec![text(property::CONTENT_TYPE, "a"), text(property::CONTENT_TYPE, "b")]),
        ("Topic Alias twice", vec![two(property::TOPIC_ALIAS, 1), two(property::TOPIC_ALIAS, 1)]),
        ("Payload Format 2", vec![byte(property::PAYLOAD_FORMAT, 2)]),
        ("wildcard in Response Topic", vec![text(property::RESPONSE_TOPIC, "a/#")]),
        ("no such property", vec![byte(0x7f, 0)]),
    ] {
        let mut publisher = Client::new(&broker, 5);
        publisher.send(&Publish { topic: "t", payload: why, qos: 1, id: 1, properties: &list, ..Publish::default() }.encode(5));
        publisher.expect_disconnect(&[0x81, 0x82, 0x90]);
        subscriber.expect_nothing();
    }
}

#[test]
fn mqtt_3_1_2_29_without_problem_information_there_are_no_reason_strings() {
    let broker = Broker::start();
    let connect = Connect::new(5).with(byte(property::REQUEST_PROBLEM_INFORMATION, 0));
    let mut client = Client::connect(&broker, &connect);
    let mut answers = Vec::new();
    for publish in [
        Publish { topic: "nobody/listens", qos: 1, id: 1, ..Publish::default() },
        Publish { topic: "$SYS/forged", qos: 1, id: 2, ..Publish::default() },
        Publish { topic: "nobody/listens", qos: 2, id: 3, ..Publish::default() },
    ] {
        client.send(&publish.encode(5));
        answers.push(client.receive());
    }
    client.send(&packet(kind::UNSUBSCRIBE, 2, &[vec![0, 4, 0], string("never/subscribed")].concat()));
    answers.push(client.expect(kind::UNSUBACK));
    client.send(&packet(kind::SUBSCRIBE, 2, &[vec![0, 5, 0], string("a/".repeat(500)), vec![0]].concat()));
    answers.push(client.expect(kind::SUBACK));
    for answer in answers {
        assert!(answer.all(property::REASON_STRING).is_empty() && answer.all(property::USER_PROPERTY).is_empty(), "{answer:?}");
    }
}
