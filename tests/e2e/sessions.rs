//! One server in many places: a client's session goes with it from broker to broker, and a client id is one client in the whole mesh.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::broker::{Broker, PATIENCE, Site, wait_for};
use crate::client::{Client, Connect, Publish};
use crate::crash::{Publisher, Subscriber};
use crate::mesh::{settle, start_all, start_all_as};
use crate::relay::{BOTH, Relay};
use crate::serve::{counter, gauge};
use crate::wire::*;

/// What a client waits for at most until it is let in; milliseconds where nothing fails and the machine has nothing else to do.
const COMING_MAX: Duration = Duration::from_secs(10);

/// Comes in, and again where its session cannot be fetched at present; within a bound of time.
fn come(broker: &Broker, connect: &Connect) -> Client {
    let since = Instant::now();
    let client = wait_for("a client that is let in", || {
        let mut client = Client::open(broker, 5);
        client.send(&connect.encode());
        client.connack = client.expect(kind::CONNACK);
        assert!(matches!(client.connack.reason, 0 | 0x88), "{:?}", client.connack);
        (client.connack.reason == 0).then_some(client)
    });
    let waited = since.elapsed();
    assert!(waited < COMING_MAX, "{waited:?} until it was let in at {}", broker.name);
    client
}

/// Of a mesh whose sessions are at one broker only.
fn without_replicas(site: &Site, name: &str, peers: &[SocketAddr]) -> String {
    site.configuration(name, peers).replace("subscribe_ack = \"mesh\"", "subscribe_ack = \"mesh\"\nsession_replicas = 0")
}

fn sum(brokers: &[Broker], name: &str) -> u64 {
    brokers.iter().map(|broker| counter(broker, name)).sum()
}

/// A thousand messages wait, and more come all the time: at the other broker they arrive in their order, each once.
#[test]
fn a_session_goes_with_its_client_and_with_all_that_waits_in_it() {
    const WAITING: usize = 1_000;
    const ALL: usize = 3_000;
    let site = Site::new();
    let brokers = start_all(&site, &["a", "b", "c"]);
    settle(&brokers.iter().collect::<Vec<_>>());
    let connect = Connect::new(5).id("mover").resume(3_600);
    let mut client = Client::connect(&brokers[0], &connect);
    client.subscribe(&[("q/+", 2)]);
    client.disconnect();
    let has_all = AtomicBool::new(false);
    let sent = [AtomicUsize::new(0), AtomicUsize::new(0)];
    thread::scope(|scope| {
        // Two publishers, one of each QoS, at the two other brokers; of both everything waits or goes to where the client is.
        for (qos, broker, sent) in [(1, &brokers[1], &sent[0]), (2, &brokers[2], &sent[1])] {
            let has_all = &has_all;
            scope.spawn(move || {
                let mut publisher = Client::new(broker, 5);
                let topic = format!("q/{qos}");
                for number in 0..ALL {
                    let payload = format!("{qos} {number}");
                    publisher.publish(Publish { topic: &topic, payload: &payload, qos, ..Publish::default() });
                    sent.store(number, Ordering::Relaxed);
                    if number > WAITING && !has_all.load(Ordering::Relaxed) {
                        thread::sleep(Duration::from_millis(2));
                    }
                }
            });
        }
        wait_for("messages to wait", || sent.iter().all(|sent| sent.load(Ordering::Relaxed) > WAITING).then_some(()));
        let mut heard: Vec<Vec<usize>> = vec![Vec::new(); 3];
        // To each broker in turn, and on while messages come.
        for turn in [1, 2, 0, 1] {
            let mut client = come(&brokers[turn], &connect);
            assert!(client.connack.session_present, "turn {turn}: {:?}", client.connack);
            let share = if turn == 1 && heard[1].len() > 10 { usize::MAX } else { 500 };
            let mut taken = 0;
            while taken < share && heard[1].len() + heard[2].len() < 2 * ALL {
                for text in client.take_messages(1) {
                    let (qos, number) = text.split_once(' ').unwrap();
                    heard[qos.parse::<usize>().unwrap()].push(number.parse().unwrap());
                    taken += 1;
                }
            }
            client.disconnect();
        }
        has_all.store(true, Ordering::Relaxed);
        let expected: Vec<usize> = (0..ALL).collect();
        // What was acknowledged as the connection ended may come again at QoS 1.
        let mut once = Vec::new();
        for number in &heard[1] {
            if once.last().is_none_or(|last| number > last) {
                once.push(*number);
            }
        }
        assert_eq!((sum(&brokers, "sessions_fetched"), sum(&brokers, "sessions_yielded")), (4, 0));
        assert!(heard[2] == expected, "QoS 2: {:?}", first_difference(&heard[2], &expected));
        assert!(once == expected, "QoS 1: {:?}", first_difference(&once, &expected));
    });
}

fn first_difference(heard: &[usize], expected: &[usize]) -> (usize, usize, Vec<usize>) {
    let place = heard.iter().zip(expected).position(|(a, b)| a != b).unwrap_or(heard.len().min(expected.len()));
    (place, heard.len(), heard[place.saturating_sub(3)..heard.len().min(place + 5)].to_vec())
}

/// A client id goes round: wherever it was before, it is told so and closed.
#[test]
fn a_client_id_is_one_client_in_the_whole_mesh() {
    let site = Site::new();
    let brokers = start_all(&site, &["a", "b", "c"]);
    settle(&brokers.iter().collect::<Vec<_>>());
    // Who goes on like that waits a moment each time.
    for (connect, turns) in [(Connect::new(5).id("clean"), 40), (Connect::new(5).id("kept").resume(3_600), 40)] {
        let mut before = Client::connect(&brokers[0], &connect);
        for turn in 1..=turns {
            let now = come(&brokers[turn % 3], &connect);
            before.expect_disconnect(&[0x8E]);
            before = now;
        }
        before.disconnect();
    }
    // Clean Start elsewhere: nothing is left of the old session.
    let kept = Connect::new(5).id("ends").resume(3_600);
    let mut client = Client::connect(&brokers[0], &kept);
    client.subscribe(&[("ends/#", 1)]);
    let fresh = come(&brokers[1], &Connect::new(5).id("ends"));
    client.expect_disconnect(&[0x8E]);
    fresh.disconnect();
    wait_for("the old session to be over", || {
        let client = come(&brokers[0], &kept);
        let is_new = !client.connack.session_present;
        client.disconnect_with(0, &[four(property::SESSION_EXPIRY, 0)]);
        is_new.then_some(())
    });
    // Of all that only what is kept is left, at one broker.
    await_one_session(&brokers);
}

fn await_one_session(brokers: &[Broker]) {
    wait_for("one session in the whole mesh", || {
        (brokers.iter().map(|broker| gauge(broker, "sessions")).sum::<u64>() == 1).then_some(())
    });
}

/// A client id hops between three brokers while one of them is cut off from the others again and again. Who was let in last is the client; whoever was before is
/// told so, at the latest when the mesh is whole, and no other session is left.
///
/// `HOPS` (100) says how often it is let in, `HOP_SEED` repeats where and between which hops the paths are cut and healed.
#[test]
fn of_a_client_id_that_hops_through_partitions_the_last_connection_is_left() {
    let variable = |name| std::env::var(name).ok().map(|text| text.parse::<u64>().expect("a number"));
    let hops = variable("HOPS").unwrap_or(100);
    let seed = variable("HOP_SEED").unwrap_or_else(rand::random);
    println!("HOP_SEED={seed} HOPS={hops}");
    let mut rng = StdRng::seed_from_u64(seed);
    let site = Site::new();
    ["a", "b", "c"].iter().for_each(|name| site.certify("m", name, &[]));
    let a = site.start("a", &site.configuration("a", &[]));
    let relays = [Relay::start(a.address_of("mesh")), Relay::start(a.address_of("mesh"))];
    let b = site.start("b", &site.configuration("b", &[relays[0].address()]));
    let c = site.start("c", &site.configuration("c", &[relays[1].address(), b.address_of("mesh")]));
    let brokers = [a, b, c];
    settle(&brokers.iter().collect::<Vec<_>>());
    let set = |is_cut| relays.iter().for_each(|relay| relay.set(&BOTH, |conditions| conditions.is_cut = is_cut));

    let connect = Connect::new(5).id("hopper").resume(3_600);
    let mut client = Client::connect(&brokers[0], &connect);
    client.subscribe(&[("hop/#", 1)]);
    let (mut connections, mut is_cut, mut cuts, mut turns_at) = (vec![client], false, 0, rng.random_range(5..15));
    for hop in 1..=hops {
        if hop == turns_at {
            is_cut = !is_cut;
            set(is_cut);
            cuts += u64::from(is_cut);
            turns_at += rng.random_range(5..15);
        }
        connections.push(come(&brokers[rng.random_range(0..3)], &connect));
    }
    set(false);
    settle(&brokers.iter().collect::<Vec<_>>());
    let mut last = connections.pop().unwrap();
    for before in &mut connections {
        before.expect_disconnect(&[0x8E]);
    }
    await_one_session(&brokers);
    last.subscribe(&[("hop/#", 1)]);
    last.say_to_itself("hop/on", "still here");
    let (yielded, unreachable, promoted) =
        (sum(&brokers, "sessions_yielded"), sum(&brokers, "sessions_unreachable"), sum(&brokers, "sessions_promoted"));
    println!("{hops} hops, {cuts} cuts; {unreachable} sessions begun anew, {promoted} went on from replicas, {yielded} yielded");
    assert!(yielded > 0, "both parts never had a session at once");
}

/// The new broker is killed at any moment while a session comes to it, or the old one as it has come: it is at one of the two, whole.
#[test]
fn kill_9_of_a_broker_between_which_a_session_goes_loses_nothing() {
    let variable = |name| std::env::var(name).ok().map(|text| text.parse::<u64>().expect("a number"));
    let rounds = variable("MOVE_ROUNDS").unwrap_or(4);
    let seed = variable("MOVE_SEED").unwrap_or_else(rand::random);
    println!("MOVE_SEED={seed} MOVE_ROUNDS={rounds}");
    let mut rng = StdRng::seed_from_u64(seed);
    let site = Site::new();
    let names = ["a", "b", "c"];
    let mut brokers = start_all(&site, &names);
    settle(&brokers.iter().collect::<Vec<_>>());
    let mesh: Vec<SocketAddr> = brokers.iter().map(|broker| broker.address_of("mesh")).collect();
    let connect = |id: &str| Connect::new(5).id(id).resume(u32::MAX);
    let (mut publishers, mut subscribers) = (Vec::new(), Vec::new());
    for qos in 1..=2 {
        let topic = format!("moved/{qos}");
        let mut publisher = Publisher::new(connect(&format!("p{qos}")), &topic, qos, rng.random());
        publisher.pause = Duration::from_millis(4);
        let mut subscriber = Subscriber::new(connect(&format!("s{qos}")), &topic, qos);
        subscriber.subscribe(brokers[0].address());
        publishers.push(publisher);
        subscribers.push(subscriber);
    }
    let stop = AtomicBool::new(false);
    // Publishers stay at a broker that lives.
    let at_c = brokers[2].address();
    thread::scope(|scope| {
        for publisher in &mut publishers {
            let stop = &stop;
            scope.spawn(move || publisher.run(at_c, stop).expect("the publishers' broker is gone"));
        }
        for round in 0..rounds as usize {
            // Between the first two, and to both ends of a move.
            let (to, killed) = (1 - round % 2, rng.random_range(0..2));
            let address = brokers[to].address();
            let life = Duration::from_micros(rng.random_range(0..40_000));
            if killed != to {
                // What the old one said last it must know when it is back; and what the client does not acknowledge comes again.
                let wanted = (1..=2).map(|qos| {
                    let mut client = Client::open(&brokers[to], 5);
                    client.send(&connect(&format!("s{qos}")).encode());
                    client
                });
                let mut clients: Vec<Client> = wanted.collect();
                clients.iter_mut().for_each(|client| drop(client.expect(kind::CONNACK)));
                thread::sleep(life / 8);
                brokers.remove(killed).kill();
            }
            thread::scope(|scope| {
                for subscriber in subscribers.iter_mut().filter(|_| killed == to) {
                    let deadline = Instant::now() + Duration::from_secs(20);
                    scope.spawn(move || subscriber.run(address, u64::MAX, deadline));
                }
                if killed == to {
                    thread::sleep(life);
                    brokers.remove(killed).kill();
                }
            });
            let others: Vec<_> = mesh.iter().copied().filter(|address| *address != mesh[killed]).collect();
            let listen = format!("listen = \"{}\"", mesh[killed]);
            let again = site.configuration(names[killed], &others).replace("listen = \"127.0.0.1:0\"", &listen);
            brokers.insert(killed, site.start(names[killed], &again));
            settle(&brokers.iter().collect::<Vec<_>>());
        }
        stop.store(true, Ordering::Relaxed);
    });
    let counts: Vec<u64> = publishers.iter().map(|publisher| publisher.next).collect();
    for (subscriber, published) in subscribers.iter_mut().zip(&counts) {
        let deadline = Instant::now() + PATIENCE;
        while subscriber.seen.len() < *published as usize && Instant::now() < deadline {
            // Its session may be refused for a moment.
            let _ = subscriber.run(brokers[0].address(), *published, deadline);
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

/// A broker that was started a moment ago, and knows nobody yet, does not begin anew what another has.
#[test]
fn who_comes_to_a_broker_that_was_just_started_finds_its_session() {
    let site = Site::new();
    let mut brokers = start_all(&site, &["a", "b"]);
    settle(&brokers.iter().collect::<Vec<_>>());
    let mesh: Vec<SocketAddr> = brokers.iter().map(|broker| broker.address_of("mesh")).collect();
    let connect = Connect::new(5).id("early").resume(3_600);
    let mut client = Client::connect(&brokers[0], &connect);
    client.subscribe(&[("early/#", 1)]);
    client.disconnect();
    brokers.remove(1).kill();
    let listen = format!("listen = \"{}\"", mesh[1]);
    let again = site.configuration("b", &mesh[..1]).replace("listen = \"127.0.0.1:0\"", &listen);
    brokers.push(site.start("b", &again));
    let client = wait_for("a client that is let in", || {
        let mut client = Client::open(&brokers[1], 5);
        client.send(&connect.encode());
        client.connack = client.expect(kind::CONNACK);
        (client.connack.reason == 0).then_some(client)
    });
    assert!(client.connack.session_present, "{:?}", client.connack);
    assert_eq!((sum(&brokers, "sessions_yielded"), sum(&brokers, "sessions_fetched")), (0, 1));
}

/// The old broker is dead: the client is told that its session is gone. When the broker is back, there is one session.
#[test]
fn where_the_old_broker_is_dead_the_session_begins_anew_and_one_is_left() {
    let site = Site::new();
    let mut brokers = start_all_as(&site, &["a", "b", "c"], without_replicas);
    settle(&brokers.iter().collect::<Vec<_>>());
    let mesh: Vec<SocketAddr> = brokers.iter().map(|broker| broker.address_of("mesh")).collect();
    let connect = Connect::new(5).id("left").resume(3_600);
    let mut client = Client::connect(&brokers[0], &connect);
    client.subscribe(&[("left/#", 1)]);
    client.disconnect();
    for number in 0..10 {
        let payload = number.to_string();
        Client::new(&brokers[1], 5).publish(Publish { topic: "left/x", payload: &payload, qos: 1, ..Publish::default() });
    }
    wait_for("messages to wait", || (counter(&brokers[0], "mesh_messages_received") >= 10).then_some(()));
    brokers.remove(0).kill();
    let everybody: Vec<&Broker> = brokers.iter().collect();
    settle(&everybody);
    let mut client = wait_for("a client that is let in", || {
        let mut client = Client::open(&brokers[0], 5);
        client.send(&connect.encode());
        client.connack = client.expect(kind::CONNACK);
        (client.connack.reason == 0).then_some(client)
    });
    assert!(!client.connack.session_present && counter(&brokers[0], "sessions_unreachable") == 1);
    client.subscribe(&[("left/#", 1)]);
    let listen = format!("listen = \"{}\"", mesh[0]);
    let again = without_replicas(&site, "a", &mesh[1..]).replace("listen = \"127.0.0.1:0\"", &listen);
    brokers.insert(0, site.start("a", &again));
    settle(&brokers.iter().collect::<Vec<_>>());
    wait_for("the old session to be given up", || (counter(&brokers[0], "sessions_yielded") == 1).then_some(()));
    client.say_to_itself("left/mine", "still here");
    client.disconnect();
    let client = come(&brokers[0], &connect);
    assert!(client.connack.session_present, "the newer one has come here");
}

/// While the mesh is cut both sides let the client in; afterwards the one that came last is left.
#[test]
fn after_a_partition_one_is_left() {
    let site = Site::new();
    site.certify("m", "a", &[]);
    let a = site.start("a", &without_replicas(&site, "a", &[]));
    let relay = Relay::start(a.address_of("mesh"));
    site.certify("m", "b", &[]);
    let peers: Vec<SocketAddr> = vec![relay.address()];
    let b = site.start("b", &without_replicas(&site, "b", &peers));
    settle(&[&a, &b]);
    let connect = Connect::new(5).id("both").resume(3_600);
    let mut first = Client::connect(&a, &connect);
    first.subscribe(&[("still/#", 1)]);
    relay.set(&BOTH, |conditions| conditions.is_cut = true);
    wait_for("the cut to be seen", || {
        let links = b.topology()["links"].as_array().unwrap().clone();
        links.iter().all(|link| link["state"] == "down").then_some(())
    });
    let mut second = Client::connect(&b, &connect);
    assert!(!second.connack.session_present, "the other side cannot be asked");
    second.subscribe(&[("here/#", 1)]);
    first.say_to_itself("still/here", "1");
    second.say_to_itself("here/too", "2");
    relay.set(&BOTH, |conditions| conditions.is_cut = false);
    first.expect_disconnect(&[0x8E]);
    second.say_to_itself("here/still", "3");
}
