//! Topic aliases (MQTT 5.0 section 3.3.2.3.4).

use crate::broker::Broker;
use crate::client::{Client, Connect, Publish};
use crate::wire::*;

fn aliased(topic: &str, payload: &str, alias: u16) -> Vec<u8> {
    Publish { topic, payload, properties: &[two(property::TOPIC_ALIAS, alias)], ..Publish::default() }.encode(5)
}

#[test]
fn mqtt_3_3_2_12_an_alias_stands_for_its_topic_and_may_be_bound_anew() {
    let broker = Broker::start();
    let mut subscriber = Client::subscribed(&broker, 5, "+", 0);
    let mut publisher = Client::new(&broker, 5);
    let highest = publisher.connack.number(property::TOPIC_ALIAS_MAXIMUM).expect("aliases are offered") as u16;
    for (topic, alias, expected) in
        [("a", 1, "a"), ("", 1, "a"), ("b", highest, "b"), ("", highest, "b"), ("c", 1, "c"), ("", 1, "c"), ("", highest, "b")]
    {
        publisher.send(&aliased(topic, "m", alias));
        let message = subscriber.expect_message("m");
        assert_eq!(message.topic, expected);
        assert!(message.all(property::TOPIC_ALIAS).is_empty(), "the subscriber has allowed none [MQTT-3.1.2-26]");
    }
}

#[test]
fn mqtt_3_3_2_8_aliases_out_of_range_or_unknown_are_refused() {
    let broker = Broker::start();
    let highest = Client::new(&broker, 5).connack.number(property::TOPIC_ALIAS_MAXIMUM).expect("aliases are offered") as u16;
    for (why, topic, alias) in [("0", "t", 0), ("above the maximum", "t", highest + 1), ("never bound", "", highest)] {
        let mut client = Client::new(&broker, 5);
        client.send(&aliased(topic, why, alias));
        client.expect_disconnect(&[0x94, 0x82]);
    }
}

#[test]
fn mqtt_3_3_2_7_an_alias_dies_with_its_connection() {
    let broker = Broker::start();
    let mut subscriber = Client::subscribed(&broker, 5, "t", 0);
    let session = Connect::new(5).resume(300);
    let mut publisher = Client::connect(&broker, &session);
    publisher.send(&aliased("t", "bound", 1));
    subscriber.expect_message("bound");
    publisher.lose();
    let mut publisher = Client::connect(&broker, &session);
    publisher.send(&aliased("", "stale", 1));
    publisher.expect_disconnect(&[0x94, 0x82]);
    subscriber.expect_nothing();
}

#[test]
fn mqtt_3_3_2_aliases_of_one_client_are_not_anothers() {
    let broker = Broker::start();
    let mut subscriber = Client::subscribed(&broker, 5, "+", 0);
    let (mut first, mut second) = (Client::new(&broker, 5), Client::new(&broker, 5));
    first.send(&aliased("first", "1", 1));
    subscriber.expect_message("1");
    second.send(&aliased("second", "2", 1));
    subscriber.expect_message("2");
    first.send(&aliased("", "3", 1));
    assert_eq!(subscriber.expect_message("3").topic, "first");
}

#[test]
fn a_topic_may_not_be_empty_without_an_alias() {
    let broker = Broker::start();
    for version in [4, 5] {
        let mut client = Client::new(&broker, version);
        client.send(&Publish { topic: "", payload: "m", ..Publish::default() }.encode(version));
        client.expect_disconnect(&[0x81, 0x82, 0x90]);
    }
}

/// Towards a client: the topic with its alias first, then the alias alone, as many as the client and `max_topic_alias_broker` allow.
#[test]
fn mqtt_3_1_2_26_the_broker_sets_no_more_aliases_than_the_client_takes() {
    let broker = Broker::with(|config| config.limits.max_topic_alias_broker = 2);
    for (takes, set) in [(0, 0), (1, 1), (2, 2), (9, 2)] {
        let mut subscriber = Client::connect(&broker, &Connect::new(5).with(two(property::TOPIC_ALIAS_MAXIMUM, takes)));
        subscriber.subscribe(&[("long/#", 2)]);
        let mut publisher = Client::new(&broker, 4);
        for round in 0..2 {
            for (number, topic) in ["long/a", "long/b", "long/c"].into_iter().enumerate() {
                let qos = (number + round) as u8 % 3;
                publisher.publish(Publish { topic, payload: topic, qos, ..Publish::default() });
                let message = subscriber.expect_message(topic);
                let alias = (number < set).then_some(number as u32 + 1);
                assert_eq!(message.number(property::TOPIC_ALIAS), alias, "client takes {takes}: {message:?}");
                let expected = if alias.is_some() && round > 0 { "" } else { topic };
                assert_eq!(message.topic, expected, "client takes {takes}");
            }
        }
    }
}

/// A session's aliases end with its connection, and what was queued meanwhile sets them anew.
#[test]
fn mqtt_3_3_2_7_the_brokers_aliases_die_with_the_connection() {
    let broker = Broker::start();
    let session = Connect::new(5).resume(60).with(two(property::TOPIC_ALIAS_MAXIMUM, 5));
    let mut subscriber = Client::connect(&broker, &session);
    subscriber.subscribe(&[("topic", 1)]);
    let mut publisher = Client::new(&broker, 5);
    publisher.say("topic", "set");
    assert_eq!(subscriber.expect_message("set").topic, "topic");
    subscriber.lose();
    publisher.say("topic", "queued");
    publisher.say("topic", "behind");
    let mut subscriber = Client::connect(&broker, &session);
    let first = subscriber.expect_message("queued");
    assert_eq!((first.topic.as_str(), first.number(property::TOPIC_ALIAS)), ("topic", Some(1)));
    let second = subscriber.expect_message("behind");
    assert_eq!((second.topic.as_str(), second.number(property::TOPIC_ALIAS)), ("", Some(1)));
}

/// A message that fits only without its alias goes without.
#[test]
fn an_alias_makes_no_packet_too_large() {
    let broker = Broker::start();
    let limits = [two(property::TOPIC_ALIAS_MAXIMUM, 5), four(property::MAXIMUM_PACKET_SIZE, 64)];
    let mut subscriber = Client::connect(&broker, &limits.into_iter().fold(Connect::new(5), Connect::with));
    subscriber.subscribe(&[("topic", 0)]);
    let mut publisher = Client::new(&broker, 5);
    let full = "m".repeat(64 - 2 - 7 - 1);
    publisher.say("topic", &full);
    let message = subscriber.expect_message(&full);
    assert_eq!((message.bytes, message.number(property::TOPIC_ALIAS)), (64, None));
    publisher.say("topic", "short");
    assert_eq!(subscriber.expect_message("short").number(property::TOPIC_ALIAS), Some(1));
    let too_long = "m".repeat(full.len() + 1);
    publisher.say("topic", &too_long);
    // The alias is shorter than the topic: now it fits.
    assert_eq!(subscriber.expect_message(&too_long).topic, "");
}
