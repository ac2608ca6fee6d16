//! `kill -9` at any moment under QoS 1 and QoS 2 traffic between durable sessions: what was acknowledged arrives, at QoS 2 once and in order.
//!
//! The clients keep their own state over the broker's death, as the specification asks of them: publishers send again what was not acknowledged, the
//! subscriber of QoS 2 knows which packet identifiers it has taken. `CRASH_ROUNDS` (4) says how often the broker is killed, `CRASH_SEED` repeats a run.

use std::collections::{HashSet, VecDeque};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::broker::{PATIENCE, Site};
use crate::client::{Connect, Publish};
use crate::wire::*;

/// Messages that a publisher has open at once, unless it is said otherwise.
const WINDOW: usize = 40;

/// A connection that may end at any moment.
pub struct Wire {
    stream: TcpStream,
    input: Vec<u8>,
    version: u8,
}

impl Wire {
    /// None if the broker is gone before it has said CONNACK. `knows` is whether it has ever said one to this client.
    pub fn open(address: SocketAddr, connect: &Connect, knows: &mut bool) -> Option<Self> {
        let stream = TcpStream::connect(address).ok()?;
        stream.set_nodelay(true).ok()?;
        stream.set_read_timeout(Some(Duration::from_millis(5))).ok()?;
        let mut wire = Self { stream, input: Vec::new(), version: connect.version };
        wire.send(&connect.encode())?;
        let connack = wire.receive_until(|| false)?;
        // Its session is at another broker, and could not be fetched: it tries again.
        if (connack.kind, connack.reason) == (kind::CONNACK, 0x88) {
            return None;
        }
        assert_eq!((connack.kind, connack.reason), (kind::CONNACK, 0), "{connack:?}");
        if *knows {
            assert!(connack.session_present, "the session of {} is gone", connect.id);
        }
        *knows = true;
        Some(wire)
    }

    /// None if the broker is gone.
    pub fn send(&mut self, bytes: &[u8]) -> Option<()> {
        self.stream.write_all(bytes).ok()
    }

    /// The next packet; `Some(None)` if there is none at present, `None` at the end of the connection.
    pub fn poll(&mut self) -> Option<Option<Received>> {
        if let Some(received) = Received::take(&mut self.input, self.version) {
            return Some(Some(received));
        }
        let mut chunk = [0; 64 * 1024];
        match self.stream.read(&mut chunk) {
            Ok(0) => None,
            Ok(count) => {
                self.input.extend(&chunk[..count]);
                Some(Received::take(&mut self.input, self.version))
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted) => {
                Some(None)
            }
            Err(_) => None,
        }
    }

    fn receive_until(&mut self, done: impl Fn() -> bool) -> Option<Received> {
        let deadline = Instant::now() + PATIENCE;
        while !done() {
            if let Some(received) = self.poll()? {
                return Some(received);
            }
            assert!(Instant::now() < deadline, "the broker says nothing");
        }
        None
    }
}

pub struct Publisher {
    connect: Connect,
    topic: String,
    qos: u8,
    knows: bool,
    /// Identifier, number, and whether PUBREC has come.
    open: VecDeque<(u16, u64, bool)>,
    /// The number of its next message: how many it has published.
    pub next: u64,
    /// It publishes those below this number.
    pub end: u64,
    /// Before each look at what has come, one packet at a time.
    pub pause: Duration,
    /// Messages that it has open at once.
    pub window: usize,
    last_id: u16,
    rng: StdRng,
}

impl Publisher {
    /// One that publishes to `topic`.
    pub fn new(connect: Connect, topic: &str, qos: u8, seed: u64) -> Self {
        let (topic, rng) = (topic.to_owned(), StdRng::seed_from_u64(seed));
        Self {
            connect,
            topic,
            qos,
            knows: false,
            open: VecDeque::new(),
            next: 0,
            end: u64::MAX,
            pause: Duration::ZERO,
            window: WINDOW,
            last_id: 0,
            rng,
        }
    }

    /// The numbers of its messages that are not acknowledged through all steps.
    pub fn open(&self) -> Vec<u64> {
        self.open.iter().map(|(_, number, _)| *number).collect()
    }

    fn packet(&mut self, id: u16, number: u64, dup: bool) -> Vec<u8> {
        // The length is the number's, so that a repeat is the same message.
        let payload = format!("{number} {}", "x".repeat((number * 7919 % 1_500) as usize));
        let publish = Publish { topic: &self.topic, payload: &payload, qos: self.qos, dup, id, ..Publish::default() };
        publish.encode(self.connect.version)
    }

    /// Publishes until the broker is gone, or until `stop` or its `end`, and all is acknowledged.
    pub fn run(&mut self, address: SocketAddr, stop: &AtomicBool) -> Option<()> {
        let mut wire = Wire::open(address, &self.connect, &mut self.knows)?;
        for (id, number, released) in self.open.clone() {
            let bytes = if released { packet(kind::PUBREL, 2, &id.to_be_bytes()) } else { self.packet(id, number, true) };
            wire.send(&bytes)?;
        }
        loop {
            let is_last = self.next >= self.end || stop.load(Ordering::Relaxed);
            if is_last && self.open.is_empty() {
                return Some(());
            }
            let burst = self.rng.random_range(1..=self.window);
            for _ in 0..burst {
                if is_last || self.open.len() >= self.window || self.next >= self.end {
                    break;
                }
                self.last_id = self.last_id.checked_add(1).unwrap_or(1);
                let (id, number) = (self.last_id, self.next);
                self.next += 1;
                self.open.push_back((id, number, false));
                let bytes = self.packet(id, number, false);
                wire.send(&bytes)?;
            }
            std::thread::sleep(self.pause);
            let Some(received) = wire.poll()? else { continue };
            // That a PUBREL finds nothing is right where its PUBCOMP was lost.
            let is_repeat = (received.kind, received.reason) == (kind::PUBCOMP, 0x92);
            assert!(received.reason < 0x80 || is_repeat, "{received:?}");
            let place = self.open.iter().position(|(id, ..)| *id == received.id);
            match (received.kind, place) {
                (kind::PUBACK | kind::PUBCOMP, Some(place)) => {
                    self.open.remove(place);
                }
                (kind::PUBREC, Some(place)) => {
                    self.open[place].2 = true;
                    wire.send(&ack(kind::PUBREL, received.id))?;
                }
                (kind::PUBREC, None) => wire.send(&ack(kind::PUBREL, received.id))?,
                _ => {}
            }
        }
    }
}

pub struct Subscriber {
    connect: Connect,
    topic: String,
    pub qos: u8,
    knows: bool,
    /// QoS 2 identifiers between PUBLISH and PUBREL.
    taken: HashSet<u16>,
    /// Numbers as they came.
    pub delivered: Vec<u64>,
    /// The same, each once.
    pub seen: HashSet<u64>,
}

impl Subscriber {
    /// One that subscribes to `topic`.
    pub fn new(connect: Connect, topic: &str, qos: u8) -> Self {
        let (taken, delivered, seen) = (HashSet::new(), Vec::new(), HashSet::new());
        Self { connect, topic: topic.to_owned(), qos, knows: false, taken, delivered, seen }
    }

    /// Takes messages until the broker is gone, or until so many different ones have come.
    pub fn run(&mut self, address: SocketAddr, enough: u64, deadline: Instant) -> Option<()> {
        let mut wire = Wire::open(address, &self.connect, &mut self.knows)?;
        while (self.seen.len() as u64) < enough && Instant::now() < deadline {
            let Some(received) = wire.poll()? else { continue };
            match received.kind {
                kind::PUBLISH => {
                    assert_eq!(received.qos(), self.qos);
                    let number = received.text().split(' ').next().unwrap().parse().unwrap();
                    self.seen.insert(number);
                    if self.qos == 1 {
                        self.delivered.push(number);
                        wire.send(&ack(kind::PUBACK, received.id))?;
                    } else {
                        if self.taken.insert(received.id) {
                            self.delivered.push(number);
                        }
                        wire.send(&ack(kind::PUBREC, received.id))?;
                    }
                }
                kind::PUBREL => {
                    self.taken.remove(&received.id);
                    wire.send(&ack(kind::PUBCOMP, received.id))?;
                }
                _ => panic!("{received:?}"),
            }
        }
        Some(())
    }

    pub fn subscribe(&mut self, address: SocketAddr) {
        let mut wire = Wire::open(address, &self.connect, &mut self.knows).unwrap();
        let body = [vec![0, 1], properties_of(self.connect.version, &[]), string(&self.topic), vec![self.qos]].concat();
        wire.send(&packet(kind::SUBSCRIBE, 2, &body)).unwrap();
        let suback = wire.receive_until(|| false).unwrap();
        assert_eq!((suback.kind, suback.codes), (kind::SUBACK, vec![self.qos]));
    }
}

#[test]
fn kill_9_loses_nothing_that_was_acknowledged_and_doubles_no_qos_2() {
    let variable = |name| std::env::var(name).ok().map(|text| text.parse::<u64>().expect("a number"));
    let rounds = variable("CRASH_ROUNDS").unwrap_or(4);
    let seed = variable("CRASH_SEED").unwrap_or_else(rand::random);
    println!("CRASH_SEED={seed} CRASH_ROUNDS={rounds}");
    let mut rng = StdRng::seed_from_u64(seed);
    let site = Site::new();
    let configuration = site.alone("phoenix");

    let connect = |version, id: &str| Connect::new(version).id(id).resume(u32::MAX);
    let mut publishers = [("p1", "one", 1, 4), ("p2", "two", 2, 5), ("p3", "two-old", 2, 4)]
        .map(|(id, topic, qos, version)| Publisher::new(connect(version, id), topic, qos, rng.random()));
    let mut subscribers = [("s1", "one", 1, 5), ("s2", "two", 2, 5), ("s3", "two-old", 2, 4)]
        .map(|(id, topic, qos, version)| Subscriber::new(connect(version, id), topic, qos));
    let broker = site.start("phoenix", &configuration);
    subscribers.iter_mut().for_each(|one| one.subscribe(broker.address()));
    broker.kill();

    for round in 0..rounds {
        let broker = site.start("phoenix", &configuration);
        let address = broker.address();
        let life = Duration::from_millis(rng.random_range(1..400));
        // Now and then somebody is away, and messages wait on the disk.
        let is_away = |rng: &mut StdRng| rng.random_ratio(1, 4);
        let (never, far) = (AtomicBool::new(false), Instant::now() + 10 * PATIENCE);
        std::thread::scope(|scope| {
            for publisher in &mut publishers {
                if !is_away(&mut rng) {
                    scope.spawn(|| publisher.run(address, &never));
                }
            }
            for subscriber in &mut subscribers {
                if !is_away(&mut rng) {
                    scope.spawn(move || subscriber.run(address, u64::MAX, far));
                }
            }
            std::thread::sleep(life);
            broker.kill();
        });
        if round % 20 == 19 {
            let sums = publishers.each_ref().map(|one| one.next);
            println!("round {}: {sums:?} published", round + 1);
        }
    }

    // In peace: the publishers get all acknowledged, the subscribers all that was published.
    let broker = site.start("phoenix", &configuration);
    let address = broker.address();
    let stop = AtomicBool::new(true);
    std::thread::scope(|scope| {
        for publisher in &mut publishers {
            scope.spawn(|| publisher.run(address, &stop).expect("the broker is gone"));
        }
    });
    let published = publishers.each_ref().map(|one| one.next);
    let deadline = Instant::now() + PATIENCE;
    std::thread::scope(|scope| {
        for (subscriber, published) in subscribers.iter_mut().zip(published) {
            scope.spawn(move || subscriber.run(address, published, deadline).expect("the broker is gone"));
        }
    });
    for (subscriber, published) in subscribers.iter().zip(published) {
        let all: Vec<u64> = (0..published).collect();
        let missing: Vec<_> = all.iter().filter(|number| !subscriber.seen.contains(number)).collect();
        assert!(missing.is_empty(), "QoS {}: lost {missing:?} of {published} (CRASH_SEED={seed})", subscriber.qos);
        if subscriber.qos == 2 {
            assert_eq!(subscriber.delivered, all, "QoS 2: doubled or out of order (CRASH_SEED={seed})");
        }
    }
    println!("{rounds} times killed, {published:?} messages published");
    assert!(published.iter().sum::<u64>() > 0 || rounds == 0);
}
