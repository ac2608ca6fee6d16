//! Session state, its expiry, and what is sent again (MQTT 5.0 sections 3.1.2.11.2, 4.1 and 4.4).

use std::time::Duration;

use crate::broker::Broker;
use crate::client::{Client, Connect, Publish, Will};
use crate::wire::*;

#[test]
fn mqtt_4_1_0_1_a_session_keeps_qos_1_and_2_while_its_client_is_away() {
    let broker = Broker::start();
    for version in [4, 5] {
        let session = Connect::new(version).resume(300);
        let mut client = Client::connect(&broker, &session);
        client.subscribe(&[("q/#", 2)]);
        client.disconnect();
        let mut publisher = Client::new(&broker, version);
        let sent: Vec<_> = (0..12).map(|number| (number.to_string(), 1 + number % 2)).collect();
        for (payload, qos) in &sent {
            publisher.publish(Publish { topic: "q/t", payload, qos: *qos, ..Publish::default() });
        }
        let mut client = Client::connect(&broker, &session);
        assert!(client.connack.session_present, "[MQTT-3.1.2-5]");
        let messages: Vec<_> = sent.iter().map(|_| client.expect(kind::PUBLISH)).collect();
        for (message, (payload, qos)) in messages.iter().zip(&sent) {
            assert_eq!((message.text(), message.qos()), (payload.as_str(), *qos), "in their order [MQTT-4.6.0-6]");
            assert!(!message.dup(), "never sent before [MQTT-3.3.1-1]");
            client.acknowledge(message);
        }
        client.expect_nothing();
    }
}

#[test]
fn mqtt_3_1_2_23_a_session_ends_with_its_expiry() {
    let broker = Broker::start();
    let id = "expiring";
    Client::connect(&broker, &Connect::new(5).id(id).resume(1)).lose();
    std::thread::sleep(Duration::from_millis(2_000)); // expiry is in seconds
    assert!(!Client::connect(&broker, &Connect::new(5).id(id).resume(0)).connack.session_present);
}

#[test]
fn an_absent_session_expiry_ends_the_session_with_the_connection() {
    let broker = Broker::start();
    let connect = Connect { clean: false, ..Connect::new(5) };
    Client::connect(&broker, &connect).disconnect();
    assert!(!Client::connect(&broker, &connect).connack.session_present);
}

#[test]
fn mqtt_3_14_2_2_2_disconnect_may_change_the_expiry() {
    let broker = Broker::start();
    let longer = Connect::new(5).resume(1);
    let shorter = Connect::new(5).resume(300);
    let ended = Connect::new(5).resume(300);
    Client::connect(&broker, &longer).disconnect_with(0, &[four(property::SESSION_EXPIRY, 300)]);
    Client::connect(&broker, &shorter).disconnect_with(0, &[four(property::SESSION_EXPIRY, 1)]);
    Client::connect(&broker, &ended).disconnect_with(0, &[four(property::SESSION_EXPIRY, 0)]);
    assert!(!Client::connect(&broker, &ended).connack.session_present, "300 -> 0");
    std::thread::sleep(Duration::from_millis(2_000));
    assert!(Client::connect(&broker, &longer).connack.session_present, "1 -> 300");
    assert!(!Client::connect(&broker, &shorter).connack.session_present, "300 -> 1");
}

#[test]
fn mqtt_3_14_2_2_2_disconnect_may_not_bring_an_expiry_back() {
    let broker = Broker::start();
    let mut watcher = Client::subscribed(&broker, 4, "will", 0);
    let connect = Connect::new(5).will(Will::new("will", "gone"));
    let mut client = Client::connect(&broker, &connect);
    client.send(&packet(kind::DISCONNECT, 0, &[vec![0], properties(&[four(property::SESSION_EXPIRY, 30)])].concat()));
    client.expect_disconnect(&[0x82]);
    watcher.expect_message("gone");
    assert!(!Client::connect(&broker, &Connect { clean: false, ..connect }).connack.session_present);
}

#[test]
fn mqtt_4_4_0_1_what_was_not_acknowledged_is_sent_again() {
    let broker = Broker::start();
    for version in [4, 5] {
        let session = Connect::new(version).resume(300);
        let mut client = Client::connect(&broker, &session);
        client.subscribe(&[("t", 2)]);
        let mut publisher = Client::new(&broker, version);
        for (payload, qos) in [("one", 1), ("two", 2), ("three", 1)] {
            publisher.publish(Publish { topic: "t", payload, qos, ..Publish::default() });
        }
        let first: Vec<_> = (0..3).map(|_| client.expect(kind::PUBLISH)).collect();
        client.lose();

        let mut client = Client::connect(&broker, &session);
        for before in &first {
            let again = client.expect(kind::PUBLISH); // in their order [MQTT-4.6.0-1]
            assert_eq!(
                (again.id, &again.payload, again.qos()),
                (before.id, &before.payload, before.qos()),
                "same id [MQTT-4.4.0-1]"
            );
            assert!(again.dup(), "[MQTT-3.3.1-1]");
        }
        client.expect_nothing();
        for message in &first {
            client.acknowledge(message);
        }
        client.lose();
        Client::connect(&broker, &session).expect_nothing();
    }
}

#[test]
fn mqtt_4_3_3_a_qos_2_exchange_goes_on_from_pubrel() {
    let broker = Broker::start();
    for version in [4, 5] {
        let session = Connect::new(version).resume(300);
        let mut client = Client::connect(&broker, &session);
        client.subscribe(&[("t", 2)]);
        let mut publisher = Client::new(&broker, version);
        publisher.publish(Publish { topic: "t", payload: "m", qos: 2, ..Publish::default() });
        let message = client.expect(kind::PUBLISH);
        client.send(&ack(kind::PUBREC, message.id));
        client.expect(kind::PUBREL);
        client.lose();

        let mut client = Client::connect(&broker, &session);
        let release = client.expect(kind::PUBREL);
        assert_eq!(release.id, message.id);
        client.send(&ack(kind::PUBCOMP, message.id));
        client.expect_nothing();
        client.lose();
        Client::connect(&broker, &session).expect_nothing();
    }
}

/// Nothing but a new connection makes the broker send again [MQTT-4.4.0-1].
#[test]
fn mqtt_4_4_0_1_nothing_is_sent_again_while_the_connection_lasts() {
    let broker = Broker::start();
    let mut client = Client::subscribed(&broker, 5, "t", 1);
    Client::new(&broker, 5).say("t", "m");
    client.expect(kind::PUBLISH);
    client.expect_nothing();
}

#[test]
fn mqtt_3_1_2_5_subscriptions_outlive_the_connection() {
    let broker = Broker::start();
    for version in [4, 5] {
        let session = Connect::new(version).resume(300);
        let mut client = Client::connect(&broker, &session);
        client.subscribe(&[("kept", 0), ("gone", 0)]);
        client.unsubscribe(&["gone"]);
        client.lose();
        let mut client = Client::connect(&broker, &session);
        let mut publisher = Client::new(&broker, version);
        publisher.say("gone", "no");
        publisher.say("kept", "yes");
        client.expect_message("yes");
    }
}

#[test]
fn v3_mqtt_3_1_2_6_a_clean_session_leaves_nothing() {
    let broker = Broker::start();
    let connect = Connect::new(4);
    let mut client = Client::connect(&broker, &connect);
    client.subscribe(&[("t", 1)]);
    client.disconnect();
    Client::new(&broker, 4).say("t", "for nobody");
    let mut again = Client::connect(&broker, &Connect { clean: false, ..connect });
    assert!(!again.connack.session_present);
    again.expect_nothing();
}

/// Resuming uses nothing up: neither window nor identifiers.
#[test]
fn a_session_still_delivers_after_fifty_resumes() {
    let broker = Broker::start();
    let session = Connect::new(5).resume(300).with(two(property::RECEIVE_MAXIMUM, 4));
    let mut client = Client::connect(&broker, &session);
    client.subscribe(&[("t", 2)]);
    let mut publisher = Client::new(&broker, 5);
    for payload in ["a", "b", "c", "d", "e", "f"] {
        publisher.publish(Publish { topic: "t", payload, qos: 2, ..Publish::default() });
    }
    for _ in 0..50 {
        let mut window: Vec<_> = (0..4).map(|_| client.expect(kind::PUBLISH).id).collect();
        window.sort_unstable();
        window.dedup();
        assert_eq!(window.len(), 4);
        client.lose();
        client = Client::connect(&broker, &session);
    }
    assert_eq!(client.take_messages(6), ["a", "b", "c", "d", "e", "f"]);
}
