//! Brokers under virtual time that run the real [`Stp`] and the real [`Replication`], joined by links that delay, cut and come back.
//! What `mesh` does with sockets and tasks, this does with a queue of events: lane writers are polled when they are woken and never
//! otherwise, markers and bytes arrive in the order of their stream, late and in pieces. Everything follows from the seed.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashSet};
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use bytes::Bytes;
use mqtt_st_quic::codec::QoS;
use mqtt_st_quic::ids::{BrokerId, Incarnation, LogId, MessageId, OpenNumber, PortId, RootClaim};
use mqtt_st_quic::interest::{Interest, Mode, Rules};
use mqtt_st_quic::limits::PULL_REPEAT;
use mqtt_st_quic::replication::{
    Deliver, LaneEvent, LaneReceiver, LocalBatch, MeshMessage, Picks, Port, Replication, ReplicationConfig,
};
use mqtt_st_quic::session::Writes;
use mqtt_st_quic::stp::{Bpdu, Input, Output, Stp, StpConfig};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::TIGHT;
use super::wire::LaneLedger;

const LANES_PER_CLASS: u8 = 2;
const TOPICS: usize = 6;
/// Longer than any run: what is given up is what the rings have given up.
const PATIENCE: Duration = Duration::from_secs(600);
/// Brokers that are nowhere, for a coin to say who of them is behind a port.
const STRANGERS: std::ops::Range<u64> = 1_000..1_006;
/// How often the coin is tossed at each broker, on average twice as often.
const TOSS_MAX_US: u64 = 200_000;
/// By then a dead link is noticed at both ends.
const DETECTION_MAX_US: u64 = 30_000;

/// What a broker is given to work with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Bounds {
    pub(super) ring_blocks: usize,
    pub(super) ring_bytes: usize,
    pub(super) ring_age: Duration,
    /// The broker of this number has a ring of a few blocks only.
    pub(super) tight: Option<usize>,
}

/// One message of the ledger.
#[derive(Clone, Copy, Debug)]
pub(super) struct Published {
    pub(super) broker: usize,
    pub(super) incarnation: Incarnation,
    pub(super) topic: usize,
    pub(super) qos: QoS,
    pub(super) at: Instant,
}

/// A broker from a start to a crash.
pub(super) struct Life {
    pub(super) incarnation: Incarnation,
    pub(super) started_at: Instant,
    pub(super) replication: Arc<Replication>,
    pub(super) inbox: Inbox,
    stp: Stp,
    ports: BTreeMap<PortId, End>,
    batch: LocalBatch,
    timeout: Option<Instant>,
}

/// What local subscribers were given.
#[derive(Default)]
pub(super) struct Inbox {
    pub(super) got: HashSet<usize>,
    order: Vec<usize>,
    /// Topics to which nobody has subscribed.
    unwanted: HashSet<String>,
}

impl Inbox {
    pub(super) fn wants_topic(&self, topic: usize) -> bool {
        !self.unwanted.contains(&topic_name(topic))
    }
}

fn topic_name(topic: usize) -> String {
    format!("topic/{topic}")
}

impl Deliver for Inbox {
    fn deliver(&mut self, message: &MeshMessage<'_>, _: MessageId) {
        if self.unwanted.contains(message.topic) {
            return;
        }
        let number = std::str::from_utf8(&message.payload[..8]).unwrap().parse().unwrap();
        assert!(self.got.insert(number), "message {number} delivered twice");
        self.order.push(number);
    }

    fn wants(&mut self, topic: &str, _: Picks<'_>) -> bool {
        !self.unwanted.contains(topic)
    }

    fn flush(&mut self) {}
}

/// One end of a link.
struct End {
    port: Arc<Port>,
    receivers: Vec<LaneReceiver>,
    /// What each lane writer wrote.
    ledgers: Vec<LaneLedger>,
    /// Lanes that have not yet written the CLOSE they were told to.
    closing: Vec<(OpenNumber, usize)>,
}

pub(super) struct Link {
    ends: [usize; 2],
    generation: Option<u64>,
    /// By receiving end and stream: when the last piece arrives.
    arrivals: BTreeMap<(usize, usize), Instant>,
}

enum Event {
    Arrive {
        link: usize,
        generation: u64,
        end: usize,
        stream: Stream,
    },
    Write(Writer),
    LinkDown {
        link: usize,
        generation: u64,
        end: usize,
    },
    Timeout {
        broker: usize,
    },
    /// A broker asks once more for what it waits for.
    Repeat {
        broker: usize,
        incarnation: Incarnation,
    },
    /// A broker is told anew who is behind its ports, and it is not so.
    Toss {
        broker: usize,
        incarnation: Incarnation,
    },
    Publish {
        broker: usize,
    },
    Flip {
        link: usize,
    },
    Crash {
        broker: usize,
    },
    Start {
        broker: usize,
    },
}

enum Stream {
    Control(Bpdu),
    Lane(usize, Vec<u8>),
}

/// A lane writer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Writer {
    link: usize,
    broker: usize,
    port: PortId,
    lane: usize,
}

/// Puts a writer on the list of those that are to run.
struct WakeWriter {
    writer: Writer,
    woken: Arc<Mutex<Vec<Writer>>>,
}

impl Wake for WakeWriter {
    fn wake(self: Arc<Self>) {
        self.woken.lock().unwrap().push(self.writer);
    }
}

pub(super) struct World {
    pub(super) lives: Vec<Option<Life>>,
    pub(super) published: Vec<Published>,
    pub(super) events: u64,
    /// Messages that lane writers wrote.
    pub(super) sent: u64,
    rng: SmallRng,
    bounds: Bounds,
    /// What the ports are told of interest is made up, and local subscribers want some topics only.
    coin: bool,
    links: Vec<Link>,
    claims: Vec<RootClaim>,
    now: Instant,
    queue: BinaryHeap<Reverse<(Instant, u64)>>,
    scheduled: BTreeMap<u64, Event>,
    order: u64,
    generations: u64,
    woken: Arc<Mutex<Vec<Writer>>>,
}

impl World {
    /// `count` brokers, all up, linked each with each, some of the links down.
    pub(super) fn new(seed: u64, count: usize, bounds: Bounds) -> Self {
        Self::begin(seed, count, bounds, false)
    }

    /// The same, with a coin in place of the interest of ports.
    pub(super) fn with_coin(seed: u64, count: usize, bounds: Bounds) -> Self {
        Self::begin(seed, count, bounds, true)
    }

    #[expect(clippy::disallowed_methods, reason = "virtual time has to begin somewhere; no later reading is taken")]
    fn begin(seed: u64, count: usize, bounds: Bounds, coin: bool) -> Self {
        let mut rng = SmallRng::seed_from_u64(seed);
        let claim = |index: usize| RootClaim {
            priority: rng.random_range(0..3),
            capacity: 0,
            id: BrokerId(index as u64 + 1),
            incarnation: Incarnation(0),
        };
        let claims = (0..count).map(claim).collect();
        let pairs = (0..count).flat_map(|a| (a + 1..count).map(move |b| [a, b]));
        let links = pairs.map(|ends| Link { ends, generation: None, arrivals: BTreeMap::new() }).collect();
        let mut world = Self {
            lives: (0..count).map(|_| None).collect(),
            published: Vec::new(),
            events: 0,
            sent: 0,
            rng,
            bounds,
            coin,
            links,
            claims,
            now: Instant::now(),
            queue: BinaryHeap::new(),
            scheduled: BTreeMap::new(),
            order: 0,
            generations: 0,
            woken: Arc::default(),
        };
        (0..count).for_each(|broker| world.start(broker));
        (0..world.links.len())
            .filter(|_| world.rng.random_bool(0.6))
            .collect::<Vec<_>>()
            .into_iter()
            .for_each(|link| world.up(link));
        world
    }

    pub(super) fn now(&self) -> Instant {
        self.now
    }

    /// Schedules `messages` publishes and `faults` faults over the next `span`.
    pub(super) fn plan(&mut self, span: Duration, messages: usize, faults: usize, crashes: bool) {
        let span_us = span.as_micros() as u64;
        for _ in 0..messages {
            let broker = self.rng.random_range(0..self.lives.len());
            self.within(span_us, Event::Publish { broker });
        }
        for _ in 0..faults {
            if crashes && self.rng.random_bool(0.3) {
                let broker = self.rng.random_range(0..self.lives.len());
                self.within(span_us, Event::Crash { broker });
            } else {
                let link = self.rng.random_range(0..self.links.len());
                self.within(span_us, Event::Flip { link });
            }
        }
    }

    /// Starts what is down, brings up every link.
    pub(super) fn heal(&mut self) {
        (0..self.lives.len()).for_each(|broker| self.start(broker));
        (0..self.links.len()).for_each(|link| self.up(link));
    }

    /// Lets `span` pass.
    pub(super) fn run(&mut self, span: Duration) {
        let until = self.now + span;
        self.run_writers();
        while let Some(&Reverse((at, order))) = self.queue.peek().filter(|Reverse((at, _))| *at <= until) {
            self.queue.pop();
            self.now = at;
            self.events += 1;
            let event = self.scheduled.remove(&order).unwrap();
            self.event(event);
            self.run_writers();
        }
        self.now = until;
    }

    fn within(&mut self, span_us: u64, event: Event) {
        let at = self.now + Duration::from_micros(self.rng.random_range(0..=span_us));
        self.at(at, event);
    }

    fn at(&mut self, at: Instant, event: Event) {
        self.order += 1;
        self.queue.push(Reverse((at, self.order)));
        self.scheduled.insert(self.order, event);
    }

    fn run_writers(&mut self) {
        let woken = std::mem::take(&mut *self.woken.lock().unwrap());
        woken.into_iter().for_each(|writer| self.within(2_000, Event::Write(writer)));
    }

    fn event(&mut self, event: Event) {
        match event {
            Event::Arrive { link, generation, end, stream } => {
                if self.links[link].generation == Some(generation) {
                    self.arrive(link, generation, end, stream);
                }
            }
            Event::Write(writer) => self.write(writer),
            Event::LinkDown { link, generation, end } => {
                let [broker, peer] = self.ends(link, end);
                let port = PortId { peer: self.claims[peer].id, generation };
                if self.lives[broker].as_mut().is_some_and(|life| life.ports.remove(&port).is_some()) {
                    self.input(broker, Input::LinkDown { port });
                }
            }
            Event::Timeout { broker } => {
                let due = self.lives[broker].as_ref().is_some_and(|life| life.timeout == Some(self.now));
                if due {
                    self.input(broker, Input::Timeout);
                }
            }
            Event::Repeat { broker, incarnation } => {
                let now = self.now;
                if let Some(life) = self.lives[broker].as_mut().filter(|life| life.incarnation == incarnation) {
                    life.replication.repeat_pulls(PATIENCE, now, &mut life.inbox);
                    self.at(now + PULL_REPEAT, Event::Repeat { broker, incarnation });
                }
            }
            Event::Toss { broker, incarnation } => self.toss(broker, incarnation),
            Event::Publish { broker } => self.publish(broker),
            Event::Flip { link } if self.links[link].generation.is_some() => self.down(link),
            Event::Flip { link } => self.up(link),
            Event::Crash { broker } => {
                if self.lives[broker].take().is_some() {
                    let touched = (0..self.links.len()).filter(|&link| self.links[link].ends.contains(&broker));
                    touched.collect::<Vec<_>>().into_iter().for_each(|link| self.down(link));
                    self.within(2_000_000, Event::Start { broker });
                }
            }
            Event::Start { broker } => {
                self.start(broker);
                for link in 0..self.links.len() {
                    if self.links[link].ends.contains(&broker) && self.links[link].generation.is_none() && self.rng.random_bool(0.7)
                    {
                        self.within(100_000, Event::Flip { link });
                    }
                }
            }
        }
    }

    fn ends(&self, link: usize, end: usize) -> [usize; 2] {
        let ends = self.links[link].ends;
        [ends[end], ends[1 - end]]
    }

    fn start(&mut self, broker: usize) {
        if self.lives[broker].is_some() {
            return;
        }
        self.claims[broker].incarnation.0 += 1;
        let claim = self.claims[broker];
        let config = ReplicationConfig {
            origin: claim.id,
            log: LogId(self.rng.random()),
            lanes_per_class: LANES_PER_CLASS,
            ring_blocks: if self.bounds.tight == Some(broker) { TIGHT.ring_blocks } else { self.bounds.ring_blocks },
            ring_bytes: if self.bounds.tight == Some(broker) { TIGHT.ring_bytes } else { self.bounds.ring_bytes },
            ring_age: self.bounds.ring_age,
            slows_publishers: true,
            hop_max: u8::MAX,
            message_bytes_max: 100_000,
        };
        let hello = Duration::from_millis(100);
        let incarnation = claim.incarnation;
        self.at(self.now + PULL_REPEAT, Event::Repeat { broker, incarnation });
        let mut inbox = Inbox::default();
        let replication = if self.coin {
            // The same in all lives of the broker.
            inbox.unwanted = (0..TOPICS).filter(|topic| (claim.id.0 + *topic as u64).is_multiple_of(3)).map(topic_name).collect();
            self.within(TOSS_MAX_US, Event::Toss { broker, incarnation });
            Replication::with_interest(config, Arc::new(self.made_up_interest(claim.id)), self.now)
        } else {
            Replication::new(config, self.now)
        };
        self.lives[broker] = Some(Life {
            incarnation,
            started_at: self.now,
            replication,
            inbox,
            stp: Stp::new(StpConfig { claim, hop_max: u8::MAX, hello, epoch_interval: Duration::from_secs(1) }),
            ports: BTreeMap::new(),
            batch: LocalBatch::new(),
            timeout: None,
        });
    }

    fn made_up_interest(&mut self, own: BrokerId) -> Interest {
        let interest = Interest::new(own, Rules::new(Mode::Interest, []));
        let mut change = interest.change();
        for stranger in STRANGERS.map(BrokerId) {
            change.join(stranger);
            change.know(stranger);
            (0..TOPICS).filter(|_| self.rng.random_bool(0.3)).for_each(|topic| change.insert(stranger, &topic_name(topic)));
        }
        drop(change);
        interest
    }

    fn toss(&mut self, broker: usize, incarnation: Incarnation) {
        let Some(life) = self.lives[broker].as_mut().filter(|life| life.incarnation == incarnation) else { return };
        for end in life.ports.values() {
            let some = STRANGERS.map(BrokerId).filter(|_| self.rng.random_bool(0.3)).collect();
            end.port.set_behind(if self.rng.random_bool(0.05) { None } else { Some(some) });
        }
        self.within(TOSS_MAX_US, Event::Toss { broker, incarnation });
    }

    fn up(&mut self, link: usize) {
        let ends = self.links[link].ends;
        if self.links[link].generation.is_some() || ends.iter().any(|&broker| self.lives[broker].is_none()) {
            return;
        }
        self.generations += 1;
        let generation = self.generations;
        self.links[link].generation = Some(generation);
        self.links[link].arrivals.clear();
        for end in 0..2 {
            let [broker, peer] = self.ends(link, end);
            let id = PortId { peer: self.claims[peer].id, generation };
            let life = self.lives[broker].as_mut().unwrap();
            // The old link's death may not have been noticed yet.
            life.ports.retain(|former, _| former.peer != id.peer);
            let port = life.replication.add_port(id);
            let receivers = port.lanes().iter().map(LaneReceiver::new).collect();
            let ledgers = port.lanes().iter().map(|_| LaneLedger::default()).collect();
            life.ports.insert(id, End { port, receivers, ledgers, closing: Vec::new() });
            for lane in 0..usize::from(2 * LANES_PER_CLASS) {
                self.woken.lock().unwrap().push(Writer { link, broker, port: id, lane });
            }
        }
        for end in 0..2 {
            let [broker, peer] = self.ends(link, end);
            let port = PortId { peer: self.claims[peer].id, generation };
            let cost = NonZeroU32::new(self.rng.random_range(1..10)).unwrap();
            self.input(broker, Input::LinkUp { port, cost, rtt: Duration::from_millis(2) });
        }
    }

    fn down(&mut self, link: usize) {
        if let Some(generation) = self.links[link].generation.take() {
            (0..2).for_each(|end| self.within(DETECTION_MAX_US, Event::LinkDown { link, generation, end }));
        }
    }

    fn input(&mut self, broker: usize, input: Input) {
        let now = self.now;
        let Some(life) = self.lives[broker].as_mut() else { return };
        let mut outputs = Vec::new();
        life.stp.handle(input, now, &mut outputs);
        let timeout = life.stp.poll_timeout().map(|at| at.max(now));
        if timeout != life.timeout {
            life.timeout = timeout;
            if let Some(at) = timeout {
                self.at(at, Event::Timeout { broker });
            }
        }
        outputs.into_iter().for_each(|output| self.output(broker, output));
    }

    fn output(&mut self, broker: usize, output: Output) {
        let now = self.now;
        let Some(life) = self.lives[broker].as_mut() else { return };
        match output {
            Output::SendBpdu { port, bpdu } => self.send(broker, port, Stream::Control(bpdu)),
            Output::OpenLanes { port, open } => life.ports[&port].port.open(&open, now),
            Output::AnswerOpen { port, open } => life.ports[&port].port.answer(&open, now),
            Output::CloseLanes { port, number } => {
                let end = life.ports.get_mut(&port).unwrap();
                end.closing.push((number, end.receivers.len()));
                end.port.close(&number);
            }
            Output::TreeChanged { .. } | Output::PortState { .. } => {}
            Output::Refuse { error, .. } => panic!("broker {broker} refuses a peer: {error}"),
        }
    }

    fn send(&mut self, broker: usize, port: PortId, stream: Stream) {
        let is_it = |link: &&mut Link| link.generation == Some(port.generation);
        let Some(link) = self.links.iter_mut().find(is_it) else { return };
        let end = usize::from(link.ends[0] == broker);
        let lane = match &stream {
            Stream::Control(_) => usize::MAX,
            Stream::Lane(lane, _) => *lane,
        };
        let slow = if self.rng.random_bool(0.05) { 40_000 } else { 0 };
        let delay = Duration::from_micros(self.rng.random_range(100..3_000 + slow));
        let last = link.arrivals.entry((end, lane)).or_insert(self.now);
        *last = (self.now + delay).max(*last);
        let at = *last;
        let link = self.links.iter().position(|link| link.generation == Some(port.generation)).unwrap();
        self.at(at, Event::Arrive { link, generation: port.generation, end, stream });
    }

    fn arrive(&mut self, link: usize, generation: u64, end: usize, stream: Stream) {
        let [broker, peer] = self.ends(link, end);
        let id = PortId { peer: self.claims[peer].id, generation };
        let (lane, bytes) = match stream {
            Stream::Control(bpdu) => return self.input(broker, Input::Bpdu { port: id, bpdu }),
            Stream::Lane(lane, bytes) => (lane, bytes),
        };
        let piece = self.rng.random_range(1..=bytes.len());
        let mut events = Vec::new();
        let Some(life) = self.lives[broker].as_mut() else { return };
        let Some(end) = life.ports.get_mut(&id) else { return };
        for piece in bytes.chunks(piece) {
            if let Err(error) = end.receivers[lane].receive(piece, self.now, &mut life.inbox, &mut events) {
                panic!("broker {broker} lane {lane} from {peer}: {error}");
            }
        }
        for event in events {
            let input = match event {
                LaneEvent::OpenReceived(open) => Input::OpenReceived { port: id, open },
                LaneEvent::CloseReceived(number) => Input::CloseReceived { port: id, number },
            };
            self.input(broker, input);
        }
    }

    fn write(&mut self, writer: Writer) {
        let budget = self.rng.random_range(1..3_000);
        let waker = Waker::from(Arc::new(WakeWriter { writer, woken: Arc::clone(&self.woken) }));
        let Some(end) = self.lives[writer.broker].as_mut().and_then(|life| life.ports.get_mut(&writer.port)) else { return };
        let mut out: Vec<Bytes> = Vec::new();
        let polled = end.port.lanes()[writer.lane].poll(&mut Context::from_waker(&waker), self.now, budget, &mut out);
        let Poll::Ready(batch) = polled else {
            assert!(out.is_empty());
            return;
        };
        let bytes = out.concat();
        assert_eq!(bytes.len(), batch.bytes);
        assert!(batch.bytes <= budget, "{} bytes with a budget of {budget}", batch.bytes);
        self.sent += end.ledgers[writer.lane].write(&bytes);
        if !bytes.is_empty() {
            self.send(writer.broker, writer.port, Stream::Lane(writer.lane, bytes));
        }
        self.woken.lock().unwrap().push(writer);
        if let Some(number) = batch.closed {
            self.closed(writer, number);
        }
    }

    fn closed(&mut self, writer: Writer, number: OpenNumber) {
        let life = self.lives[writer.broker].as_mut().unwrap();
        let end = life.ports.get_mut(&writer.port).unwrap();
        let waits = end.closing.iter_mut().find(|(closing, _)| *closing == number).unwrap();
        waits.1 -= 1;
        if waits.1 == 0 {
            end.closing.retain(|(closing, _)| *closing != number);
            self.input(writer.broker, Input::LanesClosed { port: writer.port, number });
        }
    }

    /// A read batch of a few messages.
    fn publish(&mut self, broker: usize) {
        let now = self.now;
        let Some(life) = self.lives[broker].as_mut() else { return };
        for _ in 0..self.rng.random_range(1..5) {
            let topic = self.rng.random_range(0..TOPICS);
            let qos = [QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce][self.rng.random_range(0..3)];
            let mut payload = format!("{:08}", self.published.len());
            if self.rng.random_bool(0.05) {
                payload.push_str(&"x".repeat(self.rng.random_range(0..10_000)));
            }
            let (name, payload) = (topic_name(topic), payload.as_bytes());
            let message = MeshMessage {
                topic: &name,
                payload,
                qos,
                retain: false,
                expiry_seconds: None,
                properties: &[],
                stamp: None,
                picks: Default::default(),
            };
            life.batch.push(&life.replication, &message);
            self.published.push(Published { broker, incarnation: life.incarnation, topic, qos, at: now });
        }
        life.replication.publish(&mut life.batch, &mut Writes::default(), now);
    }

    /// Every publisher's messages of one topic and QoS class came in order.
    pub(super) fn check_order(&self) {
        for (broker, life) in self.lives.iter().enumerate().filter_map(|(broker, life)| Some((broker, life.as_ref()?))) {
            let mut last = BTreeMap::new();
            for &number in &life.inbox.order {
                let message = self.published[number];
                let series = (message.broker, message.incarnation, message.topic, message.qos == QoS::AtMostOnce);
                let before = last.insert(series, number);
                assert!(before < Some(number), "broker {broker} got {number} after {before:?}");
            }
        }
    }
}
