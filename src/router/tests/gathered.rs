//! What is published together reaches everybody as what is published one by one.

use super::*;
use crate::session::Segment;

/// A client as it receives.
struct Receiver {
    filter: &'static str,
    version: ProtocolVersion,
    packet_bytes_max: usize,
    topic_alias_max: u16,
    subscription_id: Option<u32>,
    no_local: bool,
}

const PLAIN: Receiver = Receiver {
    filter: "#",
    version: ProtocolVersion::V5,
    packet_bytes_max: usize::MAX,
    topic_alias_max: 0,
    subscription_id: None,
    no_local: false,
};

const RECEIVERS: [Receiver; 8] = [
    PLAIN,
    Receiver { filter: "a", ..PLAIN },
    Receiver { version: ProtocolVersion::V3_1_1, ..PLAIN },
    Receiver { packet_bytes_max: 20, ..PLAIN },
    Receiver { topic_alias_max: 2, ..PLAIN },
    Receiver { subscription_id: Some(7), ..PLAIN },
    Receiver { no_local: true, ..PLAIN },
    // A group: it has one of them more, all by itself.
    Receiver { filter: "$share/g/b", ..PLAIN },
];

/// What each receiver is sent of `messages` (topic, payload, QoS), if a batch ends behind each of them, or only at the end; the first publishes.
fn sent(messages: &[(&str, Vec<u8>, QoS)], is_one_by_one: bool) -> Vec<Vec<u8>> {
    let mut bench = Bench::new();
    let connect = |(number, receiver): (usize, &Receiver)| {
        let Receiver { filter, version, packet_bytes_max, topic_alias_max, subscription_id, no_local } = *receiver;
        let request = ConnectRequest {
            client_id: &format!("c{number}"),
            clean_start: true,
            expiry: SessionExpiry::WithConnection,
            silence_max: None,
            will: None,
            connected: Connected { version, window: 1_000, packet_bytes_max, topic_alias_max },
            address: None,
            access: None,
        };
        let connection = bench.router.connect(&mut bench.batch, request, |_| Vec::new(), bench.now).unwrap();
        let options = SubscriptionOptions { qos: QoS::AtMostOnce, no_local, retain_as_published: true, subscription_id };
        bench.router.subscribe(&connection, &Subscribe { filter, options, retain_handling: RetainHandling::Send }).unwrap();
        connection
    };
    let clients: Vec<Connection> = RECEIVERS.iter().enumerate().map(connect).collect();
    for (topic, payload, qos) in messages {
        let message = Message { topic, payload, qos: *qos, retain: false, expires_at: None, properties: &[] };
        // Who wants nothing of its own back publishes, and so does another.
        let from = Ingress::Session(&clients[if payload.len() % 5 == 4 { 0 } else { 6 }].subscriber);
        bench.router.publish(&mut bench.batch, &mut bench.routes, &message, from, bench.now);
        if is_one_by_one {
            bench.router.finish(&mut bench.batch, bench.now);
        }
    }
    bench.router.finish(&mut bench.batch, bench.now);
    let metrics = bench.router.metrics();
    let counts = [&metrics.messages_sent, &metrics.payload_bytes_sent, &metrics.dropped_too_large, &metrics.dropped_qos0];
    let counts = counts.map(|counter| counter.value().to_be_bytes()).concat();
    let bytes_of = |client: &Connection| {
        let mut drained = Drained::default();
        client.subscriber.lock().outbox.take(&mut drained);
        let mut bytes: Vec<u8> = drained.segments.iter().flat_map(|segment: &Segment| segment.bytes().to_vec()).collect();
        bytes.extend(drained.tail);
        bytes
    };
    clients.iter().map(bytes_of).chain([counts]).collect()
}

#[test]
fn what_is_published_together_comes_as_what_is_published_one_by_one() {
    let mut random = 1_u64;
    for length in [1, 2, 3, 50, 1_000] {
        let messages: Vec<(&str, Vec<u8>, QoS)> = (0..length)
            .map(|number: usize| {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let [topic, size, kind, ..] = random.to_be_bytes().map(usize::from);
                let topic = ["a", "a", "a", "a", "b", "b", "c", "d/with/a/longer/name"][topic % 8];
                let bytes = if size == 0 { 2_000 } else { size % 11 };
                let qos = if kind < 24 { QoS::AtLeastOnce } else { QoS::AtMostOnce };
                (topic, vec![number as u8; bytes], qos)
            })
            .collect();
        let (together, one_by_one) = (sent(&messages, false), sent(&messages, true));
        assert!(together == one_by_one, "of {length}: {:?}", together.iter().zip(&one_by_one).position(|(a, b)| a != b));
        assert!(length < 50 || together.iter().all(|bytes| !bytes.is_empty()));
    }
}

/// The bound of an outbox is of bytes that wait: a run may stand above it by its own length, and what does not fit is counted.
#[test]
fn a_slow_reader_loses_whole_runs() {
    let mut bench = Bench::new();
    let (reader, _) = bench.connect("reader", true, SessionExpiry::WithConnection, None);
    let (writer, _) = bench.connect("writer", true, SessionExpiry::WithConnection, None);
    bench.subscribe(&reader, "t");
    let message =
        Message { topic: "t", payload: &[0; 1_000], qos: QoS::AtMostOnce, retain: false, expires_at: None, properties: &[] };
    for _ in 0..2_000 {
        bench.router.publish(&mut bench.batch, &mut bench.routes, &message, Ingress::Session(&writer.subscriber), bench.now);
    }
    bench.router.finish(&mut bench.batch, bench.now);
    assert!((1_048_576..1_048_576 + 17_000).contains(&waiting(&reader)), "{}", waiting(&reader));
    let metrics = bench.router.metrics();
    assert_eq!(metrics.messages_sent.value() + metrics.dropped_qos0.value(), 2_000);
    assert_eq!(metrics.payload_bytes_sent.value(), metrics.messages_sent.value() * 1_000);
}
