//! Three brokers in a mesh, durable sessions on each, QoS 1 and 2 from each to each, and `kill -9` of one after the other, also of those that publish: what was
//! acknowledged arrives everywhere, at QoS 2 once and in order, and no broker counts a gap.
//!
//! The clients are those of `crash`: they keep their own state over a broker's death. `RESTART_ROUNDS` (3) says how often a broker is killed, `RESTART_SEED`
//! repeats a run.

use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::broker::{Broker, PATIENCE, Site};
use crate::client::Connect;
use crate::crash::{Publisher, Subscriber};
use crate::mesh::{settle, start_all};
use crate::serve::get;

const NAMES: [&str; 3] = ["a", "b", "c"];

/// Where clients find a broker at present.
type Place = Mutex<SocketAddr>;

/// A counter or gauge of `/metrics`.
fn metric(broker: &Broker, name: &str) -> f64 {
    let page = get(broker.address_of("health"), "/metrics");
    let line = page.lines().find_map(|line| line.strip_prefix(&format!("mqtt_st_quic_{name} ")));
    line.unwrap_or_else(|| panic!("no {name} in {page}")).parse().unwrap()
}

/// Publishes, wherever its broker is, until `stop`, and until all is acknowledged.
fn publish(publisher: &mut Publisher, place: &Place, stop: &AtomicBool, deadline: Instant) {
    loop {
        let address = *place.lock().unwrap();
        if publisher.run(address, stop).is_some() {
            return;
        }
        assert!(Instant::now() < deadline, "no broker at {address}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Takes messages, wherever its broker is, until it has all of them, as soon as it is known how many those are.
fn subscribe(subscriber: &mut Subscriber, place: &Place, published: &Mutex<Option<u64>>, deadline: Instant) {
    while Instant::now() < deadline {
        let enough = *published.lock().unwrap();
        if enough.is_some_and(|enough| subscriber.seen.len() as u64 >= enough) {
            return;
        }
        let address = *place.lock().unwrap();
        // Looks around once in a while.
        let turn = (Instant::now() + Duration::from_secs(1)).min(deadline);
        if subscriber.run(address, enough.unwrap_or(u64::MAX), turn).is_none() {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

#[test]
fn kill_9_of_any_broker_of_a_mesh_loses_nothing_that_was_acknowledged() {
    let variable = |name| std::env::var(name).ok().map(|text| text.parse::<u64>().expect("a number"));
    let rounds = variable("RESTART_ROUNDS").unwrap_or(3);
    let seed = variable("RESTART_SEED").unwrap_or_else(rand::random);
    println!("RESTART_SEED={seed} RESTART_ROUNDS={rounds}");
    let mut rng = StdRng::seed_from_u64(seed);
    let site = Site::new();
    let mut brokers = start_all(&site, &NAMES);
    settle(&brokers.iter().collect::<Vec<_>>());
    let mesh: Vec<SocketAddr> = brokers.iter().map(|broker| broker.address_of("mesh")).collect();
    let places: Vec<Place> = brokers.iter().map(|broker| Mutex::new(broker.address())).collect();

    let connect = |id: &str| Connect::new(5).id(id).resume(u32::MAX);
    let (mut publishers, mut subscribers) = (Vec::new(), Vec::new());
    for (at, name) in NAMES.iter().enumerate() {
        for qos in 1..=2 {
            let topic = format!("{name}/{qos}");
            let mut publisher = Publisher::new(connect(&format!("p {topic}")), &topic, qos, rng.random());
            // No session's queue is to overflow, and a slow machine is to keep up.
            publisher.pause = Duration::from_millis(4);
            for (there, place) in NAMES.iter().enumerate() {
                let mut subscriber = Subscriber::new(connect(&format!("s {topic} {place}")), &topic, qos);
                subscriber.subscribe(brokers[there].address());
                subscribers.push((subscriber, publishers.len(), there));
            }
            publishers.push((publisher, at));
        }
    }
    let published: Vec<Mutex<Option<u64>>> = publishers.iter().map(|_| Mutex::new(None)).collect();

    let stop = AtomicBool::new(false);
    let deadline = Instant::now() + Duration::from_secs(20 * rounds) + 6 * PATIENCE;
    std::thread::scope(|scope| {
        for ((publisher, at), published) in publishers.iter_mut().zip(&published) {
            let (place, stop) = (&places[*at], &stop);
            scope.spawn(move || {
                publish(publisher, place, stop, deadline);
                *published.lock().unwrap() = Some(publisher.next);
            });
        }
        for (subscriber, from, at) in &mut subscribers {
            let (place, published) = (&places[*at], &published[*from]);
            scope.spawn(move || subscribe(subscriber, place, published, deadline));
        }
        let sleep = |rng: &mut StdRng, millis| std::thread::sleep(Duration::from_millis(rng.random_range(millis)));
        for round in 0..rounds as usize {
            sleep(&mut rng, 100..800);
            let victim = round % NAMES.len();
            let others: Vec<_> = mesh.iter().copied().filter(|address| *address != mesh[victim]).collect();
            let listen = format!("listen = \"{}\"", mesh[victim]);
            let again = site.configuration(NAMES[victim], &others).replace("listen = \"127.0.0.1:0\"", &listen);
            brokers.remove(victim).kill();
            sleep(&mut rng, 0..1_500);
            let back = site.start(NAMES[victim], &again);
            *places[victim].lock().unwrap() = back.address();
            brokers.insert(victim, back);
        }
        sleep(&mut rng, 100..800);
        stop.store(true, Ordering::Relaxed);
    });

    let counts: Vec<u64> = publishers.iter().map(|(publisher, _)| publisher.next).collect();
    for (subscriber, from, at) in &subscribers {
        println!("{} of {} from {} to {}", subscriber.seen.len(), counts[*from], NAMES[publishers[*from].1], NAMES[*at]);
    }
    for (subscriber, from, at) in &subscribers {
        let (qos, published) = (subscriber.qos, counts[*from]);
        let way = format!("QoS {qos} from {} to {} (RESTART_SEED={seed})", NAMES[publishers[*from].1], NAMES[*at]);
        let all: Vec<u64> = (0..published).collect();
        let missing: Vec<_> = all.iter().filter(|number| !subscriber.seen.contains(number)).collect();
        let (first, last) = (missing.first(), missing.last());
        assert!(missing.is_empty(), "{way}: lost {} of {published}, from {first:?} to {last:?}", missing.len());
        let mut seen = std::collections::HashSet::new();
        let first: Vec<u64> = subscriber.delivered.iter().copied().filter(|number| qos == 2 || seen.insert(*number)).collect();
        let wrong = first.iter().zip(&all).find(|(got, expected)| got != expected);
        assert!(first == all, "{way}: doubled or out of order: {wrong:?} of {} for {published}", first.len());
    }
    for broker in &brokers {
        for counter in ["mesh_gaps_received_total", "mesh_gaps_sent_total"] {
            assert_eq!(metric(broker, counter), 0.0, "{counter} of {}", broker.name);
        }
    }
    println!("{rounds} times killed, {counts:?} messages published");
    assert!(counts.iter().all(|count| *count > 0));
}
