//! Shapes with which other brokers were brought down, each from a public report: here they end their own connection at most, and a client beside
//! them notices nothing. Those that are plain malformed packets stand in `malformed`.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::broker::Broker;
use crate::client::{Client, Connect, Publish};
use crate::wire::*;

/// A client that sees whether the broker still serves.
struct Bystander {
    client: Client,
}

impl Bystander {
    fn new(broker: &Broker) -> Self {
        Self { client: Client::subscribed(broker, 5, "bystander", 1) }
    }

    fn is_served(&mut self, why: &str) {
        self.client.say_to_itself("bystander", why);
    }
}

/// What is said before any CONNECT, and never lets anybody in.
#[test]
fn what_is_no_connect_is_closed_at_once() {
    let broker = Broker::start();
    let mut bystander = Bystander::new(&broker);
    let connect = |flags: u8, body: &[u8]| packet(kind::CONNECT, 0, &[&string("MQTT"), &[5, flags, 0, 60][..], body].concat());
    let will = |list: &[Property]| connect(6, &[vec![0], string("c"), properties(list), string("w"), string("m")].concat());
    let user_properties: Vec<Property> = (0..20_000).map(|_| user("a", "b")).collect();
    for (why, bytes) in [
        ("CVE-2017-7651: a length of 256 MB and no body", b"\x10\xff\xff\xff\x7f".to_vec()),
        ("CVE-2023-0809: a large PUBLISH in front of CONNECT", b"\x30\xff\xff\xff\x7f".to_vec()),
        ("CVE-2021-41039: very many user properties", connect(2, &[properties(&user_properties), string("c")].concat())),
        ("CVE-2023-3592: a will with a property that is none of its", will(&[two(property::TOPIC_ALIAS, 1)])),
        ("CVE-2023-3592: a will with a property twice", will(&[four(property::WILL_DELAY, 1), four(property::WILL_DELAY, 1)])),
        (
            "CVE-2026-21888: a length of properties in five bytes",
            connect(2, &[&[0x80, 0x80, 0x80, 0x80, 0x01][..], &string("c")].concat()),
        ),
        ("mosquitto#3448: flags for what is not there", connect(0xfe, &[vec![0], string("c")].concat())),
        ("nanomq#1181: CONNECT ends in its name", packet(kind::CONNECT, 0, b"\0\x04MQ")),
        ("a client id longer than the packet", connect(2, b"\0\xff\xffc")),
        ("nothing that anybody speaks", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".to_vec()),
        ("TLS where none is spoken", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03".to_vec()),
    ] {
        println!("{why}");
        let mut client = Client::open(&broker, 5);
        client.send(&bytes);
        let end = client.expect_end();
        assert_ne!(end.reason, Some(0), "{why}");
        bystander.is_served(why);
    }
}

/// What a client says that was let in.
#[test]
fn crafted_packets_end_their_own_connection() {
    let broker = Broker::start();
    let mut bystander = Bystander::new(&broker);
    let publish = |topic: &[u8], qos: u8, rest: &[u8]| packet(kind::PUBLISH, qos << 1, &[&string(topic), rest].concat());
    for (why, version, bytes) in [
        ("CVE-2021-34432: a topic of no letter", 4, publish(b"", 0, b"m")),
        ("nanomq#2270: PUBLISH ends after its topic", 4, publish(b"t", 1, b"")),
        ("CVE-2024-10525: SUBACK without codes", 4, packet(9, 0, &[0, 1])),
        ("CVE-2021-28166: CONNACK from a client", 5, b"\x29\x02\x00\x01\xe0\x00".to_vec()),
        ("mosquitto#2163: CONNACK from a client, cut short", 5, packet(kind::CONNACK, 0, &[0])),
        ("tinyMQTT#16: U+0000 in a topic", 4, publish(b"a\0b", 0, b"m")),
        ("mochi#501: SUBSCRIBE ends before its options", 5, packet(kind::SUBSCRIBE, 2, b"\0\x01\0\0\x01t")),
        ("mqtt-packet#107: DISCONNECT with a property that is none of its", 5, packet(kind::DISCONNECT, 0, &[0, 3, 0x21, 0, 1])),
        ("CVE-2019-19307: a length that overflows", 4, b"\x30\xff\xff\xff\xff\xff\xff\xff\xff\x7f".to_vec()),
        ("a packet within the length that one may have, and beyond what it may have here", 5, b"\x30\xff\xff\xff\x7f".to_vec()),
    ] {
        println!("{why}");
        let mut client = Client::new(&broker, version);
        client.send(&bytes);
        client.expect_end();
        bystander.is_served(why);
    }
}

/// CONNECT and a bad packet in one segment: the client is answered and closed.
#[test]
fn a_bad_packet_right_behind_connect_is_not_lost() {
    let broker = Broker::start();
    for version in [4, 5] {
        let mut client = Client::open(&broker, version);
        client.send(&[Connect::new(version).encode(), packet(kind::PUBLISH, 0, &[string("a\0b"), vec![0]].concat())].concat());
        assert_eq!(client.expect(kind::CONNACK).reason, 0);
        client.expect_disconnect(&[0x81, 0x82, 0x90]);
    }
}

/// CVE-2025-56352: a refusal that leaves the connection open.
#[test]
fn who_is_refused_is_closed() {
    let broker = Broker::start();
    let mut client = Client::open(&broker, 4);
    client.send(&Connect { id: String::new(), clean: false, ..Connect::new(4) }.encode());
    assert_eq!(client.expect_end().reason, Some(2));
}

/// CVE-2018-12543: an assertion on topics that begin with `$` and are not the broker's own.
#[test]
fn dollar_topics_of_nobody_are_topics() {
    let broker = Broker::start();
    let mut client = Client::subscribed(&broker, 5, "$x/#", 1);
    for topic in ["$x/a", "$x", "$", "$/", "$share/g/t"] {
        client.publish(Publish { topic, payload: topic, ..Publish::default() });
    }
    client.expect_message("$x/a");
    client.expect_message("$x");
    client.expect_nothing();
}

/// CVE-2023-28366: QoS 2 messages of one identifier, again and again, whose PUBREC is never answered.
#[test]
fn one_identifier_is_open_once_however_often_it_comes() {
    let broker = Broker::start();
    let mut client = Client::new(&broker, 5);
    let mut subscriber = Client::subscribed(&broker, 5, "t", 0);
    let again = Publish { topic: "t", payload: "m", qos: 2, id: 7, ..Publish::default() }.encode(5);
    client.send(&again);
    assert_eq!(client.expect(kind::PUBREC).id, 7);
    for _ in 0..50 {
        client.send(&Publish { topic: "t", payload: "m", qos: 2, id: 7, dup: true, ..Publish::default() }.encode(5).repeat(100));
        for _ in 0..100 {
            assert_eq!(client.expect(kind::PUBREC).id, 7);
        }
    }
    assert_eq!(subscriber.payloads(), ["m"]);
}

/// CVE-2024-8376: the same filters, subscribed and unsubscribed in one packet and in every order.
#[test]
fn filters_come_and_go_in_every_order() {
    let broker = Broker::start();
    let mut bystander = Bystander::new(&broker);
    let filters = ["a", "a/#", "$share/g/a", "+/a", "a"];
    for version in [4, 5] {
        for round in 1..filters.len() {
            let mut client = Client::new(&broker, version);
            let mut order = filters;
            order.rotate_left(round);
            assert_eq!(client.unsubscribe(&order).len(), if version == 5 { 5 } else { 0 });
            client.subscribe(&order.map(|filter| (filter, 2)));
            client.unsubscribe(&order[..=round]);
            client.subscribe(&order.map(|filter| (filter, 1)));
            client.unsubscribe(&[order[0], order[0]]);
            // Away with the half of them.
            if round % 2 == 0 {
                client.lose()
            } else {
                client.disconnect()
            }
            bystander.is_served("after a round");
        }
    }
}

/// CVE-2025-59946, CVE-2026-22040: subscribe, publish and lose the connection to oneself, all at the same time and under one name.
#[test]
fn a_name_that_is_fought_over_while_it_subscribes_stays_whole() {
    let broker = Broker::start();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for rival in 0..3 {
            let (broker, stop) = (&broker, &stop);
            scope.spawn(move || {
                for round in 0..12_u8 {
                    let connect = Connect::new(5).id("one").resume(if round % 2 == 0 { 60 } else { 0 });
                    let mut client = Client::open(broker, 5);
                    let (_, subscribe) = client.encode_subscribe(&[("fight/#", 1), ("$share/g/fight/+", 2)], &[]);
                    client.send(&[connect.encode(), subscribe].concat());
                    let publish = Publish { topic: "fight/a", payload: "m", qos: 1, id: 9, ..Publish::default() }.encode(5);
                    client.send(&publish.repeat(20));
                    client.receive_within(Duration::from_millis(20 * (rival + 1)));
                }
                stop.store(true, Ordering::Relaxed);
            });
        }
        let mut bystander = Bystander::new(&broker);
        while !stop.load(Ordering::Relaxed) {
            bystander.is_served("during the fight");
        }
    });
    let mut last = Client::connect(&broker, &Connect::new(5).id("one"));
    last.subscribe(&[("fight/#", 1)]);
    last.say_to_itself("fight/a", "peace");
}

/// CVE-2024-48077: clients that flood and never read their answers. Nobody else waits for them.
#[test]
fn who_does_not_read_is_not_read_from() {
    let broker = Broker::start();
    let mut bystander = Bystander::new(&broker);
    let mut stalled = Vec::new();
    let mut flooders: Vec<_> = (0..4).map(|_| Client::subscribed(&broker, 4, "flood", 0)).collect();
    // Pings are answered, and what is published comes back to all four: none of it is read.
    let flood = [packet(kind::PINGREQ, 0, &[]), Publish { topic: "flood", payload: "0123456789", ..Publish::default() }.encode(4)];
    let flood = flood.concat().repeat(20_000);
    // Until the broker takes no more of any.
    while let Some(mut flooder) = flooders.pop() {
        let mut rounds = 0;
        while flooder.send_within(&flood, Duration::from_millis(200)) {
            rounds += 1;
            assert!(rounds < 1_000, "the broker reads on and on from one that does not read");
            bystander.is_served("while others flood");
        }
        stalled.push(flooder);
    }
    bystander.is_served("while others wait");
}

/// SlowTT: bytes that never become a packet do not keep a connection alive.
#[test]
fn a_packet_that_trickles_in_is_no_sign_of_life() {
    let broker = Broker::start();
    let mut client = Client::connect(&broker, &Connect::new(5).keep_alive(1));
    let publish = Publish { topic: "t", payload: &"x".repeat(1_000), ..Publish::default() }.encode(5);
    for byte in publish.chunks(1) {
        client.send(byte);
        if let Some(end) = client.receive_within(Duration::from_millis(100)) {
            assert_eq!(end.map(|packet| (packet.kind, packet.reason)), Some((kind::DISCONNECT, 0x8d)));
            return;
        }
    }
    panic!("a thousand bytes in a hundred seconds are a sign of life");
}

/// Clients that go in the middle of being answered (KMQTT: a reply to a closed socket).
#[test]
fn answers_to_who_is_gone_hurt_nobody() {
    let broker = Broker::start();
    let mut bystander = Bystander::new(&broker);
    let mut publisher = Client::new(&broker, 5);
    publisher.retain("large", &"x".repeat(500_000));
    for _ in 0..50 {
        let mut client = Client::open(&broker, 4);
        let (_, subscribe) = client.encode_subscribe(&[("large", 2), ("#", 1)], &[]);
        client.send(&[Connect::new(4).encode(), subscribe, packet(kind::PINGREQ, 0, &[]).repeat(1_000)].concat());
    }
    bystander.is_served("at the end");
}
