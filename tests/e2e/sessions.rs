//! One server in many places: a client's session goes with it from broker to broker, and a client id is one client in the whole mesh.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use crate::broker::{Site, wait_for};
use crate::client::{Client, Connect, Publish};
use crate::mesh::{settle, start_all};
use crate::relay::{BOTH, Relay};
use crate::wire::*;

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
            let mut client = Client::connect(&brokers[turn], &connect);
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
    for connect in [Connect::new(5).id("clean"), Connect::new(5).id("kept").resume(3_600)] {
        let mut before = Client::connect(&brokers[0], &connect);
        for turn in 1..=30 {
            let now = Client::connect(&brokers[turn % 3], &connect);
            before.expect_disconnect(&[0x8E]);
            before = now;
        }
        before.disconnect();
    }
    // Clean Start elsewhere: nothing is left of the old session.
    let kept = Connect::new(5).id("ends").resume(3_600);
    let mut client = Client::connect(&brokers[0], &kept);
    client.subscribe(&[("ends/#", 1)]);
    let fresh = Client::connect(&brokers[1], &Connect::new(5).id("ends"));
    client.expect_disconnect(&[0x8E]);
    fresh.disconnect();
    wait_for("the old session to be over", || {
        let client = Client::connect(&brokers[0], &kept);
        let is_new = !client.connack.session_present;
        client.disconnect_with(0, &[four(property::SESSION_EXPIRY, 0)]);
        is_new.then_some(())
    });
}

/// While the mesh is cut both sides let the client in; afterwards the one that came last is left.
#[test]
fn after_a_partition_one_is_left() {
    let site = Site::new();
    site.certify("m", "a", &[]);
    let a = site.start("a", &site.configuration("a", &[]));
    let relay = Relay::start(a.address_of("mesh"));
    site.certify("m", "b", &[]);
    let peers: Vec<SocketAddr> = vec![relay.address()];
    let b = site.start("b", &site.configuration("b", &peers));
    settle(&[&a, &b]);
    let connect = Connect::new(5).id("both").resume(3_600);
    let mut first = Client::connect(&a, &connect);
    relay.set(&BOTH, |conditions| conditions.is_cut = true);
    wait_for("the cut to be seen", || {
        let links = b.topology()["links"].as_array().unwrap().clone();
        links.iter().all(|link| link["state"] == "down").then_some(())
    });
    let mut second = Client::connect(&b, &connect);
    assert!(!second.connack.session_present, "the other side cannot be asked");
    first.say_to_itself("still/here", "1");
    second.say_to_itself("here/too", "2");
    relay.set(&BOTH, |conditions| conditions.is_cut = false);
    first.expect_disconnect(&[0x8E]);
    second.say_to_itself("here/still", "3");
}
