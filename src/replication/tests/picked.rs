//! What was picked for other brokers: how far these have dealt with it, and what is picked again.

use super::durable::{Disk, Durable, flow_to, join};
use super::*;
use crate::ids::ShareId;
use crate::interest::Asked;
use crate::limits::PICK_PATIENCE;
use crate::shared::register::{Follow, Key, Value};

const B: BrokerId = BrokerId(2);

/// A broker that knows of B, which is reached.
fn broker(now: Instant) -> Broker {
    let mut broker = Broker::new(1, now);
    let interest = Arc::new(Interest::new(BrokerId(1), Rules::new(Mode::Interest, [])));
    broker.replication = Replication::with_interest(config(1), interest, now);
    interest_of(&broker).joined(B);
    interest_of(&broker).known(B);
    interest_of(&broker).set_reachable(Some([B].into()));
    broker
}

fn interest_of(broker: &Broker) -> &Interest {
    &broker.replication.interest
}

/// Puts one that is picked for B into the batch; "2..." at QoS 2.
fn push(broker: &mut Broker, payload: &str) {
    let qos = if payload.starts_with('2') { QoS::ExactlyOnce } else { QoS::AtLeastOnce };
    let mut list = PickList::default();
    list.push(Pick { share: ShareId(7), broker: B });
    let (payload, picks) = (payload.as_bytes(), list.pages(false, 0).next().unwrap());
    let message =
        MeshMessage { topic: "t", payload, qos, retain: false, expiry_seconds: None, properties: &[], stamp: None, picks };
    broker.batch.push(&broker.replication, &message);
}

/// Publishes one for each payload.
fn publish(broker: &mut Broker, payloads: &[&str], now: Instant) {
    for payload in payloads {
        push(broker, payload);
        broker.replication.publish(&mut broker.batch, &mut Writes::default(), now);
    }
}

/// The lane of topic `t`, and the last sequence in it.
fn published(broker: &Broker) -> (LaneId, u64) {
    let id = broker.replication.lane_for("t", QoS::AtLeastOnce);
    (id, (broker.replication.lane(id).unwrap().ring.next() - 1) << 8)
}

fn says_log(broker: &Broker, log: u64) {
    interest_of(broker).changed(B, &[(Key::Log, Some(Value::Log(LogId(log))))]);
}

fn says_dealt(broker: &Broker, sequence: u64) {
    let own = &broker.replication.lane(published(broker).0).unwrap().own;
    interest_of(broker).changed(B, &[(Key::Dealt(own.id()), Some(Value::Dealt(sequence)))]);
}

/// What is picked again now.
fn again(broker: &mut Broker, now: Instant) -> Vec<String> {
    broker.replication.pick_again(now, &mut broker.inbox);
    std::mem::take(&mut broker.inbox.again)
}

#[test]
fn who_is_not_reached_gets_qos_2_later_and_qos_1_goes_to_others() {
    let now = start();
    let mut broker = broker(now);
    says_log(&broker, 70);
    assert!(!broker.replication.awaits_dealt());
    publish(&mut broker, &["1 dealt", "2 dealt", "1 late", "2 late"], now);
    assert!(broker.replication.awaits_dealt());
    says_dealt(&broker, published(&broker).1 - (2 << 8));
    assert!(again(&mut broker, now + PICK_PATIENCE).is_empty(), "it is there");
    interest_of(&broker).set_reachable(Some([].into()));
    assert!(again(&mut broker, now).is_empty() && again(&mut broker, now + PICK_PATIENCE / 2).is_empty());
    assert_eq!(again(&mut broker, now + PICK_PATIENCE), ["1 late for 2"]);
    publish(&mut broker, &["1 new"], now);
    assert_eq!(again(&mut broker, now + PICK_PATIENCE), ["1 new for 2"]);
    interest_of(&broker).set_costs([(B, 3)].into());
    assert!(again(&mut broker, now + 2 * PICK_PATIENCE).is_empty());
    let Counters { picks_again, picks_abandoned, .. } = broker.counters();
    assert_eq!((picks_again.value(), picks_abandoned.value()), (2, 0));
    interest_of(&broker).set_reachable(Some([B].into()));
    says_dealt(&broker, published(&broker).1);
    assert!(again(&mut broker, now + 2 * PICK_PATIENCE).is_empty() && !broker.replication.awaits_dealt());
}

#[test]
fn what_nobody_else_takes_is_tried_again_when_groups_have_changed() {
    let now = start();
    let mut broker = broker(now);
    says_log(&broker, 70);
    publish(&mut broker, &["1 a", "1 b"], now);
    interest_of(&broker).set_reachable(Some([].into()));
    assert!(again(&mut broker, now).is_empty());
    broker.inbox.takes_nothing = true;
    assert_eq!(again(&mut broker, now + PICK_PATIENCE).len(), 2);
    broker.inbox.takes_nothing = false;
    assert!(again(&mut broker, now + PICK_PATIENCE).is_empty(), "nothing has changed");
    interest_of(&broker).set_costs([(B, 3)].into());
    assert_eq!(again(&mut broker, now + PICK_PATIENCE), ["1 a for 2", "1 b for 2"]);
    assert_eq!(broker.counters().picks_again.value(), 2);
}

#[test]
fn who_has_another_log_has_lost_what_it_had_not_dealt_with() {
    let now = start();
    let mut broker = broker(now);
    says_log(&broker, 70);
    publish(&mut broker, &["1 dealt", "2 dealt"], now);
    says_dealt(&broker, published(&broker).1);
    assert!(again(&mut broker, now).is_empty());
    publish(&mut broker, &["1 lost", "2 lost"], now);
    // A new life, which takes in everything and gives it to nobody.
    says_log(&broker, 71);
    says_dealt(&broker, published(&broker).1);
    publish(&mut broker, &["1 new", "2 new"], now);
    assert_eq!(again(&mut broker, now), ["1 lost for 2, or the same", "2 lost for 2, or the same"]);
    assert!(again(&mut broker, now + PICK_PATIENCE).is_empty());
    assert_eq!(broker.counters().picks_abandoned.value(), 1);
}

#[test]
fn what_was_picked_for_a_member_that_leaves_goes_to_others_or_is_counted() {
    let now = start();
    let mut broker = broker(now);
    publish(&mut broker, &["1 a", "2 b"], now);
    interest_of(&broker).left(B);
    assert_eq!(again(&mut broker, now), ["1 a for 2", "2 b for 2"]);
    assert!(again(&mut broker, now).is_empty() && !broker.replication.awaits_dealt());
    broker.inbox.takes_nothing = true;
    publish(&mut broker, &["1 c", "2 d"], now);
    assert_eq!(again(&mut broker, now).len(), 2);
    assert!(again(&mut broker, now).is_empty() && !broker.replication.awaits_dealt());
    let Counters { picks_again, picks_abandoned, picks_lost, .. } = broker.counters();
    assert_eq!((picks_again.value(), picks_abandoned.value(), picks_lost.value()), (2, 1, 2));
}

#[test]
fn how_far_a_broker_has_dealt_with_another_is_told_when_it_is_on_its_disk() {
    let now = start();
    let (mut a, mut b) = (Durable::start(1, 1, Disk::default(), now), Durable::start(2, 1, Disk::default(), now));
    let (up, mut down) = join(&mut a, &mut b, 1, now);
    let writes = a.publish("x", QoS::AtLeastOnce, now);
    a.write(writes);
    a.commit();
    flow_to(&up, &mut down, &mut b, now);
    let log = a.broker.replication.own_log();
    let asked_if = |is_urgent| [Asked { origin: BrokerId(1), log, is_urgent }];
    let asked = asked_if(true);
    let (lane, last) = published(&a.broker);
    let x = OriginLane { origin: BrokerId(1), log, lane };
    (0..3).for_each(|_| assert!(b.broker.replication.dealt(&asked_if(false)).is_empty(), "nothing was picked for it"));
    assert!(b.broker.replication.dealt(&asked).is_empty() && b.broker.replication.dealt(&asked).is_empty());
    b.commit();
    assert_eq!(b.broker.replication.dealt(&asked), [(x, last)]);
    assert!(b.broker.replication.dealt(&asked).is_empty());
    assert_eq!(b.disk.covers.get(&x), Some(&last));
    // After a restart it is known without being heard, and told: something may have been picked.
    let again = b.restart(now);
    let asked = asked_if(false);
    assert!(again.broker.replication.dealt(&asked).is_empty());
    let mut again = again;
    again.commit();
    assert_eq!(again.broker.replication.dealt(&asked), [(x, last)]);
}

#[test]
fn who_waits_for_all_members_is_woken_by_the_last() {
    let now = start();
    let mut broker = broker(now);
    let (waker, count) = counting();
    let mut context = Context::from_waker(&waker);
    assert!(broker.batch.take_published().is_empty() && broker.replication.published_so_far().is_empty());
    says_log(&broker, 70);
    broker.replication.acknowledge_in_mesh();
    let waiter = broker.replication.stable_waiter();
    publish(&mut broker, &["1 a"], now);
    let awaited = [published(&broker)];
    assert_eq!((broker.batch.take_published(), broker.replication.published_so_far()), (awaited.to_vec(), awaited.to_vec()));
    assert!(waiter.poll(&awaited, &mut context).is_pending());
    says_dealt(&broker, awaited[0].1 - 1);
    broker.replication.dealt_progress();
    assert!(count() == 1 && waiter.poll(&awaited, &mut context).is_pending());
    interest_of(&broker).joined(BrokerId(3));
    says_dealt(&broker, awaited[0].1);
    broker.replication.dealt_progress();
    assert!(count() == 1 && waiter.poll(&awaited, &mut context).is_pending());
    interest_of(&broker).left(BrokerId(3));
    broker.replication.dealt_progress();
    assert!(count() == 2 && waiter.poll(&awaited, &mut context).is_ready());
}

#[test]
fn a_broker_that_goes_on_in_its_log_knows_what_it_has_picked() {
    let now = start();
    let mut a = Durable::start(1, 1, Disk::default(), now);
    push(&mut a.broker, "1 a");
    let mut writes = Writes::default();
    a.broker.replication.publish(&mut a.broker.batch, &mut writes, now);
    a.write(writes);
    a.commit();
    for members in [vec![], vec![B]] {
        let mut disk = a.disk.clone();
        disk.members.clone_from(&members);
        let mut again_a = Durable::start(1, 2, disk, now);
        assert_eq!(again_a.broker.replication.awaits_dealt(), !members.is_empty());
        members.iter().for_each(|member| {
            interest_of(&again_a.broker).joined(*member);
            interest_of(&again_a.broker).left(*member);
        });
        let expected: &[&str] = if members.is_empty() { &[] } else { &["1 a for 2"] };
        assert_eq!(again(&mut again_a.broker, now), expected);
    }
}

/// What a broker knows of a log from its disk only, another has to have as well before a session goes from the one to the other: as long as somebody may bring it.
#[test]
fn what_is_known_from_the_disk_is_waited_for_while_its_log_may_come_back() {
    let now = start();
    let mut disk = Disk::default();
    let lane = LaneId(LANES_PER_CLASS);
    let stream = |log| OriginLane { origin: B, log: LogId(log), lane };
    disk.covers.insert(stream(7), 100);
    let covers = Durable::start(3, 1, disk, now).broker.replication.delivered();
    assert_eq!(covers.get(&stream(7)), Some(&crate::replication::Cover { id: 100, is_live: false }));

    let broker = broker(now);
    assert!(!broker.replication.has_delivered(&covers), "nobody knows which log it has");
    says_log(&broker, 7);
    assert!(!broker.replication.has_delivered(&covers), "it may come back with it");
    says_log(&broker, 8);
    assert!(broker.replication.has_delivered(&covers), "it has lost it");
    says_log(&broker, 7);
    interest_of(&broker).left(B);
    assert!(broker.replication.has_delivered(&covers), "it is no member any more");
    let live = [(stream(7), crate::replication::Cover { id: 100, is_live: true })].into();
    assert!(!broker.replication.has_delivered(&live), "whoever is in the mesh will have it");
    // Or had it, and has forgotten it for later ones.
    let known = broker.replication.lane(lane).unwrap();
    for log in 0..LOGS_PER_ORIGIN_MAX as u64 {
        assert!(!broker.replication.has_delivered(&live), "{log}");
        known.stream((B, LogId(1_000 + log)), now, Duration::ZERO).unwrap();
    }
    assert!(broker.replication.has_delivered(&live));
}
