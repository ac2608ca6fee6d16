//! What is retained in a mesh whose brokers are cut off, restarted and joined by others: the same answer everywhere.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::broker::{Broker, Site, wait_for};
use crate::client::{Client, Publish};
use crate::mesh::{settle, start_all};
use crate::relay::{BOTH, Relay};
use crate::serve::get;
use crate::wire::kind;

/// What a client that comes now is sent for `filter`.
fn held(broker: &Broker, filter: &str) -> BTreeMap<String, String> {
    let messages = Client::subscribed(broker, 5, filter, 0).messages();
    // What is on its way just now comes as what it is.
    messages.iter().filter(|message| message.retain()).map(|message| (message.topic.clone(), message.text().to_owned())).collect()
}

/// Retains, at QoS 1; nothing: deletes.
fn retain(broker: &Broker, topic: &str, payload: &str) {
    let publish = Publish { topic, payload, qos: 1, retain: true, ..Publish::default() };
    let reason = Client::new(broker, 5).publish(publish);
    assert!(matches!(reason, 0 | 0x10), "{reason:#x}");
}

fn wait_until_all_hold(brokers: &[&Broker], filter: &str, expected: &BTreeMap<String, String>) {
    for broker in brokers {
        let mut last = BTreeMap::new();
        let deadline = Instant::now() + Duration::from_secs(60);
        while last != *expected {
            assert!(Instant::now() < deadline, "{} holds {last:?}, it should be {expected:?}", broker.name);
            last = held(broker, filter);
            thread::sleep(Duration::from_millis(50));
        }
    }
}

fn topics(of: &[(&str, &str)]) -> BTreeMap<String, String> {
    of.iter().map(|(topic, payload)| (format!("keep/{topic}"), (*payload).to_owned())).collect()
}

/// `b` behind a path that can be cut; `a` and `c` on this side of it.
struct Halves {
    a: Broker,
    b: Broker,
    c: Broker,
    relay: Relay,
    /// The last, for the others have files in it.
    site: Site,
}

impl Halves {
    fn new() -> Self {
        let site = Site::new();
        ["a", "b", "c"].iter().for_each(|name| site.certify("m", name, &[]));
        let a = site.start("a", &site.configuration("a", &[]));
        let relay = Relay::start(a.address_of("mesh"));
        let b = site.start("b", &site.configuration("b", &[relay.address()]));
        let c = site.start("c", &site.configuration("c", &[a.address_of("mesh")]));
        let halves = Self { site, a, b, c, relay };
        settle(&halves.all());
        halves
    }

    fn all(&self) -> [&Broker; 3] {
        [&self.a, &self.b, &self.c]
    }

    fn cut(&self) {
        self.relay.set(&BOTH, |conditions| conditions.is_cut = true);
        wait_for("a cut", || (self.a.log().contains("link down") && self.b.log().contains("link down")).then_some(()));
    }

    fn heal(&self) {
        self.relay.set(&BOTH, |conditions| conditions.is_cut = false);
        settle(&self.all());
    }
}

#[test]
fn what_is_deleted_or_changed_on_either_side_of_a_cut_is_the_same_everywhere_afterwards() {
    let halves = Halves::new();
    let names = ["same", "deleted-here", "deleted-there", "changed-here", "changed-there", "changed-twice", "revived"];
    names.iter().for_each(|name| retain(&halves.a, &format!("keep/{name}"), "old"));
    let old: Vec<_> = names.iter().map(|name| (*name, "old")).collect();
    wait_until_all_hold(&halves.all(), "keep/#", &topics(&old));

    halves.cut();
    retain(&halves.a, "keep/deleted-here", "");
    retain(&halves.c, "keep/changed-here", "here");
    retain(&halves.b, "keep/deleted-there", "");
    retain(&halves.b, "keep/changed-there", "there");
    retain(&halves.b, "keep/new-there", "there");
    // The one that is said last counts, whoever comes back last.
    retain(&halves.b, "keep/changed-twice", "first");
    retain(&halves.a, "keep/revived", "");
    // Brokers of one machine agree about the time far better than that.
    let written_at = Instant::now();
    wait_for("a later moment", || (written_at.elapsed() > Duration::from_millis(100)).then_some(()));
    retain(&halves.a, "keep/changed-twice", "second");
    retain(&halves.b, "keep/revived", "again");
    halves.heal();
    let expected = topics(&[
        ("same", "old"),
        ("changed-here", "here"),
        ("changed-there", "there"),
        ("changed-twice", "second"),
        ("new-there", "there"),
        ("revived", "again"),
    ]);
    wait_until_all_hold(&halves.all(), "keep/#", &expected);
    for broker in halves.all() {
        assert!(!broker.log().contains("ERROR") && !broker.log().contains("panicked"), "{}", broker.log());
    }
}

#[test]
fn a_restart_on_either_side_of_a_cut_brings_nothing_back() {
    let halves = Halves::new();
    let names = ["deleted-here", "deleted-there", "changed", "changed-there"];
    names.iter().for_each(|name| retain(&halves.c, &format!("keep/{name}"), "old"));
    wait_until_all_hold(&halves.all(), "keep/#", &topics(&names.map(|name| (name, "old"))));

    halves.cut();
    retain(&halves.b, "keep/deleted-there", "");
    retain(&halves.b, "keep/changed-there", "new");
    retain(&halves.c, "keep/deleted-here", "");
    retain(&halves.c, "keep/changed", "new");
    let here = topics(&[("deleted-there", "old"), ("changed", "new"), ("changed-there", "old")]);
    wait_until_all_hold(&[&halves.a], "keep/#", &here);
    // Both that know of something only they know are killed.
    let Halves { site, a, b, c, relay } = halves;
    b.kill();
    c.kill();
    let b = site.start("b", &site.configuration("b", &[relay.address()]));
    let c = site.start("c", &site.configuration("c", &[a.address_of("mesh")]));
    let halves = Halves { site, a, b, c, relay };
    halves.heal();
    wait_until_all_hold(&halves.all(), "keep/#", &topics(&[("changed", "new"), ("changed-there", "new")]));

    // One that has lost its disk has all again, and brings nothing back.
    let Halves { site, a, b, c, relay } = halves;
    retain(&a, "keep/changed", "");
    retain(&a, "keep/last", "x");
    b.kill();
    std::fs::remove_dir_all(site.path().join("b")).unwrap();
    let b = site.start("b", &site.configuration("b", &[relay.address()]));
    wait_until_all_hold(&[&a, &b, &c], "keep/#", &topics(&[("last", "x"), ("changed-there", "new")]));
}

/// `RETAINED` says how many messages there are (default 5,000; the measurement in `ARCHITECTURE.md`: 50,000, in release).
#[test]
fn a_broker_that_joins_has_everything_and_live_messages_do_not_wait() {
    let count: usize = std::env::var("RETAINED").map_or(5_000, |text| text.parse().unwrap());
    let site = Site::new();
    let brokers = start_all(&site, &["a", "b"]);
    settle(&brokers.iter().collect::<Vec<_>>());
    let mut writer = Client::new(&brokers[0], 5);
    let expected: BTreeMap<String, String> = (0..count)
        .map(|number| (format!("many/{}/{number}", number % 100), format!("{number} {}", "x".repeat(number % 200))))
        .collect();
    for (topic, payload) in &expected {
        writer.send(&Publish { topic, payload, retain: true, ..Publish::default() }.encode(5));
    }
    for broker in &brokers {
        let line = format!("mqtt_st_quic_retained_messages {count}.0");
        wait_for("what is retained", || get(broker.address_of("health"), "/metrics").contains(&line).then_some(()));
    }

    // Live messages from one to the other, all the while.
    let running = Arc::new(AtomicBool::new(true));
    let mut subscriber = Client::subscribed(&brokers[1], 5, "live", 0);
    let mut publisher = Client::new(&brokers[0], 5);
    let is_running = Arc::clone(&running);
    let publishing = thread::spawn(move || {
        let mut said = 0_usize;
        while is_running.load(Ordering::Relaxed) {
            publisher.send(&Publish { topic: "live", payload: &said.to_string(), ..Publish::default() }.encode(5));
            said += 1;
            thread::sleep(Duration::from_millis(2));
        }
        said
    });
    let hearing = thread::spawn(move || {
        let mut heard: Vec<(Instant, usize)> = Vec::new();
        while let Some(Some(received)) = subscriber.receive_within(Duration::from_secs(3)) {
            if received.kind == kind::PUBLISH {
                heard.push((Instant::now(), received.text().parse().unwrap()));
            }
        }
        heard
    });
    thread::sleep(Duration::from_secs(2));
    let begin = Instant::now();
    site.certify("m", "c", &[]);
    let peers: Vec<_> = brokers.iter().map(|broker| broker.address_of("mesh")).collect();
    let joining = site.start("c", &site.configuration("c", &peers));
    let started = Instant::now();
    let line = format!("mqtt_st_quic_retained_messages {count}.0");
    wait_for("a copy of it", || get(joining.address_of("health"), "/metrics").contains(&line).then_some(()));
    let done = Instant::now();
    thread::sleep(Duration::from_secs(1));
    running.store(false, Ordering::Relaxed);
    let said = publishing.join().unwrap();
    let heard = hearing.join().unwrap();
    let gap = |from: Instant, to: Instant| {
        let pairs = heard.windows(2).filter(|pair| pair[0].0 >= from && pair[1].0 <= to);
        pairs.map(|pair| pair[1].0 - pair[0].0).max().unwrap_or_default()
    };
    let (before, meanwhile) = (gap(heard[0].0, begin), gap(begin, done));
    println!(
        "{count} retained messages copied in {} ms; the longest gap of live messages {} ms, before it {} ms; {} of {said} heard",
        (done - started).as_millis(),
        meanwhile.as_millis(),
        before.as_millis(),
        heard.len()
    );
    assert!(heard.windows(2).all(|pair| pair[0].1 < pair[1].1), "in order, once");
    assert!(meanwhile < Duration::from_secs(2), "live messages stood still for {meanwhile:?}");
    // The same at all of them.
    for broker in brokers.iter().chain([&joining]) {
        let mut reader = Client::subscribed(broker, 5, "many/#", 0);
        let mut found = BTreeMap::new();
        while found.len() < count {
            let received = reader.expect(kind::PUBLISH);
            let text = received.text().to_owned();
            found.insert(received.topic, text);
        }
        assert!(found == expected, "what {} holds differs", broker.name);
    }
    let page = get(joining.address_of("health"), "/metrics");
    let taken = page.lines().find_map(|line| line.strip_prefix("mqtt_st_quic_retained_taken_total ")).unwrap();
    assert!(taken.parse::<usize>().unwrap() <= count, "each once, from whomever: {taken}");
}
