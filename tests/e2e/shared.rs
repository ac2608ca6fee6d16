//! Share groups with members at several brokers: each message goes to one member, wherever it is published, whoever comes, leaves or is away.

use std::collections::{BTreeMap, HashSet};
use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::broker::{Broker, PATIENCE, Site};
use crate::client::{Client, Connect, Publish};
use crate::crash::{Publisher, Subscriber, Wire};
use crate::mesh::{settle, start_all};
use crate::replicas::await_replicas;
use crate::serve::gauge;
use crate::wire::*;

/// A look at what has come to one member.
const LOOK: Duration = Duration::from_millis(20);
/// What comes twice comes within this time after all that was to come.
const AFTERWARDS: Duration = Duration::from_millis(500);

/// A member of a group, that keeps its session.
struct Member {
    connect: Connect,
    /// None while it is away.
    client: Option<Client>,
    /// Payloads, in the order of their arrival.
    got: Vec<String>,
    /// QoS 2 messages that are not released yet.
    open: HashSet<u16>,
}

impl Member {
    fn new(id: &str) -> Self {
        Self { connect: Connect::new(5).id(id).resume(3_600), client: None, got: Vec::new(), open: HashSet::new() }
    }

    fn subscribed(broker: &Broker, id: &str, filter: &str) -> Self {
        let mut member = Self::new(id);
        member.come(broker);
        member.client.as_mut().unwrap().subscribe(&[(filter, 2)]);
        member
    }

    fn come(&mut self, broker: &Broker) {
        self.client = Some(Client::connect(broker, &self.connect));
    }

    fn leave(&mut self) {
        self.client.take().into_iter().for_each(Client::disconnect);
    }

    /// Takes what comes until nothing has for `time`.
    fn take(&mut self, time: Duration) {
        while let Some(Some(received)) = self.client.as_mut().and_then(|client| client.receive_within(time)) {
            self.receive(&received);
        }
    }

    /// Takes what comes up to this packet.
    fn take_until(&mut self, kind: u8) {
        loop {
            let received = self.client.as_mut().unwrap().receive();
            if received.kind == kind {
                return;
            }
            self.receive(&received);
        }
    }

    /// Does what a receiver does that keeps to MQTT.
    fn receive(&mut self, received: &Received) {
        let Self { client: Some(client), got, open, .. } = self else { return };
        match (received.kind, received.qos()) {
            (kind::PUBLISH, 0) => got.push(received.text().to_owned()),
            (kind::PUBLISH, 1) => {
                got.push(received.text().to_owned());
                client.send(&ack(kind::PUBACK, received.id));
            }
            (kind::PUBLISH, _) => {
                if open.insert(received.id) {
                    got.push(received.text().to_owned());
                }
                client.send(&ack(kind::PUBREC, received.id));
            }
            (kind::PUBREL, _) => {
                open.remove(&received.id);
                client.send(&ack(kind::PUBCOMP, received.id));
            }
            _ => panic!("{received:?}"),
        }
    }
}

/// How often each payload has come to any of them.
fn counts(members: &[Member]) -> BTreeMap<&str, usize> {
    let mut counts = BTreeMap::new();
    members.iter().flat_map(|member| &member.got).for_each(|payload| *counts.entry(payload.as_str()).or_default() += 1);
    counts
}

/// Waits until each of `expected` has come to somebody, and then for what comes twice.
fn gather(members: &mut [Member], expected: &[String]) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        members.iter_mut().for_each(|member| member.take(LOOK));
        let counts = counts(members);
        let missing: Vec<_> = expected.iter().filter(|payload| !counts.contains_key(payload.as_str())).collect();
        if missing.is_empty() {
            break;
        }
        assert!(Instant::now() < deadline, "{} missing, the first is {:?}", missing.len(), missing[0]);
    }
    let quiet = Instant::now() + AFTERWARDS;
    while Instant::now() < quiet {
        members.iter_mut().for_each(|member| member.take(LOOK));
    }
}

fn assert_each_once(members: &mut [Member], expected: &[String]) {
    gather(members, expected);
    let twice: Vec<_> =
        counts(members).into_iter().filter(|(_, count)| *count > 1).map(|(payload, _)| payload.to_owned()).collect();
    assert!(twice.is_empty(), "{} came more than once: {:?}", twice.len(), &twice[..twice.len().min(5)]);
    let all: usize = members.iter().map(|member| member.got.len()).sum();
    assert_eq!(all, expected.len());
}

/// Publishes `each` messages of every QoS at every broker; their payloads.
fn publish_all(brokers: &[Broker], name: &str, each: usize) -> Vec<String> {
    let mut payloads = Vec::new();
    let mut publishers: Vec<_> = brokers.iter().map(|broker| (broker.name.clone(), Client::new(broker, 4))).collect();
    for number in 0..each {
        for qos in 0..=2 {
            for (broker, publisher) in &mut publishers {
                let payload = format!("{name} {broker} {qos} {number}");
                let topic = format!("jobs/{}", number % 7);
                assert_eq!(publisher.publish(Publish { topic: &topic, payload: &payload, qos, ..Publish::default() }), 0);
                payloads.push(payload);
            }
        }
    }
    payloads
}

fn brokers(site: &Site) -> Vec<Broker> {
    let brokers = start_all(site, &["a", "b", "c"]);
    settle(&brokers.iter().collect::<Vec<_>>());
    brokers
}

#[test]
fn six_members_at_three_brokers_get_each_message_once_between_them() {
    let site = Site::new();
    let brokers = brokers(&site);
    let member = |number: usize| Member::subscribed(&brokers[number / 2], &format!("member-{number}"), "$share/g/jobs/+");
    let mut members: Vec<Member> = (0..6).map(member).collect();
    // Another group has each message as well, and so has who shares with nobody.
    let mut others = [Member::subscribed(&brokers[2], "other", "$share/h/jobs/#")];
    let mut alone = [Member::subscribed(&brokers[1], "alone", "jobs/#")];
    let mut expected = publish_all(&brokers, "connected", 60);
    assert_each_once(&mut members, &expected);
    for (number, member) in members.iter().enumerate() {
        assert!(member.got.len() >= expected.len() / 12, "member {number} has {} of {}", member.got.len(), expected.len());
    }
    assert_each_once(&mut others, &expected);
    assert_each_once(&mut alone, &expected);

    // Those of one broker are away: the others get what is published there.
    let had: Vec<usize> = members[..2].iter().map(|member| member.got.len()).collect();
    members[..2].iter_mut().for_each(Member::leave);
    expected.extend(publish_all(&brokers, "some are away", 20));
    assert_each_once(&mut members, &expected);
    members[..2].iter_mut().for_each(|member| member.come(&brokers[0]));
    assert_each_once(&mut members, &expected);
    assert_eq!(members[..2].iter().map(|member| member.got.len()).collect::<Vec<_>>(), had);

    // All are away: each message waits for one of them. Of QoS 0 none waits.
    members.iter_mut().for_each(Member::leave);
    let waiting = publish_all(&brokers, "all are away", 20).into_iter().filter(|payload| !payload.contains(" 0 "));
    expected.extend(waiting);
    (0..6).for_each(|number| members[number].come(&brokers[number / 2]));
    gather(&mut members, &expected);
    // Those of QoS 0 that are still on their way find somebody.
    members
        .iter_mut()
        .for_each(|member| member.got.retain(|payload| !payload.starts_with("all are away") || !payload.contains(" 0 ")));
    assert_each_once(&mut members, &expected);
}

#[test]
fn what_was_picked_for_members_that_are_gone_goes_to_others() {
    let site = Site::new();
    let brokers = brokers(&site);
    let mut members: Vec<Member> =
        (1..3).map(|place| Member::subscribed(&brokers[place], &format!("member-{place}"), "$share/g/jobs/+")).collect();
    let mut expected = Vec::new();
    let mut publisher = Client::new(&brokers[0], 5);
    for round in 0..30 {
        // One of them comes or goes while messages for it are on their way; nobody waits until others know.
        let place = round % 2;
        let send = |publisher: &mut Client, number: usize| {
            let (payload, qos) = (format!("{round} {number}"), 1 + (number % 2) as u8);
            assert_eq!(publisher.publish(Publish { topic: "jobs/1", payload: &payload, qos, ..Publish::default() }), 0);
            payload
        };
        let ahead = (0..10).map(|number| {
            let (payload, id) = (format!("{round} ahead {number}"), publisher.next_id());
            publisher.send(&Publish { topic: "jobs/1", payload: &payload, qos: 1, id, ..Publish::default() }.encode(5));
            payload
        });
        let ahead: Vec<String> = ahead.collect();
        let member = &mut members[place];
        member.take(Duration::from_millis(1));
        let mut client = member.client.take().unwrap();
        let (id, bytes) = (client.next_id(), string("$share/g/jobs/+"));
        client.send(&packet(kind::UNSUBSCRIBE, 2, &[id.to_be_bytes().to_vec(), vec![0], bytes].concat()));
        member.client = Some(client);
        for _ in &ahead {
            assert_eq!(publisher.expect(kind::PUBACK).reason, 0);
        }
        expected.extend(ahead);
        expected.extend((0..10).map(|number| send(&mut publisher, number)));
        // What came before the UNSUBACK is its own.
        members[place].take_until(kind::UNSUBACK);
        let client = members[place].client.as_mut().unwrap();
        let (_, bytes) = client.encode_subscribe(&[("$share/g/jobs/+", 2)], &[]);
        client.send(&bytes);
        members[place].take_until(kind::SUBACK);
    }
    assert_each_once(&mut members, &expected);
    assert!(members.iter().all(|member| !member.got.is_empty()));
}

/// Starts brokers that each dial all others, at addresses that they keep, with durable sessions.
struct Durable {
    names: [&'static str; 3],
    configurations: Vec<String>,
    brokers: Vec<Option<Broker>>,
    /// The last, for the others have files in it.
    site: Site,
}

impl Durable {
    fn new() -> Self {
        let site = Site::new();
        let names = ["a", "b", "c"];
        let free = || std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let held: Vec<_> = names.iter().map(|_| free()).collect();
        let addresses: Vec<_> = held.iter().map(|socket| socket.local_addr().unwrap()).collect();
        let configuration = |(place, name): (usize, &&str)| {
            site.certify("m", name, &[]);
            let peers: Vec<_> = addresses.iter().enumerate().filter(|(other, _)| *other != place).map(|(_, one)| *one).collect();
            let listen = format!("listen = \"{}\"", addresses[place]);
            let mesh = site.configuration(name, &peers).replace("listen = \"127.0.0.1:0\"", &listen);
            // The first is the root, and all others are as near to it as each other.
            let costs = names.iter().filter(|other| *other != name).map(|other| format!("{other} = 4\n")).collect::<String>();
            let priority = 4_096 * (place + 1);
            format!("{mesh}priority = {priority}\n[mesh.costs]\n{costs}[persistence]\nenabled = true\nsync = \"os\"\n")
        };
        let configurations: Vec<_> = names.iter().enumerate().map(configuration).collect();
        drop(held);
        let mut all = Self { site, names, configurations, brokers: vec![None, None, None] };
        (0..3).for_each(|place| all.start(place));
        all.settle();
        all
    }

    fn start(&mut self, place: usize) {
        self.brokers[place] = Some(self.site.start(self.names[place], &self.configurations[place]));
    }

    fn kill(&mut self, place: usize) {
        self.brokers[place].take().unwrap().kill();
    }

    fn settle(&self) {
        settle(&self.brokers.iter().flatten().collect::<Vec<_>>());
    }

    fn get(&self, place: usize) -> &Broker {
        self.brokers[place].as_ref().unwrap()
    }
}

#[test]
fn a_broker_is_killed_and_comes_back_and_no_message_of_its_members_is_lost_and_of_qos_2_none_comes_twice() {
    let mut all = Durable::new();
    let member = |number: usize| Member::subscribed(all.get(number / 2), &format!("member-{number}"), "$share/g/jobs/+");
    let mut members: Vec<Member> = (0..6).map(member).collect();
    // At the broker that stays there are no members: all that is published there is picked for others.
    members[..2].iter_mut().for_each(Member::leave);
    let mut publishers = [Client::new(all.get(0), 5), Client::new(all.get(2), 5)];
    let mut expected = Vec::new();
    for number in 0..400 {
        for (place, publisher) in publishers.iter_mut().enumerate() {
            let (payload, qos) = (format!("{place} {number}"), 1 + (number % 2) as u8);
            assert_eq!(publisher.publish(Publish { topic: "jobs/1", payload: &payload, qos, ..Publish::default() }), 0);
            expected.push(payload);
        }
        match number {
            100 | 250 => all.kill(1),
            150 | 300 => {
                all.start(1);
                all.settle();
                for member in &mut members[2..4] {
                    // What came before it was killed.
                    member.take(LOOK);
                    member.come(all.get(1));
                }
            }
            _ => {}
        }
        members.iter_mut().for_each(|member| member.take(Duration::from_micros(100)));
    }
    // While a busy machine makes brokers miss each other, what is published waits for those who are away.
    members[..2].iter_mut().for_each(|member| member.come(all.get(0)));
    gather(&mut members, &expected);
    let counts = counts(&members);
    assert_eq!(counts.len(), expected.len());
    let is_exactly_once = |payload: &str| payload.rsplit(' ').next().unwrap().parse::<usize>().unwrap() % 2 == 1;
    let twice: Vec<_> = counts.iter().filter(|(payload, count)| **count > 1 && is_exactly_once(payload)).collect();
    assert!(twice.is_empty(), "{twice:?}");
    assert!(members[2..].iter().all(|member| member.got.len() > 20));
}

/// A member that takes what comes, and when its connection ends goes elsewhere if its broker is the one that is killed; the numbers of what came to it.
fn serve(connect: &Connect, mut at: usize, lab: &Moving) -> Vec<u64> {
    // It has subscribed.
    let (mut got, mut open, mut knows) = (Vec::new(), HashSet::new(), true);
    while !lab.is_over.load(Ordering::Acquire) {
        let address = lab.addresses.lock().unwrap()[at];
        let mut take = || -> Option<()> {
            let mut wire = Wire::open(address, connect, &mut knows)?;
            lab.connects.fetch_add(1, Ordering::AcqRel);
            while !lab.is_over.load(Ordering::Acquire) {
                let Some(received) = wire.poll()? else { continue };
                match received.kind {
                    kind::PUBLISH => {
                        if open.insert(received.id) {
                            got.push(received.text().split(' ').next().unwrap().parse().unwrap());
                            lab.got.fetch_add(1, Ordering::AcqRel);
                        }
                        wire.send(&ack(kind::PUBREC, received.id))?;
                    }
                    kind::PUBREL => {
                        open.remove(&received.id);
                        wire.send(&ack(kind::PUBCOMP, received.id))?;
                    }
                    _ => panic!("{received:?}"),
                }
            }
            Some(())
        };
        if take().is_none() {
            at = if at == 1 { 2 * usize::from(connect.id.ends_with('3')) } else { at };
            std::thread::sleep(LOOK);
        }
    }
    got
}

/// What members and publishers know of the brokers between which they go.
struct Moving {
    addresses: Mutex<[SocketAddr; 3]>,
    is_over: AtomicBool,
    begun: Instant,
    /// How often members have come.
    connects: AtomicU64,
    got: AtomicU64,
    /// What was published at the killed broker and not acknowledged.
    cut_off: Mutex<Vec<u64>>,
}

/// Waits until it is so; what is not so in the end is told at the end, when all threads have ended.
fn patiently(is_so: impl Fn() -> bool) {
    let since = Instant::now();
    while !is_so() && since.elapsed() < PATIENCE {
        std::thread::sleep(LOOK);
    }
}

impl Moving {
    /// Waits until members have come so often.
    fn wait_for_members(&self, connects: u64) {
        patiently(|| self.connects.load(Ordering::Acquire) >= connects);
    }

    /// Waits for so many messages as long as they come.
    fn wait_for(&self, least: u64) {
        let (mut last, mut since) = (0, Instant::now());
        while last < least && since.elapsed() < PATIENCE {
            let got = self.got.load(Ordering::Acquire);
            if std::mem::replace(&mut last, got) != got {
                since = Instant::now();
            }
            std::thread::sleep(LOOK);
        }
    }
}

/// While all is well who is at a broker gets what is published there. Then one broker is killed, and its members go elsewhere, with their sessions, before it is back.
///
/// Nobody publishes at the broker while it is killed, unless `SHARE_CUT_OFF` is set: what was under way there may then be lost to the group, and sessions begin anew.
///
/// `SHARE_MESSAGES` says how many; the long run is
/// `SHARE_MESSAGES=100000 cargo test --release --test e2e shared::members_of_a_broker -- --nocapture`.
#[test]
fn members_of_a_broker_that_was_killed_go_elsewhere_and_each_message_of_qos_2_comes_to_one_of_all_once() {
    let each = std::env::var("SHARE_MESSAGES").map_or(3_000, |text| text.parse::<u64>().unwrap()) / 3;
    let is_cut_off = std::env::var("SHARE_CUT_OFF").is_ok();
    // Of those at each broker these come before anything happens.
    let (in_peace, at_killed) = (each / 3, if is_cut_off { each } else { each / 3 });
    let count = 2 * each + at_killed;
    let mut all = Durable::new();
    let lab = Moving {
        addresses: Mutex::new([0, 1, 2].map(|place| all.get(place).address())),
        is_over: AtomicBool::default(),
        begun: Instant::now(),
        connects: AtomicU64::default(),
        got: AtomicU64::default(),
        cut_off: Mutex::default(),
    };
    let connect = |id: String| Connect::new(5).id(&id).resume(u32::MAX);
    let members: Vec<Connect> = (0..6).map(|number| connect(format!("member-{number}"))).collect();
    for (number, member) in members.iter().enumerate() {
        Subscriber::new(member.clone(), "$share/g/jobs", 2).subscribe(all.get(number / 2).address());
    }
    let shares: Vec<Vec<u64>> = std::thread::scope(|scope| {
        let lab = &lab;
        let members: Vec<_> =
            members.iter().enumerate().map(|(n, member)| scope.spawn(move || serve(member, n / 2, lab))).collect();
        lab.wait_for_members(6);
        all.settle();
        await_replicas(all.brokers.iter().flatten());
        for place in 0..3 {
            let mut publisher = Publisher::new(connect(format!("publisher-{place}")), "jobs", 2, place as u64);
            let first = each * place as u64;
            (publisher.next, publisher.end) = (first, first + in_peace);
            scope.spawn(move || {
                let never = AtomicBool::default();
                // Nobody waits for the addresses while it publishes.
                let address = || lab.addresses.lock().unwrap()[place];
                publisher.run(address(), &never).expect("nobody is dead yet");
                lab.wait_for(3 * in_peace);
                // Slowly enough that all of them have more to say when the broker is killed.
                (publisher.end, publisher.pause) = (first + each, Duration::from_millis(1));
                if place == 1 && !is_cut_off {
                    publisher.end = first + in_peace;
                }
                while publisher.run(address(), &never).is_none() {
                    // Again and again while its broker is dead, the same.
                    *lab.cut_off.lock().unwrap() = publisher.open();
                    std::thread::sleep(LOOK);
                }
            });
        }
        lab.wait_for(3 * in_peace + each / 3);
        // A busy machine makes brokers give replicas up, and make others.
        patiently(|| gauge(all.get(1), "sessions_unreplicated") == 0);
        all.kill(1);
        lab.wait_for_members(8);
        all.start(1);
        all.settle();
        lab.addresses.lock().unwrap()[1] = all.get(1).address();
        // What is missing in the end is told below.
        lab.wait_for(count);
        // What comes twice comes now.
        std::thread::sleep(AFTERWARDS);
        lab.is_over.store(true, Ordering::Release);
        members.into_iter().map(|member| member.join().unwrap()).collect()
    });
    let mut got: Vec<u64> = shares.concat();
    got.sort_unstable();
    let twice: Vec<_> = got.windows(2).filter(|pair| pair[0] == pair[1]).map(|pair| pair[0]).collect();
    let all = (0..3 * each).filter(|number| number / each != 1 || number % each < at_killed);
    let missing: Vec<_> = all.filter(|number| got.binary_search(number).is_err()).collect();
    let in_peace_of = |member: usize| {
        let first = each * (member as u64 / 2);
        shares[member].iter().filter(|number| (first..first + in_peace).contains(*number)).count() as u64
    };
    let spread: Vec<u64> = (0..6).map(in_peace_of).collect();
    let sums: Vec<usize> = shares.iter().map(Vec::len).collect();
    // Their sessions go on elsewhere without what only the dead broker knew that a group had given them, and drop it when that is back.
    let cut_off = lab.cut_off.into_inner().unwrap();
    let (forgotten, missing): (Vec<u64>, Vec<u64>) = missing.into_iter().partition(|number| cut_off.contains(number));
    println!("{} of {} that were under way at the killed broker are forgotten", forgotten.len(), cut_off.len());
    let (first_twice, first_missing) = (twice.first(), missing.first());
    println!("{count} messages in {:?}: {sums:?}, of {in_peace} at the own broker before the kill {spread:?}", lab.begun.elapsed());
    assert!(
        twice.is_empty() && missing.is_empty(),
        "{} twice {first_twice:?}, {} missing {first_missing:?}",
        twice.len(),
        missing.len()
    );
    // Who is there gets what is published there, both alike.
    let fair = in_peace / 2;
    assert!(spread.iter().all(|share| share.abs_diff(fair) <= fair / 10), "{spread:?} of {in_peace} each two");
}

#[test]
fn what_was_picked_for_a_broker_that_no_longer_answers_goes_to_others() {
    let site = Site::new();
    let brokers = brokers(&site);
    let mut members: Vec<Member> =
        (1..3).map(|place| Member::subscribed(&brokers[place], &format!("member-{place}"), "$share/g/jobs/+")).collect();
    let mut publisher = Client::new(&brokers[0], 5);
    brokers[1].signal("STOP");
    let mut expected = Vec::new();
    for number in 0..30 {
        let payload = number.to_string();
        publisher.say("jobs/1", &payload);
        expected.push(payload);
    }
    gather(&mut members[1..], &expected);
    brokers[0].wait_for_log(&["messages of share groups go to others", "qos_2=0"]);
    brokers[1].signal("CONT");
    settle(&brokers.iter().collect::<Vec<_>>());
    let again = publish_all(&brokers, "again", 10);
    members.iter_mut().for_each(|member| member.got.retain(|payload| payload.starts_with("again")));
    gather(&mut members, &again);
    let counts = counts(&members);
    assert!(again.iter().all(|payload| counts[payload.as_str()] == 1), "{counts:?}");
}

#[test]
fn with_publish_ack_mesh_what_is_acknowledged_is_at_every_broker() {
    let site = Site::new();
    let mut brokers: Vec<Broker> = Vec::new();
    for name in ["a", "b", "c"] {
        site.certify("m", name, &[]);
        let peers: Vec<_> = brokers.iter().map(|broker| broker.address_of("mesh")).collect();
        let mesh = site.configuration(name, &peers).replace("subscribe_ack", "publish_ack = \"mesh\"\nsubscribe_ack");
        brokers.push(site.start(name, &mesh));
    }
    settle(&brokers.iter().collect::<Vec<_>>());
    let mut keeper = Member::subscribed(&brokers[2], "keeper", "kept/#");
    keeper.leave();
    let mut publisher = Client::new(&brokers[0], 5);
    let mut expected = Vec::new();
    for qos in [1, 2] {
        for number in 0..10 {
            let payload = format!("{qos} {number}");
            assert_eq!(publisher.publish(Publish { topic: "kept/1", payload: &payload, qos, ..Publish::default() }), 0);
            expected.push(payload);
        }
    }
    // Who does not answer is waited for: it is a member.
    brokers[1].signal("STOP");
    let id = publisher.next_id();
    publisher.send(&Publish { topic: "kept/1", payload: "late", qos: 1, id, ..Publish::default() }.encode(5));
    assert!(publisher.receive_within(Duration::from_millis(700)).is_none(), "a broker that stands still has dealt with it");
    brokers[1].signal("CONT");
    assert_eq!(publisher.expect(kind::PUBACK).id, id);
    expected.push("late".to_owned());
    // What nobody elsewhere wants waits for nobody.
    brokers[1].signal("STOP");
    publisher.say("here only", "x");
    brokers[1].signal("CONT");
    publisher.say("kept/1", "last");
    expected.push("last".to_owned());
    // The origin ends with the last acknowledgement.
    brokers.remove(0).kill();
    keeper.come(&brokers[1]);
    assert_each_once(std::slice::from_mut(&mut keeper), &expected);
}
