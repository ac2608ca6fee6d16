//! Flow control and packet size: what either side allows the other (MQTT 5.0 sections 3.1.2.11, 3.2.2.3 and 4.9).

use std::collections::BTreeSet;

use crate::broker::Broker;
use crate::client::{Client, Connect, Publish};
use crate::wire::*;

/// The broker sends no more than the client's Receive Maximum, and PUBREL does not wait behind PUBLISHes for a place in it.
#[test]
fn mqtt_3_3_4_9_the_receive_maximum_of_the_client_is_kept() {
    let broker = Broker::start();
    for maximum in [1, 3] {
        let mut subscriber = Client::connect(&broker, &Connect::new(5).with(two(property::RECEIVE_MAXIMUM, maximum)));
        subscriber.subscribe(&[("t", 2)]);
        let mut publisher = Client::new(&broker, 5);
        let sent: Vec<_> = (0..8).map(|number| number.to_string()).collect();
        for payload in &sent {
            publisher.publish(Publish { topic: "t", payload, qos: 2, ..Publish::default() });
        }
        let (mut open, mut got) = (BTreeSet::new(), Vec::new());
        while got.len() < sent.len() || !open.is_empty() {
            // As much as comes without an answer, then one answer.
            for message in subscriber.messages() {
                got.push(message.text().to_owned());
                open.insert(message.id);
            }
            assert!(open.len() <= usize::from(maximum), "{} are open, {maximum} allowed", open.len());
            let id = *open.first().expect("nothing is open and nothing more comes");
            subscriber.send(&ack(kind::PUBREC, id));
            assert_eq!(subscriber.expect(kind::PUBREL).id, id);
            subscriber.send(&ack(kind::PUBCOMP, id));
            open.remove(&id);
        }
        assert_eq!(got, sent);
    }
}

/// Section 4.9: only QoS 1 and 2 are counted.
#[test]
fn mqtt_4_9_0_3_qos_0_goes_past_a_full_window() {
    let broker = Broker::start();
    let mut subscriber = Client::connect(&broker, &Connect::new(5).with(two(property::RECEIVE_MAXIMUM, 1)));
    subscriber.subscribe(&[("t", 1)]);
    let mut publisher = Client::new(&broker, 5);
    publisher.say("t", "fills the window");
    publisher.publish(Publish { topic: "t", payload: "passes", ..Publish::default() });
    publisher.expect_nothing();
    let first = subscriber.expect(kind::PUBLISH);
    assert_eq!(first.text(), "fills the window");
    assert_eq!(subscriber.expect(kind::PUBLISH).text(), "passes");
    subscriber.acknowledge(&first);
}

#[test]
fn mqtt_3_3_4_7_a_publisher_beyond_the_receive_maximum_is_disconnected() {
    let broker = Broker::start();
    let mut publisher = Client::new(&broker, 5);
    let maximum = publisher.connack.number(property::RECEIVE_MAXIMUM).expect("a bound below the default is announced") as u16;
    for id in 1..=maximum {
        publisher.send(&Publish { topic: "t", payload: "m", qos: 2, id, ..Publish::default() }.encode(5));
        let answer = publisher.expect(kind::PUBREC);
        assert!(answer.id == id && answer.reason < 0x80, "{answer:?}");
    }
    publisher.send(&Publish { topic: "t", payload: "m", qos: 2, id: maximum + 1, ..Publish::default() }.encode(5));
    publisher.expect_disconnect(&[0x93]);
}

/// [MQTT-2.2.1-4]: identifiers run round, past one that is still open.
#[test]
fn mqtt_2_2_1_4_an_open_packet_identifier_is_not_given_again() {
    const MESSAGES: usize = 70_000;
    let broker = Broker::start();
    let mut subscriber = Client::connect(&broker, &Connect::new(5).with(two(property::RECEIVE_MAXIMUM, 100)));
    subscriber.subscribe(&[("t", 1)]);
    let mut publisher = Client::new(&broker, 4);
    publisher.say("t", "stays open");
    let open = subscriber.expect(kind::PUBLISH);
    let mut next = 0;
    while next < MESSAGES {
        let batch = next..(next + 500).min(MESSAGES);
        let packets = batch.clone().map(|number| {
            Publish { topic: "t", payload: &number.to_string(), qos: 1, id: (number % 60_000 + 1) as u16, ..Publish::default() }
                .encode(4)
        });
        publisher.send(&packets.collect::<Vec<_>>().concat());
        for number in batch.clone() {
            let message = subscriber.expect(kind::PUBLISH);
            assert_ne!(message.id, open.id, "given again while open, at message {number}");
            assert_eq!(message.text(), number.to_string());
            subscriber.send(&ack(kind::PUBACK, message.id));
        }
        for _ in batch.clone() {
            publisher.expect(kind::PUBACK);
        }
        next = batch.end;
    }
}

#[test]
fn mqtt_3_1_2_24_a_message_beyond_the_clients_packet_size_is_not_sent() {
    let broker = Broker::start();
    let mut narrow = Client::connect(&broker, &Connect::new(5).with(four(property::MAXIMUM_PACKET_SIZE, 64)));
    narrow.subscribe(&[("t", 1)]);
    let mut wide = Client::subscribed(&broker, 5, "t", 1);
    let mut publisher = Client::new(&broker, 5);
    let (long, short) = ("l".repeat(100), "s".repeat(40));
    publisher.say("t", &long);
    publisher.say("t", &short);
    // It behaves as if the message had been sent [MQTT-3.1.2-25]: no identifier is left open, the next one comes.
    assert!(narrow.expect_message(&short).bytes <= 64);
    wide.expect_message(&long);
    wide.expect_message(&short);
}

#[test]
fn mqtt_3_2_2_15_a_packet_beyond_the_brokers_size_is_refused_by_its_header() {
    let broker = Broker::with(|config| config.limits.max_packet_size = 10_000);
    for version in [4, 5] {
        let mut client = Client::new(&broker, version);
        if version == 5 {
            assert_eq!(client.connack.number(property::MAXIMUM_PACKET_SIZE), Some(10_000));
        }
        client.send(&[0x30, 0xff, 0xff, 0xff, 0x7f]); // 256 MiB are announced and never come
        client.expect_disconnect(&[0x95]);
    }
    let mut client = Client::new(&broker, 5);
    let payload = "m".repeat(10_000 - 3 - 3 - 1);
    client.subscribe(&[("t", 0)]);
    client.publish(Publish { topic: "t", payload: &payload, ..Publish::default() });
    assert_eq!(client.expect_message(&payload).bytes, 10_000, "the largest that is allowed is taken");
}
