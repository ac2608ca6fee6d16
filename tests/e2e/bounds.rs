//! What a whole broker may take of its machine: memory, descriptors; and that it lets go of it in time.

use std::fs::{self, File};
use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::broker::{Broker, PATIENCE, Site, wait_for};
use crate::client::{Client, Connect, Publish};
use crate::serve::get;
use crate::wire::*;

const MIB: u64 = 1 << 20;
const QUOTA_EXCEEDED: u8 = 0x97;

/// What the system says of the process.
pub fn resident_bytes(broker: &Broker) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", broker.pid())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().strip_suffix("kB").unwrap().trim().parse::<u64>().unwrap() * 1_024
}

/// Processor time so far.
fn busy(broker: &Broker) -> Duration {
    let stat = fs::read_to_string(format!("/proc/{}/stat", broker.pid())).unwrap();
    let fields: Vec<u64> =
        stat.rsplit_once(')').unwrap().1.split_whitespace().skip(11).take(2).map(|ticks| ticks.parse().unwrap()).collect();
    Duration::from_millis(fields.iter().sum::<u64>() * 10)
}

fn metric(broker: &Broker, name: &str) -> f64 {
    let text = get(broker.address_of("health"), "/metrics");
    let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_else(|| panic!("no {name} in {text}"));
    line.trim().parse().unwrap()
}

fn with_limits(site: &Site, name: &str, limits: &str) -> String {
    format!("{}[limits]\n{limits}\n", site.alone(name))
}

/// Messages wait for one who is away until there is no memory left for them: then they are refused, each with its answer, and everybody else goes on;
/// the one for whom they wait gets in and takes them, and all is as before.
#[test]
fn memory_is_bounded_and_producers_are_told() {
    let site = Site::new();
    let limits = "memory_limit = \"128MiB\"\nmax_queued_bytes = \"1GiB\"\nmax_queued_messages = 1000000";
    let broker = site.start("a", &with_limits(&site, "a", limits));
    let session = Connect::new(5).resume(3_600);
    let mut away = Client::connect(&broker, &session);
    away.subscribe(&[("kept", 1)]);
    away.disconnect();
    let mut reader = Client::subscribed(&broker, 5, "live", 1);
    let (mut filler, mut publisher) = (Client::new(&broker, 5), Client::new(&broker, 5));
    let mut old = Client::new(&broker, 4);
    let old_session = Connect::new(4).resume(3_600);
    let mut careful = Client::connect(&broker, &old_session);

    let body = "x".repeat(1_000_000);
    let mut kept = Vec::new();
    loop {
        let payload = format!("{}:{body}", kept.len());
        let id = filler.next_id();
        filler.send(&Publish { topic: "kept", payload: &payload, qos: 1, id, ..Publish::default() }.encode(5));
        let answer = filler.receive();
        match (answer.kind, answer.reason) {
            (kind::PUBACK, 0) => kept.push(payload),
            // Half of it was there when there was no memory left for the rest.
            (kind::DISCONNECT | kind::PUBACK, reason) => break assert_eq!(reason, QUOTA_EXCEEDED),
            _ => panic!("{answer:?}"),
        }
        assert!(kept.len() < 300, "300 MB wait, and no end: {} bytes", resident_bytes(&broker));
    }
    assert_eq!(publisher.publish(Publish { topic: "kept", payload: "m", qos: 1, ..Publish::default() }), QUOTA_EXCEEDED);
    assert!(resident_bytes(&broker) < 160 * MIB, "{}", resident_bytes(&broker));
    assert!(metric(&broker, "mqtt_st_quic_pauses_total{reason=\"memory\"}") > 0.0, "the producer was slowed before");
    broker.wait_for_log(&["memory is tight"]);
    broker.wait_for_log(&["memory is full"]);

    // Who waits for nobody is served; who would make a new session is not.
    publisher.say("live", "goes through");
    reader.expect_message("goes through");
    for (version, reason) in [(4, 3), (5, QUOTA_EXCEEDED)] {
        let mut late = Client::open(&broker, version);
        late.send(&Connect::new(version).encode());
        assert_eq!(late.expect_end().reason, Some(reason));
    }
    // Before MQTT 5 there is no refusal but this.
    for (client, qos) in [(&mut old, 1), (&mut careful, 2)] {
        // What those who are gone held may be free meanwhile.
        loop {
            let payload = format!("{}:{}", kept.len(), &body[..10_000]);
            match publisher.publish(Publish { topic: "kept", payload: &payload, qos: 1, ..Publish::default() }) {
                0 => kept.push(payload),
                reason => break assert_eq!(reason, QUOTA_EXCEEDED),
            }
        }
        client.send(&Publish { topic: "kept", payload: "m", qos, id: 1, ..Publish::default() }.encode(4));
        assert_eq!(client.expect_end().packets, []);
    }

    let mut back = Client::connect(&broker, &session);
    for payload in &kept {
        back.expect_message(payload);
    }
    wait_for("memory that is free again", || {
        (publisher.publish(Publish { topic: "kept", payload: "after", qos: 1, ..Publish::default() }) == 0).then_some(())
    });
    back.expect_message("after");
    // What was refused so was not taken: it comes again and arrives.
    let mut careful = Client::connect(&broker, &old_session);
    assert!(careful.connack.session_present);
    careful.send(&Publish { topic: "kept", payload: "m", qos: 2, id: 1, dup: true, ..Publish::default() }.encode(4));
    assert_eq!(careful.expect(kind::PUBREC).id, 1);
    back.expect_message("m");
    broker.wait_for_log(&["memory is free again"]);
}

/// Fast producers, readers that never read, and readers that do: what the process takes stays near its limit.
#[test]
fn stalled_readers_do_not_make_it_grow() {
    let site = Site::new();
    let broker = site.start("a", &with_limits(&site, "a", "memory_limit = \"128MiB\""));
    let mut stalled: Vec<_> = (0..200).map(|_| Client::subscribed(&broker, 4, "t", 0)).collect();
    let mut healthy = Client::subscribed(&broker, 5, "t", 0);
    let mut publisher = Client::new(&broker, 5);
    let body = "x".repeat(900);
    // 200 MB for each of them, 40 GB in all, if they were kept.
    let mut most = 0;
    for number in 0..2_000 {
        let burst: Vec<u8> = (0..10).flat_map(|_| Publish { topic: "t", payload: &body, ..Publish::default() }.encode(5)).collect();
        publisher.send(&burst);
        let last = number.to_string();
        publisher.publish(Publish { topic: "t", payload: &last, ..Publish::default() });
        while healthy.receive().text() != last {}
        most = most.max(resident_bytes(&broker));
    }
    assert!(most < 192 * MIB, "{} MiB", most / MIB);
    assert!(metric(&broker, "mqtt_st_quic_messages_dropped_total{reason=\"outbox_full\"}") > 0.0);
    stalled.clear();
    wait_for("memory that is given back", || (resident_bytes(&broker) < 96 * MIB).then_some(()));
}

/// Starts a broker whose limits of descriptors are set by `ulimit` first.
fn start_with_descriptors(site: &Site, ulimit: &str) -> Broker {
    let log = site.file("a.log");
    Broker::start(site, "a", &site.alone("a"), |command| {
        let broker = std::mem::replace(command, Command::new("sh"));
        command.args(["-c", &format!("{ulimit} && exec \"$0\" \"$@\"")]).arg(broker.get_program()).args(broker.get_args());
        command.stdin(Stdio::null()).stderr(File::create(log).unwrap());
    })
}

#[test]
fn the_limit_of_descriptors_is_raised_and_said() {
    let site = Site::new();
    let broker = start_with_descriptors(&site, "ulimit -Sn 256");
    let line = broker.wait_for_log(&["descriptors", "before=256"]);
    let limit: u64 = line.split("limit=").nth(1).unwrap().split(' ').next().unwrap().parse().unwrap();
    assert!(limit > 256, "{line}");
}

/// More clients than descriptors: those who are in stay, the others are turned away cheaply, and all recovers by itself.
#[test]
fn without_descriptors_who_is_in_is_served_and_the_others_cost_little() {
    let site = Site::new();
    let broker = start_with_descriptors(&site, "ulimit -n 128");
    broker.wait_for_log(&["descriptors", "limit=128", "clients=64"]);
    let address: SocketAddr = broker.address();
    let connect = || {
        let mut client = Client::open(&broker, 4);
        client.send(&Connect::new(4).encode());
        client.receive_within(PATIENCE).expect("an answer or the end").map(|_| client)
    };
    let mut clients: Vec<Client> = std::iter::from_fn(connect).take(200).collect();
    assert_eq!(clients.len(), 64);
    // They come again and again.
    let (begin, before) = (Instant::now(), busy(&broker));
    let mut refused = 0;
    while begin.elapsed() < Duration::from_secs(2) {
        assert!(connect().is_none(), "{refused} were refused before, at {address}");
        refused += 1;
    }
    let part = (busy(&broker) - before).as_secs_f64() / begin.elapsed().as_secs_f64();
    assert!(part < 0.3, "{part} of a processor for {refused} refusals");
    let lines = broker.log().matches("client refused").count();
    assert!((1..10).contains(&lines), "{lines} lines for {refused} refusals");
    for client in &mut clients {
        client.expect_nothing();
    }
    clients.truncate(32);
    wait_for("places that are free again", connect);
}

/// What a stop may take: three seconds for clients and three for the disk, and as much again on a machine that does other things as well. Above all it has
/// an end.
const STOP_MAX: Duration = Duration::from_secs(12);

/// Many clients, of which one reads nothing at all and one never said what it is.
#[test]
fn a_stop_has_an_end_whoever_is_there() {
    let site = Site::new();
    let mut broker = site.start("a", &site.alone("a"));
    let mut clients: Vec<_> = (0..300).map(|_| Client::new(&broker, 5)).collect();
    let _silent = Client::open(&broker, 5);
    let _stalled = Client::subscribed(&broker, 5, "t", 0);
    let mut publisher = Client::new(&broker, 5);
    let body = "x".repeat(100_000);
    for _ in 0..200 {
        publisher.say("t", &body);
    }
    let begin = Instant::now();
    broker.signal("TERM");
    for client in &mut clients {
        client.expect_disconnect(&[0x8b]);
    }
    assert_eq!(broker.wait().code(), Some(0));
    assert!(begin.elapsed() < STOP_MAX, "{:?}", begin.elapsed());
}
