//! What is retained, by brokers that write, crash, are cut off and come back, with clocks that differ: in the end all hold the same, of each topic the last
//! write that anybody had.
//!
//! The routers, their stores and the exchange between neighbours are the real ones. Lanes are not: what is written reaches the others at once, late or
//! not at all. A disk has what the store's thread has taken so far.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use mqtt_st_quic::codec::QoS;
use mqtt_st_quic::config::SharedStrategy;
use mqtt_st_quic::frame::bulk;
use mqtt_st_quic::ids::{BrokerId, LaneId, LogId, MessageId, OriginLane, Stamp};
use mqtt_st_quic::metrics::Metrics;
use mqtt_st_quic::replication::MeshMessage;
use mqtt_st_quic::router::{Arrival, Batch, Ingress, LinkDelivery, RouteCache, Router, RouterLimits};
use mqtt_st_quic::session::{Change, Journal, Message, OutboundLimits, StoredMessage};
use mqtt_st_quic::shared::StampClock;
use mqtt_st_quic::shared::retained::{RetainedSync, key_of};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// Nobody asks for it here.
const ANY_ID: MessageId =
    MessageId { origin_lane: OriginLane { origin: BrokerId(1), log: LogId(1), lane: LaneId(4) }, sequence: 1 };
const STEP: Duration = Duration::from_millis(100);
const TOPICS: usize = 8;
const YEAR: Duration = Duration::from_secs(365 * 86_400);
/// Longer than anybody is away, and soon over.
const TOMBSTONE_AGE: Duration = Duration::from_secs(120);

/// What is retained of one topic on a disk.
type OnDisk = BTreeMap<Box<str>, (Option<Arc<StoredMessage>>, Option<Stamp>)>;

/// One life of a broker.
struct Life {
    router: Arc<Router>,
    journal: Arc<Journal>,
    deliver: LinkDelivery,
    /// What was held of each topic when it was last looked at.
    seen: BTreeMap<String, Stamp>,
}

/// One end of a link that is up.
struct End {
    sync: RetainedSync,
    /// On its way here.
    coming: VecDeque<(Instant, Vec<u8>)>,
}

struct Live {
    due: Instant,
    to: usize,
    topic: String,
    payload: String,
    stamp: Stamp,
    expiry_seconds: Option<u32>,
}

struct World {
    random: StdRng,
    now: Instant,
    lives: Vec<Option<Life>>,
    disks: Vec<OnDisk>,
    /// Wall clocks' begin: right, some seconds or hours wrong, or 1970.
    clocks: Vec<Duration>,
    started_at: Instant,
    /// Pairs that may be linked, and whether they are cut.
    pairs: BTreeMap<(usize, usize), bool>,
    /// By the broker whose end it is and the other.
    ends: BTreeMap<(usize, usize), End>,
    links_made: u64,
    live: Vec<Live>,
    writes: u64,
    /// All that was ever written, none a deletion.
    written: BTreeMap<Stamp, (String, Option<String>)>,
    loss: f64,
    /// How long each remembers what was deleted.
    ages: Vec<Duration>,
}

fn topic(number: usize) -> String {
    format!("t/{number}")
}

fn limits() -> RouterLimits {
    let outbound = OutboundLimits {
        inflight_max: 10,
        inflight_bytes_max: 1 << 20,
        queued_messages_max: 10,
        queued_bytes_max: 1 << 20,
        drop_oldest: false,
        queue_qos0: false,
    };
    RouterLimits { outbound, shared: SharedStrategy::RoundRobin }
}

impl World {
    #[expect(clippy::disallowed_methods, reason = "virtual time starts somewhere")]
    fn new(seed: u64, brokers: usize) -> Self {
        let mut random = StdRng::seed_from_u64(seed);
        let now = Instant::now() + 100 * YEAR;
        let mut pairs = BTreeMap::new();
        for b in 1..brokers {
            // A tree, so that it is connected, and some more.
            pairs.insert((random.random_range(0..b), b), false);
            for a in 0..b {
                if random.random_bool(0.4) {
                    pairs.insert((a, b), false);
                }
            }
        }
        let clocks = (0..brokers)
            .map(|_| match random.random_range(0..6) {
                0 => Duration::ZERO,
                1 => 56 * YEAR + Duration::from_secs(random.random_range(0..20_000)),
                2 => 56 * YEAR + Duration::from_secs(random.random_range(0..5)),
                _ => 56 * YEAR,
            })
            .collect();
        Self {
            random,
            now,
            lives: (0..brokers).map(|_| None).collect(),
            disks: vec![OnDisk::new(); brokers],
            clocks,
            started_at: now,
            pairs,
            ends: BTreeMap::new(),
            links_made: 0,
            live: Vec::new(),
            writes: 0,
            written: BTreeMap::new(),
            loss: 0.2,
            ages: vec![TOMBSTONE_AGE; brokers],
        }
    }

    fn start(&mut self, broker: usize) {
        let (journal, now) = (Journal::new(), self.now);
        let router = Arc::new(Router::new(limits(), Arc::new(Metrics::default()), Some(Arc::clone(&journal)), now));
        let unix = self.clocks[broker] + (now - self.started_at);
        router.share_retained(StampClock::new(self.random.random(), unix, now), self.ages[broker]);
        let disk = &self.disks[broker];
        let messages = disk.values().filter_map(|(message, stamp)| Some((message.clone()?, *stamp)));
        let deleted = disk.iter().filter(|(_, (message, _))| message.is_none());
        router.restore_retained(messages, deleted.filter_map(|(topic, (_, stamp))| Some((topic.clone(), (*stamp)?))), now);
        let deliver = LinkDelivery::new(Arc::clone(&router));
        self.lives[broker] = Some(Life { router, journal, deliver, seen: BTreeMap::new() });
    }

    fn crash(&mut self, broker: usize) {
        self.lives[broker] = None;
        if self.random.random_bool(0.3) {
            self.disks[broker].clear();
        }
        if self.random.random_bool(0.2) {
            self.clocks[broker] = Duration::ZERO;
        }
    }

    /// The store's thread takes what there is.
    fn commit(&mut self, broker: usize) {
        let Some(life) = &self.lives[broker] else { return };
        let mut changes = Vec::new();
        life.journal.take(&mut changes, Duration::ZERO);
        let disk = &mut self.disks[broker];
        for change in changes {
            match change {
                Change::Retained(message, stamp) => drop(disk.insert(message.topic.clone(), (Some(message), stamp))),
                Change::Forgotten(topic, Some(stamp)) => drop(disk.insert(topic, (None, Some(stamp)))),
                Change::Forgotten(topic, None) => drop(disk.remove(&topic)),
                other => panic!("{other:?}"),
            }
        }
    }

    fn write(&mut self, broker: usize, number: usize) {
        let expires = self.random.random_bool(0.1);
        let is_deletion = self.random.random_bool(0.3);
        let Some(life) = &mut self.lives[broker] else { return };
        self.writes += 1;
        let (topic, payload) = (topic(number), if is_deletion { String::new() } else { format!("w{}", self.writes) });
        let expiry_seconds = (expires && !is_deletion).then_some(5);
        let message = Message {
            topic: &topic,
            payload: payload.as_bytes(),
            qos: QoS::AtLeastOnce,
            retain: true,
            expires_at: expiry_seconds.map(|seconds| self.now + Duration::from_secs(seconds.into())),
            properties: &[],
        };
        let mut batch = Batch::default();
        // As a client's: it gets a stamp here.
        life.router.publish(&mut batch, &mut RouteCache::default(), &message, Ingress::Link(Arrival::default()), self.now);
        life.router.finish(&mut batch, self.now);
        let stamp = held(life, &topic).expect("it was written");
        let content = if expiry_seconds.is_some() { format!("{payload} expires") } else { payload.clone() };
        let before = self.written.insert(stamp, (topic.clone(), (!is_deletion).then_some(content)));
        assert_eq!(before, None, "two writes with one stamp");
        for to in (0..self.lives.len()).filter(|to| *to != broker) {
            if self.random.random_bool(1.0 - self.loss) && self.reaches(broker, to) {
                let due = self.now + Duration::from_millis(self.random.random_range(0..400));
                let (topic, payload) = (topic.clone(), payload.clone());
                self.live.push(Live { due, to, topic, payload, stamp, expiry_seconds });
            }
        }
    }

    /// Writes until what is written last is a deletion, or a message that stays.
    fn write_last(&mut self, broker: usize, number: usize, deletion: bool) {
        loop {
            self.write(broker, number);
            let stamp = held(self.lives[broker].as_ref().unwrap(), &topic(number)).unwrap();
            let content = self.written[&stamp].1.as_deref();
            if content.map_or(deletion, |content| !deletion && !content.ends_with("expires")) {
                return;
            }
        }
    }

    /// Over links that are up.
    fn reaches(&self, from: usize, to: usize) -> bool {
        let (mut known, mut waiting) = (vec![from], vec![from]);
        while let Some(at) = waiting.pop() {
            for (one, other) in self.ends.keys() {
                if *one == at && !known.contains(other) {
                    known.push(*other);
                    waiting.push(*other);
                }
            }
        }
        known.contains(&to)
    }

    fn links(&mut self) {
        for ((a, b), is_cut) in self.pairs.clone() {
            let is_up = self.lives[a].is_some() && self.lives[b].is_some() && !is_cut;
            for (one, other) in [(a, b), (b, a)] {
                if is_up && !self.ends.contains_key(&(one, other)) {
                    self.links_made += 1;
                    self.ends.insert((one, other), End { sync: RetainedSync::new(self.links_made), coming: VecDeque::new() });
                } else if !is_up
                    && let Some(mut end) = self.ends.remove(&(one, other))
                    && let Some(life) = &self.lives[one]
                {
                    end.sync.end(&*life.router);
                }
            }
        }
    }

    fn exchange(&mut self) {
        let keys: Vec<_> = self.ends.keys().copied().collect();
        for (one, other) in keys {
            let router = Arc::clone(&self.lives[one].as_ref().unwrap().router);
            let end = self.ends.get_mut(&(one, other)).unwrap();
            while end.coming.front().is_some_and(|(due, _)| *due <= self.now) {
                let (_, bytes) = end.coming.pop_front().unwrap();
                let mut rest = bytes.as_slice();
                while let Some((frame, length)) = bulk::decode(rest, 1 << 20).unwrap() {
                    end.sync.receive(&frame, &*router, self.now).unwrap();
                    rest = &rest[length..];
                }
                assert!(rest.is_empty());
            }
            let mut out = Vec::new();
            end.sync.poll(&*router, self.now, &mut out);
            if !out.is_empty() {
                let back = self.ends.get_mut(&(other, one)).unwrap();
                let earliest = back.coming.back().map_or(self.now, |(due, _)| *due);
                let due = earliest.max(self.now + Duration::from_millis(self.random.random_range(0..300)));
                back.coming.push_back((due, out));
            }
        }
    }

    fn step(&mut self) {
        self.now += STEP;
        self.links();
        for live in std::mem::take(&mut self.live) {
            if live.due > self.now {
                self.live.push(live);
            } else if let Some(life) = &mut self.lives[live.to] {
                let message = MeshMessage {
                    topic: &live.topic,
                    payload: live.payload.as_bytes(),
                    qos: QoS::AtLeastOnce,
                    retain: true,
                    expiry_seconds: live.expiry_seconds,
                    properties: &[],
                    stamp: Some(live.stamp),
                    picks: Default::default(),
                };
                life.deliver.deliver(&message, ANY_ID, self.now);
                life.deliver.flush(self.now);
            }
        }
        self.exchange();
        for broker in 0..self.lives.len() {
            if self.random.random_bool(0.3) {
                self.commit(broker);
            }
            if let Some(life) = &mut self.lives[broker] {
                if self.random.random_bool(0.1) {
                    life.router.retained().sweep_expired(self.now);
                    life.router.retained().sweep_tombstones(self.now);
                }
                check(life, &self.written, self.now);
            }
        }
    }

    fn chaos(&mut self) {
        let brokers = self.lives.len();
        let broker = self.random.random_range(0..brokers);
        match self.random.random_range(0..40) {
            0 => self.crash(broker),
            1 | 2 if self.lives[broker].is_none() => self.start(broker),
            3 => {
                let place = self.random.random_range(0..self.pairs.len());
                let is_cut = self.pairs.values_mut().nth(place).unwrap();
                *is_cut = !*is_cut;
            }
            4 => {
                // A partition.
                let side: Vec<bool> = (0..brokers).map(|_| self.random.random()).collect();
                self.pairs.iter_mut().for_each(|((a, b), is_cut)| *is_cut = side[*a] != side[*b]);
            }
            5..=20 => {
                let number = self.random.random_range(0..TOPICS);
                self.write(broker, number);
            }
            _ => {}
        }
    }

    fn heal(&mut self) {
        self.pairs.values_mut().for_each(|is_cut| *is_cut = false);
        (0..self.lives.len())
            .filter(|broker| self.lives[*broker].is_none())
            .collect::<Vec<_>>()
            .into_iter()
            .for_each(|it| self.start(it));
    }

    /// Whether all hold that, and of what was deleted that or nothing.
    fn is_settled(&self, expected: &[Option<Stamp>]) -> bool {
        let is_held = |life: &Life, number: usize, expected: Option<Stamp>| {
            let is_deletion = expected.is_some_and(|stamp| self.written.get(&stamp).is_some_and(|(_, content)| content.is_none()));
            let expires = expected.is_some_and(|stamp| {
                self.written.get(&stamp).is_some_and(|(_, content)| content.as_ref().is_some_and(|it| it.ends_with("expires")))
            });
            match held(life, &topic(number)) {
                None => is_deletion || expires || expected.is_none(),
                held => held == expected,
            }
        };
        self.lives.iter().flatten().all(|life| expected.iter().enumerate().all(|(number, stamp)| is_held(life, number, *stamp)))
    }

    fn are_equal(&self) -> bool {
        let mut sums = self.lives.iter().flatten().map(|life| life.router.retained().sums());
        let first = sums.next();
        sums.all(|sums| Some(sums) == first)
    }
}

fn held(life: &Life, topic: &str) -> Option<Stamp> {
    let key = key_of(topic);
    life.router.retained().stamps(key, key, 1).first().map(|(_, stamp)| *stamp)
}

/// What subscribers to come would be sent.
fn retained(life: &Life, now: Instant) -> BTreeMap<String, String> {
    let text = |message: &Arc<StoredMessage>| (message.topic.to_string(), String::from_utf8(message.payload.to_vec()).unwrap());
    life.router.retained().matching("#", now).iter().map(text).collect()
}

/// Nothing older takes the place of something newer, also if that is forgotten by now; and what is held is what was written then.
fn check(life: &mut Life, written: &BTreeMap<Stamp, (String, Option<String>)>, now: Instant) {
    let retained = retained(life, now);
    for topic in (0..TOPICS).map(topic) {
        let stamp = held(life, &topic);
        let before = life.seen.get(&topic).copied();
        let Some(stamp) = stamp else { continue };
        assert!(Some(stamp) >= before, "{topic}: {stamp:?} in place of {before:?}");
        life.seen.insert(topic.clone(), stamp);
        let (of, content) = written.get(&stamp).expect("somebody has written it");
        assert_eq!(*of, topic);
        match (content.as_deref().map(|content| content.split_once(' ').unwrap_or((content, ""))), retained.get(&topic)) {
            (Some((content, _)), Some(found)) => assert_eq!(content, found),
            (Some((_, expires)), None) => assert_eq!(expires, "expires", "{topic}"),
            (None, found) => assert_eq!(found, None, "{topic} was deleted"),
        }
    }
}

fn run(seed: u64) {
    let brokers = 2 + (seed % 5) as usize;
    let mut world = World::new(seed, brokers);
    // One of them comes later.
    (0..brokers - 1).for_each(|broker| world.start(broker));
    for _ in 0..300 {
        world.chaos();
        world.step();
    }
    world.heal();
    // Of each topic the last write that anybody has.
    let newest = |world: &World, topic: &str| {
        let alive = world.lives.iter().flatten().filter_map(|life| held(life, topic));
        alive.chain(world.live.iter().filter(|live| live.topic == topic).map(|live| live.stamp)).max()
    };
    let expected: Vec<_> = (0..TOPICS).map(|number| newest(&world, &topic(number))).collect();
    let healed_at = world.now;
    while world.now < healed_at + Duration::from_secs(20) || !world.is_settled(&expected) || !world.live.is_empty() {
        world.step();
        assert!(world.now < healed_at + Duration::from_secs(80), "seed {seed}: they do not come to the same");
    }
    // Nor does anything come back when that is forgotten.
    while world.lives.iter().flatten().any(|life| life.router.retained().tombstones() > 0) || !world.are_equal() {
        world.now += Duration::from_secs(1);
        world.step();
        assert!(world.is_settled(&expected), "seed {seed}");
        assert!(world.now < healed_at + Duration::from_secs(500), "seed {seed}: they do not forget");
    }
    for (broker, life) in world.lives.iter().enumerate() {
        let life = life.as_ref().unwrap();
        assert_eq!(
            retained(life, world.now),
            retained(world.lives[0].as_ref().unwrap(), world.now),
            "seed {seed}, broker {broker}"
        );
    }
}

#[test]
fn whatever_happens_all_come_to_hold_the_last_write() {
    let seeds: u64 = std::env::var("SEEDS").map_or(400, |seeds| seeds.parse().unwrap());
    let first: u64 = std::env::var("SEED").map_or(0, |seed| seed.parse().unwrap());
    for seed in first..first + seeds {
        let result = std::panic::catch_unwind(|| run(seed));
        if let Err(panic) = result {
            println!("seed {seed}");
            std::panic::resume_unwind(panic);
        }
    }
    println!("seeds {first} to {}", first + seeds - 1);
}

#[test]
fn a_newcomer_is_sent_everything_once_however_many_neighbours_it_has() {
    let mut world = World::new(7, 4);
    world.pairs = (0..4).flat_map(|b| (0..b).map(move |a| ((a, b), false))).collect();
    world.clocks = vec![56 * YEAR; 4];
    world.loss = 0.0;
    (0..3).for_each(|broker| world.start(broker));
    for number in 0..3_000 {
        world.write(number % 3, number);
        if number % 100 == 0 {
            world.step();
        }
    }
    let settle = |world: &mut World| {
        let begin = world.now;
        while world.now < begin + Duration::from_secs(5) || !world.are_equal() {
            world.step();
            assert!(world.now < begin + Duration::from_secs(100));
        }
    };
    settle(&mut world);
    let counts = |world: &World, broker: usize| {
        let counts = world.lives[broker].as_ref().unwrap().router.retained().mesh_counts().unwrap();
        (counts.taken.value(), counts.older.value())
    };
    let before = [0, 1, 2].map(|broker| counts(&world, broker));
    world.start(3);
    settle(&mut world);
    assert_eq!(counts(&world, 3), (3_000, 0));
    assert_eq!([0, 1, 2].map(|broker| counts(&world, broker)), before, "nobody was sent anything back");
}

#[test]
fn what_one_has_forgotten_is_not_taken_again_from_one_that_has_not() {
    for seed in 0..20 {
        let brokers = 2 + (seed % 4) as usize;
        let mut world = World::new(seed, brokers);
        world.clocks = (0..brokers).map(|_| 56 * YEAR + Duration::from_secs(world.random.random_range(0..20))).collect();
        world.ages = (0..brokers).map(|_| Duration::from_secs(world.random.random_range(40..100))).collect();
        world.loss = 0.0;
        (0..brokers).for_each(|broker| world.start(broker));
        world.step();
        for number in 0..100 {
            world.write(number % brokers, number % TOPICS);
            world.step();
        }
        (0..TOPICS / 2).for_each(|number| world.write_last(number % brokers, number, true));
        let news = |world: &World| world.lives.iter().flatten().map(|life| life.router.retained().news()).collect::<Vec<_>>();
        let left = |world: &World| world.lives.iter().flatten().map(|life| life.router.retained().tombstones()).collect::<Vec<_>>();
        (0..50).for_each(|_| world.step());
        let before = news(&world);
        assert!(left(&world).iter().all(|left| *left > 0), "seed {seed}");
        while left(&world).iter().any(|left| *left > 0) {
            world.step();
            assert_eq!(news(&world), before, "seed {seed}: nobody learns anything");
            assert!(world.now < world.started_at + Duration::from_secs(200), "seed {seed}");
        }
        assert!(world.are_equal(), "seed {seed}");
    }
}

#[test]
fn a_clock_that_jumps_ahead_brings_nothing_back() {
    let mut world = World::new(3, 5);
    world.loss = 0.0;
    world.clocks = vec![56 * YEAR; 5];
    // Who was away is linked to one that came later and knows of no deletion.
    world.pairs = [(0, 1), (1, 4), (4, 2), (1, 3)].map(|pair| (pair, false)).into();
    [0, 1, 2, 4].into_iter().for_each(|broker| world.start(broker));
    world.step();
    (0..TOPICS).for_each(|number| world.write_last(0, number, false));
    (0..100).for_each(|_| world.step());
    let count = |world: &World, broker: usize| world.lives[broker].as_ref().unwrap().router.retained().count();
    assert_eq!([0, 1, 2, 4].map(|broker| count(&world, broker)), [TOPICS; 4]);
    world.lives[4] = None;
    world.disks[4].clear();
    world.step();
    (0..TOPICS).for_each(|number| world.write_last(1, number, true));
    world.clocks[3] += 3 * YEAR;
    world.start(3);
    (0..100).for_each(|_| world.step());
    assert_eq!([0, 1, 2].map(|broker| count(&world, broker)), [0, 0, TOPICS]);
    world.start(4);
    let begin = world.now;
    while world.now < begin + Duration::from_secs(70) {
        world.step();
        assert_eq!([0, 1, 3].map(|broker| count(&world, broker)), [0; 3]);
    }
    assert_eq!([2, 4].map(|broker| count(&world, broker)), [0; 2]);
}
