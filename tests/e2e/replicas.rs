//! Sessions with replicas (`session_replicas`): a broker is killed, and its clients go on elsewhere, with nothing lost and at QoS 2 nothing twice.
//!
//! `REPLICA_ROUNDS` (2) says how often, `REPLICA_SEED` repeats a run, `REPLICA_WAITING` (1,000) says how many messages wait.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::broker::{Broker, PATIENCE, Site, wait_for};
use crate::client::{Client, Connect, Publish, Will};
use crate::crash::{Publisher, Subscriber};
use crate::drain::drain;
use crate::mesh::{settle, start_all, start_all_as};
use crate::relay::{BOTH, Relay, Way};
use crate::serve::{counter, gauge};
use crate::wire::kind;

fn start(site: &Site, names: &[&str]) -> Vec<Broker> {
    let brokers = start_all(site, names);
    settle(&brokers.iter().collect::<Vec<_>>());
    brokers
}

/// Until all sessions of all brokers have replicas.
pub fn await_replicas<'a>(brokers: impl IntoIterator<Item = &'a Broker> + Clone) {
    wait_for("replicas of all sessions", || {
        let sum = |name| brokers.clone().into_iter().map(|broker| gauge(broker, name)).sum::<u64>();
        // There are others' sessions beside: those of publishers, which are kept as well.
        (sum("sessions_unreplicated") == 0 && sum("sessions_shadowed") == sum("sessions")).then_some(())
    });
}

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().expect("a number"))
}

fn seeded() -> StdRng {
    let seed = variable("REPLICA_SEED").unwrap_or_else(rand::random);
    println!("REPLICA_SEED={seed}");
    StdRng::seed_from_u64(seed)
}

fn connect(id: &str) -> Connect {
    Connect::new(5).id(id).resume(u32::MAX)
}

/// Two subscribers, QoS 1 and 2, and two publishers for them, each with sessions that are kept.
struct Clients {
    publishers: Vec<Publisher>,
    subscribers: Vec<Subscriber>,
}

impl Clients {
    fn new(at: &Broker, rng: &mut StdRng) -> Self {
        let (mut publishers, mut subscribers) = (Vec::new(), Vec::new());
        for (qos, names) in [(1, ["p1", "s1"]), (2, ["p2", "s2"])] {
            let topic = format!("kept/{qos}");
            let mut publisher = Publisher::new(connect(names[0]), &topic, qos, rng.random());
            publisher.pause = Duration::from_millis(4);
            let mut subscriber = Subscriber::new(connect(names[1]), &topic, qos);
            subscriber.subscribe(at.address());
            publishers.push(publisher);
            subscribers.push(subscriber);
        }
        Self { publishers, subscribers }
    }

    /// All is there: of QoS 1 at least once, of QoS 2 once, and in order.
    fn check(&mut self, at: &Broker) {
        let counts: Vec<u64> = self.publishers.iter().map(|publisher| publisher.next).collect();
        for (subscriber, published) in self.subscribers.iter_mut().zip(&counts) {
            let deadline = Instant::now() + PATIENCE;
            while subscriber.seen.len() < *published as usize && Instant::now() < deadline {
                // Its session may be refused for a moment.
                let _ = subscriber.run(at.address(), *published, deadline);
            }
            let all: Vec<u64> = (0..*published).collect();
            let missing: Vec<_> = all.iter().filter(|number| !subscriber.seen.contains(number)).collect();
            assert!(missing.is_empty(), "QoS {}: {} lost of {published}: {:?}", subscriber.qos, missing.len(), missing.first());
            let mut seen = std::collections::HashSet::new();
            let qos = subscriber.qos;
            let first: Vec<u64> = subscriber.delivered.iter().copied().filter(|number| qos == 2 || seen.insert(*number)).collect();
            let wrong = first.iter().zip(&all).find(|(got, expected)| got != expected);
            assert!(first == all, "QoS {qos}: doubled or out of order: {wrong:?} of {} for {published}", first.len());
        }
        println!("{counts:?} messages published");
    }
}

/// The broker of the subscribers is killed while messages come; they go elsewhere, and it comes back. Session Present is true each time: the clients insist on it.
#[test]
fn a_broker_is_killed_and_its_sessions_go_on_elsewhere() {
    let rounds = variable("REPLICA_ROUNDS").unwrap_or(2);
    println!("REPLICA_ROUNDS={rounds}");
    let mut rng = seeded();
    let site = Site::new();
    let names = ["a", "b", "c"];
    let mut brokers = start(&site, &names);
    let mesh: Vec<SocketAddr> = brokers.iter().map(|broker| broker.address_of("mesh")).collect();
    let mut clients = Clients::new(&brokers[0], &mut rng);
    let stop = AtomicBool::new(false);
    // Publishers stay at a broker that lives.
    let at_c = brokers[2].address();
    let Clients { publishers, subscribers } = &mut clients;
    thread::scope(|scope| {
        for publisher in publishers.iter_mut() {
            let stop = &stop;
            scope.spawn(move || publisher.run(at_c, stop).expect("the publishers' broker is gone"));
        }
        for round in 0..rounds as usize {
            let (here, there) = (round % 2, 1 - round % 2);
            // Some wait, some are under way.
            let address = brokers[here].address();
            await_replicas(&brokers);
            let life = Duration::from_millis(rng.random_range(100..400));
            thread::scope(|scope| {
                for subscriber in subscribers.iter_mut() {
                    let deadline = Instant::now() + life * 3;
                    scope.spawn(move || subscriber.run(address, u64::MAX, deadline));
                }
                thread::sleep(life);
                brokers.remove(here).kill();
            });
            let address = brokers[there.min(brokers.len() - 1)].address();
            let others: Vec<_> = mesh.iter().copied().filter(|address| *address != mesh[here]).collect();
            let listen = format!("listen = \"{}\"", mesh[here]);
            let again = site.configuration(names[here], &others).replace("listen = \"127.0.0.1:0\"", &listen);
            let address = if here == 0 { brokers[0].address() } else { address };
            for subscriber in subscribers.iter_mut() {
                let deadline = Instant::now() + PATIENCE;
                let enough = subscriber.seen.len() as u64 + 20;
                while (subscriber.seen.len() as u64) < enough && Instant::now() < deadline {
                    let _ = subscriber.run(address, enough, deadline);
                }
                assert!(subscriber.seen.len() as u64 >= enough, "QoS {} does not go on", subscriber.qos);
            }
            brokers.insert(here, site.start(names[here], &again));
            settle(&brokers.iter().collect::<Vec<_>>());
        }
        stop.store(true, Ordering::Relaxed);
    });
    clients.check(&brokers[rounds as usize % 2]);
}

/// The broker with the replicas is killed: clients notice nothing, and there are others.
#[test]
fn a_broker_with_replicas_is_killed_and_nobody_notices() {
    let site = Site::new();
    let mut brokers = start(&site, &["a", "b", "c"]);
    let mut rng = seeded();
    let mut clients = Clients::new(&brokers[0], &mut rng);
    let stop = AtomicBool::new(false);
    let address = brokers[0].address();
    let Clients { publishers, subscribers } = &mut clients;
    thread::scope(|scope| {
        for publisher in publishers.iter_mut() {
            let stop = &stop;
            scope.spawn(move || publisher.run(address, stop).expect("the publishers' broker is there"));
        }
        await_replicas(&brokers);
        thread::scope(|scope| {
            for subscriber in subscribers.iter_mut() {
                let deadline = Instant::now() + Duration::from_secs(5);
                scope.spawn(move || {
                    let before = subscriber.seen.len();
                    subscriber.run(address, u64::MAX, deadline).expect("its broker is there");
                    assert!(subscriber.seen.len() > before);
                });
            }
            let keeper = brokers.iter().position(|broker| gauge(broker, "sessions_shadowed") > 0).unwrap();
            assert!(keeper > 0);
            brokers.remove(keeper).kill();
        });
        await_replicas(&brokers);
        stop.store(true, Ordering::Relaxed);
    });
    clients.check(&brokers[0]);
}

/// How the broker with the sessions goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Killed,
    /// Stopped in order, which hands no session over: it may be back at once.
    Terminated,
    /// Left in order, which does.
    Drained,
}

/// A thousand messages of each QoS wait for clients that are away while their broker goes: at another broker they arrive in their order, each once.
/// When the old one is back nothing comes again.
fn what_waits_is_served_elsewhere(end: End) {
    let waiting = variable("REPLICA_WAITING").unwrap_or(1_000);
    let mut rng = seeded();
    let site = Site::new();
    let names = ["a", "b", "c"];
    let mut brokers = start(&site, &names);
    let mesh: Vec<SocketAddr> = brokers.iter().map(|broker| broker.address_of("mesh")).collect();
    let mut clients = Clients::new(&brokers[0], &mut rng);
    let at_c = brokers[2].address();
    let publish = |publishers: &mut [Publisher], more: u64| {
        thread::scope(|scope| {
            for publisher in publishers {
                (publisher.end, publisher.pause) = (publisher.next + more, Duration::ZERO);
                scope.spawn(move || publisher.run(at_c, &AtomicBool::new(false)).expect("the publishers' broker is gone"));
            }
        });
    };
    publish(&mut clients.publishers, waiting);
    wait_for("messages to wait", || (counter(&brokers[0], "mesh_messages_received") >= 2 * waiting).then_some(()));
    await_replicas(&brokers);

    let mut old = brokers.remove(0);
    match end {
        End::Killed => old.kill(),
        End::Terminated => {
            old.signal("TERM");
            assert_eq!(old.wait().code(), Some(0), "{}", old.log());
        }
        End::Drained => {
            let said = drain(&site, &old, &["--notice", "0ms"]);
            assert_eq!((said.code, old.wait().code()), (Some(0), Some(0)), "{said:?}");
        }
    }
    let place = rng.random_range(0..2);
    let (address, gone) = (brokers[place].address(), Instant::now());
    for subscriber in &mut clients.subscribers {
        let deadline = Instant::now() + PATIENCE;
        while (subscriber.seen.len() as u64) < waiting && Instant::now() < deadline {
            // Its session may be refused for a moment; that it is there is insisted on.
            let _ = subscriber.run(address, waiting, deadline);
        }
        let all: Vec<u64> = (0..waiting).collect();
        let wrong = subscriber.delivered.iter().zip(&all).find(|(got, expected)| got != expected);
        assert!(subscriber.delivered == all, "QoS {}: {wrong:?}, {} came", subscriber.qos, subscriber.delivered.len());
    }
    println!("{end:?}: all is there {:?} later, at {}", gone.elapsed(), brokers[place].name);
    let sum = |brokers: &[Broker], name| brokers.iter().map(|broker| counter(broker, name)).sum::<u64>();
    let promoted = if end == End::Drained { 0 } else { 2 };
    assert_eq!((sum(&brokers, "sessions_promoted"), sum(&brokers, "sessions_unreachable")), (promoted, 0));

    // What comes twice would come before what is published last.
    let listen = format!("listen = \"{}\"", mesh[0]);
    let again = site.configuration(names[0], &mesh[1..]).replace("listen = \"127.0.0.1:0\"", &listen);
    brokers.insert(0, site.start(names[0], &again));
    settle(&brokers.iter().collect::<Vec<_>>());
    publish(&mut clients.publishers, 1);
    clients.check(&brokers[0]);
    wait_for("one session of each client", || {
        (brokers.iter().map(|broker| gauge(broker, "sessions")).sum::<u64>() == 4).then_some(())
    });
}

#[test]
fn what_waits_at_a_broker_that_is_killed_is_served_by_another() {
    what_waits_is_served_elsewhere(End::Killed);
}

#[test]
fn what_waits_at_a_broker_that_is_stopped_is_served_by_another() {
    what_waits_is_served_elsewhere(End::Terminated);
}

#[test]
fn what_waits_at_a_broker_that_is_drained_is_served_by_another() {
    what_waits_is_served_elsewhere(End::Drained);
}

/// Lanes have more to say than the path to the broker with the replicas carries: what clients wait for comes all the same, and no replica is given up.
#[test]
fn what_replicas_are_told_does_not_wait_for_full_lanes() {
    const ROUNDS: usize = 30;
    let site = Site::new();
    site.certify("m", "a", &[]);
    let a = site.start("a", &site.configuration("a", &[]));
    let relay = Relay::start(a.address_of("mesh"));
    site.certify("m", "b", &[]);
    let b = site.start("b", &site.configuration("b", &[relay.address()]));
    settle(&[&a, &b]);
    let mut subscriber = Client::connect(&b, &connect("steps"));
    subscriber.subscribe(&[("steps/#", 2)]);
    await_replicas([&a, &b]);
    let (hearer, stop) = (Client::subscribed(&a, 5, "flood", 0), AtomicBool::new(false));
    relay.set(&BOTH, |conditions| conditions.rate = Some(250_000));
    let (address, mut publisher) = (b.address(), Client::new(&b, 5));
    let mut waits: Vec<Duration> = Vec::new();
    thread::scope(|scope| {
        scope.spawn(|| {
            let (mut flood, payload) = (Client::open_at(address, 4), "x".repeat(1_000));
            flood.send(&Connect::new(4).encode());
            flood.expect(kind::CONNACK);
            let one = Publish { topic: "flood", payload: &payload, ..Publish::default() }.encode(4);
            let many = one.repeat(20);
            // Eight times of what the path carries, at least.
            while !stop.load(Ordering::Relaxed) {
                flood.send(&many);
                thread::sleep(Duration::from_millis(10));
            }
        });
        scope.spawn(|| {
            let mut hearer = hearer;
            while !stop.load(Ordering::Relaxed) {
                hearer.receive_within(Duration::from_millis(20));
            }
        });
        wait_for("the path to be full", || (relay.count(Way::Out).lost > 0).then_some(()));
        for round in 0..ROUNDS {
            let (since, payload) = (Instant::now(), round.to_string());
            publisher.publish(Publish { topic: "steps/x", payload: &payload, qos: 2, ..Publish::default() });
            subscriber.expect_message(&payload);
            waits.push(since.elapsed());
        }
        stop.store(true, Ordering::Relaxed);
    });
    waits.sort();
    println!("a message of QoS 2 took {:?} (median), {:?} at most", waits[ROUNDS / 2], waits[ROUNDS - 1]);
    // Nobody is waited for longer than two seconds at a step, of which there are two.
    assert!(waits[ROUNDS / 2] < Duration::from_secs(2), "{waits:?}");
    assert_eq!(counter(&b, "replicas_given_up"), 0, "{waits:?}");
}

fn kept(brokers: &[Broker]) -> u64 {
    brokers.iter().map(|broker| gauge(broker, "wills_kept")).sum()
}

fn orphaned(brokers: &[Broker]) -> u64 {
    brokers.iter().map(|broker| counter(broker, "wills_orphaned")).sum()
}

/// Wills do not wait for long.
fn hasty(site: &Site, name: &str, peers: &[SocketAddr]) -> String {
    site.configuration(name, peers).replace("[mesh]\n", "[mesh]\norphan_grace = \"2s\"\n")
}

fn start_hasty(site: &Site, names: &[&str]) -> Vec<Broker> {
    let brokers = start_all_as(site, names, hasty);
    settle(&brokers.iter().collect::<Vec<_>>());
    brokers
}

fn mourned(id: &str) -> Connect {
    connect(id).will(Will { qos: 1, ..Will::new("wills", id) })
}

/// Of a client without a session, too: that has nobody else.
fn mourned_clean(id: &str) -> Connect {
    Connect::new(4).id(id).will(Will { qos: 1, ..Will::new("wills", id) })
}

/// A broker is killed: each will of its clients goes out once, but for that of a client that comes elsewhere. Not once more when the broker is back.
#[test]
fn the_wills_of_a_broker_that_is_killed_go_out_once() {
    let site = Site::new();
    let mut brokers = start_hasty(&site, &["a", "b", "c"]);
    let mesh: Vec<SocketAddr> = brokers.iter().map(|broker| broker.address_of("mesh")).collect();
    let mut watcher = Client::subscribed(&brokers[2], 5, "wills", 1);
    let _kept = Client::connect(&brokers[0], &mourned("kept"));
    let _clean = Client::connect(&brokers[0], &mourned_clean("clean"));
    let _moving = Client::connect(&brokers[0], &mourned_clean("moving"));
    Client::connect(&brokers[0], &mourned("polite")).disconnect();
    wait_for("another broker that has the wills", || (kept(&brokers) == 3).then_some(()));
    brokers.remove(0).kill();
    let _moved = Client::connect(&brokers[0], &mourned_clean("moving"));
    let mut wills = watcher.take_messages(2);
    wills.sort_unstable();
    assert_eq!(wills, ["clean", "kept"]);
    // That one's new will is kept elsewhere.
    wait_for("one will that is left", || (kept(&brokers) == 1).then_some(()));
    assert_eq!(orphaned(&brokers), 2);

    let listen = format!("listen = \"{}\"", mesh[0]);
    let again = hasty(&site, "a", &mesh[1..]).replace("listen = \"127.0.0.1:0\"", &listen);
    brokers.insert(0, site.start("a", &again));
    settle(&brokers.iter().collect::<Vec<_>>());
    wait_for("what has become of the will", || (counter(&brokers[0], "wills_settled") == 1).then_some(()));
    // What that broker publishes of the topic comes in its order.
    let mut last = Client::new(&brokers[0], 5);
    last.publish(Publish { topic: "wills", payload: "last", qos: 1, ..Publish::default() });
    watcher.expect_message("last");
    assert_eq!(orphaned(&brokers), 2);
}

/// A broker that stops in order publishes the wills itself, and nobody has one of them any more.
#[test]
fn the_wills_of_a_broker_that_stops_go_out_once() {
    let site = Site::new();
    let mut brokers = start_hasty(&site, &["a", "b", "c"]);
    let mut watcher = Client::subscribed(&brokers[2], 5, "wills", 1);
    let _kept = Client::connect(&brokers[0], &mourned("kept"));
    let _clean = Client::connect(&brokers[0], &mourned_clean("clean"));
    wait_for("another broker that has the wills", || (kept(&brokers) == 2).then_some(()));
    let mut stopped = brokers.remove(0);
    stopped.signal("TERM");
    assert!(stopped.wait().success());
    let mut wills = watcher.take_messages(2);
    wills.sort_unstable();
    assert_eq!(wills, ["clean", "kept"]);
    // What is not kept is not published.
    wait_for("no will that is kept", || (kept(&brokers) == 0).then_some(()));
    assert_eq!(orphaned(&brokers), 0);
}
