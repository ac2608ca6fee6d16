//! Measurements, not tests: how long messages stand still when a broker dies, and what a saturated bad path does to control. Only shown:
//!
//! ```text
//! cargo test --release --test e2e healing:: -- --ignored --nocapture --test-threads 1
//! ```
//!
//! `ROUNDS` says how often each death is died (default 5), `SECONDS` how long a bad path is watched (default 60), `CONGESTION` with
//! which `mesh.congestion` (default: the broker's).

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::broker::{Broker, Site, wait_for};
use crate::client::{Client, Publish};
use crate::mesh::settle;
use crate::relay::{BOTH, Relay};
use crate::wire::kind;

/// Between two messages.
const PACE: Duration = Duration::from_millis(2);
/// Traffic before the death, and after it.
const BEFORE: Duration = Duration::from_secs(2);
const AFTER: Duration = Duration::from_secs(3);

fn number_from_environment(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().map_or(default, |text| text.parse().unwrap())
}

/// Who dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Victim {
    Root,
    /// Neither root nor leaf.
    Middle,
    Leaf,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    Full,
    Cycle,
}

fn start(site: &Site, shape: Shape, count: usize) -> Vec<Broker> {
    let mut brokers: Vec<Broker> = Vec::new();
    for place in 0..count {
        let name = format!("n{place}");
        site.certify("m", &name, &[]);
        let ends: Vec<usize> = match shape {
            Shape::Full => (0..place).collect(),
            Shape::Cycle => place.checked_sub(1).into_iter().chain((place + 1 == count).then_some(0)).collect(),
        };
        let peers: Vec<SocketAddr> = ends.into_iter().map(|end| brokers[end].address_of("mesh")).collect();
        brokers.push(site.start(&name, &site.configuration(&name, &peers)));
    }
    brokers
}

/// The tree as the topology tells it: neighbours by name.
fn tree(topology: &Value) -> BTreeMap<String, BTreeSet<String>> {
    let mut tree: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for link in topology["links"].as_array().unwrap().iter().filter(|link| link["state"] == "forwarding") {
        let [a, b] = ["a", "b"].map(|end| link[end].as_str().unwrap().to_owned());
        tree.entry(a.clone()).or_default().insert(b.clone());
        tree.entry(b).or_default().insert(a);
    }
    tree
}

/// Who dies, and two others between whom it stands, if it stands between any.
fn roles(topology: &Value, victim: Victim) -> [String; 3] {
    let tree = tree(topology);
    let root = topology["root"].as_str().unwrap();
    let dies = tree.iter().find(|(name, neighbours)| match victim {
        Victim::Root => *name == root,
        Victim::Middle => *name != root && neighbours.len() > 1,
        Victim::Leaf => *name != root && neighbours.len() == 1,
    });
    let (dies, neighbours) = dies.expect("such a broker");
    let others = neighbours.iter().chain(tree.keys().filter(|name| !neighbours.contains(*name)));
    let ends: Vec<&String> = others.filter(|name| *name != dies).take(2).collect();
    [dies, ends[0], ends[1]].map(Clone::clone)
}

/// One death under traffic: the longest gap, how long the dead one was silent until it was noticed, messages lost and doubled.
#[derive(Debug)]
struct Outcome {
    gap: Duration,
    silence_ms: Vec<u64>,
    lost: usize,
    doubled: usize,
}

fn die(shape: Shape, count: usize, victim: Victim, signal: &str, qos: u8) -> Outcome {
    let site = Site::new();
    let brokers = start(&site, shape, count);
    let everybody: Vec<&Broker> = brokers.iter().collect();
    let topology = settle(&everybody);
    let [dies, from, to] = roles(&topology, victim);
    let of = |name: &str| *everybody.iter().find(|broker| broker.name == name).unwrap();
    let running = Arc::new(AtomicBool::new(true));
    let mut subscriber = Client::subscribed(of(&to), 5, "t", qos);
    let mut publisher = Client::new(of(&from), 5);
    let (is_running, begin) = (Arc::clone(&running), Instant::now());
    let publishing = thread::spawn(move || {
        let mut said = 0;
        while is_running.load(Ordering::Relaxed) {
            let payload = said.to_string();
            let id = if qos > 0 { u16::try_from(said % 60_000 + 1).unwrap() } else { 0 };
            publisher.send(&Publish { topic: "t", payload: &payload, qos, id, ..Publish::default() }.encode(5));
            said += 1;
            thread::sleep((begin + PACE * said).saturating_duration_since(Instant::now()));
        }
        said as usize
    });
    let hearing = thread::spawn(move || {
        let mut heard: Vec<(Instant, usize)> = Vec::new();
        while let Some(Some(received)) = subscriber.receive_within(AFTER / 2) {
            if received.kind == kind::PUBLISH {
                heard.push((Instant::now(), received.text().parse().unwrap()));
                subscriber.acknowledge(&received);
            }
        }
        heard
    });
    thread::sleep(BEFORE);
    of(&dies).signal(signal);
    thread::sleep(AFTER);
    running.store(false, Ordering::Relaxed);
    let said = publishing.join().unwrap();
    let heard = hearing.join().unwrap();
    let gap = heard.windows(2).map(|pair| pair[1].0 - pair[0].0).max().unwrap_or_default();
    let numbers: BTreeSet<usize> = heard.iter().map(|(_, number)| *number).collect();
    let silences = everybody.iter().filter(|broker| broker.name != dies).flat_map(|broker| silences(&broker.log()));
    let silence_ms = silences.collect();
    if signal == "STOP" {
        of(&dies).signal("CONT");
        settle(&everybody);
    }
    Outcome { gap, silence_ms, lost: said - numbers.len(), doubled: heard.len() - numbers.len() }
}

/// Of the links that a log says were dead.
fn silences(log: &str) -> Vec<u64> {
    let after = |line: &str| line.split("silent for ").nth(1).and_then(|rest| rest.split(' ').next()?.parse().ok());
    log.lines().filter(|line| line.contains("link down")).filter_map(after).collect()
}

/// What a log says of `name`.
fn values(log: &str, name: &str) -> Vec<u64> {
    log.split(name).skip(1).filter_map(|rest| rest.split(|letter: char| !letter.is_ascii_digit()).next()?.parse().ok()).collect()
}

fn spread(mut values: Vec<u64>) -> String {
    values.sort_unstable();
    match values[..] {
        [] => "none".to_owned(),
        _ => format!("{} ({} to {})", values[values.len() / 2], values[0], values[values.len() - 1]),
    }
}

#[test]
#[ignore = "a measurement"]
fn what_a_death_costs() {
    let rounds = number_from_environment("ROUNDS", 5);
    println!(
        "brokers | who | signal | longest gap, ms: median (least to most) of {rounds} | silence until noticed, ms | QoS 1 lost | doubled"
    );
    for (shape, count, victim, signal) in [
        (Shape::Full, 3, Victim::Root, "KILL"),
        (Shape::Full, 5, Victim::Root, "KILL"),
        (Shape::Cycle, 5, Victim::Root, "KILL"),
        (Shape::Cycle, 5, Victim::Middle, "KILL"),
        (Shape::Cycle, 5, Victim::Leaf, "KILL"),
        (Shape::Full, 3, Victim::Root, "STOP"),
    ] {
        let outcomes: Vec<Outcome> = (0..rounds).map(|_| die(shape, count, victim, signal, 1)).collect();
        let gaps = outcomes.iter().map(|outcome| outcome.gap.as_millis() as u64).collect();
        let silences = outcomes.iter().flat_map(|outcome| outcome.silence_ms.clone()).collect();
        let [lost, doubled] =
            [|one: &Outcome| one.lost, |one: &Outcome| one.doubled].map(|of| outcomes.iter().map(of).sum::<usize>());
        println!("{count}, {shape:?} | {victim:?} | {signal} | {} | {} | {lost} | {doubled}", spread(gaps), spread(silences));
    }
}

/// A pair over a path of 10 Mbit/s, 40 ms and 5 % loss; with or without lanes that want more than that.
fn watch_bad_path(time: Duration, is_saturated: bool) -> String {
    let site = Site::new();
    ["a", "b"].iter().for_each(|name| site.certify("m", name, &[]));
    let talkative = |name: &str, peers: &[SocketAddr]| {
        let congestion = std::env::var("CONGESTION").map_or_else(|_| String::new(), |name| format!("congestion = {name:?}\n"));
        site.configuration(name, peers) + &congestion + "[log]\nfilter = \"info,mqtt_st_quic::mesh::link=debug\"\n"
    };
    let a = site.start("a", &talkative("a", &[]));
    let relay = Relay::start(a.address_of("mesh"));
    relay.set(&BOTH, |conditions| {
        conditions.delay = Duration::from_millis(20);
        conditions.loss = 0.05;
        (conditions.rate, conditions.queue_bytes) = (Some(10_000_000 / 8), 128 * 1024);
    });
    let b = site.start("b", &talkative("b", &[relay.address()]));
    let before = settle(&[&a, &b])["changes"].clone();
    let running = Arc::new(AtomicBool::new(true));
    let mut threads = Vec::new();
    if is_saturated {
        for (from, to) in [(&a, &b), (&b, &a)] {
            let topic = format!("from/{}", from.name);
            let (mut publisher, mut subscriber) = (Client::new(from, 5), Client::subscribed(to, 5, &topic, 0));
            let [publishes, hears] = [(); 2].map(|()| Arc::clone(&running));
            threads.push(thread::spawn(move || {
                let payload = "x".repeat(1_000);
                while publishes.load(Ordering::Relaxed) {
                    // 2 MB a second where 1.25 go.
                    (0..20).for_each(|_| {
                        publisher.send(&Publish { topic: &topic, payload: &payload, ..Publish::default() }.encode(5))
                    });
                    thread::sleep(Duration::from_millis(10));
                }
            }));
            threads.push(thread::spawn(move || {
                while hears.load(Ordering::Relaxed) {
                    subscriber.receive_within(Duration::from_millis(100));
                }
            }));
        }
    }
    thread::sleep(time);
    let topology = a.topology();
    let bytes = BOTH.map(|way| relay.count(way).passed_bytes / time.as_secs().max(1));
    let losses = || [&a, &b].map(|broker| broker.log().matches("link down").count()).iter().sum::<usize>();
    let false_alarms = losses();
    let begin = Instant::now();
    relay.set(&BOTH, |conditions| conditions.is_cut = true);
    wait_for("both notice", || (losses() >= false_alarms + 2).then_some(()));
    let noticed = begin.elapsed();
    running.store(false, Ordering::Relaxed);
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    let [jitter_us, detection_ms] = ["jitter_us=", "detection_ms="]
        .map(|name| spread([&a, &b].iter().flat_map(|broker| values(&broker.log(), name)).collect()));
    format!(
        "{}: hello jitter {jitter_us} us, detection time {detection_ms} ms, {bytes:?} bytes/s, links lost {false_alarms}, changes {before} before and {} after, a real cut noticed by both after {} ms",
        if is_saturated { "saturated" } else { "idle" },
        topology["changes"],
        noticed.as_millis()
    )
}

#[test]
#[ignore = "a measurement"]
fn what_a_saturated_bad_path_does() {
    let time = Duration::from_secs(number_from_environment("SECONDS", 60));
    let watching = [false, true].map(|is_saturated| thread::spawn(move || watch_bad_path(time, is_saturated)));
    watching.into_iter().for_each(|watching| println!("{}", watching.join().unwrap()));
}
