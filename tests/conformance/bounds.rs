//! What clients may take, each and all of them together, and what becomes of the rest.

use std::num::NonZeroU64;
use std::time::{Duration, Instant};

use mqtt_st_quic::config::{Limits, Listener, QueueDrop};

use crate::broker::Broker;
use crate::client::{Client, Connect, Publish};
use crate::wire::*;

fn limited(change: impl FnOnce(&mut Limits)) -> Broker {
    Broker::with(|config| change(&mut config.limits))
}

fn listening(change: impl FnOnce(&mut Listener)) -> Broker {
    Broker::with(|config| change(&mut config.listeners[0]))
}

/// Publishes that go out as one write.
fn burst(client: &Client, count: u16) -> Vec<u8> {
    let publish =
        |id: u16| Publish { topic: "t", payload: &id.to_string(), qos: 1, id, ..Publish::default() }.encode(client.version);
    (1..=count).flat_map(publish).collect()
}

/// The answers to [`burst`], and to what was asked behind it.
fn take_answers(client: &mut Client, count: u16) {
    for id in 1..=count {
        assert_eq!(client.expect(kind::PUBACK).id, id);
    }
    client.expect_nothing();
}

/// It is not told, not refused anything, and not closed for the silence that is not its own.
#[test]
fn a_client_above_its_message_rate_is_read_from_later() {
    let broker = limited(|limits| limits.max_message_rate = NonZeroU64::new(50));
    let mut subscriber = Client::subscribed(&broker, 5, "t", 0);
    let mut client = Client::connect(&broker, &Connect::new(5).keep_alive(1));
    let start = Instant::now();
    client.send(&burst(&client, 200));
    take_answers(&mut client, 200);
    // Fifty at once, and a hundred and fifty in three seconds.
    assert!(start.elapsed() >= Duration::from_millis(2_900), "{:?}", start.elapsed());
    assert_eq!(subscriber.take_messages(200), (1..=200).map(|id| id.to_string()).collect::<Vec<_>>());
}

/// A packet that comes in many parts is paced while it comes.
#[test]
fn a_client_above_its_byte_rate_is_read_from_later() {
    let broker = listening(|listener| listener.max_byte_rate = NonZeroU64::new(64 * 1024));
    let mut client = Client::new(&broker, 4);
    let (start, payload) = (Instant::now(), "x".repeat(192 * 1024));
    client.say("t", &payload);
    client.expect_nothing();
    assert!(start.elapsed() >= Duration::from_millis(1_900), "{:?}", start.elapsed());
}

#[test]
fn all_clients_of_a_listener_share_its_rate() {
    let broker = listening(|listener| listener.total_message_rate = NonZeroU64::new(100));
    let (mut one, mut other) = (Client::new(&broker, 5), Client::new(&broker, 4));
    let start = Instant::now();
    for client in [&mut one, &mut other] {
        client.send(&burst(client, 150));
    }
    for client in [&mut one, &mut other] {
        take_answers(client, 150);
    }
    assert!(start.elapsed() >= Duration::from_millis(1_900), "{:?}", start.elapsed());
}

#[test]
fn a_storm_of_connections_is_let_in_at_the_listeners_rate() {
    let broker = listening(|listener| listener.max_connection_rate = NonZeroU64::new(20));
    let start = Instant::now();
    let storm: Vec<_> = (0..60)
        .map(|_| {
            let mut client = Client::open(&broker, 5);
            client.send(&Connect::new(5).encode());
            client
        })
        .collect();
    for mut client in storm {
        assert_eq!(client.expect(kind::CONNACK).reason, 0);
    }
    assert!(start.elapsed() >= Duration::from_millis(1_900), "{:?}", start.elapsed());
}

/// What waits for a client that is away, when eight messages came and five may wait.
fn waits(broker: &Broker, version: u8, qos: u8) -> Vec<String> {
    let connect = Connect::new(version).resume(60);
    let mut away = Client::connect(broker, &connect);
    away.subscribe(&[("t", qos)]);
    away.disconnect();
    let mut publisher = Client::new(broker, 5);
    for n in 1..=8 {
        publisher.publish(Publish { topic: "t", payload: &n.to_string(), qos, ..Publish::default() });
    }
    publisher.expect_nothing();
    Client::connect(broker, &connect).payloads()
}

#[test]
fn a_full_queue_gives_way_at_the_chosen_end() {
    for (queue_drop, kept) in [(QueueDrop::Newest, ["1", "2", "3", "4", "5"]), (QueueDrop::Oldest, ["4", "5", "6", "7", "8"])] {
        let broker = limited(|limits| (limits.queue_drop, limits.max_queued_messages) = (queue_drop, 5));
        for version in [4, 5] {
            assert_eq!(waits(&broker, version, 1), kept, "{queue_drop:?}");
        }
    }
}

#[test]
fn qos_0_waits_for_a_client_that_is_away_only_if_that_was_asked_for() {
    let broker = limited(|limits| limits.max_queued_messages = 5);
    assert_eq!(waits(&broker, 4, 0), [""; 0]);
    let broker = limited(|limits| (limits.queue_qos0_messages, limits.max_queued_messages) = (true, 5));
    assert_eq!(waits(&broker, 4, 0), ["1", "2", "3", "4", "5"]);
    assert_eq!(waits(&broker, 5, 0), ["1", "2", "3", "4", "5"]);
}

#[test]
fn bytes_in_flight_are_bounded_but_for_one_message() {
    let broker = limited(|limits| limits.max_inflight_bytes = 1_000);
    let mut subscriber = Client::subscribed(&broker, 5, "t", 1);
    let mut publisher = Client::new(&broker, 5);
    let large = "x".repeat(5_000);
    let small = "y".repeat(600);
    for payload in [&large, &small, &small, &small] {
        publisher.say("t", payload);
    }
    let take = |subscriber: &mut Client, payload: &str| {
        let message = subscriber.expect(kind::PUBLISH);
        assert_eq!(message.text(), payload);
        message
    };
    let first = take(&mut subscriber, &large);
    subscriber.expect_nothing();
    subscriber.acknowledge(&first);
    let second = take(&mut subscriber, &small);
    take(&mut subscriber, &small);
    subscriber.expect_nothing();
    subscriber.acknowledge(&second);
    take(&mut subscriber, &small);
}

/// A message that is refused by closing was not taken: the client sends it again, and it arrives, once.
#[test]
fn what_was_refused_by_closing_may_come_again() {
    let broker = Broker::start();
    let mut subscriber = Client::subscribed(&broker, 5, "t", 2);
    let session = Connect::new(5).resume(60);
    let mut client = Client::connect(&broker, &session);
    let large: Vec<_> = (0..3).map(|_| user("name", &"x".repeat(30_000))).collect();
    client.send(&Publish { topic: "t", payload: "too large", qos: 2, id: 7, properties: &large, ..Publish::default() }.encode(5));
    client.expect_disconnect(&[0x97]);
    let mut client = Client::connect(&broker, &session);
    assert!(client.connack.session_present);
    client.send(&Publish { topic: "t", payload: "again", qos: 2, id: 7, dup: true, ..Publish::default() }.encode(5));
    assert_eq!(client.expect(kind::PUBREC).id, 7);
    subscriber.expect_message("again");
}

/// Nobody else wakes the connection: it must notice by itself that its pause is over.
#[test]
fn who_was_paused_is_read_from_again_and_again() {
    let broker = limited(|limits| limits.max_message_rate = NonZeroU64::new(40));
    for version in [4, 5] {
        let mut client = Client::new(&broker, version);
        for _ in 0..3 {
            client.send(&burst(&client, 45));
            take_answers(&mut client, 45);
        }
    }
}

/// One client that sends far more than all may together: the others are not deaf for it, and hear of what it sends no faster than the rate.
#[test]
fn one_client_cannot_use_up_what_all_share_for_long() {
    let broker = listening(|listener| listener.total_message_rate = NonZeroU64::new(100));
    let mut subscriber = Client::subscribed(&broker, 4, "t", 0);
    let mut bystander = Client::connect(&broker, &Connect::new(5).keep_alive(3));
    let mut hog = Client::new(&broker, 4);
    let start = Instant::now();
    hog.send(&Publish { topic: "t", ..Publish::default() }.encode(4).repeat(13_000));
    for _ in 0..50 {
        subscriber.expect_message("");
    }
    for _ in 0..5 {
        bystander.expect_nothing();
        bystander.say("other", "m");
    }
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
    // A second's worth at once, then the rate; a pause is a little longer than it must be.
    let mut count = 50;
    while start.elapsed() < Duration::from_secs(4) {
        count += usize::from(subscriber.receive_within(Duration::from_millis(100)).is_some());
    }
    let most = 100 * (start.elapsed().as_secs() as usize + 3);
    assert!(count <= most, "{count} messages, {most} would be right");
}
