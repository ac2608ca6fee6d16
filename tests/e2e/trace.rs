//! What `trace` says of the way of a message, held against the mesh as it is.

use std::time::{Duration, Instant};

use serde_json::Value;

use crate::broker::{Broker, PATIENCE, Site, run};
use crate::client::Client;
use crate::mesh::settle;

/// Slow hellos: who stands still is linked for long enough to be asked.
const HELLO: &str = "hello_time = \"500ms\"\n";
/// A broker begins two traces a second.
const INTERVAL: Duration = Duration::from_millis(600);

/// Brokers in a line: each dials the one before it and knows of no other.
fn start_line(site: &Site, names: &[&str]) -> Vec<Broker> {
    let mut brokers: Vec<Broker> = Vec::new();
    for name in names {
        site.certify("m", name, &[]);
        let peers: Vec<_> = brokers.last().map(|broker| broker.address_of("mesh")).into_iter().collect();
        brokers.push(site.start(name, &(site.configuration(name, &peers) + HELLO)));
    }
    brokers
}

fn traced(broker: &Broker, arguments: &[&str]) -> Value {
    let admin = format!("http://{}", broker.address_of("admin"));
    let said = run(&[&["trace", "--json", "--admin", &admin], arguments].concat());
    assert_eq!(said.code, Some(0), "{said:?}");
    serde_json::from_str(&said.out).unwrap()
}

/// One line a broker: its name, the one before it, how the message comes, for how many, and to whom it goes on.
fn ways(trace: &Value) -> Vec<String> {
    let word = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let brokers = trace["brokers"].as_array().unwrap().iter();
    brokers
        .map(|broker| {
            let ports =
                broker["ports"].as_array().unwrap().iter().map(|port| format!(" {}:{}", word(&port["peer"]), word(&port["why"])));
            let [via, arrival, plain, groups, members] =
                ["via", "arrival", "subscriptions", "groups", "group_members"].map(|key| word(&broker[key]));
            format!("{} {via} {arrival} {plain}+{groups}/{members}{}", word(&broker["name"]), ports.collect::<String>())
        })
        .collect()
}

/// Asks until the answer is this, as brokers tell each other what is wanted and who is behind whom when it has changed.
fn says(broker: &Broker, arguments: &[&str], expected: &[&str]) -> Value {
    let mut last = Vec::new();
    let deadline = Instant::now() + PATIENCE;
    loop {
        let trace = traced(broker, arguments);
        last.clear();
        last.extend(ways(&trace));
        if last == expected {
            return trace;
        }
        assert!(Instant::now() < deadline, "{arguments:?}: {last:#?}\nin place of {expected:#?}");
        std::thread::sleep(INTERVAL);
    }
}

#[test]
fn a_trace_tells_which_way_a_message_goes_and_why() {
    let site = Site::new();
    let mut brokers = start_line(&site, &["a", "b", "c", "d"]);
    settle(&brokers.iter().collect::<Vec<_>>());

    says(
        &brokers[0],
        &["t/1", "--qos", "1"],
        &["a null whole 0+0/0 b:unwanted", "b a nothing 0+0/0 c:unwanted", "c b nothing 0+0/0 d:unwanted", "d c nothing 0+0/0"],
    );
    let _at_c = Client::subscribed(&brokers[2], 5, "t/+", 1);
    let mut shares = [Client::new(&brokers[2], 5), Client::new(&brokers[2], 5)];
    shares.iter_mut().for_each(|client| client.subscribe(&[("$share/g/t/#", 1)]));
    let trace = says(
        &brokers[0],
        &["t/1", "--qos", "1"],
        &["a null whole 0+0/0 b:wanted", "b a whole 0+0/0 c:wanted", "c b whole 1+1/2 d:unwanted", "d c stub 0+0/0"],
    );
    assert_eq!((&trace["leaves"], trace["silent"].as_array().unwrap().len()), (&true.into(), 0));
    for broker in &trace["brokers"].as_array().unwrap()[1..] {
        let [probe, link] = ["round_trip_us", "link_rtt_us"].map(|key| broker[key].as_u64().unwrap());
        assert!(probe > 0 && link > 0 && probe < 2_000_000, "{broker}");
    }
    // Of a share group that has members at one broker only, that one gets it.
    let _at_d = Client::subscribed(&brokers[3], 5, "$share/h/s/#", 1);
    let expected = ["a null whole 0+0/0 b:shared", "b a whole 0+0/0 c:shared", "c b whole 0+0/0 d:shared", "d c whole 0+1/1"];
    says(&brokers[0], &["s/1", "--qos", "1"], &expected);
    // The same message from the middle, one of QoS 0, one that is retained.
    says(
        &brokers[1],
        &["t/1"],
        &["b null whole 0+0/0 a:unwanted c:wanted", "a b nothing 0+0/0", "c b whole 1+1/2 d:unwanted", "d c nothing 0+0/0"],
    );
    says(
        &brokers[0],
        &["elsewhere", "--retain"],
        &["a null whole 0+0/0 b:retained", "b a whole 0+0/0 c:retained", "c b whole 0+0/0 d:retained", "d c whole 0+0/0"],
    );

    let admin = format!("http://{}", brokers[0].address_of("admin"));
    let said = run(&["trace", "t/1", "--qos", "1", "--admin", &admin]);
    let lines: Vec<_> = said.out.lines().collect();
    assert!(lines[0] == "t/1, QoS 1, published at a" && lines.len() == 8, "{said:?}");
    assert!(lines[6].contains("└─ c") && lines[6].ends_with("whole: wanted   1 + 1 group of 2"), "{said:?}");

    // Who stands still is named; nobody waits for it for ever.
    brokers[3].signal("STOP");
    let trace = traced(&brokers[0], &["t/1", "--qos", "1"]);
    assert_eq!((trace["silent"][0]["name"].as_str(), trace["brokers"].as_array().unwrap().len()), (Some("d"), 3), "{trace}");
    brokers[3].signal("CONT");
    let killed = brokers.remove(1);
    killed.kill();
    says(&brokers[0], &["t/2"], &["a null whole 0+0/0"]);
}

#[test]
fn a_trace_is_asked_for_within_bounds() {
    let site = Site::new();
    site.certify("m", "a", &[]);
    let broker = site.start("a", &site.configuration("a", &[]));
    let admin = format!("http://{}", broker.address_of("admin"));
    for topic in ["", "a/+", "#", "$SYS/broker/uptime", &"x".repeat(4_097)] {
        let said = run(&["trace", topic, "--admin", &admin]);
        assert_eq!((said.code, said.out.as_str()), (Some(1), ""), "{topic:?}");
        assert!(said.err.contains("400") && said.err.contains("a trace needs the name of one topic"), "{said:?}");
    }
    assert_eq!(run(&["trace", "t", "--qos", "3"]).code, Some(2));
    let outcomes: Vec<_> = (0..30).map(|_| run(&["trace", "t", "--admin", &admin])).collect();
    let refused = outcomes.iter().filter(|said| said.code != Some(0)).inspect(|said| assert!(said.err.contains("429"), "{said:?}"));
    // Eight, and two more a second: this takes no eleven seconds.
    assert!(refused.count() > 0);
    let alone = site.start("alone", &site.alone("alone"));
    let said = run(&["trace", "t", "--admin", &format!("http://{}", alone.address_of("admin"))]);
    assert!(said.code == Some(1) && said.err.contains("404") && said.err.contains("this broker has no [mesh]"), "{said:?}");
}
