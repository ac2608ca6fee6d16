//! Brokers over bad paths, and brokers that stand still: what is dead is noticed, what lives is left alone, and at QoS 1 nothing is lost
//! and nothing comes twice.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::bounds::resident_bytes;
use crate::broker::{Broker, PATIENCE, Site, wait_for};
use crate::client::{Client, Publish};
use crate::mesh::{settle, start_all};
use crate::relay::{BOTH, Conditions, Relay, Way};
use crate::wire::kind;

/// Broker `b` dials `a` over a relay.
struct Pair {
    a: Broker,
    b: Broker,
    relay: Relay,
    _site: Site,
}

impl Pair {
    /// Joined over a path that `prepare` has made bad.
    fn new(prepare: impl FnOnce(&Relay)) -> Self {
        let site = Site::new();
        site.certify("m", "a", &[]);
        site.certify("m", "b", &[]);
        let a = site.start("a", &site.configuration("a", &[]));
        let relay = Relay::start(a.address_of("mesh"));
        prepare(&relay);
        let b = site.start("b", &site.configuration("b", &[relay.address()]));
        let pair = Self { a, b, relay, _site: site };
        pair.settle();
        pair
    }

    fn settle(&self) {
        settle(&[&self.a, &self.b]);
    }

    /// How often a link went down, at both ends together.
    fn losses(&self) -> usize {
        [&self.a, &self.b].map(links_lost).iter().sum()
    }
}

fn links_lost(broker: &Broker) -> usize {
    broker.log().matches("link down").count()
}

/// A subscriber at one broker, a publisher at another, and how many messages there were.
struct Flow {
    publisher: Client,
    subscriber: Client,
    said: usize,
    heard: usize,
    bytes: usize,
}

impl Flow {
    fn new(from: &Broker, to: &Broker, bytes: usize) -> Self {
        let topic = format!("from/{}", from.name);
        Self { publisher: Client::new(from, 5), subscriber: Client::subscribed(to, 5, &topic, 1), said: 0, heard: 0, bytes }
    }

    fn publish(&mut self, from: &Broker, count: usize) {
        let topic = format!("from/{}", from.name);
        for _ in 0..count {
            let payload = format!("{:0>width$}", self.said, width = self.bytes);
            assert_eq!(self.publisher.publish(Publish { topic: &topic, payload: &payload, qos: 1, ..Publish::default() }), 0);
            self.said += 1;
        }
    }

    /// Publishes without a wait for acknowledgements: much is on its way when `meanwhile` happens.
    fn flood(&mut self, from: &Broker, count: usize, meanwhile: impl FnOnce()) {
        let topic = format!("from/{}", from.name);
        let mut meanwhile = Some(meanwhile);
        for n in 0..count {
            let payload = format!("{:0>width$}", self.said, width = self.bytes);
            let id = self.publisher.next_id();
            self.publisher.send(&Publish { topic: &topic, payload: &payload, qos: 1, id, ..Publish::default() }.encode(5));
            self.said += 1;
            if n == count / 2 {
                meanwhile.take().into_iter().for_each(|meanwhile| meanwhile());
            }
        }
        (0..count).for_each(|_| drop(self.publisher.expect(kind::PUBACK)));
    }

    /// All that was said has come, once and in order, and nothing else.
    fn assert_heard(&mut self) {
        let payloads = self.subscriber.take_messages(self.said - self.heard);
        let numbers: Vec<usize> = payloads.iter().map(|payload| payload.parse().unwrap()).collect();
        assert_eq!(numbers, (self.heard..self.said).collect::<Vec<_>>());
        self.heard = self.said;
        self.subscriber.expect_nothing();
    }
}

#[test]
fn a_cut_in_one_direction_is_noticed_at_both_ends_and_heals() {
    let pair = Pair::new(|_| {});
    let mut flow = Flow::new(&pair.a, &pair.b, 20);
    for (way, round) in [(Way::Out, 1), (Way::Back, 2)] {
        flow.publish(&pair.a, 50);
        flow.assert_heard();
        pair.relay.set(&[way], |conditions| conditions.is_cut = true);
        for broker in [&pair.a, &pair.b] {
            wait_for("the link goes down", || (links_lost(broker) >= round).then_some(()));
        }
        flow.publish(&pair.a, 50);
        pair.relay.set(&[way], |conditions| conditions.is_cut = false);
        flow.assert_heard();
        pair.settle();
    }
    assert!(pair.a.log().contains("dead:") || pair.b.log().contains("dead:"));
}

/// What the dialler sends on one of the first link's connections, for control or for lanes, is lost.
#[test]
fn a_black_hole_for_one_of_its_connections_ends_a_link_at_both_ends_and_it_comes_back() {
    for (connection, name, is_busy) in [(0, "control", false), (0, "control", true), (1, "lanes", false), (1, "lanes", true)] {
        let pair = Pair::new(|_| {});
        let mut flow = Flow::new(&pair.b, &pair.a, 500);
        flow.publish(&pair.b, 50);
        flow.assert_heard();
        assert_eq!((pair.relay.connections(), pair.losses()), (2, 0));
        pair.relay.cut_connection(connection);
        let begin = Instant::now();
        if is_busy {
            flow.publish(&pair.b, 50);
        }
        for broker in [&pair.a, &pair.b] {
            wait_for("the link goes down", || (links_lost(broker) >= 1).then_some(()));
        }
        println!("a black hole for {name}, busy: {is_busy}: noticed by both after {:?}", begin.elapsed());
        flow.publish(&pair.b, 50);
        flow.assert_heard();
        pair.settle();
        assert_eq!(pair.losses(), 2);
    }
}

#[test]
fn what_was_held_up_and_comes_late_does_no_harm() {
    let pair = Pair::new(|_| {});
    let (mut there, mut back) = (Flow::new(&pair.a, &pair.b, 20), Flow::new(&pair.b, &pair.a, 20));
    for round in 1..=3 {
        pair.relay.set(&BOTH, |conditions| conditions.is_held = true);
        there.publish(&pair.a, 50);
        back.publish(&pair.b, 50);
        for broker in [&pair.a, &pair.b] {
            wait_for("the link goes down", || (links_lost(broker) >= round).then_some(()));
        }
        pair.relay.set(&BOTH, |conditions| conditions.is_held = false);
        there.assert_heard();
        back.assert_heard();
        pair.settle();
    }
}

#[test]
fn a_path_that_carries_less_than_before_goes_on() {
    let pair = Pair::new(|_| {});
    let mut flow = Flow::new(&pair.a, &pair.b, 4_000);
    flow.publish(&pair.a, 20);
    flow.assert_heard();
    wait_for("packets as large as the path carries", || (pair.relay.count(Way::Back).largest > 1_400).then_some(()));
    pair.relay.set(&BOTH, |conditions| conditions.size_max = 1_250);
    flow.publish(&pair.a, 20);
    flow.assert_heard();
    pair.settle();
    println!("a path that narrows: links lost: {}", pair.losses());
}

#[test]
fn a_path_that_narrows_under_load_goes_on() {
    let pair = Pair::new(|relay| relay.set(&BOTH, |conditions| conditions.delay = Duration::from_millis(5)));
    let mut flow = Flow::new(&pair.a, &pair.b, 4_000);
    flow.flood(&pair.a, 500, || {});
    flow.assert_heard();
    wait_for("packets as large as the path carries", || (pair.relay.count(Way::Back).largest > 1_400).then_some(()));
    let mut begin = Instant::now();
    flow.flood(&pair.a, 1_000, || {
        pair.relay.set(&BOTH, |conditions| conditions.size_max = 1_250);
        begin = Instant::now();
    });
    flow.assert_heard();
    println!("a path that narrows under load: all is there after {:?}; links lost: {}", begin.elapsed(), pair.losses());
    pair.settle();
}

#[test]
fn a_path_that_never_carried_large_packets_will_do() {
    let pair = Pair::new(|relay| relay.set(&BOTH, |conditions| conditions.size_max = 1_300));
    let mut flow = Flow::new(&pair.a, &pair.b, 4_000);
    flow.publish(&pair.a, 200);
    flow.assert_heard();
    assert_eq!(pair.losses(), 0);
}

#[test]
fn a_dialler_whose_address_changes_keeps_its_link() {
    let mut pair = Pair::new(|_| {});
    let (mut there, mut back) = (Flow::new(&pair.a, &pair.b, 2_000), Flow::new(&pair.b, &pair.a, 2_000));
    for round in 1..=3 {
        there.publish(&pair.a, 20);
        back.publish(&pair.b, 20);
        pair.relay.rebind();
        there.publish(&pair.a, 20);
        back.publish(&pair.b, 20);
        there.assert_heard();
        back.assert_heard();
        pair.settle();
        // It is told, or the link came anew.
        wait_for("a word of the new address", || {
            (pair.a.log().matches("the peer's address has changed").count() + links_lost(&pair.a) >= round).then_some(())
        });
    }
    println!("links lost: {}", pair.losses());
}

/// A link over this path lives for `time` with messages both ways.
fn assert_lives(prepare: impl FnOnce(&Relay), time: Duration) {
    let pair = Pair::new(prepare);
    let (mut there, mut back) = (Flow::new(&pair.a, &pair.b, 500), Flow::new(&pair.b, &pair.a, 500));
    let begin = Instant::now();
    let lost_before = pair.losses();
    while begin.elapsed() < time {
        there.publish(&pair.a, 5);
        back.publish(&pair.b, 5);
        there.assert_heard();
        back.assert_heard();
        thread::sleep(Duration::from_millis(20));
    }
    println!("{} messages, links lost: {lost_before} before, {} then", there.said + back.said, pair.losses() - lost_before);
    assert_eq!(pair.losses(), lost_before);
}

#[test]
fn a_link_lives_at_a_fifth_of_packets_lost() {
    assert_lives(|relay| relay.set(&BOTH, |conditions| conditions.loss = 0.2), Duration::from_secs(10));
}

#[test]
fn a_link_lives_at_a_round_trip_of_300_ms() {
    let far = |relay: &Relay| {
        relay.set(&BOTH, |conditions| {
            (conditions.delay, conditions.jitter) = (Duration::from_millis(140), Duration::from_millis(20));
        });
    };
    assert_lives(far, Duration::from_secs(8));
}

#[test]
fn a_stopped_broker_is_left_out_and_comes_back() {
    let site = Site::new();
    let brokers = start_all(&site, &["a", "b", "c"]);
    let everybody: Vec<&Broker> = brokers.iter().collect();
    let topology = settle(&everybody);
    let (stopped, living): (Vec<&Broker>, Vec<&Broker>) =
        everybody.iter().partition(|broker| topology["root"] == broker.name.as_str());
    let (stopped, first, second) = (stopped[0], living[0], living[1]);
    let mut flow = Flow::new(first, second, 20);
    let mut missed = Flow::new(first, stopped, 20);
    for round in 1..=2 {
        // A tree needs two links; the third may still be on its way up.
        wait_for("all links", || {
            let topology = first.topology();
            let up = topology["links"].as_array().unwrap().iter().filter(|link| link["state"] != "down").count();
            (up == 3).then_some(())
        });
        stopped.signal("STOP");
        let begin = Instant::now();
        for broker in [first, second] {
            wait_for("the link goes down", || (links_lost(broker) >= round).then_some(()));
        }
        println!("both have noticed after {:?}", begin.elapsed());
        flow.publish(first, 50);
        flow.assert_heard();
        println!("messages go on after {:?}", begin.elapsed());
        stopped.signal("CONT");
        assert_eq!(settle(&everybody)["root"], topology["root"]);
        flow.publish(first, 50);
        flow.assert_heard();
        missed.said = flow.said;
        missed.assert_heard();
    }
}

/// What one who hears everything has heard: when, of which QoS, which number.
type Heard = Vec<(Instant, u8, usize)>;

/// Takes what comes until all of QoS 1 that is said has come and nothing more is said.
fn hear(mut subscriber: Client, said: &AtomicUsize, is_over: &AtomicBool) -> Heard {
    let mut heard = Heard::new();
    let (mut of_qos_1, mut quiet) = (0, Instant::now());
    while !is_over.load(Ordering::Acquire) || of_qos_1 < said.load(Ordering::Acquire) {
        assert!(quiet.elapsed() < PATIENCE, "nothing comes: {of_qos_1} of {said:?} at QoS 1");
        let Some(received) = subscriber.receive_within(Duration::from_millis(20)) else { continue };
        let received = received.expect("the subscriber's connection");
        assert_eq!(received.kind, kind::PUBLISH);
        quiet = Instant::now();
        let number = received.text().split(' ').next().unwrap().parse().unwrap();
        heard.push((quiet, received.qos(), number));
        of_qos_1 += usize::from(received.qos() == 1);
        subscriber.acknowledge(&received);
    }
    heard
}

/// The longest time that nothing of this QoS came.
fn gap(heard: &Heard, qos: u8, (from, to): (Instant, Instant)) -> Duration {
    let times = heard.iter().filter(|(at, of, _)| *of == qos && (from..to).contains(at)).map(|(at, ..)| *at);
    let times: Vec<Instant> = [from].into_iter().chain(times).chain([to]).collect();
    times.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap()
}

/// A path that carries a fortieth of what is said, then nothing, then holds all back: who subscribes at the publishers' broker and behind another link notices
/// nothing, the broker's memory has a bound, and when all is well it has what it was owed. `PATH_SECONDS` (2) says how long each lasts.
#[test]
fn a_slow_link_slows_nobody_else() {
    const BYTES: usize = 1_000;
    // What is said of QoS 0 in a second, and of QoS 1.
    const RATES: [u32; 2] = [2_000, 100];
    const GAP_MAX: Duration = Duration::from_millis(500);
    // What is on its way over a link is a part of that while the path is slow.
    const GROWTH_MAX: u64 = 8 << 20;
    let seconds = std::env::var("PATH_SECONDS").map_or(2, |text| text.parse().unwrap());
    let site = Site::new();
    ["a", "b", "c"].iter().for_each(|name| site.certify("m", name, &[]));
    // The root whatever becomes of the link; its rings are full before anything happens.
    let more = "replay_log_bytes = \"4MiB\"\npriority = 4096\n[limits]\nmax_packet_size = \"64KiB\"\n";
    let a = site.start("a", &(site.configuration("a", &[]) + more));
    let relay = Relay::start(a.address_of("mesh"));
    let b = site.start("b", &site.configuration("b", &[relay.address()]));
    let c = site.start("c", &site.configuration("c", &[a.address_of("mesh")]));
    settle(&[&a, &b, &c]);
    let subscribers = [&a, &b, &c].map(|broker| {
        let mut subscriber = Client::new(broker, 5);
        subscriber.subscribe(&[("many", 0), ("sure", 1)]);
        subscriber
    });
    let said = [AtomicUsize::new(0), AtomicUsize::new(0)];
    let [is_said, is_over] = [AtomicBool::new(false), AtomicBool::new(false)];
    let mut waits: Vec<Duration> = Vec::new();
    let mut spans = Vec::new();
    let (mut before, mut after) = (0, 0);
    let heard = thread::scope(|scope| {
        let (sure, is_over) = (&said[1], &is_over);
        let hearing = subscribers.map(|subscriber| scope.spawn(move || hear(subscriber, sure, is_over)));
        let speaking = [0_u8, 1].map(|qos| {
            let (mut publisher, said, is_said) = (Client::new(&a, 5), &said[usize::from(qos)], &is_said);
            scope.spawn(move || {
                let (begun, mut slowest, topic) = (Instant::now(), Duration::ZERO, ["many", "sure"][usize::from(qos)]);
                for number in 0.. {
                    if is_said.load(Ordering::Acquire) {
                        break;
                    }
                    let due = begun + Duration::from_secs(1) * number / RATES[usize::from(qos)];
                    thread::sleep(due.saturating_duration_since(Instant::now()));
                    let payload = format!("{number} {}", "x".repeat(BYTES));
                    let asked = Instant::now();
                    publisher.publish(Publish { topic, payload: &payload, qos, ..Publish::default() });
                    said.fetch_add(1, Ordering::AcqRel);
                    slowest = slowest.max(asked.elapsed());
                }
                slowest
            })
        });
        // What is the same with all links well is there before: full rings, buffers, threads.
        thread::sleep(Duration::from_secs(seconds));
        before = resident_bytes(&a);
        for what in ["slow", "cut", "held up"] {
            let from = Instant::now();
            relay.set(&BOTH, |conditions| match what {
                "slow" => (conditions.rate, conditions.queue_bytes) = (Some(50_000), 10_000),
                "cut" => conditions.is_cut = true,
                _ => (conditions.is_cut, conditions.is_held) = (false, true),
            });
            thread::sleep(Duration::from_secs(seconds));
            spans.push((what, (from, Instant::now())));
        }
        after = resident_bytes(&a);
        relay.set(&BOTH, |conditions| *conditions = Conditions::default());
        is_said.store(true, Ordering::Release);
        waits.extend(speaking.map(|one| one.join().unwrap()));
        is_over.store(true, Ordering::Release);
        hearing.map(|one| one.join().unwrap())
    });
    for (what, span) in spans {
        let gaps: Vec<Duration> = [&heard[0], &heard[2]].iter().flat_map(|heard| [0, 1].map(|qos| gap(heard, qos, span))).collect();
        println!("{what}: longest gaps at the publishers' broker and behind the other link {gaps:?}");
        assert!(gaps.iter().all(|gap| *gap < GAP_MAX), "{what}: {gaps:?}");
    }
    println!("{said:?} said; slowest publish {waits:?}; memory {before} bytes, then {after}");
    assert!(waits.iter().all(|wait| *wait < GAP_MAX), "publishers waited: {waits:?}");
    assert!(after < before + GROWTH_MAX, "memory grew from {before} to {after} bytes");
    for (broker, heard) in ["a", "b", "c"].iter().zip(&heard) {
        let of = |qos| heard.iter().filter(move |(_, of, _)| *of == qos).map(|(.., number)| *number).collect::<Vec<usize>>();
        assert!(of(1) == (0..said[1].load(Ordering::Acquire)).collect::<Vec<_>>(), "{broker}: QoS 1 is not whole and in order");
        assert!(of(0).windows(2).all(|pair| pair[0] < pair[1]), "{broker}: QoS 0 in order, once");
        println!("{broker}: {} of QoS 0", of(0).len());
    }
    let narrow = heard[1].iter().filter(|(_, qos, _)| *qos == 0).count();
    assert!(narrow < said[0].load(Ordering::Acquire), "the path carried all there was to say");
}

#[test]
fn a_cost_set_by_hand_is_used() {
    let site = Site::new();
    site.certify("m", "a", &[]);
    site.certify("m", "b", &[]);
    let with_cost = |configuration: String, peer: &str, cost: u32| format!("{configuration}costs = {{ {peer} = {cost} }}\n");
    let a = site.start("a", &with_cost(site.configuration("a", &[]), "b", 7));
    let peers: [SocketAddr; 1] = [a.address_of("mesh")];
    let b = site.start("b", &with_cost(site.configuration("b", &peers), "a", 70_000));
    let link = settle(&[&a, &b])["links"][0].clone();
    assert_eq!(link["cost"], 70_000, "the dearer of its ends: {link}");
}
