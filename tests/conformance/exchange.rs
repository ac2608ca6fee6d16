//! Exchanges step by step (MQTT 5.0 sections 4.3, 4.4, 4.6 and 4.8.2): what a receiver may answer, and what comes of a wrong answer.

use std::time::Duration;

use crate::broker::Broker;
use crate::client::{Client, Connect, Publish};
use crate::wire::*;

/// One message of this QoS on its way to the client, not acknowledged.
fn open(broker: &Broker, client: &mut Client, qos: u8) -> Received {
    client.subscribe(&[("t", qos)]);
    let reason = Client::new(broker, 5).publish(Publish { topic: "t", payload: "m", qos, ..Publish::default() });
    assert_eq!(reason, 0);
    client.expect(kind::PUBLISH)
}

/// PUBACK, PUBREC, PUBREL or PUBCOMP with a reason.
fn refusal(kind: u8, id: u16, reason: u8) -> Vec<u8> {
    packet(kind, 0, &[id.to_be_bytes().to_vec(), vec![reason]].concat())
}

/// A message is answered with the packet that its QoS asks for; another one is a protocol error.
#[test]
fn mqtt_3_3_4_1_an_answer_of_another_qos_is_a_protocol_error() {
    let broker = Broker::start();
    for version in [4, 5] {
        for (qos, steps) in [
            (1, &[kind::PUBREC][..]),
            (1, &[kind::PUBCOMP]),
            (2, &[kind::PUBACK]),
            (2, &[kind::PUBCOMP]),
            (2, &[kind::PUBREC, kind::PUBACK]),
        ] {
            println!("version {version}, QoS {qos}: {steps:?}");
            let mut client = Client::new(&broker, version);
            let message = open(&broker, &mut client, qos);
            let (last, before) = steps.split_last().unwrap();
            for step in before {
                client.send(&ack(*step, message.id));
                assert_eq!(client.expect(kind::PUBREL).id, message.id);
            }
            client.send(&ack(*last, message.id));
            client.expect_disconnect(&[0x82]);
        }
    }
}

/// A refused message is acknowledged all the same: it does not come again.
#[test]
fn mqtt_4_4_0_2_a_refused_message_is_not_sent_again() {
    let broker = Broker::start();
    for (qos, answer) in [(1, kind::PUBACK), (2, kind::PUBREC)] {
        let session = Connect::new(5).resume(60);
        let mut client = Client::connect(&broker, &session);
        let message = open(&broker, &mut client, qos);
        client.send(&refusal(answer, message.id, 0x83));
        client.expect_nothing(); // no PUBREL either [MQTT-4.3.3-4]
        client.lose();
        let mut client = Client::connect(&broker, &session);
        assert!(client.connack.session_present);
        client.expect_nothing();
    }
}

/// After PUBACK an identifier is free, whatever DUP says.
#[test]
fn mqtt_4_3_2_5_after_puback_the_same_identifier_is_a_new_message() {
    let broker = Broker::start();
    for version in [4, 5] {
        let mut subscriber = Client::subscribed(&broker, version, "t", 0);
        let mut publisher = Client::new(&broker, version);
        for dup in [false, true] {
            publisher.send(&Publish { topic: "t", payload: "m", qos: 1, id: 7, dup, ..Publish::default() }.encode(version));
            assert_eq!(publisher.expect(kind::PUBACK).id, 7);
            subscriber.expect_message("m");
        }
    }
}

/// After a PUBREC that refuses, an identifier is free.
#[test]
fn mqtt_4_3_3_9_after_a_refusal_the_same_identifier_is_a_new_message() {
    let broker = Broker::start();
    let mut subscriber = Client::subscribed(&broker, 5, "t", 0);
    let mut publisher = Client::new(&broker, 5);
    publisher.send(&Publish { topic: "$SYS/forged", payload: "x", qos: 2, id: 7, ..Publish::default() }.encode(5));
    let refused = publisher.expect(kind::PUBREC);
    assert!(refused.id == 7 && refused.reason >= 0x80, "{refused:?}");
    publisher.send(&Publish { topic: "t", payload: "m", qos: 2, id: 7, ..Publish::default() }.encode(5));
    let taken = publisher.expect(kind::PUBREC);
    assert!(taken.id == 7 && taken.reason == 0, "{taken:?}");
    subscriber.expect_message("m");
}

/// PUBRELs go out in the order in which PUBRECs came, whatever the order of the messages was.
#[test]
fn mqtt_4_6_0_4_pubrels_keep_the_order_of_the_pubrecs() {
    let broker = Broker::start();
    let mut client = Client::subscribed(&broker, 5, "t", 2);
    let mut publisher = Client::new(&broker, 5);
    for payload in ["1", "2", "3"] {
        publisher.publish(Publish { topic: "t", payload, qos: 2, ..Publish::default() });
    }
    let ids = [(); 3].map(|()| client.expect(kind::PUBLISH).id);
    let order = [ids[2], ids[0], ids[1]];
    client.send(&order.map(|id| ack(kind::PUBREC, id)).concat());
    assert_eq!(order.map(|_| client.expect(kind::PUBREL).id), order);
}

/// Two members of a group; which got the message, itself, the message, and the other.
fn shared(broker: &Broker, first: &Connect, second: &Connect) -> (usize, Client, Received, Client) {
    let mut members = [Client::connect(broker, first), Client::connect(broker, second)];
    members.iter_mut().for_each(|member| member.subscribe(&[("$share/g/t", 2)]));
    Client::new(broker, 5).publish(Publish { topic: "t", payload: "m", qos: 2, ..Publish::default() });
    // To a session that is kept it goes when it is safe on disk: no answer to anybody says that it has gone by now.
    let found = (0..1_000).map(|turn| turn % 2).find_map(|which| {
        let got = members[which].receive_within(Duration::from_millis(20))?;
        Some((which, got.expect("a member's connection")))
    });
    let (which, got) = found.expect("one of them gets it");
    assert_eq!(got.kind, kind::PUBLISH);
    let [first, second] = members;
    if which == 0 { (0, first, got, second) } else { (1, second, got, first) }
}

/// A QoS 2 exchange with a member that is lost goes on with this member.
#[test]
fn mqtt_4_8_2_4_a_shared_exchange_is_completed_with_the_same_member() {
    let broker = Broker::start();
    let sessions = [Connect::new(5).resume(60), Connect::new(5).resume(60)];
    let (which, chosen, message, mut other) = shared(&broker, &sessions[0], &sessions[1]);
    chosen.lose();
    other.expect_nothing();
    let mut back = Client::connect(&broker, &sessions[which]);
    let again = back.expect(kind::PUBLISH);
    assert!(again.id == message.id && again.dup() && again.text() == "m", "{again:?}");
    back.acknowledge(&again);
    other.expect_nothing();
}

/// Nor does another member get it when the session of the chosen one ends before it has completed.
#[test]
fn mqtt_4_8_2_5_a_message_of_a_session_that_ended_goes_to_no_other_member() {
    let broker = Broker::start();
    let (_, chosen, _, mut other) = shared(&broker, &Connect::new(5), &Connect::new(5));
    chosen.lose();
    other.expect_nothing();
}

/// Nor when the chosen one refuses it.
#[test]
fn mqtt_4_8_2_6_a_message_that_a_member_refuses_goes_to_no_other() {
    let broker = Broker::start();
    let (_, mut chosen, message, mut other) = shared(&broker, &Connect::new(5), &Connect::new(5));
    chosen.send(&refusal(kind::PUBREC, message.id, 0x80));
    chosen.expect_nothing();
    other.expect_nothing();
}

/// The members of a group each have their own granted QoS.
#[test]
fn mqtt_4_8_2_3_a_shared_subscription_keeps_to_its_qos() {
    let broker = Broker::start();
    let mut member = Client::subscribed(&broker, 5, "$share/g/t", 1);
    Client::new(&broker, 5).publish(Publish { topic: "t", payload: "m", qos: 2, ..Publish::default() });
    assert_eq!(member.expect_message("m").qos(), 1);
}

/// Names are compared byte by byte: neither case nor composition of characters is folded.
#[test]
fn mqtt_4_7_3_4_names_are_not_normalised() {
    let broker = Broker::start();
    let mut subscriber = Client::new(&broker, 5);
    subscriber.subscribe(&[("caf\u{e9}", 0), ("a/b", 0)]);
    let mut publisher = Client::new(&broker, 5);
    for topic in ["cafe\u{301}", "CAF\u{c9}", "A/b", "a//b", "a/b/", "/a/b"] {
        publisher.say(topic, "other");
    }
    publisher.say("caf\u{e9}", "same");
    subscriber.expect_message("same");
    subscriber.expect_nothing();
}
