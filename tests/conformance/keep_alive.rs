//! Keep alive (MQTT 5.0 section 3.1.2.10) and how long the broker waits for a client that says nothing.

use std::time::{Duration, Instant};

use crate::broker::Broker;
use crate::client::{Client, Connect, Publish, Will};
use crate::wire::*;

#[test]
fn mqtt_3_12_4_1_pingreq_is_answered() {
    let broker = Broker::start();
    for version in [3, 4, 5] {
        let mut client = Client::new(&broker, version);
        client.send(&packet(kind::PINGREQ, 0, &[]).repeat(3));
        (0..3).for_each(|_| drop(client.expect(kind::PINGRESP)));
    }
}

/// What the broker sends does not count, only what the client sends.
#[test]
fn mqtt_3_1_2_22_a_silent_client_is_closed_after_one_and_a_half_times_its_keep_alive() {
    let broker = Broker::start();
    let mut watcher = Client::subscribed(&broker, 5, "will", 0);
    for version in [4, 5] {
        let connect = Connect::new(version).keep_alive(1).will(Will::new("will", "gone"));
        let begin = Instant::now();
        let mut silent = Client::connect(&broker, &connect);
        silent.subscribe(&[("t", 0)]);
        let mut publisher = Client::new(&broker, version);
        let mut reason = None;
        loop {
            publisher.publish(Publish { topic: "t", payload: "m", ..Publish::default() });
            match silent.receive_within(Duration::from_millis(100)) {
                Some(None) => break,
                Some(Some(received)) if received.kind == kind::DISCONNECT => reason = Some(received.reason),
                // Five times and more what it may take.
                _ => assert!(begin.elapsed() < Duration::from_secs(10), "the broker keeps a silent client"),
            }
        }
        assert!(begin.elapsed() >= Duration::from_millis(1_500), "too early: after {:?}", begin.elapsed());
        assert_eq!(reason, (version == 5).then_some(0x8d), "section 3.14.2.1");
        watcher.expect_message("gone");
    }
}

#[test]
fn a_client_that_pings_stays() {
    let broker = Broker::start();
    let mut client = Client::connect(&broker, &Connect::new(4).keep_alive(1));
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_secs(3) {
        std::thread::sleep(Duration::from_millis(500)); // well within the keep alive
        client.expect_nothing();
    }
}

#[test]
fn mqtt_3_1_2_10_a_keep_alive_of_zero_is_none() {
    let broker = Broker::start();
    let mut client = Client::connect(&broker, &Connect::new(4).keep_alive(0));
    assert!(client.receive_within(Duration::from_secs(2)).is_none());
    client.expect_nothing();
}
