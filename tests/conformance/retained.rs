//! Retained messages (MQTT 5.0 section 3.3.1.3).

use crate::broker::Broker;
use crate::client::{Client, Connect, Publish};
use crate::wire::*;

/// Subscription options of MQTT 5.
const RETAIN_AS_PUBLISHED: u8 = 8;
const SEND_IF_NEW: u8 = 0x10;
const DO_NOT_SEND: u8 = 0x20;

#[test]
fn mqtt_3_3_1_5_the_last_message_is_kept_for_subscriptions_to_come() {
    let broker = Broker::start();
    for (version, topic) in [(3, "t3"), (4, "t4"), (5, "t5")] {
        let mut publisher = Client::new(&broker, version);
        publisher.retain(topic, "old");
        publisher.retain(topic, "new");
        publisher.say(topic, "not retained"); // [MQTT-3.3.1-8]
        let mut subscriber = Client::subscribed(&broker, version, topic, 1);
        assert!(subscriber.expect_message("new").retain());
        subscriber.expect_nothing();
    }
}

#[test]
fn mqtt_3_3_1_6_an_empty_retained_message_deletes_and_is_delivered() {
    let broker = Broker::start();
    for version in [4, 5] {
        let mut subscriber = Client::subscribed(&broker, version, "t", 0);
        let mut publisher = Client::new(&broker, version);
        publisher.retain("t", "kept");
        publisher.say("t", "");
        let mut late = Client::subscribed(&broker, version, "t", 0);
        late.expect_message("kept"); // an empty message that is not retained deletes nothing
        publisher.retain("t", "");
        for payload in ["kept", "", ""] {
            assert!(!subscriber.expect_message(payload).retain());
        }
        Client::subscribed(&broker, version, "t", 0).expect_nothing(); // [MQTT-3.3.1-7]
    }
}

#[test]
fn mqtt_3_3_1_12_the_flag_says_whether_the_message_is_a_retained_one() {
    let broker = Broker::start();
    let mut plain = Client::subscribed(&broker, 5, "t", 0);
    let mut as_published = Client::subscribed(&broker, 5, "t", RETAIN_AS_PUBLISHED);
    let mut old = Client::subscribed(&broker, 4, "t", 0);
    let mut publisher = Client::new(&broker, 4);
    publisher.retain("t", "1");
    publisher.say("t", "2");
    let flags = |client: &mut Client| client.messages().iter().map(Received::retain).collect::<Vec<_>>();
    assert_eq!(flags(&mut plain), [false, false], "[MQTT-3.3.1-12]");
    assert_eq!(flags(&mut as_published), [true, false], "[MQTT-3.3.1-13]");
    assert_eq!(flags(&mut old), [false, false], "3.1.1 [MQTT-3.3.1-9]");
    assert_eq!(flags(&mut Client::subscribed(&broker, 4, "t", 0)), [true], "3.1.1 [MQTT-3.3.1-8]");
}

#[test]
fn mqtt_3_8_4_4_retained_messages_are_sent_at_every_subscribe() {
    let broker = Broker::start();
    for version in [4, 5] {
        Client::new(&broker, version).retain("t", "kept");
        let session = Connect::new(version).resume(300);
        let mut client = Client::connect(&broker, &session);
        for _ in 0..2 {
            client.subscribe(&[("t", 1)]);
            client.expect_message("kept");
        }
        client.lose();
        let mut client = Client::connect(&broker, &session);
        client.expect_nothing(); // a session that is resumed is no new subscription
        client.subscribe(&[("t", 1)]);
        client.expect_message("kept");
        client.expect_nothing();
    }
}

#[test]
fn mqtt_3_3_1_10_retain_handling_is_kept() {
    let broker = Broker::start();
    Client::new(&broker, 5).retain("t", "kept");
    let session = Connect::new(5).resume(300);
    let mut client = Client::connect(&broker, &session);
    client.subscribe(&[("t", DO_NOT_SEND)]); // [MQTT-3.3.1-11]
    client.expect_nothing();
    client.subscribe(&[("t", SEND_IF_NEW)]); // it exists already
    client.expect_nothing();
    client.unsubscribe(&["t"]);
    client.subscribe(&[("t", SEND_IF_NEW)]); // [MQTT-3.3.1-10]
    client.expect_message("kept");
    client.lose();
    let mut client = Client::connect(&broker, &session);
    client.subscribe(&[("t", SEND_IF_NEW)]); // it has outlived the connection
    client.expect_nothing();
}

#[test]
fn retained_messages_match_wildcards_and_come_at_the_lower_qos() {
    let broker = Broker::start();
    let topics = ["a/b", "a/b/c", "a/d", "$other/b"];
    let mut publisher = Client::new(&broker, 4);
    for topic in topics {
        publisher.publish(Publish { topic, payload: topic, qos: 2, retain: true, ..Publish::default() });
    }
    for (filter, expected) in [
        ("a/b/#", vec!["a/b", "a/b/c"]),
        ("a/+", vec!["a/b", "a/d"]),
        ("#", vec!["a/b", "a/b/c", "a/d"]),
        ("+/b", vec!["a/b"]),
        ("$other/#", vec!["$other/b"]),
        ("b", vec![]),
    ] {
        for granted in [0, 1] {
            let messages = Client::subscribed(&broker, 4, filter, granted).messages();
            let mut found: Vec<_> = messages.iter().map(|message| message.text().to_owned()).collect();
            found.sort();
            assert_eq!(
                found.iter().map(String::as_str).collect::<Vec<_>>(),
                {
                    let mut expected = expected.clone();
                    expected.sort_unstable();
                    expected
                },
                "{filter:?}"
            );
            assert!(messages.iter().all(|message| message.qos() == granted), "{messages:?}");
        }
    }
}

#[test]
fn a_retained_message_keeps_its_properties() {
    let broker = Broker::start();
    let list = [text(property::CONTENT_TYPE, "text/plain"), user("k", "v")];
    Client::new(&broker, 5).publish(Publish {
        topic: "t",
        payload: "m",
        qos: 1,
        retain: true,
        properties: &list,
        ..Publish::default()
    });
    let mut subscriber = Client::new(&broker, 5);
    subscriber.subscribe_with(&[("t", 0)], &[variable(property::SUBSCRIPTION_ID, 9)]);
    let message = subscriber.expect_message("m");
    assert_eq!(message.all(property::SUBSCRIPTION_ID), [&Value::Variable(9)], "[MQTT-3.3.4-3]");
    assert!(list.iter().all(|property| message.properties.contains(property)), "{message:?}");
    Client::subscribed(&broker, 4, "t", 0).expect_message("m");
}

/// All of a large set arrive without anything else happening, and others are served meanwhile.
#[test]
fn a_large_retained_set_reaches_a_slow_reader_in_full() {
    const TOPICS: usize = 5_000;
    let broker = Broker::start();
    let payload = "r".repeat(500);
    let mut publisher = Client::new(&broker, 4);
    let topics: Vec<_> = (0..TOPICS).map(|number| format!("set/{number}")).collect();
    for chunk in topics.chunks(500) {
        let packets = chunk
            .iter()
            .zip(1..)
            .map(|(topic, id)| Publish { topic, payload: &payload, qos: 1, id, retain: true, ..Publish::default() }.encode(4));
        publisher.send(&packets.collect::<Vec<_>>().concat());
        for _ in chunk {
            publisher.expect(kind::PUBACK);
        }
    }
    for qos in [0, 1] {
        let mut slow = Client::connect(&broker, &Connect::new(5).with(two(property::RECEIVE_MAXIMUM, 10)));
        slow.subscribe(&[("set/#", qos)]);
        let mut other = Client::subscribed(&broker, 4, "other", 0);
        publisher.say("other", "m");
        other.expect_message("m");
        let mut found: Vec<_> = (0..TOPICS)
            .map(|_| {
                let message = slow.expect(kind::PUBLISH);
                slow.acknowledge(&message);
                message.topic
            })
            .collect();
        found.sort();
        found.dedup();
        assert_eq!(found.len(), TOPICS);
        slow.expect_nothing();
    }
}
