//! Share groups with members at other brokers: what goes to whom, and what other brokers are told.

use super::*;
use crate::ids::{BrokerId, LaneId, LogId, MessageId, OriginLane, ShareId};
use crate::interest::{Interest, Mode, Rules};
use crate::limits::{LANES_DEFAULT, PICK_ROUNDS_MAX, PICKED_BYTES_MAX, PICKS_MAX, RING_BLOCKS};
use crate::replication::{MeshMessage, Pick, PickList, ReplicationConfig};
use crate::shared::Signature;
use crate::shared::register::{Delta, Follow, Key, Say, ShareMembers, Value};

const OWN: BrokerId = BrokerId(1);
const A: BrokerId = BrokerId(2);

/// A router in a mesh, with a member whose filters are known.
fn bench() -> (Bench, Arc<Interest>) {
    let bench = Bench::new();
    let interest = Arc::new(Interest::new(OWN, Rules::new(Mode::Interest, [])));
    interest.joined(A);
    interest.known(A);
    let config = ReplicationConfig {
        origin: OWN,
        log: LogId(1),
        lanes_per_class: LANES_DEFAULT,
        ring_blocks: RING_BLOCKS,
        ring_bytes: 64 << 20,
        ring_age: Duration::from_secs(60),
        slows_publishers: true,
        hop_max: 255,
        message_bytes_max: 1_000,
    };
    bench.router.join_mesh(Replication::with_interest(config, Arc::clone(&interest), bench.now));
    (bench, interest)
}

fn has_members(interest: &Interest, connected: u32, away: u32) {
    let members = (connected + away > 0).then_some(Value::Members(ShareMembers { connected, away }));
    interest.changed(A, &[(Key::Filter("$share/g/t".into()), members)]);
}

/// Publishes one; how many went to a member here, and how many into the mesh.
fn publish(bench: &mut Bench, publisher: &Connection, members: &[&Connection]) -> (usize, u64) {
    let held = |members: &[&Connection]| {
        let held = |one: &&Connection| {
            let state = one.subscriber.lock();
            usize::from(!state.outbox.is_empty()) + state.outbound.queue_len()
        };
        members.iter().map(held).sum::<usize>()
    };
    let into_mesh = |bench: &Bench| bench.router.mesh().unwrap().counters().messages_published.value();
    members.iter().for_each(|one| one.subscriber.lock().outbox.tail().clear());
    let before = (held(members), into_mesh(bench));
    let message = Message { topic: "t", payload: b"x", qos: QoS::AtLeastOnce, retain: false, expires_at: None, properties: &[] };
    let from = Ingress::Session(&publisher.subscriber);
    bench.router.publish(&mut bench.batch, &mut bench.routes, &message, from, bench.now);
    bench.router.finish(&mut bench.batch, bench.now);
    (held(members) - before.0, into_mesh(bench) - before.1)
}

#[test]
fn who_is_connected_here_comes_first_then_who_is_connected_elsewhere_then_who_is_away() {
    let (mut bench, interest) = bench();
    let (publisher, _) = bench.connect("p", true, HOUR, None);
    let (member, _) = bench.connect("m", true, HOUR, None);
    bench.subscribe(&member, "$share/g/t");
    assert_eq!(publish(&mut bench, &publisher, &[&member]), (1, 0));
    has_members(&interest, 5, 0);
    assert_eq!(publish(&mut bench, &publisher, &[&member]), (1, 0));
    bench.disconnect(&member);
    assert_eq!(publish(&mut bench, &publisher, &[&member]), (0, 1));
    has_members(&interest, 0, 1);
    let (mut here, mut there) = (0, 0);
    for _ in 0..200 {
        let (one, other) = publish(&mut bench, &publisher, &[&member]);
        assert_eq!(one as u64 + other, 1);
        (here, there) = (here + one, there + other);
    }
    assert!(here > 0 && there > 0, "either waits: {here} and {there}");
    has_members(&interest, 0, 0);
    let (member, _) = bench.connect("m", false, HOUR, None);
    bench.router.unsubscribe(&member, "$share/g/t").unwrap();
    assert_eq!(publish(&mut bench, &publisher, &[]), (0, 0));
    has_members(&interest, 0, 3);
    assert_eq!(publish(&mut bench, &publisher, &[]), (0, 1));
}

#[test]
fn where_there_is_no_memory_a_message_is_taken_that_waits_for_nobody_here() {
    let (mut bench, interest) = bench();
    let (publisher, _) = bench.connect("p", true, HOUR, None);
    let (member, _) = bench.connect("m", true, HOUR, None);
    bench.subscribe(&member, "$share/g/t");
    bench.disconnect(&member);
    bench.router.pressure().measured(100, 100);
    let taken = |bench: &mut Bench| {
        let message =
            Message { topic: "t", payload: b"x", qos: QoS::AtLeastOnce, retain: false, expires_at: None, properties: &[] };
        let from = Ingress::Session(&publisher.subscriber);
        let routed = bench.router.publish(&mut bench.batch, &mut bench.routes, &message, from, bench.now);
        bench.router.finish(&mut bench.batch, bench.now);
        routed
    };
    has_members(&interest, 0, 2);
    assert_eq!(taken(&mut bench), Routed::NoMemory);
    has_members(&interest, 1, 2);
    assert_eq!(taken(&mut bench), Routed::Done);
    interest.set_reachable(Some([].into()));
    assert_eq!(taken(&mut bench), Routed::NoMemory);
    assert_eq!(bench.router.mesh().unwrap().counters().messages_published.value(), 1);
}

#[test]
fn what_one_message_takes_for_many_groups_elsewhere_is_bounded() {
    let (mut bench, interest) = bench();
    let (publisher, _) = bench.connect("p", true, HOUR, None);
    let groups = 4 * PICKS_MAX + 1;
    for group in 0..groups {
        let members = Some(Value::Members(ShareMembers { connected: 1, away: 0 }));
        interest.changed(A, &[(Key::Filter(format!("$share/g{group}/t").into()), members)]);
    }
    let mut published = |payload: &[u8]| {
        let message = Message { topic: "t", payload, qos: QoS::AtLeastOnce, retain: false, expires_at: None, properties: &[] };
        let counted = |bench: &Bench| {
            let metrics = bench.router.metrics();
            let into_mesh = bench.router.mesh().unwrap().counters().messages_published.value();
            (into_mesh, metrics.shares_picked.value(), metrics.dropped_unshared.value())
        };
        let before = counted(&bench);
        let from = Ingress::Session(&publisher.subscriber);
        bench.router.publish(&mut bench.batch, &mut bench.routes, &message, from, bench.now);
        bench.router.finish(&mut bench.batch, bench.now);
        let after = counted(&bench);
        (after.0 - before.0, after.1 - before.1, after.2 - before.2)
    };
    assert_eq!(published(b"x"), (5, groups as u64, 0));
    let large = vec![0; PICKED_BYTES_MAX * 3 / 8];
    assert_eq!(published(&large), (3, 3 * PICKS_MAX as u64, PICKS_MAX as u64 + 1));
}

#[test]
fn what_comes_over_a_link_is_for_the_groups_that_are_picked_and_goes_on_if_nobody_takes_it() {
    let (mut bench, interest) = bench();
    let (member, _) = bench.connect("m", true, SessionExpiry::WithConnection, None);
    let (plain, _) = bench.connect("s", true, SessionExpiry::WithConnection, None);
    bench.subscribe(&member, "$share/g/t");
    bench.subscribe(&plain, "t");
    let now = bench.now;
    let router = Arc::new(bench.router);
    let mut link = LinkDelivery::new(Arc::clone(&router));
    let mut deliver = |broker: Option<BrokerId>, only: bool, round: u8| {
        let mut list = PickList::default();
        broker.into_iter().for_each(|broker| list.push(Pick { share: ShareId::derive("g", "t"), broker }));
        let picks = list.pages(only, round).next().unwrap_or_default();
        let (payload, qos) = (&b"x"[..], QoS::AtLeastOnce);
        let message =
            MeshMessage { topic: "t", payload, qos, retain: false, expiry_seconds: None, properties: &[], stamp: None, picks };
        [&member, &plain].iter().for_each(|one| one.subscriber.lock().outbox.tail().clear());
        let into_mesh = || router.mesh().unwrap().counters().messages_published.value();
        let before = into_mesh();
        let is_wanted = link.wants("t", picks);
        let origin_lane = OriginLane { origin: A, log: LogId(2), lane: LaneId(LANES_DEFAULT) };
        link.deliver(&message, MessageId { origin_lane, sequence: 1 }, now);
        link.flush(now);
        (is_wanted, waiting(&member) > 0, waiting(&plain) > 0, into_mesh() - before)
    };
    assert_eq!(deliver(None, false, 0), (true, false, true, 0));
    assert_eq!(deliver(Some(OWN), false, 0), (true, true, true, 0));
    assert_eq!(deliver(Some(A), false, 0), (true, false, true, 0));
    assert_eq!(deliver(Some(A), true, 0), (false, false, false, 0));
    assert_eq!(deliver(Some(OWN), true, 0), (true, true, false, 0));
    router.unsubscribe(&member, "$share/g/t").unwrap();
    assert_eq!(deliver(Some(OWN), true, 0), (true, false, false, 0), "nobody anywhere takes it");
    has_members(&interest, 1, 0);
    assert_eq!(deliver(Some(OWN), true, 0), (true, false, false, 1));
    assert_eq!(deliver(Some(OWN), true, PICK_ROUNDS_MAX), (true, false, false, 0));
    assert_eq!((router.metrics().dropped_unshared.value(), router.metrics().shares_repicked.value()), (2, 3));
}

#[test]
fn other_brokers_are_told_of_members_that_come_go_and_are_away() {
    let mut bench = Bench::new();
    let registers = Registers::new(OWN, Duration::from_secs(900), 100);
    registers.begin(crate::ids::Incarnation(1));
    bench.router.join_registers(Arc::clone(&registers));
    let mut out = Vec::new();
    let port = crate::ids::PortId { peer: A, generation: 1 };
    registers.port_up(port, bench.now, &mut out);
    let mut members = None;
    let mut told = || {
        let (mut out, now) = (Vec::new(), bench_now());
        let sign = |_: &[u8]| Some(Signature { chain: Bytes::new(), scheme: 0, bytes: Bytes::new() });
        registers.tell(now, sign, &mut out);
        for (_, say) in out {
            let Say::Delta(_, signed) = say else { continue };
            for (key, value) in Delta::decode(&signed.wire).unwrap().changes {
                if key == Key::Filter("$share/g/t".into()) {
                    members = value;
                }
            }
        }
        match &members {
            Some(Value::Members(ShareMembers { connected, away })) => (*connected, *away),
            None => (0, 0),
            other => panic!("{other:?}"),
        }
    };
    let (one, _) = bench.connect("one", true, HOUR, None);
    let (two, _) = bench.connect("two", true, SessionExpiry::WithConnection, None);
    bench.subscribe(&one, "$share/g/t");
    bench.subscribe(&one, "$share/g/t");
    bench.subscribe(&one, "t");
    assert_eq!(told(), (1, 0));
    bench.subscribe(&two, "$share/g/t");
    assert_eq!(told(), (2, 0));
    let (one, _) = bench.connect("one", false, HOUR, None);
    assert_eq!(told(), (2, 0), "taken over");
    bench.disconnect(&one);
    assert_eq!(told(), (1, 1));
    bench.disconnect(&two);
    assert_eq!(told(), (0, 1));
    let (one, _) = bench.connect("one", false, HOUR, None);
    assert_eq!(told(), (1, 0));
    bench.router.unsubscribe(&one, "$share/g/t").unwrap();
    assert_eq!(told(), (0, 0));
    bench.subscribe(&one, "$share/g/t");
    assert_eq!(told(), (1, 0));
    bench.connect("one", true, HOUR, None);
    assert_eq!(told(), (0, 0), "begun anew");
}

#[expect(clippy::disallowed_methods, reason = "any moment will do")]
fn bench_now() -> Instant {
    Instant::now()
}

/// What [`Replication::share_late`] and [`Replication::pick_again`] say goes to the router.
struct Late(LinkDelivery, Instant);

impl crate::replication::Deliver for Late {
    fn deliver(&mut self, message: &MeshMessage<'_>, id: MessageId) {
        self.0.deliver(message, id, self.1);
    }

    fn share_late(&mut self, message: &MeshMessage<'_>, is_new: &mut dyn FnMut(ShareId) -> bool) {
        self.0.share_late(message, is_new, self.1);
    }

    fn decided(&mut self, topic: &str) {
        self.0.decided(topic, self.1);
    }

    fn flush(&mut self) {
        self.0.flush(self.1);
    }
}

#[test]
fn what_was_published_while_groups_were_not_known_goes_to_them_once_they_are() {
    let (mut bench, interest) = bench();
    let (publisher, _) = bench.connect("p", true, HOUR, None);
    let (member, _) = bench.connect("m", true, HOUR, None);
    let b = BrokerId(3);
    interest.joined(A);
    interest.joined(b);
    assert_eq!(publish(&mut bench, &publisher, &[]), (0, 1), "whoever is not known wants it");
    assert_eq!(publish(&mut bench, &publisher, &[]), (0, 1));
    bench.subscribe(&member, "$share/g/t");
    assert_eq!(publish(&mut bench, &publisher, &[&member]), (1, 1), "served here");
    let now = bench.now;
    let router = Arc::new(bench.router);
    let mesh = router.mesh().unwrap();
    let mut late = Late(LinkDelivery::new(Arc::clone(&router)), now);
    let mut published_late = || {
        let before = mesh.counters().messages_published.value();
        (0..3).for_each(|_| assert!(!mesh.share_late(now, &mut late), "it is little"));
        mesh.counters().messages_published.value() - before
    };
    assert_eq!(published_late(), 0, "nobody is known");
    has_members(&interest, 1, 0);
    interest.known(A);
    assert_eq!(published_late(), 2, "each for the group at A");
    assert_eq!(published_late(), 0);
    let members = Value::Members(ShareMembers { connected: 1, away: 0 });
    interest.changed(
        b,
        &[(Key::Filter("$share/g/t".into()), Some(members.clone())), (Key::Filter("$share/h/t".into()), Some(members))],
    );
    interest.known(b);
    assert_eq!(published_late(), 4, "each for the other group, that is at B alone, and that all is decided");
    assert_eq!((published_late(), router.metrics().shares_picked.value()), (0, 5));
    assert!(!mesh.awaits_undecided());
}

#[test]
fn much_that_is_undecided_is_gone_through_in_parts() {
    let (mut bench, interest) = bench();
    let (publisher, _) = bench.connect("p", true, HOUR, None);
    interest.joined(A);
    let message = Message { topic: "t", payload: b"x", qos: QoS::AtLeastOnce, retain: false, expires_at: None, properties: &[] };
    for n in 0..crate::limits::UNDECIDED_MESSAGES_MAX + 600 {
        let from = Ingress::Session(&publisher.subscriber);
        bench.router.publish(&mut bench.batch, &mut bench.routes, &message, from, bench.now);
        if n % 100 == 99 {
            bench.router.finish(&mut bench.batch, bench.now);
        }
    }
    bench.router.finish(&mut bench.batch, bench.now);
    has_members(&interest, 1, 0);
    interest.known(A);
    let now = bench.now;
    let router = Arc::new(bench.router);
    let mesh = router.mesh().unwrap();
    let mut late = Late(LinkDelivery::new(Arc::clone(&router)), now);
    assert!(!mesh.share_late(now, &mut late) && mesh.share_late(now, &mut late) && mesh.awaits_undecided());
    // And once more, through what was published late.
    for _ in 0..2 {
        while mesh.share_late(now, &mut late) {}
    }
    assert!(!mesh.awaits_undecided());
    assert_eq!(router.metrics().shares_picked.value(), crate::limits::UNDECIDED_MESSAGES_MAX as u64 + 600);
}

#[test]
fn who_was_picked_in_vain_is_not_picked_again_and_qos_0_is_for_who_is_connected() {
    let (bench, interest) = bench();
    let (b, now) = (BrokerId(3), bench.now);
    interest.joined(b);
    interest.known(b);
    has_members(&interest, 5, 0);
    let key = Key::Filter("$share/g/t".into());
    interest.changed(b, &[(key.clone(), Some(Value::Members(ShareMembers { connected: 1, away: 0 })))]);
    interest.set_costs([(A, 1), (b, 9)].into());
    let router = Arc::new(bench.router);
    let mut link = LinkDelivery::new(Arc::clone(&router));
    let mut deliver = |tried: &[BrokerId], qos: QoS| {
        let mut list = PickList::default();
        list.push_after(Pick { share: ShareId::derive("g", "t"), broker: OWN }, tried.iter().copied());
        let picks = list.pages(true, 1).next().unwrap();
        let message = MeshMessage {
            topic: "t",
            payload: b"x",
            qos,
            retain: false,
            expiry_seconds: None,
            properties: &[],
            stamp: None,
            picks,
        };
        let before = router.mesh().unwrap().counters().messages_published.value();
        let origin_lane = OriginLane { origin: A, log: LogId(2), lane: LaneId(LANES_DEFAULT) };
        link.deliver(&message, MessageId { origin_lane, sequence: 1 }, now);
        link.flush(now);
        router.mesh().unwrap().counters().messages_published.value() - before
    };
    assert_eq!(deliver(&[], QoS::AtLeastOnce), 1, "to A, the nearest");
    assert_eq!(deliver(&[A], QoS::AtLeastOnce), 1, "to B, which is far");
    assert_eq!(deliver(&[A, b], QoS::AtLeastOnce), 0, "all were tried");
    has_members(&interest, 0, 1);
    interest.changed(b, &[(key, Some(Value::Members(ShareMembers { connected: 0, away: 1 })))]);
    assert_eq!((deliver(&[], QoS::AtMostOnce), deliver(&[], QoS::ExactlyOnce)), (0, 1));
}

#[test]
fn a_group_that_others_cannot_be_told_of_is_refused() {
    let mut bench = Bench::new();
    bench.router.join_registers(Registers::new(OWN, Duration::from_secs(900), 2));
    let (one, _) = bench.connect("one", true, HOUR, None);
    bench.subscribe(&one, "$share/g/a");
    bench.subscribe(&one, "$share/g/b");
    let (two, _) = bench.connect("two", true, HOUR, None);
    let subscribe = |filter| {
        let options =
            SubscriptionOptions { qos: QoS::AtLeastOnce, no_local: false, retain_as_published: false, subscription_id: None };
        let request = Subscribe { filter, options, retain_handling: RetainHandling::Send };
        bench.router.subscribe(&two, &request).map(drop)
    };
    assert_eq!(subscribe("$share/g/c"), Err(SubscribeError::TooMany));
    assert_eq!((subscribe("$share/g/b"), subscribe("c")), (Ok(()), Ok(())));
    bench.router.unsubscribe(&one, "$share/g/a").unwrap();
    assert_eq!(subscribe("$share/g/c"), Ok(()));
    assert_eq!(bench.router.metrics().subscribes_untold.value(), 1);
}
