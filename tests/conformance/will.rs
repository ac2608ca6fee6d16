//! Wills (MQTT 5.0 section 3.1.2.5).

use std::time::{Duration, Instant};

use crate::broker::Broker;
use crate::client::{Client, Connect, Will};
use crate::wire::*;

#[test]
fn mqtt_3_1_2_8_a_lost_connection_publishes_the_will() {
    let broker = Broker::start();
    for version in [3, 4, 5] {
        let mut watcher = Client::subscribed(&broker, 5, "will", 2);
        for qos in [0, 1, 2] {
            let will = Will { qos, ..Will::new("will", "gone") };
            Client::connect(&broker, &Connect::new(version).will(will)).lose();
            let message = watcher.expect_message("gone");
            assert_eq!((message.qos(), message.retain()), (qos, false));
        }
    }
}

#[test]
fn mqtt_3_1_2_10_disconnect_takes_the_will_away() {
    let broker = Broker::start();
    for version in [3, 4, 5] {
        let mut watcher = Client::subscribed(&broker, version, "will", 0);
        Client::connect(&broker, &Connect::new(version).will(Will::new("will", "gone"))).disconnect();
        Client::new(&broker, version).say("will", "after");
        watcher.expect_message("after");
    }
}

#[test]
fn mqtt_3_14_4_3_disconnect_with_will_message_publishes_it() {
    let broker = Broker::start();
    let mut watcher = Client::subscribed(&broker, 5, "will", 0);
    Client::connect(&broker, &Connect::new(5).will(Will::new("will", "kept"))).disconnect_with(0x04, &[]);
    watcher.expect_message("kept");
    Client::connect(&broker, &Connect::new(5).will(Will::new("will", "dropped"))).disconnect_with(0x00, &[]);
    Client::new(&broker, 5).say("will", "after");
    watcher.expect_message("after");
}

#[test]
fn a_protocol_error_publishes_the_will() {
    let broker = Broker::start();
    for version in [4, 5] {
        let mut watcher = Client::subscribed(&broker, version, "will", 0);
        let mut client = Client::connect(&broker, &Connect::new(version).will(Will::new("will", "gone")));
        client.send(&packet(kind::CONNACK, 0, &[0, 0]));
        client.expect_end();
        watcher.expect_message("gone");
    }
}

#[test]
fn mqtt_3_1_2_15_a_will_may_be_retained() {
    let broker = Broker::start();
    let mut watcher = Client::subscribed(&broker, 4, "will", 0);
    Client::connect(&broker, &Connect::new(4).will(Will { retain: true, ..Will::new("will", "gone") })).lose();
    assert!(!watcher.expect_message("gone").retain());
    let mut late = Client::subscribed(&broker, 4, "will", 0);
    assert!(late.expect_message("gone").retain());
}

#[test]
fn mqtt_3_1_4_3_a_takeover_publishes_the_will_unless_the_session_goes_on() {
    let broker = Broker::start();
    for (version, clean) in [(4, true), (4, false), (5, true), (5, false)] {
        let mut watcher = Client::subscribed(&broker, 5, "will", 0);
        let connect = Connect { clean, ..Connect::new(version).resume(60) };
        let _first = Client::connect(&broker, &connect.clone().will(Will::new("will", "gone")));
        let _second = Client::connect(&broker, &connect);
        watcher.expect_message("gone");
        watcher.expect_nothing();
    }
}

#[test]
fn mqtt_3_1_3_9_a_resumed_session_cancels_a_delayed_will() {
    let broker = Broker::start();
    let mut watcher = Client::subscribed(&broker, 5, "will", 0);
    let delayed = Will { properties: vec![four(property::WILL_DELAY, 1)], ..Will::new("will", "gone") };
    let session = Connect::new(5).resume(60);

    Client::connect(&broker, &session.clone().will(delayed.clone())).lose();
    let resumed = Client::connect(&broker, &session);
    std::thread::sleep(Duration::from_millis(1_500)); // the delay is in seconds
    watcher.expect_nothing();
    resumed.disconnect();

    let begin = Instant::now();
    Client::connect(&broker, &session.will(delayed)).lose();
    watcher.expect_message("gone");
    assert!(begin.elapsed() >= Duration::from_secs(1), "before its delay");
}

#[test]
fn the_will_is_due_at_the_latest_when_the_session_ends() {
    let broker = Broker::start();
    let mut watcher = Client::subscribed(&broker, 5, "will", 0);
    let delayed = Will { properties: vec![four(property::WILL_DELAY, 3_600)], ..Will::new("will", "gone") };

    Client::connect(&broker, &Connect::new(5).will(delayed.clone())).lose(); // ends with its connection
    watcher.expect_message("gone");

    let session = Connect::new(5).resume(60).will(delayed.clone());
    Client::connect(&broker, &session).lose();
    let _clean = Client::connect(&broker, &Connect { clean: true, will: None, ..session }); // ended by a clean start
    watcher.expect_message("gone");

    Client::connect(&broker, &Connect::new(5).resume(1).will(delayed)).lose(); // expires
    watcher.expect_message("gone");
}

#[test]
fn a_will_carries_its_properties() {
    let broker = Broker::start();
    let list = vec![
        byte(property::PAYLOAD_FORMAT, 1),
        four(property::MESSAGE_EXPIRY, 100),
        text(property::CONTENT_TYPE, "text/plain"),
        text(property::RESPONSE_TOPIC, "answers"),
        text(property::CORRELATION_DATA, "7"),
        user("k", "1"),
        user("k", "2"),
    ];
    let mut watcher = Client::subscribed(&broker, 5, "will", 0);
    Client::connect(&broker, &Connect::new(5).will(Will { properties: list.clone(), ..Will::new("will", "gone") })).lose();
    let message = watcher.expect_message("gone");
    for (id, value) in &list {
        match *id {
            property::MESSAGE_EXPIRY => assert!((99..=100).contains(&message.number(*id).unwrap()), "{message:?}"),
            _ => assert!(message.properties.contains(&(*id, value.clone())), "{id:#x} is missing from {message:?}"),
        }
    }
    assert_eq!(message.properties.len(), list.len());
}

#[test]
fn mqtt_3_1_2_5_will_properties_are_checked() {
    let broker = Broker::start();
    for list in [
        vec![four(property::WILL_DELAY, 1), four(property::WILL_DELAY, 1)],
        vec![byte(property::PAYLOAD_FORMAT, 2)],
        vec![two(property::RECEIVE_MAXIMUM, 5)],
        vec![text(property::RESPONSE_TOPIC, "a/#")],
    ] {
        let mut client = Client::open(&broker, 5);
        client.send(&Connect::new(5).will(Will { properties: list.clone(), ..Will::new("will", "w") }).encode());
        let end = client.expect_end();
        assert!(matches!(end.reason, None | Some(0x81 | 0x82 | 0x90)), "{list:?}: {end:?}");
    }
}

/// A DISCONNECT that the broker has not read yet when the client's next connection takes over takes the will away all the same.
#[test]
fn a_goodbye_just_before_a_takeover_takes_the_will_away() {
    let broker = Broker::start();
    let mut watcher = Client::subscribed(&broker, 5, "will", 0);
    for round in 0..60 {
        let connect = if round % 2 == 0 { Connect::new(5).id("hasty").resume(60) } else { Connect::new(4).id("hasty") };
        let mut first = Client::connect(&broker, &connect.clone().will(Will::new("will", "gone")));
        first.send(&packet(kind::PINGREQ, 0, &[]));
        first.send(&packet(kind::DISCONNECT, 0, &[]));
        Client::connect(&broker, &connect).disconnect();
        first.expect_end();
    }
    watcher.expect_nothing();
}

#[test]
fn mqtt_3_1_2_14_a_will_is_not_retained_unless_it_says_so() {
    let broker = Broker::start();
    let mut watcher = Client::subscribed(&broker, 4, "will", 0);
    Client::connect(&broker, &Connect::new(5).will(Will::new("will", "gone"))).lose();
    watcher.expect_message("gone");
    Client::subscribed(&broker, 4, "will", 0).expect_nothing();
}
