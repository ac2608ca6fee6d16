//! What the parts cost, each by itself and without a socket: decode, encode, match, publish, ring and lane, mesh frames, tree step.
//!
//! `cargo bench` runs all, `cargo bench -- codec` those of one part. Throughput is in messages, so criterion's "time" of a batch
//! divided by its elements is the cost of one. Not a proof of speed: the kernel costs more than all of this (`README.md`).
//!
//! "Time" is processor time of the thread, so that other programs on the machine disturb little.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, clippy::print_stdout, reason = "a benchmark on inputs of its own")]

mod lanes;

use std::hint::black_box;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use criterion::measurement::{Measurement, ValueFormatter, WallTime};
use criterion::{BatchSize, Throughput, criterion_group, criterion_main};
use lanes::{CHILD, claim, linked, replication};
use mqtt_st_quic::codec::{self, ProtocolVersion, PublishHead, QoS, RetainHandling};
use mqtt_st_quic::config::SharedStrategy;
use mqtt_st_quic::frame::lane::{self, Entry, Messages};
use mqtt_st_quic::ids::{BrokerId, PortId, RootClaim, TreeId};
use mqtt_st_quic::interest::{Behind, Interest, Mode, Rules, Verdicts};
use mqtt_st_quic::metrics::Metrics;
use mqtt_st_quic::replication::{LocalBatch, MeshMessage, Replication};
use mqtt_st_quic::router::{Arrival, Batch, ConnectRequest, Connection, Ingress, RouteCache, Router, RouterLimits, Subscribe};
use mqtt_st_quic::session::{Connected, Drained, Message, OutboundLimits, SessionExpiry, SubscriptionOptions, Writes};
use mqtt_st_quic::shared::register::Follow as _;
use mqtt_st_quic::stp::{Bpdu, Input, Stp, StpConfig};
use mqtt_st_quic::topic::{self, SubscriptionTrie};
use mqtt_st_quic::{clock, resources};
use rustix::time::{ClockId, clock_gettime};

/// As in the program.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

type Criterion = criterion::Criterion<ProcessorTime>;

/// Measures the processor time of the thread.
struct ProcessorTime;

impl ProcessorTime {
    fn used() -> Duration {
        clock_gettime(ClockId::ThreadCPUTime).try_into().unwrap()
    }
}

impl Measurement for ProcessorTime {
    type Intermediate = Duration;
    type Value = Duration;

    fn start(&self) -> Duration {
        Self::used()
    }

    fn end(&self, start: Duration) -> Duration {
        Self::used() - start
    }

    fn add(&self, one: &Duration, other: &Duration) -> Duration {
        *one + *other
    }

    fn zero(&self) -> Duration {
        Duration::ZERO
    }

    fn to_f64(&self, value: &Duration) -> f64 {
        WallTime.to_f64(value)
    }

    fn formatter(&self) -> &dyn ValueFormatter {
        WallTime.formatter()
    }
}

const TOPIC: &str = "plant/7/line/3/temp";

/// With [`TOPIC`], a PUBLISH of 64 bytes at QoS 0 of MQTT 3.1.1.
const PAYLOAD: &[u8; 41] = &[b'x'; 41];

/// Messages of one read of a busy connection.
const BATCH: usize = 100;

fn head(qos: QoS) -> PublishHead<'static> {
    PublishHead {
        dup: false,
        qos,
        retain: false,
        topic: TOPIC,
        packet_id: (qos != QoS::AtMostOnce).then_some(codec::PacketId::MIN),
        message_expiry_seconds: None,
        topic_alias: None,
        subscription_ids: &[],
        properties: &[],
        payload_len: PAYLOAD.len(),
    }
}

fn codec(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("codec");
    group.throughput(Throughput::Elements(1));
    let cases = [
        ("3.1.1 QoS 0", ProtocolVersion::V3_1_1, QoS::AtMostOnce),
        ("3.1.1 QoS 1", ProtocolVersion::V3_1_1, QoS::AtLeastOnce),
        ("5 QoS 0", ProtocolVersion::V5, QoS::AtMostOnce),
        ("5 QoS 1", ProtocolVersion::V5, QoS::AtLeastOnce),
    ];
    for (name, version, qos) in cases {
        let mut packet = Vec::new();
        codec::encode_publish_head(&mut packet, version, &head(qos)).unwrap();
        packet.extend_from_slice(PAYLOAD);
        group.bench_function(format!("decode PUBLISH {name}"), |bencher| {
            bencher.iter(|| codec::decode(black_box(&packet), version, u32::MAX).unwrap());
        });
        let mut out = Vec::with_capacity(256);
        group.bench_function(format!("encode PUBLISH head {name}"), |bencher| {
            bencher.iter(|| {
                out.clear();
                codec::encode_publish_head(&mut out, version, black_box(&head(qos))).unwrap()
            });
        });
    }
    group.bench_function("decode PUBACK", |bencher| {
        bencher.iter(|| codec::decode(black_box(&[0x40, 2, 0, 7]), ProtocolVersion::V3_1_1, u32::MAX).unwrap());
    });
    group.finish();
}

fn topics(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("topic");
    group.bench_function("check a name", |bencher| bencher.iter(|| topic::check_name(black_box(TOPIC))));
    group.bench_function("match one filter", |bencher| {
        bencher.iter(|| topic::matches(black_box("plant/+/line/#"), black_box(TOPIC)));
    });
    // The cost of a match must not grow with filters that do not match.
    for others in [0, 1_000, 100_000] {
        let mut trie = SubscriptionTrie::new();
        for other in 0..others {
            trie.insert(&format!("plant/{}/line/{}/pressure", other % 100, other), other, ());
        }
        for (key, filter) in [TOPIC, "plant/+/line/3/temp", "plant/7/#", "#"].into_iter().enumerate() {
            trie.insert(filter, others + key, ());
        }
        group.bench_function(format!("match 4 of {} filters", others + 4), |bencher| {
            bencher.iter(|| {
                let mut matches = 0;
                trie.for_each_match(black_box(TOPIC), |_, ()| matches += 1);
                matches
            });
        });
    }
    group.finish();
}

/// A router and `receivers` connected subscribers to [`TOPIC`].
fn router(receivers: usize, qos: QoS) -> (Router, Vec<Connection>) {
    let outbound = OutboundLimits {
        inflight_max: u16::MAX,
        inflight_bytes_max: usize::MAX,
        queued_messages_max: u32::MAX,
        queued_bytes_max: usize::MAX,
        drop_oldest: false,
        queue_qos0: false,
    };
    let router =
        Router::new(RouterLimits { outbound, shared: SharedStrategy::default() }, Arc::new(Metrics::default()), None, clock::now());
    let mut batch = Batch::default();
    let connections = (0..receivers).map(|receiver| {
        let request = ConnectRequest {
            client_id: &format!("receiver-{receiver}"),
            clean_start: true,
            expiry: SessionExpiry::WithConnection,
            silence_max: None,
            will: None,
            connected: Connected {
                version: ProtocolVersion::V3_1_1,
                window: u16::MAX,
                packet_bytes_max: usize::MAX,
                topic_alias_max: 0,
            },
            address: None,
            access: None,
        };
        let connection = router.connect(&mut batch, request, |_| Vec::new(), clock::now()).unwrap();
        let options = SubscriptionOptions { qos, no_local: false, retain_as_published: false, subscription_id: None };
        let subscribe = Subscribe { filter: TOPIC, options, retain_handling: RetainHandling::Send };
        router.subscribe(&connection, &subscribe).unwrap();
        connection
    });
    let connections = connections.collect();
    (router, connections)
}

fn publish(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("router");
    for receivers in [1, 100] {
        let (router, connections) = router(receivers, QoS::AtMostOnce);
        let (mut batch, mut routes, mut drained) = (Batch::default(), RouteCache::default(), Drained::default());
        let message =
            Message { topic: TOPIC, payload: PAYLOAD, qos: QoS::AtMostOnce, retain: false, expires_at: None, properties: &[] };
        group.throughput(Throughput::Elements((BATCH * receivers) as u64));
        group.bench_function(format!("publish {BATCH} messages to {receivers}, and drain"), |bencher| {
            bencher.iter(|| {
                let now = clock::now();
                for _ in 0..BATCH {
                    router.publish(&mut batch, &mut routes, black_box(&message), Ingress::Link(Arrival::default()), now);
                }
                router.finish(&mut batch, now);
                let written = |connection: &Connection| connection.subscriber.lock().outbox.take(&mut drained);
                assert!(connections.iter().all(written), "every receiver has something to write");
            });
        });
    }
    group.finish();
}

fn mesh_message(qos: QoS) -> MeshMessage<'static> {
    MeshMessage {
        topic: TOPIC,
        payload: PAYLOAD,
        qos,
        retain: false,
        expiry_seconds: None,
        properties: &[],
        stamp: None,
        picks: Default::default(),
    }
}

fn replicate(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("replication");
    group.throughput(Throughput::Elements(BATCH as u64));
    for (name, qos, lane) in [("QoS 0", QoS::AtMostOnce, 0), ("QoS 1", QoS::AtLeastOnce, 1)] {
        let message = mesh_message(qos);
        let mut batch = LocalBatch::new();
        let mut put = |replication: &Replication| {
            (0..BATCH).for_each(|_| batch.push(replication, black_box(&message)));
            replication.publish(&mut batch, &mut Writes::default(), clock::now());
        };
        let alone = replication(CHILD);
        group.bench_function(format!("{name}: {BATCH} messages into the ring"), |bencher| bencher.iter(|| put(&alone)));
        let (child, mut up) = linked(lane);
        let mut expected = 0;
        group.bench_function(format!("{name}: {BATCH} messages to the next broker"), |bencher| {
            bencher.iter(|| {
                put(&child);
                up.carry();
                expected += BATCH as u64;
            });
        });
        assert_eq!(up.arrived.0, expected, "every message has arrived");
    }
    group.finish();
}

fn frames(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("frame");
    group.throughput(Throughput::Elements(BATCH as u64));
    for (name, same_topic) in [("one topic", true), ("a topic with each", false)] {
        let message = mesh_message(QoS::AtLeastOnce);
        let mut body = Vec::with_capacity(16 * 1024);
        let write = |body: &mut Vec<u8>| {
            body.clear();
            (0..BATCH).for_each(|place| {
                lane::put_message(body, u64::from(place > 0), black_box(&message), same_topic && place > 0);
            });
        };
        group.bench_function(format!("encode {BATCH} messages, {name}"), |bencher| bencher.iter(|| write(&mut body)));
        write(&mut body);
        group.bench_function(format!("decode {BATCH} messages, {name}"), |bencher| {
            bencher.iter(|| {
                Messages::new(1, black_box(&body))
                    .map(|message| match message.unwrap().1 {
                        Entry::Message(message) => message.payload.len(),
                        Entry::Stub(_) => 0,
                    })
                    .sum::<usize>()
            });
        });
    }
    group.finish();
}

fn tree(criterion: &mut Criterion) {
    const PORTS: u64 = 8;
    let config = StpConfig {
        claim: claim(BrokerId(100)),
        hop_max: 255,
        hello: Duration::from_millis(100),
        epoch_interval: Duration::from_secs(10),
    };
    let port = |number| PortId { peer: BrokerId(number), generation: number };
    let now = clock::now();
    let mut stp = Stp::new(config);
    let mut out = Vec::new();
    for number in 1..=PORTS {
        stp.handle(Input::LinkUp { port: port(number), cost: NonZeroU32::MIN, rtt: Duration::from_millis(1) }, now, &mut out);
    }
    let root = TreeId { epoch: 2, root: RootClaim { priority: 0, ..claim(BrokerId(1_000)) } };
    let mut number = 0;
    let mut bpdu = |distance| {
        number += 1;
        Bpdu { number, tree: root, distance: Some(distance), hops: 1, epoch_held: None, request_epoch: false }
    };
    let mut group = criterion.benchmark_group("stp");
    group.bench_function(format!("a BPDU that changes nothing, {PORTS} links"), |bencher| {
        bencher.iter_batched(
            || bpdu(10),
            |bpdu| {
                out.clear();
                stp.handle(black_box(Input::Bpdu { port: port(1), bpdu }), now, &mut out);
            },
            BatchSize::SmallInput,
        );
    });
    group.finish();
    assert_eq!(stp.tree(), root, "the broker has joined the tree it heard of");
}

/// What a message costs whose topic the members of a mesh do not want, or one of them does, with the state of so many brokers.
fn interest(criterion: &mut Criterion) {
    const FILTERS: u64 = 100;
    let mut group = criterion.benchmark_group("interest");
    for members in [64, 1_000] {
        let before = resources::resident_bytes();
        let interest = Interest::new(CHILD, Rules::new(Mode::Interest, []));
        let ids: Vec<_> = (10..10 + members).map(BrokerId).collect();
        for (id, number) in ids.iter().zip(0_u64..) {
            interest.joined(*id);
            let filters = (0..FILTERS).map(|filter| format!("plant/{filter}/line/{number}/pressure"));
            let mut changes = interest.change();
            filters.for_each(|filter| changes.insert(*id, &filter));
            changes.know(*id);
        }
        interest.change().insert(ids[0], TOPIC);
        let grown = resources::resident_bytes().zip(before).map_or(0, |(now, before)| now.saturating_sub(before));
        println!("what {members} brokers with {FILTERS} filters each want: {} KiB", grown / 1024);
        assert_eq!((interest.members().1, interest.filters()), (ids.len(), ids.len() * 100 + 1));
        for (what, topic) in [("nobody wants", "plant/7/line/3/level"), ("one wants", TOPIC)] {
            group.bench_function(format!("a topic that {what}, {members} brokers"), |bencher| {
                bencher.iter(|| interest.is_wanted_elsewhere(black_box(topic)));
            });
        }
        let behind = Behind::default();
        behind.set(Some(ids));
        let mut verdicts = Verdicts::default();
        assert!(!verdicts.want_everything(&interest, &behind));
        group.bench_function(format!("a port's verdict, remembered, {members} brokers"), |bencher| {
            bencher.iter(|| verdicts.wants(&interest, black_box(TOPIC)));
        });
        group.bench_function(format!("a port's verdict after a change, {members} brokers"), |bencher| {
            bencher.iter(|| {
                let mut verdicts = Verdicts::default();
                !verdicts.want_everything(&interest, &behind) && verdicts.wants(&interest, black_box(TOPIC))
            });
        });
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = criterion::Criterion::default().with_measurement(ProcessorTime);
    targets = codec, topics, publish, interest, replicate, frames, tree
}
criterion_main!(benches);
