//! Brokers as processes of their own, joined: what clients see, who is kept out, what a killed root costs.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::broker::{Broker, PATIENCE, Site, assert_serves, run, wait_for};
use crate::client::{Client, Publish};
use crate::relay::{BOTH, Relay};

/// Starts brokers that each dial all before them.
pub fn start_all(site: &Site, names: &[&str]) -> Vec<Broker> {
    start_all_as(site, names, Site::configuration)
}

/// Likewise, with what `configuration` says of a broker by its name and the addresses of those before it.
pub fn start_all_as(site: &Site, names: &[&str], configuration: impl Fn(&Site, &str, &[SocketAddr]) -> String) -> Vec<Broker> {
    let mut brokers: Vec<Broker> = Vec::new();
    for name in names {
        site.certify("m", name, &[]);
        let peers: Vec<SocketAddr> = brokers.iter().map(|broker| broker.address_of("mesh")).collect();
        brokers.push(site.start(name, &configuration(site, name, &peers)));
    }
    brokers
}

/// Waits until all tell the same of one tree that joins them all; what they tell.
pub fn settle(brokers: &[&Broker]) -> Value {
    wait_for("one tree, and all agree", || {
        let told: Vec<Value> = brokers.iter().map(|broker| broker.topology()).collect();
        let forwarding = told[0]["links"].as_array().unwrap().iter().filter(|link| link["state"] == "forwarding").count();
        let is_whole = told[0]["brokers"].as_array().unwrap().len() == brokers.len() && forwarding + 1 == brokers.len();
        (is_whole && told.iter().all(|one| *one == told[0])).then(|| told[0].clone())
    })
}

/// A message from each broker to each, at this QoS: each once, those of one sender in order.
fn assert_all_hear_all(brokers: &[&Broker], qos: u8) {
    const EACH: usize = 5;
    let mut listeners: Vec<Client> = brokers.iter().map(|broker| Client::subscribed(broker, 5, "from/#", qos)).collect();
    for broker in brokers {
        let mut speaker = Client::new(broker, 4);
        for number in 0..EACH {
            let (topic, payload) = (format!("from/{}", broker.name), format!("{} {number}", broker.name));
            let publish = Publish { topic: &topic, payload: &payload, qos, ..Default::default() };
            assert_eq!(speaker.publish(publish), 0);
        }
    }
    for (listener, broker) in listeners.iter_mut().zip(brokers) {
        let heard = listener.take_messages(EACH * brokers.len());
        for from in brokers {
            let of_one: Vec<_> = heard.iter().filter(|payload| payload.starts_with(&format!("{} ", from.name))).cloned().collect();
            let expected: Vec<_> = (0..EACH).map(|number| format!("{} {number}", from.name)).collect();
            assert_eq!(of_one, expected, "from {} at {}", from.name, broker.name);
        }
    }
    // Whatever comes twice has come by now: it would have to be ahead of what is published last.
    for broker in brokers {
        Client::new(broker, 5).say("from/last", "last");
    }
    for listener in &mut listeners {
        assert_eq!(listener.take_messages(brokers.len()), vec!["last"; brokers.len()]);
    }
}

#[test]
fn a_full_mesh_delivers_once_and_survives_its_root() {
    let site = Site::new();
    let mut brokers = start_all(&site, &["a", "b", "c"]);
    let everybody: Vec<&Broker> = brokers.iter().collect();
    let topology = settle(&everybody);
    for qos in 0..=2 {
        assert_all_hear_all(&everybody, qos);
    }
    assert_eq!(topology["mesh"], "m");
    assert_eq!(topology["links"].as_array().unwrap().len(), 3, "one is in reserve: {topology}");

    let root = brokers.iter().position(|broker| topology["root"] == broker.name.as_str()).unwrap();
    let killed = brokers.remove(root);
    let (name, address) = (killed.name.clone(), killed.address_of("mesh"));
    killed.kill();
    let left: Vec<&Broker> = brokers.iter().collect();
    assert_ne!(settle(&left)["root"], topology["root"]);
    assert_all_hear_all(&left, 1);

    let peers: Vec<_> = brokers.iter().map(|broker| broker.address_of("mesh")).collect();
    let again = site.configuration(&name, &peers).replace("listen = \"127.0.0.1:0\"", &format!("listen = \"{address}\""));
    let back = site.start(&name, &again);
    let everybody: Vec<&Broker> = brokers.iter().chain([&back]).collect();
    assert_eq!(settle(&everybody)["root"], topology["root"]);
    assert_all_hear_all(&everybody, 2);
    for broker in everybody {
        assert!(!broker.log().contains("ERROR") && !broker.log().contains("panicked"), "{}", broker.log());
    }
}

/// Brokers that each dial the one before them: the last is as many hops from the first as there are others.
fn line(site: &Site, names: &[&str], change: impl Fn(String) -> String) -> Vec<Broker> {
    line_over(site, names, |address| address, change)
}

/// Likewise, each where `path` says that the one before it is reached.
fn line_over(
    site: &Site,
    names: &[&str],
    mut path: impl FnMut(SocketAddr) -> SocketAddr,
    change: impl Fn(String) -> String,
) -> Vec<Broker> {
    let mut brokers: Vec<Broker> = Vec::new();
    for name in names {
        site.certify("m", name, &[]);
        let peers: Vec<SocketAddr> = brokers.last().map(|broker| path(broker.address_of("mesh"))).into_iter().collect();
        brokers.push(site.start(name, &change(site.configuration(name, &peers))));
    }
    settle(&brokers.iter().collect::<Vec<_>>());
    brokers
}

/// How often the next two tests try; the long run is `SUBACK_ROUNDS=500 cargo test --test e2e mesh::what_is_published -- --nocapture`.
fn suback_rounds() -> usize {
    std::env::var("SUBACK_ROUNDS").map_or(40, |text| text.parse().unwrap())
}

#[test]
fn what_is_published_three_hops_away_behind_a_suback_of_the_mesh_arrives() {
    let site = Site::new();
    let brokers = line(&site, &["a", "b", "c", "d"], |configuration| configuration);
    let mut publishers = [Client::new(&brokers[3], 5), Client::new(&brokers[2], 4)];
    let mut subscriber = Client::new(&brokers[0], 5);
    let mut waits: Vec<Duration> = Vec::new();
    for round in 0..suback_rounds() {
        // A topic that nobody knew; nothing else makes the brokers between want it.
        let topic = format!("race/{round}");
        let begun = Instant::now();
        subscriber.subscribe(&[(&topic, 1)]);
        waits.push(begun.elapsed());
        for (publisher, qos) in publishers.iter_mut().zip([1, 2]) {
            let publish = Publish { topic: &topic, payload: &topic, qos, ..Publish::default() };
            assert_eq!(publisher.publish(publish), 0);
        }
        assert_eq!(subscriber.take_messages(2), [topic.as_str(), topic.as_str()]);
    }
    waits.sort_unstable();
    println!(
        "{} rounds, none missed; SUBACK after {:?}, at most {:?}",
        waits.len(),
        waits[waits.len() / 2],
        waits[waits.len() - 1]
    );
}

/// Publishes at one broker until what is published comes to a new subscription at another: how long after its SUBACK messages were still missed. From the first
/// on that comes all come.
fn window(publisher: &mut Client, subscriber: &mut Client, topic: &str) -> Duration {
    subscriber.subscribe(&[(topic, 0)]);
    let (begun, mut said_at) = (Instant::now(), Vec::new());
    let first = loop {
        assert!(begun.elapsed() < PATIENCE, "nothing comes of {} messages", said_at.len());
        said_at.push(begun.elapsed());
        publisher.say(topic, &(said_at.len() - 1).to_string());
        if let Some(received) = subscriber.receive_within(Duration::from_millis(1)) {
            break received.unwrap().text().parse::<usize>().unwrap();
        }
    };
    let expected: Vec<String> = (first + 1..said_at.len()).map(|number| number.to_string()).collect();
    assert_eq!(subscriber.take_messages(expected.len()), expected);
    said_at[first]
}

/// Without the wait: how long after the SUBACK messages from there are still missed. From the first on that comes all come.
#[test]
fn what_is_published_three_hops_away_behind_a_suback_of_one_broker_arrives_soon() {
    let site = Site::new();
    let brokers = line(&site, &["a", "b", "c", "d"], |text| text.replace("subscribe_ack = \"mesh\"", "subscribe_ack = \"local\""));
    let mut publisher = Client::new(&brokers[3], 5);
    let mut subscriber = Client::new(&brokers[0], 5);
    let mut windows: Vec<Duration> = Vec::new();
    for round in 0..suback_rounds() {
        let topic = format!("race/{round}");
        windows.push(window(&mut publisher, &mut subscriber, &topic));
    }
    windows.sort_unstable();
    println!(
        "{} rounds; messages were missed for {:?} after the SUBACK, at most {:?}",
        windows.len(),
        windows[windows.len() / 2],
        windows[windows.len() - 1]
    );
}

/// Over far paths the delays count, and nothing else: what a client subscribes to is known h hops away one delay a hop later, and that it is known has come back
/// after as long again. `HOP_ROUNDS` (6) says how often each is tried.
#[test]
fn a_subscription_is_known_at_each_hop_one_delay_later() {
    const DELAY: Duration = Duration::from_millis(50);
    // What takes a few milliseconds where paths take none, of brokers that were built for tests, on a machine that has more to do.
    const COMPUTING: Duration = Duration::from_millis(50);
    let rounds: usize = std::env::var("HOP_ROUNDS").map_or(6, |text| text.parse().unwrap());
    let mut relays = Vec::new();
    let mut far = |address| {
        let relay = Relay::start(address);
        relay.set(&BOTH, |conditions| conditions.delay = DELAY);
        relays.push(relay);
        relays.last().unwrap().address()
    };
    let local = |text: String| text.replace("subscribe_ack = \"mesh\"", "subscribe_ack = \"local\"");
    let (site, site_of_two) = (Site::new(), Site::new());
    // The last of the line does not wait, all others do.
    let is_last = |text: &String| text.contains("name = \"d\"");
    let four = line_over(&site, &["a", "b", "c", "d"], &mut far, |text| if is_last(&text) { local(text) } else { text });
    let two = line_over(&site_of_two, &["a", "b"], &mut far, |text| text);
    let judge = |what: &str, hops: u32, delays: u32, mut times: Vec<Duration>| {
        times.sort_unstable();
        let (median, most) = (times[times.len() / 2], times[times.len() - 1]);
        println!("{what}, {hops} hops of {DELAY:?}: {median:?}, at most {most:?}; the delays alone: {:?}", DELAY * delays);
        assert!(times[0] > DELAY * delays * 4 / 5, "{what} at {hops} hops: {times:?} is before it can have come");
        assert!(median < DELAY * delays * 3 / 2 + COMPUTING, "{what} at {hops} hops: {times:?}");
    };
    // As many hops as to the farthest.
    for (hops, broker) in [(1, &two[0]), (2, &four[1]), (3, &four[0])] {
        let mut subscriber = Client::new(broker, 5);
        let time = |round| {
            let begun = Instant::now();
            subscriber.subscribe(&[(&format!("far/{round}"), 1)]);
            begun.elapsed()
        };
        judge("SUBACK of the mesh after", hops, 2 * hops, (0..rounds).map(time).collect());
    }
    let mut subscriber = Client::new(&four[3], 5);
    for (hops, broker) in [(1, &four[2]), (2, &four[1]), (3, &four[0])] {
        let mut publisher = Client::new(broker, 5);
        let mut time = |round| window(&mut publisher, &mut subscriber, &format!("race/{hops}/{round}"));
        judge("after a SUBACK of one broker missed for", hops, hops, (0..rounds).map(&mut time).collect());
    }
}

#[test]
fn a_cycle_of_four_delivers_once() {
    let site = Site::new();
    let mut brokers: Vec<Broker> = Vec::new();
    for (place, name) in ["a", "b", "c", "d"].into_iter().enumerate() {
        site.certify("m", name, &[]);
        let ends = [place.checked_sub(1), (place == 3).then_some(0)];
        let peers: Vec<SocketAddr> = ends.into_iter().flatten().map(|end| brokers[end].address_of("mesh")).collect();
        brokers.push(site.start(name, &site.configuration(name, &peers)));
    }
    let everybody: Vec<&Broker> = brokers.iter().collect();
    assert_eq!(settle(&everybody)["links"].as_array().unwrap().len(), 4);
    for qos in 0..=2 {
        assert_all_hear_all(&everybody, qos);
    }
}

#[test]
fn retained_messages_reach_late_brokers_clients_where_they_were_connected() {
    let site = Site::new();
    let brokers = start_all(&site, &["a", "b"]);
    settle(&brokers.iter().collect::<Vec<_>>());
    let mut probe = Client::subscribed(&brokers[1], 5, "kept", 1);
    Client::new(&brokers[0], 5).retain("kept", "x");
    probe.expect_message("x");
    // The other broker keeps it for those who come later.
    let mut late = Client::subscribed(&brokers[1], 4, "kept", 1);
    assert!(late.expect_message("x").retain());
}

#[test]
fn strangers_stay_out_and_the_log_says_why() {
    let site = Site::new();
    let foreign = Site::new();
    let brokers = start_all(&site, &["a", "b"]);
    let everybody: Vec<&Broker> = brokers.iter().collect();
    settle(&everybody);
    let peers = [brokers[0].address_of("mesh")];

    // Another authority, another mesh under the same authority, and a certificate whose days are over.
    foreign.certify("m", "stranger", &[]);
    site.certify("n", "other-mesh", &[]);
    site.certify("m", "expired", &["--days", "0"]);
    wait_for("a certificate that has expired", || {
        run(&["certs", "show", &site.file("pki/expired.pem")]).out.contains("valid    expired\n").then_some(())
    });
    let outsiders = [
        (foreign.start("stranger", &foreign.configuration("stranger", &peers)), &["refused", "authority"][..]),
        (
            site.start("other-mesh", &site.configuration("other-mesh", &peers).replace("name = \"m\"", "name = \"n\"")),
            &["refused", "mesh"],
        ),
        (site.start("expired", &site.configuration("expired", &peers)), &["refused", "expired"]),
    ];
    for (outsider, words) in &outsiders {
        brokers[0].wait_for_log(&[&[outsider.address_of("mesh").to_string().as_str()], *words].concat());
        assert_eq!(outsider.topology()["brokers"].as_array().unwrap().len(), 1, "it is alone");
        // Its own clients are served all the same.
        assert_serves(outsider);
    }
    assert_eq!(settle(&everybody)["brokers"].as_array().unwrap().len(), 2);
    assert_all_hear_all(&everybody, 1);
}
