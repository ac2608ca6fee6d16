//! However a client's packets come, one by one or many with one read, others are sent the same.

#![expect(clippy::print_stdout, reason = "a failure is found again by its seed")]

use std::sync::Arc;

use arc_swap::ArcSwap;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

use super::*;
use crate::auth::Place;
use crate::config::SharedStrategy;
use crate::router::RouterLimits;
use crate::session::OutboundLimits;
use crate::task;

/// More than all that one test sends.
const PIPE_BYTES: usize = 8 << 20;

async fn settle() {
    // One thread: everybody has had its turn.
    for _ in 0..60 {
        tokio::task::yield_now().await;
    }
}

async fn connect(router: &Arc<Router>, name: u8, version: ProtocolVersion) -> DuplexStream {
    let terms = Arc::new(Terms {
        policy: Arc::new(ArcSwap::from_pointee(Policy::new(Place::default(), true, None, None))),
        logins: Arc::new(Logins::default()),
        backends: None,
        packet_bytes_max: 10_000,
        inflight_max: 60_000,
        keep_alive_max_seconds: None,
        rates: Rates::default(),
        meter: None,
        topic_alias_max: 5,
        topic_alias_broker_max: 5,
        response_information: None,
        server_reference: None,
        reserved: Arc::default(),
    });
    let peer = Peer { address: Address::Unix, proxy: None, transport: Transport::Plain, identity: None };
    let (ours, mut client) = tokio::io::duplex(PIPE_BYTES);
    let mut connect = Vec::new();
    let client_id = char::from(name).to_string();
    let packet = codec::Connect {
        is_bridge: false,
        version,
        clean_start: true,
        keep_alive_seconds: 0,
        properties: codec::ConnectProperties::default(),
        client_id: &client_id,
        will: None,
        user_name: None,
        password: None,
    };
    codec::encode(&mut connect, version, &Packet::Connect(Box::new(packet))).unwrap();
    client.write_all(&connect).await.unwrap();
    let admitted = admit(Stream::new(ours), peer, Arc::clone(router), terms).await.unwrap();
    task::spawn("client", async move { admitted.serve().await });
    client
}

async fn subscribe(client: &mut DuplexStream, version: ProtocolVersion, filter: &str, id: Option<u32>, no_local: bool) {
    let options = codec::SubscriptionOptions {
        qos: crate::codec::QoS::AtLeastOnce,
        no_local: no_local && version == ProtocolVersion::V5,
        retain_as_published: false,
        retain_handling: codec::RetainHandling::DoNotSend,
    };
    let options = if version == ProtocolVersion::V5 { options } else { crate::codec::QoS::AtLeastOnce.into() };
    let properties = codec::SubscribeProperties {
        subscription_id: id.and_then(|id| codec::SubscriptionId::try_from(id).ok()),
        ..codec::SubscribeProperties::default()
    };
    let filters = vec![codec::SubscribeFilter { filter, options }];
    let packet = Packet::Subscribe(codec::Subscribe { packet_id: codec::PacketId::MIN, properties, filters });
    let mut bytes = Vec::new();
    codec::encode(&mut bytes, version, &packet).unwrap();
    client.write_all(&bytes).await.unwrap();
}

/// What a publisher of this version may send, many a packet like the one before; one in `others` is of QoS 1.
fn packets(random: &mut StdRng, version: ProtocolVersion, count: usize, others: usize) -> Vec<Vec<u8>> {
    let mut topic = "a";
    let mut id = 0;
    let mut one = |random: &mut StdRng| {
        if random.random_range(0..10) == 0 {
            topic = ["a", "b", "b/c", "$SYS/x", "nobody/wants/it"][random.random_range(0..5)];
        }
        let qos = if random.random_range(0..others) == 0 { codec::QoS::AtLeastOnce } else { codec::QoS::AtMostOnce };
        id = id % 50_000 + 1;
        let is_odd = random.random_range(0..30) == 0;
        let payload: Vec<u8> =
            vec![random.random(); if is_odd { random.random_range(0..3_000) } else { random.random_range(0..20) }];
        let mut properties = codec::PublishProperties::default();
        if version == ProtocolVersion::V5 && random.random_range(0..30) == 0 {
            properties.content_type = Some("text");
        }
        if version == ProtocolVersion::V5 && random.random_range(0..30) == 0 {
            properties.topic_alias = std::num::NonZeroU16::new(random.random_range(1..=5));
        }
        let publish = codec::Publish {
            dup: false,
            qos,
            retain: random.random_range(0..40) == 0,
            topic,
            packet_id: (qos > codec::QoS::AtMostOnce).then(|| codec::PacketId::new(id).unwrap()),
            properties,
            payload: &payload,
        };
        let mut bytes = Vec::new();
        codec::encode(&mut bytes, version, &Packet::Publish(publish)).unwrap();
        bytes
    };
    (0..count).map(|_| one(random)).collect()
}

/// The same packets, those of a kind one behind the other.
fn by_kind(bytes: &[u8]) -> Vec<u8> {
    let (mut frames, mut rest) = (Vec::new(), bytes);
    while let Ok(Some(length)) = codec::frame_length(rest) {
        frames.push(&rest[..length]);
        rest = &rest[length..];
    }
    assert!(rest.is_empty());
    frames.sort_by_key(|frame| frame[0] >> 4);
    frames.concat()
}

/// What everybody is sent, and what was counted.
async fn heard(packets: &[Vec<u8>], version: ProtocolVersion, at_once: usize) -> Vec<Vec<u8>> {
    let outbound = OutboundLimits { inflight_max: 60_000, inflight_bytes_max: usize::MAX, ..OutboundLimits::default() };
    let limits = RouterLimits { outbound, shared: SharedStrategy::default() };
    let router = Arc::new(Router::new(limits, Arc::default(), None, clock::now()));
    let mut publisher = connect(&router, b'p', version).await;
    subscribe(&mut publisher, version, "b", None, true).await;
    let mut clients = vec![publisher];
    let receivers = [
        (ProtocolVersion::V3_1_1, "#", None),
        (ProtocolVersion::V5, "#", None),
        (ProtocolVersion::V3_1, "a", None),
        (ProtocolVersion::V5, "a", Some(7)),
        (ProtocolVersion::V3_1_1, "b/+", None),
        (ProtocolVersion::V5, "$share/g/b", None),
    ];
    for (number, (version, filter, id)) in (0..).zip(receivers) {
        let mut client = connect(&router, b'0' + number, version).await;
        subscribe(&mut client, version, filter, id, false).await;
        clients.push(client);
    }
    settle().await;
    for together in packets.chunks(at_once) {
        clients[0].write_all(&together.concat()).await.unwrap();
        settle().await;
    }
    settle().await;
    let metrics = router.metrics();
    let counted = [
        &metrics.messages_received,
        &metrics.payload_bytes_received,
        &metrics.packets_received,
        &metrics.messages_sent,
        &metrics.payload_bytes_sent,
        &metrics.answers_sent,
    ];
    let mut heard = vec![counted.map(|counter| counter.value().to_string()).join(" ").into_bytes()];
    for mut client in clients {
        let mut bytes = Vec::new();
        let mut buffer = vec![0; 1 << 16];
        // What is there by now is all.
        while let Ok(Ok(count)) = tokio::time::timeout(Duration::ZERO, client.read(&mut buffer)).await {
            bytes.extend_from_slice(&buffer[..count]);
        }
        heard.push(bytes);
    }
    // Where its answers stand among what others sent is left to us.
    if let Some(publisher) = heard.get_mut(1) {
        *publisher = by_kind(publisher);
    }
    heard
}

#[tokio::test]
async fn many_packets_of_one_read_come_as_they_do_one_by_one() {
    let seed: u64 = rand::random();
    println!("seed {seed}");
    let mut random = StdRng::seed_from_u64(seed);
    for (version, others) in [(ProtocolVersion::V3_1_1, 40), (ProtocolVersion::V5, 40), (ProtocolVersion::V3_1_1, 2)] {
        let packets = packets(&mut random, version, 1_500, others);
        let one_by_one = heard(&packets, version, 1).await;
        assert!(one_by_one.iter().all(|bytes| bytes.len() > 8), "everybody has heard something");
        for at_once in [2, 7, 100, 1_500] {
            let together = heard(&packets, version, at_once).await;
            let other = together.iter().zip(&one_by_one).position(|(a, b)| a != b);
            assert_eq!(
                other,
                None,
                "{version}, {at_once} at once: {:?}",
                [&together[0], &one_by_one[0]].map(|counted| String::from_utf8_lossy(counted))
            );
        }
    }
}
