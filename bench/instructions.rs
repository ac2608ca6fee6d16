//! Fixed work for the count of instructions: what the broker does for a message, from the bytes that its publisher sends to those that its
//! subscribers are sent, without the kernel.
//!
//! Clients are joined to real connections by pipes in memory, on one thread, so that a run executes the same instructions as the one before. Only
//! what happens inside [`measured`] is the broker's. `bench/guard` runs this under callgrind, twice with different numbers of rounds: the difference is
//! free of all beginnings.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "a benchmark on inputs of its own"
)]

mod lanes;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use arc_swap::ArcSwap;
use lanes::linked;
use mqtt_st_quic::auth::{Place, Policy};
use mqtt_st_quic::codec::QoS;
use mqtt_st_quic::config::SharedStrategy;
use mqtt_st_quic::connection::{self, Address, Logins, Peer, Rates, Stream, Terms, Transport};
use mqtt_st_quic::metrics::Metrics;
use mqtt_st_quic::replication::{LocalBatch, MeshMessage};
use mqtt_st_quic::router::{Router, RouterLimits};
use mqtt_st_quic::session::{OutboundLimits, Writes};
use mqtt_st_quic::{clock, limits};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

/// As in the program.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Between a client and the broker; more than a round sends one way.
const PIPE_BYTES: usize = 1 << 20;
const PAYLOAD: [u8; 40] = [b'x'; 40];

/// Who sends how much to whom, each round.
struct Workload {
    name: &'static str,
    publishers: usize,
    /// Each gets what all publishers send, or in pairs, what its own does.
    subscribers: usize,
    in_pairs: bool,
    qos: u8,
    /// Messages of a publisher, sent at once.
    batch: usize,
}

const WORKLOADS: [Workload; 7] = [
    Workload { name: "1-to-1-qos0", publishers: 1, subscribers: 1, in_pairs: false, qos: 0, batch: 100 },
    Workload { name: "1-to-100-qos0", publishers: 1, subscribers: 100, in_pairs: false, qos: 0, batch: 100 },
    Workload { name: "100-to-1-qos0", publishers: 100, subscribers: 1, in_pairs: false, qos: 0, batch: 20 },
    Workload { name: "100-pairs-qos0", publishers: 100, subscribers: 100, in_pairs: true, qos: 0, batch: 20 },
    Workload { name: "1-to-100-qos1", publishers: 1, subscribers: 100, in_pairs: false, qos: 1, batch: 100 },
    Workload { name: "10-pairs-qos1", publishers: 10, subscribers: 10, in_pairs: true, qos: 1, batch: 100 },
    Workload { name: "10-pairs-qos2", publishers: 10, subscribers: 10, in_pairs: true, qos: 2, batch: 100 },
];

const MESH_WORKLOADS: [(&str, QoS, usize); 2] = [("mesh-hop-qos0", QoS::AtMostOnce, 0), ("mesh-hop-qos1", QoS::AtLeastOnce, 1)];
const MESH_BATCH: usize = 100;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| !argument.starts_with("--")).collect();
    let [name, rounds] = arguments.as_slice() else {
        let names = WORKLOADS.iter().map(|workload| workload.name).chain(MESH_WORKLOADS.iter().map(|(name, ..)| *name));
        names.for_each(|name| println!("{name}"));
        return;
    };
    let rounds: usize = rounds.parse().expect("a number of rounds");
    let deliveries = match WORKLOADS.iter().find(|workload| workload.name == name) {
        Some(workload) => {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
            runtime.block_on(serve(workload, rounds))
        }
        None => {
            let (_, qos, lane) = MESH_WORKLOADS.iter().find(|(known, ..)| known == name).expect("a workload that there is");
            hop(*qos, *lane, rounds)
        }
    };
    println!("{deliveries}");
}

/// What is counted is what runs in here.
#[inline(never)]
fn measured<T>(act: impl FnOnce() -> T) -> T {
    act()
}

/// A task of the broker.
struct Measured<F>(Pin<Box<F>>);

impl<F: Future> Future for Measured<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let task = self.0.as_mut();
        measured(|| task.poll(context))
    }
}

/// A broker without sockets.
struct Broker {
    router: Arc<Router>,
    terms: Arc<Terms>,
}

impl Broker {
    fn start() -> Self {
        let outbound = OutboundLimits {
            inflight_max: 1_000,
            inflight_bytes_max: usize::MAX,
            queued_messages_max: 100_000,
            queued_bytes_max: usize::MAX,
            drop_oldest: false,
            queue_qos0: false,
        };
        let router_limits = RouterLimits { outbound, shared: SharedStrategy::default() };
        let router = Arc::new(Router::new(router_limits, Arc::new(Metrics::default()), None, clock::now()));
        let terms = Terms {
            policy: Arc::new(ArcSwap::from_pointee(Policy::new(Place::default(), true, None, None))),
            logins: Arc::new(Logins::default()),
            backends: None,
            packet_bytes_max: limits::MQTT_REMAINING_LENGTH_MAX,
            inflight_max: 1_000,
            keep_alive_max_seconds: None,
            rates: Rates { messages: None, bytes: None },
            meter: None,
            topic_alias_max: 0,
            topic_alias_broker_max: 0,
            response_information: None,
            server_reference: None,
            reserved: Arc::default(),
        };
        Self { router, terms: Arc::new(terms) }
    }

    async fn connect(&self, name: &str) -> DuplexStream {
        let (mut client, stream) = tokio::io::duplex(PIPE_BYTES);
        let (router, terms) = (Arc::clone(&self.router), Arc::clone(&self.terms));
        mqtt_st_quic::task::spawn("client", async move {
            let peer = Peer { address: Address::Unix, proxy: None, transport: Transport::Plain, identity: None };
            let client = connection::admit(Stream::new(stream), peer, router, terms).await.unwrap();
            Measured(Box::pin(client.serve())).await;
        });
        // MQTT 3.1.1, Clean Session, no keep alive.
        let mut connect = vec![0x10, u8::try_from(12 + name.len()).unwrap(), 0, 4, b'M', b'Q', b'T', b'T', 4, 2, 0, 0, 0];
        connect.push(u8::try_from(name.len()).unwrap());
        connect.extend_from_slice(name.as_bytes());
        client.write_all(&connect).await.unwrap();
        let mut connack = [0; 4];
        client.read_exact(&mut connack).await.unwrap();
        assert_eq!(connack, [0x20, 2, 0, 0]);
        client
    }
}

/// A topic of 8 bytes.
fn topic(pair: usize) -> String {
    format!("t/{pair:06}")
}

/// PUBLISH packets of one publisher, with identifiers from 1 on.
fn publishes(workload: &Workload, topic: &str) -> Vec<u8> {
    let mut out = Vec::new();
    for id in 1..=u16::try_from(workload.batch).unwrap() {
        out.extend_from_slice(&[0x30 | workload.qos << 1, u8::try_from(publish_bytes(workload.qos) - 2).unwrap(), 0, 8]);
        out.extend_from_slice(topic.as_bytes());
        if workload.qos > 0 {
            out.extend_from_slice(&id.to_be_bytes());
        }
        out.extend_from_slice(&PAYLOAD);
    }
    out
}

/// Bytes of one PUBLISH.
fn publish_bytes(qos: u8) -> usize {
    2 + 2 + 8 + if qos > 0 { 2 } else { 0 } + PAYLOAD.len()
}

/// Packets of four bytes that answer those in `packets`, each `bytes` long with its identifier at `place`.
fn answers(kind: u8, packets: &[u8], bytes: usize, place: usize) -> Vec<u8> {
    packets.chunks_exact(bytes).flat_map(|packet| [kind, 2, packet[place], packet[place + 1]]).collect()
}

async fn read(stream: &mut DuplexStream, bytes: usize) -> Vec<u8> {
    let mut packets = vec![0; bytes];
    stream.read_exact(&mut packets).await.unwrap();
    packets
}

/// Runs rounds of a workload. Gives how many deliveries it made.
async fn serve(workload: &Workload, rounds: usize) -> usize {
    let &Workload { publishers, subscribers, in_pairs, qos, batch, .. } = workload;
    let broker = Broker::start();
    let mut receivers = Vec::new();
    for number in 0..subscribers {
        let mut receiver = broker.connect(&format!("s{number}")).await;
        let topic = topic(if in_pairs { number } else { 0 });
        let mut subscribe = vec![0x82, 13, 0, 1, 0, 8];
        subscribe.extend_from_slice(topic.as_bytes());
        subscribe.push(qos);
        receiver.write_all(&subscribe).await.unwrap();
        assert_eq!(read(&mut receiver, 5).await, [0x90, 3, 0, 1, qos]);
        receivers.push(receiver);
    }
    let mut senders = Vec::new();
    for number in 0..publishers {
        let topic = topic(if in_pairs { number } else { 0 });
        senders.push((broker.connect(&format!("p{number}")).await, publishes(workload, &topic)));
    }
    let each = batch * if in_pairs { 1 } else { publishers };
    for _ in 0..rounds {
        for (sender, packets) in &mut senders {
            sender.write_all(packets).await.unwrap();
        }
        for receiver in &mut receivers {
            let bytes = publish_bytes(qos);
            let packets = read(receiver, each * bytes).await;
            match qos {
                0 => {}
                1 => receiver.write_all(&answers(0x40, &packets, bytes, 12)).await.unwrap(),
                _ => {
                    receiver.write_all(&answers(0x50, &packets, bytes, 12)).await.unwrap();
                    let pubrels = read(receiver, each * 4).await;
                    receiver.write_all(&answers(0x70, &pubrels, 4, 2)).await.unwrap();
                }
            }
        }
        for (sender, _) in senders.iter_mut().filter(|_| qos > 0) {
            let acks = read(sender, batch * 4).await;
            if qos == 2 {
                sender.write_all(&answers(0x62, &acks, 4, 2)).await.unwrap();
                read(sender, batch * 4).await;
            }
        }
    }
    rounds * each * subscribers
}

/// Publishes at a child and carries it to its parent. Gives how many messages arrived.
fn hop(qos: QoS, lane: usize, rounds: usize) -> usize {
    let (child, mut up) = linked(lane);
    let message = MeshMessage {
        topic: "plant/7/line/3/temp",
        payload: &PAYLOAD,
        qos,
        retain: false,
        expiry_seconds: None,
        properties: &[],
        stamp: None,
        picks: Default::default(),
    };
    let mut batch = LocalBatch::new();
    for _ in 0..rounds {
        measured(|| {
            (0..MESH_BATCH).for_each(|_| batch.push(&child, &message));
            child.publish(&mut batch, &mut Writes::default(), clock::now());
            up.carry();
        });
    }
    let expected = rounds * MESH_BATCH;
    assert_eq!(up.arrived.0, expected as u64, "every message has arrived");
    expected
}
