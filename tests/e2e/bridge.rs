//! Bridges to foreign brokers: Mosquitto, where it is installed, and one of ours.

use std::fs;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::broker::{Broker, PATIENCE, Site, wait_for};
use crate::certificates::Authority;
use crate::client::{Client, Connect, Publish};
use crate::crash::{Publisher, Subscriber};
use crate::foreign::is_there;
use crate::serve::get;
use crate::wire::*;

/// An address that was free a moment ago, for a broker that comes back to it.
fn free_address() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

/// A broker of ours that listens there, so that it comes back to where it was.
fn start_at(site: &Site, name: &str, address: SocketAddr, more: &str) -> Broker {
    let configuration = site.alone(name).replacen("127.0.0.1:0", &address.to_string(), 1);
    site.start(name, &format!("{configuration}{more}"))
}

fn bridge(to: SocketAddr, topics: &[&str], more: &str) -> String {
    format!("[[bridge]]\nname = \"cloud\"\naddresses = [\"{to}\"]\ntopic = {topics:?}\nrestart_timeout = \"1s\"\n{more}\n")
}

/// Whom the bridge leads to.
enum Foreign {
    Ours(Broker),
    Mosquitto(Child),
}

impl Foreign {
    fn start(site: &Site, is_mosquitto: bool, address: SocketAddr) -> Self {
        if !is_mosquitto {
            return Self::Ours(start_at(site, "cloud", address, ""));
        }
        let dir = site.file("mosquitto");
        fs::create_dir_all(&dir).unwrap();
        let text = format!(
            "user root\nlistener {} 127.0.0.1\nallow_anonymous true\npersistence true\npersistence_location {dir}/\nmax_queued_messages 0\n\
             max_inflight_messages 20\nset_tcp_nodelay true\n",
            address.port()
        );
        let config = site.file("mosquitto.conf");
        fs::write(&config, text).unwrap();
        let log = fs::File::options().create(true).append(true).open(site.file("mosquitto.log")).unwrap();
        let child = Command::new("mosquitto").args(["-c", &config]).stdout(Stdio::null()).stderr(log).spawn().unwrap();
        wait_for("Mosquitto", || TcpStream::connect(address).ok());
        Self::Mosquitto(child)
    }

    /// Ends it so that it keeps what it should: Mosquitto does that only when it is asked to end.
    fn end(mut self) {
        match &mut self {
            Self::Ours(broker) => {
                broker.signal("KILL");
                broker.wait();
            }
            Self::Mosquitto(child) => {
                assert!(Command::new("kill").arg(child.id().to_string()).status().unwrap().success());
                child.wait().unwrap();
            }
        }
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        if let Self::Mosquitto(child) = self {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn has_mosquitto() -> bool {
    let mut probe = Command::new("sh");
    probe.args(["-c", "command -v mosquitto"]);
    is_there("mosquitto", probe)
}

/// Of the bridge `cloud`.
fn metric(broker: &Broker, name: &str) -> u64 {
    let page = get(broker.address_of("health"), "/metrics");
    let line =
        page.lines().find(|line| line.starts_with(&format!("mqtt_st_quic_bridge_{name}")) && line.contains("{bridge=\"cloud\"}"));
    let value: f64 = line.unwrap_or_else(|| panic!("no {name} in {page}")).rsplit(' ').next().unwrap().parse().unwrap();
    value as u64
}

fn wait_for_bridge(broker: &Broker) {
    // What is said there before the foreign broker has the subscriptions is nobody's.
    wait_for("a bridge that is connected", || {
        (metric(broker, "connected") == 1 && metric(broker, "subscribed") == 1).then_some(())
    });
}

fn say(client: &mut Client, topic: &str, payload: &str, qos: u8) {
    assert!(client.publish(Publish { topic, payload, qos, ..Publish::default() }) < 0x80);
}

/// What a session without a client has been sent, when nothing more comes.
fn taken(client: &mut Client) -> Vec<String> {
    let mut payloads = Vec::new();
    while let Some(Some(received)) = client.receive_within(Duration::from_secs(2)) {
        match received.kind {
            kind::PUBLISH => {
                payloads.push(received.text().to_owned());
                match received.qos() {
                    1 => client.send(&ack(kind::PUBACK, received.id)),
                    2 => client.send(&ack(kind::PUBREC, received.id)),
                    _ => {}
                }
            }
            kind::PUBREL => client.send(&ack(kind::PUBCOMP, received.id)),
            _ => panic!("{received:?}"),
        }
    }
    payloads
}

fn numbers(range: std::ops::Range<usize>) -> Vec<String> {
    range.map(|n| n.to_string()).collect()
}

fn sorted(mut payloads: Vec<String>) -> Vec<String> {
    payloads.sort_by_key(|n| n.parse::<usize>().unwrap());
    payloads
}

/// Every QoS both ways, renamed and retained; what goes both ways comes to everybody once.
fn crosses(is_mosquitto: bool, version: &str) {
    let (site, address) = (Site::new(), free_address());
    let _foreign = Foreign::start(&site, is_mosquitto, address);
    let topics = ["o/# out 2 \"\" site/", "# in 2 i/ cloud/", "b/# both 2"];
    let more = format!("protocol_version = \"{version}\"\nremote_clientid = \"me\"");
    let near = site.start("near", &format!("{}{}", site.alone("near"), bridge(address, &topics, &more)));
    wait_for_bridge(&near);
    let at = |address: SocketAddr, version: u8| Client::connect_at(address, &Connect::new(version));
    let mut here = at(near.address(), 5);
    here.subscribe(&[("i/#", 2), ("b/#", 2), ("$SYS/broker/connection/me/state", 0)]);
    assert_eq!(here.expect(kind::PUBLISH).text(), "1");
    let mut there = at(address, 4);
    there.subscribe(&[("site/#", 2), ("b/#", 2)]);
    let (mut near_speaker, mut far_speaker) = (at(near.address(), 5), at(address, 4));
    for qos in 0..=2 {
        say(&mut near_speaker, "o/x", "out", qos);
        let received = there.expect_message("out");
        assert_eq!((received.topic.as_str(), received.qos()), ("site/o/x", qos), "{received:?}");
        say(&mut far_speaker, "cloud/y", "in", qos);
        let received = here.expect_message("in");
        assert_eq!((received.topic.as_str(), received.qos()), ("i/y", qos), "{received:?}");
        for speaker in [&mut near_speaker, &mut far_speaker] {
            say(speaker, "b/z", "both", qos);
            assert_eq!(here.expect_message("both").topic, "b/z");
            assert_eq!(there.expect_message("both").topic, "b/z");
        }
        say(&mut near_speaker, "elsewhere", "no", qos);
        say(&mut far_speaker, "elsewhere", "no", qos);
    }
    // Nothing came back: what is said now comes next.
    say(&mut near_speaker, "o/x", "last", 1);
    there.expect_message("last");
    say(&mut far_speaker, "cloud/y", "last", 1);
    here.expect_message("last");
    // Retained messages are, on both sides.
    near_speaker.retain("o/kept", "kept");
    there.expect_message("kept");
    far_speaker.retain("cloud/kept", "kept");
    here.expect_message("kept");
    let mut late = at(address, 4);
    late.subscribe(&[("site/#", 1)]);
    let received = late.expect_message("kept");
    assert!(received.retain(), "{received:?}");
    let mut late = at(near.address(), 5);
    late.subscribe(&[("i/#", 1)]);
    assert!(late.expect_message("kept").retain());
    assert_eq!(metric(&near, "messages_refused"), 0);
}

#[test]
fn messages_cross_to_one_of_ours_and_back() {
    crosses(false, "mqttv50");
    crosses(false, "mqttv311");
}

#[test]
fn messages_cross_to_mosquitto_and_back() {
    if has_mosquitto() {
        crosses(true, "mqttv50");
        crosses(true, "mqttv311");
    }
}

/// Messages of both sides wait while the other is away.
fn outlasts(is_mosquitto: bool, version: &str) {
    const COUNT: usize = 300;
    let (site, address) = (Site::new(), free_address());
    let topics = ["o/# out 2", "i/# in 2"];
    let configuration = format!("{}{}", site.alone("near"), bridge(address, &topics, &format!("protocol_version = \"{version}\"")));
    let watcher = Connect::new(4).id("watcher").resume(0);
    let foreign = Foreign::start(&site, is_mosquitto, address);
    let mut there = Client::connect_at(address, &watcher);
    there.subscribe(&[("o/#", 2)]);
    there.disconnect();
    foreign.end();
    // The bridge begins while there is nobody on the other side.
    let near = site.start("near", &configuration);
    near.wait_for_log(&["the bridge is not connected", &address.to_string()]);
    let mut speaker = Client::new(&near, 5);
    for n in 0..COUNT {
        say(&mut speaker, &format!("o/{}", n % 2), &n.to_string(), 1 + (n % 2) as u8);
    }
    let foreign = Foreign::start(&site, is_mosquitto, address);
    wait_for_bridge(&near);
    let mut there = Client::connect_at(address, &watcher);
    assert_eq!(sorted(taken(&mut there)), numbers(0..COUNT));
    // An outage while there is a session: nothing is missed.
    there.disconnect();
    foreign.end();
    wait_for("a bridge that knows", || (metric(&near, "connected") == 0).then_some(()));
    for n in COUNT..2 * COUNT {
        say(&mut speaker, "o/1", &n.to_string(), 1 + (n % 2) as u8);
    }
    let foreign = Foreign::start(&site, is_mosquitto, address);
    let mut there = Client::connect_at(address, &watcher);
    let heard = taken(&mut there);
    for odd in 0..2 {
        let of = |all: &[String]| all.iter().filter(|n| n.parse::<usize>().unwrap() % 2 == odd).cloned().collect::<Vec<_>>();
        assert_eq!(of(&heard), of(&numbers(COUNT..2 * COUNT)), "order holds within a QoS");
    }
    // And of this side.
    let listener = Connect::new(5).id("listener").resume(3_600);
    let mut here = Client::connect(&near, &listener);
    here.subscribe(&[("i/#", 2)]);
    here.disconnect();
    near.kill();
    let mut speaker = Client::connect_at(address, &Connect::new(4));
    for n in 0..COUNT {
        say(&mut speaker, "i/1", &n.to_string(), 2);
    }
    let near = site.start("near", &configuration);
    let mut here = Client::connect(&near, &listener);
    assert_eq!(here.take_messages(COUNT), numbers(0..COUNT));
    here.expect_nothing();
    drop(foreign);
}

#[test]
fn messages_for_one_of_ours_wait_while_it_is_away() {
    outlasts(false, "mqttv50");
    outlasts(false, "mqttv311");
}

#[test]
fn messages_for_mosquitto_wait_while_it_is_away() {
    if has_mosquitto() {
        outlasts(true, "mqttv50");
        outlasts(true, "mqttv311");
    }
}

#[test]
fn killed_on_either_side_in_the_middle_qos_2_is_exact_both_ways() {
    const COUNT: usize = 1_500;
    let mut kills_in_the_middle = 0;
    for (round, version) in ["mqttv50", "mqttv311", "mqttv50", "mqttv311"].into_iter().enumerate() {
        let (site, address) = (Site::new(), free_address());
        let topics = ["o out 2", "i in 2"];
        let configuration =
            format!("{}{}", site.alone("near"), bridge(address, &topics, &format!("protocol_version = \"{version}\"")));
        let watcher = Connect::new(5).id("watcher").resume(3_600);
        let prepare = |broker: &Broker, filter: &str| {
            let mut client = Client::connect(broker, &watcher);
            client.subscribe(&[(filter, 2)]);
            client.disconnect();
        };
        let mut near = site.start("near", &configuration);
        let mut far = start_at(&site, "cloud", address, "");
        prepare(&near, "i");
        prepare(&far, "o");
        wait_for_bridge(&near);
        // Both have much to say when the way opens.
        let fill = |broker: &Broker, topic: &str| {
            let mut speaker = Client::new(broker, 5);
            for n in 0..COUNT {
                say(&mut speaker, topic, &n.to_string(), 2);
            }
        };
        far.kill();
        fill(&near, "o");
        near.kill();
        far = start_at(&site, "cloud", address, "");
        fill(&far, "i");
        near = site.start("near", &configuration);
        for kill in 0..6_u64 {
            wait_for_bridge(&near);
            let seed = (round as u64 * 6 + kill) * 37 % 90;
            println!("{version}: kill {kill} after {seed} ms");
            std::thread::sleep(Duration::from_millis(seed));
            if kill == 0 {
                let crossed = metric(&near, "messages_sent") + metric(&near, "messages_received");
                kills_in_the_middle += usize::from(crossed < 2 * COUNT as u64);
            }
            if kill % 2 == 0 {
                near.kill();
                near = site.start("near", &configuration);
            } else {
                far.kill();
                far = start_at(&site, "cloud", address, "");
            }
        }
        for (broker, what) in [(&far, "out"), (&near, "in")] {
            let mut client = Client::connect(broker, &watcher);
            assert!(client.connack.session_present);
            assert_eq!(client.take_messages(COUNT), numbers(0..COUNT), "{version} {what}");
            client.expect_nothing();
        }
    }
    assert!(kills_in_the_middle > 0, "none came before everything had crossed");
}

/// What another sent as the bridge's client and left unfinished is no reason to take the bridge's own for repeats.
#[test]
fn what_another_left_in_flight_at_the_foreign_broker_costs_no_message() {
    for version in ["mqttv50", "mqttv311"] {
        let (site, address) = (Site::new(), free_address());
        let far = start_at(&site, "cloud", address, "");
        let more = format!("protocol_version = \"{version}\"\nremote_clientid = \"me\"");
        let start = || site.start("near", &format!("{}{}", site.alone("near"), bridge(address, &["o out 2", "i in 2"], &more)));
        let thieve = || {
            let mut thief = Client::connect(&far, &Connect::new(5).id("me").resume(3_600));
            for id in 1..=100 {
                thief.send(&Publish { topic: "theirs", payload: "x", qos: 2, id, ..Publish::default() }.encode(5));
            }
            for _ in 1..=100 {
                thief.expect(kind::PUBREC);
            }
            thief.lose();
        };
        // There before the bridge comes for the first time.
        thieve();
        let near = start();
        near.wait_for_log(&["released at the foreign broker"]);
        wait_for_bridge(&near);
        let mut there = Client::subscribed(&far, 5, "o", 2);
        let mut speaker = Client::new(&near, 5);
        let mut cross = |speaker: &mut Client, range: std::ops::Range<usize>, was_robbed: bool| {
            for n in range.clone() {
                say(speaker, "o", &n.to_string(), 2);
            }
            let mut heard = there.take_messages(range.len());
            // What was still in flight when another took the session may come twice.
            while was_robbed && heard.first().is_some_and(|first| first.parse::<usize>().unwrap() < range.start) {
                heard.remove(0);
                heard.extend(there.take_messages(1));
            }
            assert_eq!(heard, numbers(range));
        };
        cross(&mut speaker, 0..30, false);
        // The bridge that was there comes back to its own.
        near.kill();
        let near = start();
        let mut speaker = Client::new(&near, 5);
        cross(&mut speaker, 30..60, false);
        assert!(!near.log().contains("released at the foreign broker"), "{}", near.log());
        if version == "mqttv50" {
            near.signal("STOP");
            thieve();
            near.signal("CONT");
            near.wait_for_log(&["released at the foreign broker"]);
            cross(&mut speaker, 60..90, true);
        }
        let mut far_speaker = Client::new(&far, 5);
        let mut here = Client::subscribed(&near, 5, "i", 2);
        say(&mut far_speaker, "i", "in", 2);
        here.expect_message("in");
    }
}

#[test]
fn nobody_else_is_the_bridge_and_both_sides_are_told_of_it() {
    let (site, address) = (Site::new(), free_address());
    let far = start_at(&site, "cloud", address, "");
    let more = "remote_clientid = \"me\"\nlocal_clientid = \"mine\"\nnotification_topic = \"bridges/me\"";
    let near = site.start("near", &format!("{}{}", site.alone("near"), bridge(address, &["# out 1"], more)));
    wait_for_bridge(&near);
    let mut thief = Client::open(&near, 5);
    thief.send(&Connect::new(5).id("mine").encode());
    assert_eq!(thief.expect_end().reason, Some(0x85));
    let mut there = Client::subscribed(&far, 5, "bridges/me", 1);
    assert_eq!(there.expect(kind::PUBLISH).text(), "1");
    let mut here = Client::subscribed(&near, 5, "$SYS/broker/connection/me/state", 0);
    here.expect_message("1");
    far.signal("STOP");
    far.signal("CONT");
    drop(there);
    far.kill();
    here.expect_message("0");
    let far = start_at(&site, "cloud", address, "");
    here.expect_message("1");
    let mut there = Client::connect(&far, &Connect::new(5));
    there.subscribe(&[("bridges/me", 1)]);
    let state = wait_for("the state", || Some(there.expect(kind::PUBLISH))).text().to_owned();
    assert_eq!(state, "1");
    drop(near);
    there.expect_message("0");
}

#[test]
fn certificates_are_shown_and_looked_at_and_a_dead_address_is_passed_over() {
    let site = Site::new();
    let authority = Authority::new(&site.path().join("tls"));
    let (server, client) = (authority.server(1), authority.client(2, "bridge"));
    let tls = format!(
        "bind = \"0.0.0.0:0\"\ntls = {{ certfile = {:?}, keyfile = {:?}, cafile = {:?}, require_certificate = true }}",
        server.certificate,
        server.key,
        authority.file()
    );
    let far = site.start("cloud", &site.alone("cloud").replacen("bind = \"127.0.0.1:0\"", &tls, 1));
    let there = |near: &str, host: &str, more: &str| {
        let shown =
            format!("cafile = {:?}, certfile = {:?}, keyfile = {:?}{more}", authority.file(), client.certificate, client.key);
        let to = format!("\"127.0.0.1:{}\", \"{host}:{}\"", free_address().port(), far.address().port());
        let text = format!("[[bridge]]\nname = \"cloud\"\naddresses = [{to}]\ntopic = [\"# out 1\"]\ntls = {{ {shown} }}\n");
        site.start(near, &format!("{}{text}", site.alone(near)))
    };
    wait_for_bridge(&there("near", "localhost", ""));
    // A name that is not in the certificate, and the same where names do not count.
    let refused = there("wrong", "127.0.0.2", "");
    refused.wait_for_log(&["the bridge is not connected", "127.0.0.2", "certificate"]);
    wait_for_bridge(&there("insecure", "127.0.0.2", ", insecure = true"));
    // Another authority's certificate is none of the two.
    let other = Authority::new(&site.path().join("other"));
    let text = format!(
        "[[bridge]]\nname = \"cloud\"\naddresses = [\"127.0.0.1:{}\"]\ntopic = [\"# out 1\"]\ntls = {{ cafile = {:?}, insecure = true }}\n",
        far.address().port(),
        other.file()
    );
    let stranger = site.start("stranger", &format!("{}{text}", site.alone("stranger")));
    stranger.wait_for_log(&["the bridge is not connected", "invalid peer certificate"]);
}

#[test]
fn a_bridge_that_is_configured_no_more_leaves_no_session() {
    let (site, address) = (Site::new(), free_address());
    let has_sessions = |broker: &Broker, count: usize| {
        get(broker.address_of("health"), "/metrics").contains(&format!("\nmqtt_st_quic_sessions {count}.0\n"))
    };
    let near = site.start("near", &format!("{}{}", site.alone("near"), bridge(address, &["# out 1"], "")));
    wait_for("the bridge's session", || has_sessions(&near, 1).then_some(()));
    // A SUBACK waits for the disk, and what came before is there by then.
    let mut client = Client::connect(&near, &Connect::new(5).id("durable").resume(3_600));
    client.subscribe(&[("x", 1)]);
    near.kill();
    let near = site.start("near", &format!("{}{}", site.alone("near"), bridge(address, &["a out 1"], "")));
    assert!(has_sessions(&near, 2));
    near.kill();
    let near = site.start("near", &site.alone("near"));
    assert!(has_sessions(&near, 1));
}

/// Of all brokers with the bridge, the one that is connected.
fn serving<'a>(brokers: &[&'a Broker]) -> &'a Broker {
    wait_for("one that serves", || {
        let all: Vec<_> = brokers.iter().filter(|broker| metric(broker, "serving") == 1).collect();
        assert!(all.len() <= 1, "one at a time");
        all.first().filter(|broker| metric(broker, "connected") == 1).copied().copied()
    })
}

#[test]
fn one_broker_of_a_mesh_serves_a_bridge_and_another_takes_it_over() {
    is_served_once(false);
}

#[test]
fn one_broker_of_a_mesh_serves_a_bridge_to_mosquitto() {
    if has_mosquitto() {
        is_served_once(true);
    }
}

fn is_served_once(is_mosquitto: bool) {
    let (site, address) = (Site::new(), free_address());
    let _far = Foreign::start(&site, is_mosquitto, address);
    site.certify("m", "a", &[]);
    site.certify("m", "b", &[]);
    let mesh = |name: &str, peers: &[SocketAddr]| {
        let more = format!("takeover_after = \"20s\"\npriority = {}", if name == "a" { 1 } else { 2 });
        let topics = ["o/# out 2", "i/# in 2", "b/# both 2"];
        format!("{}{}", site.configuration(name, peers), bridge(address, &topics, &more))
    };
    let a = site.start("a", &mesh("a", &[]));
    let of_a = a.address_of("mesh");
    let configuration_of_a = mesh("a", &[]).replacen("listen = \"127.0.0.1:0\"", &format!("listen = \"{of_a}\""), 1);
    let b = site.start("b", &mesh("b", &[of_a]));
    crate::mesh::settle(&[&a, &b]);
    assert_eq!(serving(&[&a, &b]).name, "a");

    let watcher = |name: &str, filters: &[(&str, u8)], at: SocketAddr| {
        let mut client = Client::connect_at(at, &Connect::new(5).id(name).resume(3_600));
        client.subscribe(filters);
        client
    };
    let mut there = watcher("there", &[("o/#", 2), ("b/#", 2)], address);
    let mut here = watcher("here", &[("i/#", 2), ("b/#", 2)], b.address());
    let mut far_speaker = Client::connect_at(address, &Connect::new(5));
    let mut speakers = [Client::new(&a, 5), Client::new(&b, 5)];
    let mut number = 0;
    let mut round = |speakers: &mut [Client], there: &mut Client, here: &mut Client| {
        for speaker in speakers.iter_mut() {
            number += 1;
            say(speaker, "o/x", &format!("out {number}"), 2);
            there.expect_message(&format!("out {number}"));
            say(speaker, "b/x", &format!("both {number}"), 2);
            there.expect_message(&format!("both {number}"));
            here.expect_message(&format!("both {number}"));
        }
        say(&mut far_speaker, "i/x", &format!("in {number}"), 2);
        here.expect_message(&format!("in {number}"));
        say(&mut far_speaker, "b/x", &format!("back {number}"), 2);
        here.expect_message(&format!("back {number}"));
        there.expect_message(&format!("back {number}"));
    };
    for _ in 0..20 {
        round(&mut speakers, &mut there, &mut here);
    }

    // Killed and back in time, it goes on: what was said meanwhile on either side comes once.
    let [_, mut speaker] = speakers;
    a.kill();
    wait_for("a broker that is missed", || (b.topology()["brokers"].as_array().unwrap().len() == 1).then_some(()));
    for n in 0..100 {
        say(&mut speaker, "o/y", &n.to_string(), 2);
    }
    let a = site.start("a", &configuration_of_a);
    crate::mesh::settle(&[&a, &b]);
    assert_eq!(there.take_messages(100), numbers(0..100));
    assert_eq!(serving(&[&a, &b]).name, "a");
    let mut speakers = [Client::new(&a, 5), speaker];
    round(&mut speakers, &mut there, &mut here);
    there.expect_nothing();
    here.expect_nothing();

    // Gone for longer, it is replaced, and when it comes back it stands by.
    let [_, mut speaker] = speakers;
    a.kill();
    assert_eq!(serving(&[&b]).name, "b");
    // What was said while nobody served was gathered.
    say(&mut speaker, "o/z", "now", 2);
    there.expect_message("now");
    let a = site.start("a", &configuration_of_a);
    crate::mesh::settle(&[&a, &b]);
    let mut speakers = [Client::new(&a, 5), speaker];
    for _ in 0..20 {
        round(&mut speakers, &mut there, &mut here);
    }
    assert_eq!(serving(&[&a, &b]).name, "b");
    there.expect_nothing();
    here.expect_nothing();
}

/// The brokers a and b have the bridge, clients are at c and at Mosquitto, and both sides speak all the time. Who serves the bridge is killed and comes back, then
/// who stands by: on the other side each number comes once, in order.
///
/// `BRIDGE_NUMBERS` (500) says how many numbers each side says, `BRIDGE_SEED` repeats at which of them the brokers are killed.
#[test]
fn two_brokers_bridged_to_mosquitto_carry_each_message_once_through_a_kill_of_either() {
    if !has_mosquitto() {
        return;
    }
    let variable = |name| std::env::var(name).ok().map(|text| text.parse::<u64>().expect("a number"));
    let half = variable("BRIDGE_NUMBERS").unwrap_or(500) / 2;
    let seed = variable("BRIDGE_SEED").unwrap_or_else(rand::random);
    let mut rng = StdRng::seed_from_u64(seed);
    let version = if rng.random() { "mqttv50" } else { "mqttv311" };
    println!("BRIDGE_SEED={seed} BRIDGE_NUMBERS={} {version}", 2 * half);
    let (site, address) = (Site::new(), free_address());
    let _far = Foreign::start(&site, true, address);
    let configuration = |name: &str, peers: &[SocketAddr], priority: Option<u32>| {
        let more = priority.map(|priority| {
            let more = format!("takeover_after = \"20s\"\npriority = {priority}\nprotocol_version = \"{version}\"");
            bridge(address, &["o out 2", "i in 2"], &more)
        });
        // A process is killed, not the machine.
        site.configuration(name, peers) + &more.unwrap_or_default() + "[persistence]\nsync = \"os\"\n"
    };
    let mut brokers: Vec<Broker> = Vec::new();
    let mut configurations: Vec<String> = Vec::new();
    for (name, priority) in [("a", Some(1)), ("b", Some(2)), ("c", None)] {
        site.certify("m", name, &[]);
        let peers: Vec<_> = brokers.iter().map(|broker| broker.address_of("mesh")).collect();
        let text = configuration(name, &peers, priority);
        brokers.push(site.start(name, &text));
        let listen = format!("listen = \"{}\"", brokers.last().unwrap().address_of("mesh"));
        configurations.push(text.replace("listen = \"127.0.0.1:0\"", &listen));
    }
    let settle = |brokers: &[Broker]| crate::mesh::settle(&brokers.iter().collect::<Vec<_>>());
    settle(&brokers);
    assert_eq!(serving(&[&brokers[0], &brokers[1]]).name, "a");
    wait_for_bridge(&brokers[0]);

    let at_c = brokers[2].address();
    let connect = |version, id: &str| Connect::new(version).id(id).resume(u32::MAX);
    let mut out = (Publisher::new(connect(5, "near-speaker"), "o", 2, seed), Subscriber::new(connect(4, "there"), "o", 2));
    let mut back = (Publisher::new(connect(4, "far-speaker"), "i", 2, !seed), Subscriber::new(connect(5, "here"), "i", 2));
    out.1.subscribe(address);
    back.1.subscribe(at_c);
    for publisher in [&mut out.0, &mut back.0] {
        (publisher.end, publisher.pause) = (0, Duration::from_millis(1));
        // More Mosquitto does not take at once.
        publisher.window = 20;
    }
    let speak = |publisher: &mut Publisher, at, more: u64| {
        publisher.end += more;
        publisher.run(at, &AtomicBool::new(false)).unwrap_or_else(|| panic!("the broker at {at} has closed the connection"));
    };
    let deadline = Instant::now() + 2 * PATIENCE;
    std::thread::scope(|scope| {
        let [there, here] = [(&mut out.1, address), (&mut back.1, at_c)].map(|(subscriber, at)| {
            // The last number of all is said when all else is over.
            scope.spawn(move || {
                subscriber.run(at, 2 * half + 1, deadline).unwrap_or_else(|| panic!("the broker at {at} has closed the connection"))
            })
        });
        for (victim, name) in ["a", "b"].into_iter().enumerate() {
            let crossed = |a: &Broker| metric(a, "messages_sent") + metric(a, "messages_received");
            let moment = crossed(&brokers[0]) + rng.random_range(0..half);
            std::thread::scope(|scope| {
                scope.spawn(|| speak(&mut out.0, at_c, half));
                scope.spawn(|| speak(&mut back.0, address, half));
                wait_for("numbers that cross", || (crossed(&brokers[0]) >= moment).then_some(()));
                brokers.remove(victim).kill();
                brokers.insert(victim, site.start(name, &configurations[victim]));
                settle(&brokers);
                assert_eq!(serving(&[&brokers[0], &brokers[1]]).name, "a");
            });
        }
        speak(&mut out.0, at_c, 1);
        speak(&mut back.0, address, 1);
        [there, here].into_iter().for_each(|one| one.join().unwrap());
    });
    let all: Vec<u64> = (0..=2 * half).collect();
    for (what, Subscriber { delivered, .. }) in [("out", &out.1), ("in", &back.1)] {
        let wrong = delivered.iter().zip(&all).find(|(got, expected)| got != expected);
        assert!(*delivered == all, "{what}: {} came, the first that is wrong: {wrong:?}", delivered.len());
    }
}

#[test]
fn the_bridge_of_a_broker_that_is_drained_goes_on_elsewhere_and_nothing_is_missed_or_comes_twice() {
    let (site, address) = (Site::new(), free_address());
    let _far = Foreign::start(&site, false, address);
    let mut brokers: Vec<Broker> = Vec::new();
    // The last is not to have it: it would not serve before the other.
    for (name, priority) in [("a", 1), ("b", 2), ("c", 3)] {
        site.certify("m", name, &[]);
        let peers: Vec<_> = brokers.iter().map(|broker| broker.address_of("mesh")).collect();
        let topics = ["o/# out 2", "i/# in 2"];
        let text = format!("{}{}", site.configuration(name, &peers), bridge(address, &topics, &format!("priority = {priority}")));
        brokers.push(site.start(name, &text));
    }
    crate::mesh::settle(&brokers.iter().collect::<Vec<_>>());
    let mut a = brokers.remove(0);
    let (b, c) = (&brokers[0], &brokers[1]);
    assert_eq!(serving(&[&a, b, c]).name, "a");
    wait_for_bridge(&a);

    let watcher = |name: &str, filter: &str, at: SocketAddr| {
        let mut client = Client::connect_at(at, &Connect::new(5).id(name).resume(3_600));
        client.subscribe(&[(filter, 2)]);
        client
    };
    let (mut there, mut here) = (watcher("there", "o/#", address), watcher("here", "i/#", b.address()));
    let (mut speaker, mut far_speaker) = (Client::new(b, 5), Client::connect_at(address, &Connect::new(5)));
    let mut number = 0;
    let mut speak = |times: usize| {
        for _ in 0..times {
            say(&mut speaker, "o/x", &number.to_string(), 2);
            say(&mut far_speaker, "i/x", &number.to_string(), 2);
            number += 1;
        }
        number
    };
    speak(20);
    let _following = crate::drain::drain_in_background(&site, &a, &["--notice", "0ms"]);
    wait_for("another broker that serves the bridge", || {
        speak(5);
        (metric(b, "connected") == 1 && metric(b, "subscribed") == 1).then_some(())
    });
    assert_eq!(a.wait().code(), Some(0));
    let said = speak(20);
    assert_eq!((there.take_messages(said), here.take_messages(said)), (numbers(0..said), numbers(0..said)));
    there.expect_nothing();
    here.expect_nothing();
    assert_eq!((metric(b, "messages_dropped"), metric(c, "messages_dropped")), (0, 0));
}

#[test]
fn a_mosquitto_that_bridges_to_ours_gets_nothing_back() {
    if !has_mosquitto() {
        return;
    }
    for version in ["mqttv311", "mqttv50"] {
        let (site, address) = (Site::new(), free_address());
        let ours = site.start("ours", &site.alone("ours"));
        let config = site.file("bridging.conf");
        let text = format!(
            "user root\nlistener {} 127.0.0.1\nallow_anonymous true\nconnection up\naddress {}\ntopic b/# both 2\n\
             bridge_protocol_version {version}\nremote_clientid theirs\nrestart_timeout 1\n",
            address.port(),
            ours.address()
        );
        fs::write(&config, text).unwrap();
        let child = Command::new("mosquitto").args(["-c", &config]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let theirs = Foreign::Mosquitto(child);
        wait_for("Mosquitto", || TcpStream::connect(address).ok());
        let mut here = Client::subscribed(&ours, 5, "b/#", 2);
        let mut there = Client::connect_at(address, &Connect::new(4));
        there.subscribe(&[("b/#", 2)]);
        let mut state = Client::new(&ours, 5);
        state.subscribe(&[("$SYS/broker/connection/theirs/state", 0)]);
        wait_for("word of the bridge", || (state.receive().text() == "1").then_some(()));
        wait_for("its subscription", || {
            get(ours.address_of("health"), "/metrics").contains("\nmqtt_st_quic_subscriptions 3.0\n").then_some(())
        });
        let mut speakers = [Client::new(&ours, 5), Client::connect_at(address, &Connect::new(4))];
        for n in 0..20 {
            for speaker in &mut speakers {
                say(speaker, "b/x", &n.to_string(), 2);
                here.expect_message(&n.to_string());
                there.expect_message(&n.to_string());
            }
        }
        here.expect_nothing();
        there.expect_nothing();
        drop(theirs);
        state.expect_message("0");
    }
}

/// What SIGHUP does to bridges: they come, change and go, and no client notices.
#[test]
fn a_reload_adds_changes_and_removes_bridges() {
    let (site, address) = (Site::new(), free_address());
    let cloud = start_at(&site, "cloud", address, "");
    let alone = site.alone("near");
    let near = site.start("near", &alone);
    let reload = |more: &str| {
        let count = || near.log().lines().filter(|line| line.contains(" reloaded")).count();
        let before = count();
        fs::write(site.file("near.toml"), format!("{alone}{more}")).unwrap();
        near.signal("HUP");
        wait_for("a reload", || (count() > before).then_some(()));
    };
    let connected = |count: usize| {
        wait_for("a bridge that is connected anew", || {
            (near.log().lines().filter(|line| line.contains("the bridge is connected")).count() == count).then_some(())
        });
        wait_for_bridge(&near);
    };
    let mut there = Client::connect_at(address, &Connect::new(4));
    there.subscribe(&[("#", 2)]);
    let (mut speaker, mut listener) = (Client::new(&near, 5), Client::subscribed(&near, 5, "#", 1));

    reload(&bridge(address, &["o/# out 2 \"\" one/"], ""));
    connected(1);
    say(&mut speaker, "o/x", "added", 2);
    assert_eq!(there.expect_message("added").topic, "one/o/x");
    listener.expect_message("added");
    // The same again changes nothing.
    reload(&bridge(address, &["o/# out 2 \"\" one/"], ""));
    say(&mut speaker, "o/x", "as before", 1);
    there.expect_message("as before");
    listener.expect_message("as before");
    let refused = || {
        let mut client = Client::open(&near, 5);
        client.send(&Connect::new(5).id("bridge-cloud").encode());
        client.expect(kind::CONNACK).reason != 0
    };
    assert!(refused(), "the client id is the bridge's");

    // What waits for it stays its own when it is told something else.
    cloud.signal("STOP");
    say(&mut speaker, "o/x", "waited", 2);
    listener.expect_message("waited");
    reload(&bridge(address, &["o/# out 2 \"\" two/", "i/# in 1"], ""));
    cloud.signal("CONT");
    connected(2);
    let received = there.expect_message("waited");
    assert!(received.topic == "one/o/x" || received.topic == "two/o/x", "{received:?}");
    say(&mut speaker, "o/x", "changed", 1);
    assert_eq!(there.expect_message("changed").topic, "two/o/x");
    listener.expect_message("changed");
    let mut there_speaks = Client::connect_at(address, &Connect::new(4));
    say(&mut there_speaks, "i/x", "in", 1);
    there.expect_message("in");
    assert_eq!(listener.expect_message("in").topic, "i/x");

    reload("");
    wait_for("a bridge that is gone", || {
        let page = get(near.address_of("health"), "/metrics");
        (!page.contains("bridge=\"cloud\"")).then_some(())
    });
    near.wait_for_log(&["the bridge is removed", "cloud"]);
    assert!(!refused(), "the client id is anybody's");
    say(&mut speaker, "o/x", "to nobody", 1);
    listener.expect_message("to nobody");
    say(&mut there_speaks, "end", "end", 1);
    there.expect_message("end");
    for client in [&mut speaker, &mut listener] {
        client.expect_nothing();
    }
}
