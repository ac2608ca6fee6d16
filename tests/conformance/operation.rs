//! What an operator relies on: limits hold, one client's trouble is its own, a stop is said.

use std::time::{Duration, Instant};

use crate::broker::Broker;
use crate::client::{Client, Connect, Publish};

/// Section 3.14.2.1: Server shutting down.
#[test]
fn a_stop_is_said_to_those_who_can_hear_it() {
    let broker = Broker::start();
    let mut clients = [3, 4, 5].map(|version| Client::new(&broker, version));
    broker.stop();
    for client in &mut clients {
        client.expect_disconnect(&[0x8b]);
    }
}

#[test]
fn a_client_beyond_max_connections_is_refused_and_disturbs_nobody() {
    let broker = Broker::with(|config| config.listeners[0].max_connections = Some(2));
    let mut first = Client::new(&broker, 4);
    let second = Client::new(&broker, 5);
    let mut third = Client::open(&broker, 4);
    third.send(&Connect::new(4).encode());
    assert_ne!(third.expect_end().reason, Some(0));
    first.expect_nothing();
    second.disconnect();
    // The place is free once the broker has put the connection away, which its end does not show.
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        let mut late = Client::open(&broker, 4);
        late.send(&Connect::new(4).encode());
        match late.receive_within(Duration::from_secs(20)).expect("an answer or the end") {
            Some(connack) => break assert_eq!(connack.reason, 0),
            None => assert!(Instant::now() < deadline, "the place stays taken"),
        }
    }
}

/// What does not fit into an absent client's queue is dropped; what is there stays, in its order.
#[test]
fn the_queue_of_an_absent_client_is_bounded() {
    let broker = Broker::with(|config| config.limits.max_queued_messages = 5);
    let session = Connect::new(5).resume(300);
    let mut away = Client::connect(&broker, &session);
    away.subscribe(&[("t", 1)]);
    away.disconnect();
    let mut publisher = Client::new(&broker, 5);
    for number in 0..20 {
        publisher.say("t", &number.to_string());
    }
    let payloads = Client::connect(&broker, &session).payloads();
    assert_eq!(payloads.len(), 5, "{payloads:?}");
    assert!(payloads.iter().map(|payload| payload.parse::<u8>().unwrap()).is_sorted(), "{payloads:?}");
}

/// A subscriber that does not read holds up neither the publisher nor its neighbour.
#[test]
fn a_stalled_reader_is_alone_with_its_loss() {
    const MESSAGES: usize = 400;
    let broker = Broker::start();
    let mut stalled = Client::subscribed(&broker, 5, "t", 0);
    let mut healthy = Client::subscribed(&broker, 5, "t", 1);
    let mut publisher = Client::new(&broker, 5);
    let body = "x".repeat(100_000);
    for number in 0..MESSAGES {
        let payload = format!("{number}:{body}");
        publisher.publish(Publish { topic: "t", payload: &payload, qos: 1, ..Publish::default() });
        healthy.expect_message(&payload);
    }
    // What it was sent is whole and in order; 40 MB were not kept for it.
    let numbers: Vec<usize> =
        stalled.messages().iter().map(|message| message.text().split_once(':').unwrap().0.parse().unwrap()).collect();
    assert!(numbers.is_sorted() && numbers.len() < MESSAGES, "{numbers:?}");
    publisher.say("t", "after");
    stalled.expect_message("after");
}

/// Two clients that fight over one name cost each other their connections and some time, and nobody else anything.
#[test]
fn a_war_over_a_client_id_is_between_the_two() {
    let broker = Broker::start();
    let mut bystander = Client::subscribed(&broker, 4, "t", 0);
    let mut present = Client::connect(&broker, &Connect::new(5).id("contested"));
    let begin = Instant::now();
    for _ in 0..30 {
        let next = Client::connect(&broker, &Connect::new(5).id("contested"));
        present.expect_disconnect(&[0x8e]);
        present = next;
    }
    assert!(begin.elapsed() >= Duration::from_secs(1), "they fight on and on: {:?}", begin.elapsed());
    present.say("t", "still here");
    bystander.expect_message("still here");
}
