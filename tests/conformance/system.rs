//! What the broker says of itself: `$SYS/broker`, where clients go when it stops, what stands in front of response topics.

use std::collections::BTreeMap;

use crate::broker::Broker;
use crate::client::{Client, Connect};
use crate::wire::*;

/// What is retained at these topics below `$SYS/broker`.
fn status(broker: &Broker, topics: &[&str]) -> Vec<String> {
    let mut client = Client::new(broker, 5);
    topics
        .iter()
        .map(|topic| {
            client.subscribe(&[(&format!("$SYS/broker/{topic}"), 0)]);
            client.expect(kind::PUBLISH).text().to_owned()
        })
        .collect()
}

#[test]
fn the_broker_status_has_mosquittos_names() {
    let broker = Broker::with(|config| config.sys_interval = 1);
    let mut watcher = Client::new(&broker, 5);
    watcher.subscribe(&[("$SYS/broker/publish/messages/received", 0), ("$SYS/broker/retained messages/count", 0)]);
    let mut publisher = Client::new(&broker, 5);
    for number in 0..5 {
        publisher.retain(&format!("t/{number}"), "retained");
    }
    let mut seen = BTreeMap::new();
    while seen.values().any(|value| value != "5") || seen.len() < 2 {
        let message = watcher.receive();
        seen.insert(message.topic.clone(), message.text().to_owned());
    }
    let [version, uptime] = &status(&broker, &["version", "uptime"])[..] else { panic!() };
    assert!(version.starts_with("mqtt-st-quic version "), "{version}");
    assert!(uptime.ends_with(" seconds"), "{uptime}");
    let numbers = [
        "clients/connected",
        "clients/total",
        "clients/maximum",
        "clients/disconnected",
        "clients/expired",
        "messages/received",
        "messages/sent",
        "messages/stored",
        "publish/messages/sent",
        "publish/messages/dropped",
        "publish/bytes/received",
        "publish/bytes/sent",
        "bytes/received",
        "bytes/sent",
        "subscriptions/count",
        "shared_subscriptions/count",
        "store/messages/count",
        "store/messages/bytes",
        "load/messages/received/1min",
        "load/publish/sent/5min",
        "load/bytes/sent/15min",
        "load/connections/1min",
        "load/sockets/15min",
    ];
    for (topic, value) in numbers.iter().zip(status(&broker, &numbers)) {
        assert!(value.parse::<f64>().is_ok(), "{topic} is {value}");
    }
}

#[test]
fn the_broker_status_can_be_turned_off() {
    let broker = Broker::with(|config| config.sys_interval = 0);
    let mut watcher = Client::subscribed(&broker, 5, "$SYS/broker/#", 0);
    watcher.expect_nothing();
}

/// MQTT 5.0 section 4.11: with a reference clients are sent there when the broker stops.
#[test]
fn a_stop_may_send_clients_to_another_server() {
    let broker = Broker::with(|config| config.server_reference = Some("elsewhere.example:1883".to_owned()));
    let mut client = Client::new(&broker, 5);
    let mut narrow = Client::connect(&broker, &Connect::new(5).with(four(property::MAXIMUM_PACKET_SIZE, 20)));
    let mut old = Client::new(&broker, 4);
    broker.stop();
    let end = client.expect_end();
    let last = end.packets.last().expect("a DISCONNECT");
    assert_eq!(last.reason, 0x9c);
    assert_eq!(last.all(property::SERVER_REFERENCE), [&Value::Text("elsewhere.example:1883".into())]);
    let end = narrow.expect_end();
    let last = end.packets.last().expect("a DISCONNECT");
    assert!(last.reason == 0x9c && last.bytes <= 20 && last.properties.is_empty(), "[MQTT-3.1.2-24]: {last:?}");
    old.expect_disconnect(&[]);
}

/// What a client asks for and the operator has configured, and no other.
#[test]
fn mqtt_3_1_2_28_response_information_is_for_those_who_ask() {
    const RESPONSE_INFORMATION: u8 = 0x1a;
    let broker = Broker::with(|config| config.response_information = Some("answers/%c/".to_owned()));
    let asks = |value: u8| Connect::new(5).id("me").with(byte(property::REQUEST_RESPONSE_INFORMATION, value));
    let told = |connect: &Connect| {
        let client = Client::connect(&broker, connect);
        let told: Vec<_> = client.connack.all(RESPONSE_INFORMATION).into_iter().cloned().collect();
        client.disconnect();
        told
    };
    assert_eq!(told(&asks(1)), [Value::Text("answers/me/".into())]);
    assert_eq!(told(&asks(0)), []);
    assert_eq!(told(&Connect::new(5)), []);
    assert_eq!(told(&asks(1).with(four(property::MAXIMUM_PACKET_SIZE, 20))), [], "it gives way to the packet size");
    let silent = Broker::start();
    assert!(Client::connect(&silent, &asks(1)).connack.all(RESPONSE_INFORMATION).is_empty());
}
