//! SUBSCRIBE, UNSUBSCRIBE and which messages a subscription brings (MQTT 5.0 sections 3.8 to 3.11, 4.7 and 4.8).

use crate::broker::Broker;
use crate::client::{Client, Connect, Publish};
use crate::wire::*;

/// Subscription options of MQTT 5.
const NO_LOCAL: u8 = 4;

#[test]
fn mqtt_3_8_4_6_each_filter_is_answered_in_its_place() {
    let broker = Broker::start();
    let deep = "a/".repeat(500);
    for (version, refused) in [(4, 0x80), (5, 0x8f)] {
        let mut client = Client::new(&broker, version);
        let codes = client.try_subscribe(&[("a", 2), (&deep, 1), ("b/+", 0), (&deep, 1), ("d", 1)], &[]);
        assert_eq!(codes, [2, refused, 0, refused, 1]);
        Client::new(&broker, version).say("d", "m");
        client.expect_message("m");
    }
}

/// [MQTT-4.7.1-1], [MQTT-4.7.1-2], [MQTT-4.7.3-1], [MQTT-4.8.2-1], [MQTT-4.8.2-2]: a packet with such a filter is malformed, and nothing of it is done.
#[test]
fn mqtt_4_7_1_1_bad_filters_are_malformed() {
    let broker = Broker::start();
    let shared = ["$share/g", "$share/", "$share//t", "$share/g/", "$share/+/t", "$share/g#/t", "$share/g/t+"];
    for version in [4, 5] {
        for filter in ["", "a/#/b", "a#", "a+/b", "a/+b", "##", "+#"].into_iter().chain(shared) {
            let session = Connect::new(version).resume(60);
            let mut client = Client::connect(&broker, &session);
            let (_, subscribe) = client.encode_subscribe(&[("good", 0), (filter, 0)], &[]);
            client.send(&subscribe);
            client.expect_disconnect(&[0x81]);
            let mut client = Client::connect(&broker, &session);
            Client::new(&broker, 5).say("good", "m");
            client.expect_nothing();
            let names = [string("good"), string(filter)].concat();
            client.send(&packet(kind::UNSUBSCRIBE, 2, &[vec![0, 9], properties_of(version, &[]), names].concat()));
            client.expect_disconnect(&[0x81]);
        }
    }
}

#[test]
fn mqtt_4_7_wildcards_match_as_the_specification_says() {
    let broker = Broker::start();
    let topics = ["sport", "sport/", "sport/tennis", "sport/tennis/player1", "sport/tennis/player1/ranking", "/finance", "Sport"];
    let mut publisher = Client::new(&broker, 4);
    for (filter, expected) in [
        ("sport/tennis/player1/#", vec![3, 4]),
        ("sport/#", vec![0, 1, 2, 3, 4]),
        ("#", vec![0, 1, 2, 3, 4, 5, 6]),
        ("sport/+", vec![1, 2]),
        ("sport/tennis/+", vec![3]),
        ("+", vec![0, 6]),
        ("+/+", vec![1, 2, 5]),
        ("/+", vec![5]),
        ("+/tennis/#", vec![2, 3, 4]),
        ("sport", vec![0]),
    ] {
        let mut subscriber = Client::subscribed(&broker, 4, filter, 0);
        for topic in topics {
            publisher.say(topic, topic);
        }
        let expected: Vec<_> = expected.iter().map(|place| topics[*place]).collect();
        assert_eq!(subscriber.payloads(), expected, "{filter:?}");
    }
}

#[test]
fn mqtt_4_7_2_1_wildcards_in_the_first_level_match_no_dollar_topics() {
    let broker = Broker::start();
    for filter in ["#", "+/x/#", "+/x"] {
        let mut subscriber = Client::subscribed(&broker, 4, filter, 0);
        Client::new(&broker, 4).publish(Publish { topic: "$other/x", payload: "m", qos: 1, ..Publish::default() });
        subscriber.expect_nothing();
    }
    let mut subscriber = Client::new(&broker, 4);
    subscriber.subscribe(&[("#", 0), ("$other/#", 0)]);
    Client::new(&broker, 4).say("$other/x", "m");
    subscriber.expect_message("m");
    subscriber.expect_nothing();
}

#[test]
fn clients_cannot_forge_the_brokers_own_topics() {
    let broker = Broker::start();
    for version in [4, 5] {
        let mut subscriber = Client::subscribed(&broker, version, "$SYS/#", 0);
        let mut forger = Client::new(&broker, version);
        forger.send(
            &Publish { topic: "$SYS/broker/version", payload: "forged", qos: 1, id: 1, ..Publish::default() }.encode(version),
        );
        match forger.receive_within(std::time::Duration::from_secs(20)).expect("an answer or the end") {
            Some(answer) if version == 5 => assert!(answer.reason >= 0x80, "{answer:?}"),
            _ => {}
        }
        assert!(subscriber.messages().iter().all(|message| message.payload != b"forged"));
    }
}

#[test]
fn mqtt_3_8_4_3_a_new_subscription_to_the_same_filter_replaces_the_old() {
    let broker = Broker::start();
    for version in [4, 5] {
        let mut subscriber = Client::new(&broker, version);
        subscriber.subscribe(&[("t", 0)]);
        subscriber.subscribe(&[("t", 2)]);
        let mut publisher = Client::new(&broker, version);
        publisher.publish(Publish { topic: "t", payload: "m", qos: 2, ..Publish::default() });
        assert_eq!(subscriber.expect_message("m").qos(), 2);
        subscriber.expect_nothing();
    }
}

/// [MQTT-3.3.4-2]: overlapping subscriptions may bring one copy or several, at least one with the highest QoS.
#[test]
fn mqtt_3_3_4_2_overlapping_subscriptions_bring_the_highest_qos() {
    let broker = Broker::start();
    for version in [4, 5] {
        let mut subscriber = Client::new(&broker, version);
        subscriber.subscribe(&[("t/#", 0), ("t/+", 1), ("t/x", 0)]);
        Client::new(&broker, version).publish(Publish { topic: "t/x", payload: "m", qos: 1, ..Publish::default() });
        let messages = subscriber.messages();
        assert!((1..=3).contains(&messages.len()), "{messages:?}");
        assert_eq!(messages.iter().map(Received::qos).max(), Some(1));
    }
}

#[test]
fn mqtt_3_3_4_3_messages_carry_the_identifiers_of_their_subscriptions() {
    let broker = Broker::start();
    let session = Connect::new(5).resume(300);
    let mut subscriber = Client::connect(&broker, &session);
    subscriber.subscribe_with(&[("t/#", 1)], &[variable(property::SUBSCRIPTION_ID, 1)]);
    subscriber.subscribe_with(&[("t/+", 1), ("u", 1)], &[variable(property::SUBSCRIPTION_ID, 268_435_455)]);
    subscriber.subscribe(&[("v", 1)]);
    let mut publisher = Client::new(&broker, 5);
    let mut identifiers_of = |subscriber: &mut Client, topic: &str| {
        publisher.say(topic, topic);
        let mut all: Vec<_> = subscriber.messages().iter().flat_map(|message| message.properties.clone()).collect();
        all.sort_by_key(|(_, value)| format!("{value:?}"));
        all
    };
    let one = variable(property::SUBSCRIPTION_ID, 1);
    let largest = variable(property::SUBSCRIPTION_ID, 268_435_455);
    assert_eq!(identifiers_of(&mut subscriber, "t/x"), [one.clone(), largest.clone()]);
    assert_eq!(identifiers_of(&mut subscriber, "t/x/y"), [one]);
    assert_eq!(identifiers_of(&mut subscriber, "u"), [largest]);
    assert_eq!(identifiers_of(&mut subscriber, "v"), []);
    // A replacement replaces the identifier as well [MQTT-3.8.4-3]; both outlive the connection.
    subscriber.subscribe_with(&[("t/#", 1)], &[variable(property::SUBSCRIPTION_ID, 7)]);
    subscriber.lose();
    let mut subscriber = Client::connect(&broker, &session);
    assert_eq!(identifiers_of(&mut subscriber, "t/x/y"), [variable(property::SUBSCRIPTION_ID, 7)]);
}

#[test]
fn mqtt_3_8_3_3_no_local_keeps_a_clients_own_messages_from_it() {
    let broker = Broker::start();
    let mut client = Client::new(&broker, 5);
    client.subscribe(&[("t", 1 | NO_LOCAL), ("u", 1)]);
    client.publish(Publish { topic: "t", payload: "own", qos: 1, ..Publish::default() });
    client.expect_nothing();
    Client::new(&broker, 5).say("t", "foreign");
    client.expect_message("foreign");
}

#[test]
fn v3_clients_hear_themselves() {
    let broker = Broker::start();
    let mut client = Client::subscribed(&broker, 4, "t", 0);
    client.publish(Publish { topic: "t", payload: "own", ..Publish::default() });
    client.expect_message("own");
}

#[test]
fn mqtt_3_8_3_4_no_local_on_a_shared_subscription_is_a_protocol_error() {
    let broker = Broker::start();
    let mut client = Client::new(&broker, 5);
    let (_, bytes) = client.encode_subscribe(&[("$share/g/t", NO_LOCAL)], &[]);
    client.send(&bytes);
    client.expect_disconnect(&[0x82]);
}

/// Section 4.8.2: each message goes to one member of the group, and to everybody else.
#[test]
fn mqtt_4_8_2_a_shared_subscription_brings_each_message_to_one_member() {
    let broker = Broker::start();
    let mut publisher = Client::new(&broker, 5);
    publisher.retain("t", "retained");
    let mut members: Vec<_> = (0..3).map(|_| Client::subscribed(&broker, 5, "$share/g/t", 1)).collect();
    members.iter_mut().for_each(Client::expect_nothing); // no retained messages
    let mut other_group = Client::subscribed(&broker, 4, "$share/h/t", 1);
    let mut alone = Client::new(&broker, 5);
    alone.subscribe(&[("t", 1 | 0x20)]);
    let sent: Vec<_> = (10..40).map(|number| number.to_string()).collect();
    for payload in &sent {
        publisher.say("t", payload);
    }
    let shares: Vec<_> = members.iter_mut().map(Client::payloads).collect();
    let mut all = shares.concat();
    all.sort();
    assert_eq!(all, sent);
    assert!(shares.iter().all(|share| share.is_sorted()), "{shares:?}");
    assert_eq!(other_group.payloads(), sent);
    assert_eq!(alone.payloads(), sent);
    members.pop().unwrap().disconnect();
    members.pop().unwrap().unsubscribe(&["$share/g/t"]);
    publisher.say("t", "last");
    members[0].expect_message("last");
}

#[test]
fn mqtt_3_10_4_unsubscribe_is_answered_filter_by_filter() {
    let broker = Broker::start();
    for version in [4, 5] {
        let mut client = Client::new(&broker, version);
        client.subscribe(&[("a", 0), ("b/#", 0), ("c", 0)]);
        let codes = client.unsubscribe(&["a", "never", "b/#", "b/x"]);
        assert_eq!(codes, if version == 5 { vec![0, 0x11, 0, 0x11] } else { vec![] }, "[MQTT-3.11.3-1]");
        let mut publisher = Client::new(&broker, version);
        for topic in ["a", "b/x", "c"] {
            publisher.say(topic, topic);
        }
        client.expect_message("c"); // and nothing before it [MQTT-3.10.4-2]
        client.expect_nothing();
    }
}

/// Section 3.10.4: what has begun ends.
#[test]
fn mqtt_3_10_4_3_unsubscribe_completes_what_is_under_way() {
    let broker = Broker::start();
    let mut client = Client::subscribed(&broker, 5, "t", 2);
    Client::new(&broker, 5).publish(Publish { topic: "t", payload: "m", qos: 2, ..Publish::default() });
    let message = client.expect(kind::PUBLISH);
    client.unsubscribe(&["t"]);
    client.acknowledge(&message);
    client.expect_nothing();
}

#[test]
fn subscription_identifiers_are_checked() {
    let broker = Broker::start();
    for list in [vec![variable(property::SUBSCRIPTION_ID, 0)], vec![variable(property::SUBSCRIPTION_ID, 1); 2]] {
        let mut client = Client::new(&broker, 5);
        let (_, bytes) = client.encode_subscribe(&[("t", 0)], &list);
        client.send(&bytes);
        client.expect_disconnect(&[0x81, 0x82]);
    }
}

/// Very deep and very long names and filters are taken or refused, and disturb nobody (CVE-2019-11779 and its like).
#[test]
fn deep_and_long_topics_are_taken_or_refused_in_order() {
    let broker = Broker::start();
    let deep = "a/".repeat(32_767);
    let (slashes, wild, long) = ("/".repeat(65_535), "+/".repeat(32_767) + "#", "l".repeat(65_535));
    for version in [4, 5] {
        for topic in [deep.as_str(), &slashes, &long] {
            let mut publisher = Client::new(&broker, version);
            publisher.send(&Publish { topic, payload: "m", qos: 1, id: 1, retain: true, ..Publish::default() }.encode(version));
            let answer = publisher.receive_within(std::time::Duration::from_secs(20)).expect("an answer or the end");
            let taken = answer.is_some_and(|answer| answer.kind == kind::PUBACK && answer.reason < 0x80);
            assert_eq!(taken, topic == long, "version {version}: one long level is a topic, thousands of levels are not");
        }
        for filter in [deep.as_str(), &slashes, &wild] {
            let mut client = Client::new(&broker, version);
            let codes = client.try_subscribe(&[(filter, 0)], &[]);
            assert!(codes[0] >= 0x80, "version {version}");
            client.expect_nothing();
        }
        Client::subscribed(&broker, version, &long, 0).expect_message("m");
    }
}
