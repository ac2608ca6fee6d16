//! Brokers with a disk: what others may see when, and what a restart makes of what was written.

use super::*;
use crate::session::{Change, Journal, LogHead, Logged, RestoredLog};

fn wants_all(id: u64) -> Arc<Interest> {
    Arc::new(Interest::new(BrokerId(id), Rules::new(Mode::Full, [])))
}

/// What a store makes of changes, in the plainest way.
#[derive(Clone, Default)]
pub(super) struct Disk {
    heads: BTreeMap<LaneId, LogHead>,
    blocks: Vec<Logged>,
    pub(super) covers: BTreeMap<OriginLane, u64>,
    pub(super) members: Vec<BrokerId>,
}

impl Disk {
    /// Commits all there is in `journal`.
    fn commit(&mut self, journal: &Journal) {
        let mut changes = Vec::new();
        let Some(number) = journal.take(&mut changes, Duration::ZERO) else { return };
        for change in changes {
            match change {
                Change::Log(head) => drop(self.heads.insert(head.lane, head)),
                Change::Logged(block) => self.blocks.push(block),
                Change::Cover(stream, cover) => {
                    let known = self.covers.entry(stream).or_default();
                    *known = cover.max(*known);
                }
                other => panic!("{other:?}"),
            }
        }
        journal.commit(number);
    }

    fn read(&self) -> RestoredLog {
        let kept = |block: &&Logged| self.heads.get(&block.lane).is_some_and(|head| head.floor < block.last);
        let mut blocks: Vec<_> = self.blocks.iter().filter(kept).cloned().collect();
        blocks.sort_by_key(|block| (block.lane, block.first));
        RestoredLog {
            heads: self.heads.values().copied().collect(),
            blocks,
            covers: self.covers.iter().map(|(stream, cover)| (*stream, *cover)).collect(),
            members: self.members.clone(),
            positions_in_doubt: 0,
        }
    }
}

/// A broker with a disk. What is late is marked in its inbox.
pub(super) struct Durable {
    pub(super) broker: Broker,
    journal: Arc<Journal>,
    pub(super) disk: Disk,
}

impl Durable {
    /// A life that begins with what is on the disk. Its log is another in each life if it does not go on in the old one.
    pub(super) fn start(id: u64, life: u64, disk: Disk, now: Instant) -> Self {
        Self::with_ring(RING_BLOCKS, id, life, disk, now)
    }

    fn with_ring(blocks: usize, id: u64, life: u64, disk: Disk, now: Instant) -> Self {
        let journal = Journal::new();
        let mut broker = Broker::with(id, now, |config| (config.log, config.ring_blocks) = (LogId(1_000 * life + id), blocks));
        broker.replication = Replication::durable(broker.replication.config, wants_all(id), &journal, disk.read(), now);
        Self { broker, journal, disk }
    }

    pub(super) fn restart(self, now: Instant) -> Self {
        Self::start(self.broker.replication.config.origin.0, 2, self.disk, now)
    }

    pub(super) fn commit(&mut self) {
        self.disk.commit(&self.journal);
    }

    /// Publishes one batch and says what is written of it, for [`write`](Self::write).
    pub(super) fn publish(&mut self, payload: &str, qos: QoS, now: Instant) -> Writes {
        let payload = payload.as_bytes();
        let message = MeshMessage {
            topic: "t",
            payload,
            qos,
            retain: false,
            expiry_seconds: None,
            properties: &[],
            stamp: None,
            picks: Default::default(),
        };
        let Broker { replication, batch, .. } = &mut self.broker;
        batch.push(replication, &message);
        let mut writes = Writes::default();
        replication.publish(batch, &mut writes, now);
        writes
    }

    pub(super) fn write(&self, mut writes: Writes) {
        self.journal.append(&mut writes);
    }
}

/// What goes from one to the other; covers go to the receiver's journal as a router hands them there.
pub(super) fn flow_to(from: &End, to: &mut End, broker: &mut Durable, now: Instant) {
    flow(from, to, &mut broker.broker, now).unwrap();
    let mut writes = Writes::default();
    broker.broker.inbox.covered.drain(..).for_each(|(stream, cover)| writes.cover(stream, cover));
    broker.journal.append(&mut writes);
}

/// Two ends, opened by `a`.
pub(super) fn join(a: &mut Durable, b: &mut Durable, count: u64, now: Instant) -> (End, End) {
    let (mut up, mut down) = (End::new(&a.broker, b.broker.replication.config.origin.0, count), End::new(&b.broker, 1, count));
    let mark = mark(count, 1);
    up.port.open(&mark, now);
    flow_to(&up, &mut down, b, now);
    down.port.answer(&mark, now);
    flow_to(&down, &mut up, a, now);
    flow_to(&up, &mut down, b, now);
    (up, down)
}

#[test]
fn of_qos_2_nobody_sees_what_is_not_safe_and_others_overtake_it() {
    let now = start();
    let (mut a, mut b, mut c) = (
        Durable::start(1, 1, Disk::default(), now),
        Durable::start(2, 1, Disk::default(), now),
        Durable::start(3, 1, Disk::default(), now),
    );
    [&mut a, &mut b, &mut c].into_iter().for_each(Durable::commit);
    let (up, mut down) = join(&mut a, &mut b, 1, now);
    let (up_c, mut down_c) = join(&mut c, &mut a, 2, now);
    let once = a.publish("once", QoS::ExactlyOnce, now);
    let behind = a.publish("behind", QoS::AtLeastOnce, now);
    let of_c = c.publish("of another", QoS::AtLeastOnce, now);
    c.write(of_c);
    flow_to(&up_c, &mut down_c, &mut a, now);
    flow_to(&up, &mut down, &mut b, now);
    assert_eq!(b.broker.got(), ["of another"], "what is not even in the journal");
    a.write(once);
    a.write(behind);
    flow_to(&up, &mut down, &mut b, now);
    assert_eq!(b.broker.got(), ["of another"], "in the journal, not on the disk");
    a.commit();
    flow_to(&up, &mut down, &mut b, now);
    assert_eq!(b.broker.got(), ["of another", "once", "behind"]);
    let last = a.publish("at once", QoS::AtLeastOnce, now);
    flow_to(&up, &mut down, &mut b, now);
    assert_eq!(b.broker.got().last(), Some(&"at once"), "QoS 1 does not wait");
    drop(last);
}

/// The disk hangs meanwhile.
#[test]
fn what_waits_for_the_disk_is_not_lost_when_the_ring_overtakes_its_port() {
    let before = start();
    let (mut a, mut b) = (Durable::start(1, 1, Disk::default(), before), Durable::start(2, 1, Disk::default(), before));
    let now = later(before);
    [&mut a, &mut b].into_iter().for_each(Durable::commit);
    let (up, mut down) = join(&mut a, &mut b, 1, now);
    for payload in ["once", "again"] {
        let writes = a.publish(payload, QoS::ExactlyOnce, now);
        a.write(writes);
    }
    flow_to(&up, &mut down, &mut b, now);
    for n in 0..RING_BLOCKS + 3 {
        drop(a.publish(&n.to_string(), QoS::AtLeastOnce, now));
    }
    flow_to(&up, &mut down, &mut b, now);
    assert!(b.broker.got().is_empty());
    a.commit();
    flow_to(&up, &mut down, &mut b, now);
    let expected: Vec<_> = ["once".into(), "again".into()].into_iter().chain((3..RING_BLOCKS + 3).map(|n| n.to_string())).collect();
    assert_eq!(b.broker.got(), expected);
    let gaps = (a.broker.counters().gaps_sent.value(), b.broker.counters().gaps_received.value());
    assert_eq!(gaps, (1, 1), "only what is really lost");
}

/// The lane's writer sleeps, and the commit wakes it.
#[test]
fn a_commit_wakes_the_lane_writer() {
    let now = start();
    let (mut a, mut b) = (Durable::start(1, 1, Disk::default(), now), Durable::start(2, 1, Disk::default(), now));
    a.commit();
    let (up, _down) = join(&mut a, &mut b, 1, now);
    let writes = a.publish("once", QoS::ExactlyOnce, now);
    a.write(writes);
    let lane = a.broker.replication.lane_for("t", QoS::ExactlyOnce).index();
    let count = Arc::new(CountWakes(AtomicUsize::new(0)));
    let waker = Waker::from(Arc::clone(&count));
    let mut out = Vec::new();
    assert!(up.port.lanes()[lane].poll(&mut Context::from_waker(&waker), now, 1_000, &mut out).is_pending());
    a.commit();
    assert_eq!(count.0.load(Ordering::Relaxed), 1);
    assert!(up.port.lanes()[lane].poll(&mut Context::from_waker(&waker), now, 1_000, &mut out).is_ready());
}

#[test]
fn nothing_is_seen_at_a_position_that_is_not_reserved_on_the_disk() {
    let now = start();
    let (mut a, mut b) = (Durable::start(1, 1, Disk::default(), now), Durable::start(2, 1, Disk::default(), now));
    let (up, mut down) = join(&mut a, &mut b, 1, now);
    let writes = a.publish("first", QoS::AtLeastOnce, now);
    flow_to(&up, &mut down, &mut b, now);
    assert!(b.broker.got().is_empty(), "the first reservation is not on the disk");
    a.commit();
    flow_to(&up, &mut down, &mut b, now);
    assert_eq!(b.broker.got(), ["first"]);
    drop(writes);
    // Many positions later, with a disk that takes nothing, it comes to an end.
    let mut count = 0;
    while b.broker.got().len() > count {
        count = b.broker.got().len();
        for _ in 0..RING_BLOCKS / 4 {
            drop(a.publish("more", QoS::AtLeastOnce, now));
        }
        flow_to(&up, &mut down, &mut b, now);
    }
    assert!(count > 50_000, "{count} within one reservation");
    // Killed now, it begins where none of them was.
    let disk = a.disk.clone();
    let reserved = disk.heads.values().map(|head| head.reserved).max().unwrap();
    let lane = a.broker.replication.lane_for("t", QoS::AtLeastOnce);
    let known = b.broker.replication.lane(lane).unwrap().covers();
    let a = Durable::start(1, 2, disk, now);
    let own = a.broker.replication.lane(lane).unwrap().own.key();
    let seen = known.iter().find(|cover| (cover.origin, cover.log) == own).unwrap().cover;
    assert!(seen >> 8 < reserved, "{seen:x} was seen, the next life begins at {reserved:x}");
    assert!(a.broker.replication.lane(lane).unwrap().ring.next() >= reserved);
}

#[test]
fn a_restarted_origin_gives_what_was_safe_and_goes_on_above_what_was_seen() {
    let now = start();
    let (mut a, mut b) = (Durable::start(1, 1, Disk::default(), now), Durable::start(2, 1, Disk::default(), now));
    a.commit();
    b.commit();
    let (up, mut down) = join(&mut a, &mut b, 1, now);
    let writes = a.publish("seen and safe", QoS::ExactlyOnce, now);
    a.write(writes);
    a.commit();
    flow_to(&up, &mut down, &mut b, now);
    let lost = a.publish("seen and not safe", QoS::AtLeastOnce, now);
    flow_to(&up, &mut down, &mut b, now);
    drop(lost);
    for payload in ["safe and not seen", "the same"] {
        let writes = a.publish(payload, QoS::ExactlyOnce, now);
        a.write(writes);
    }
    a.commit();
    let never = a.publish("neither", QoS::ExactlyOnce, now);
    drop((up, never));

    let now = now + Duration::from_secs(5);
    let mut a = a.restart(now);
    a.commit();
    let (up, mut down) = join(&mut a, &mut b, 2, now);
    flow_to(&up, &mut down, &mut b, now);
    let writes = a.publish("new", QoS::AtLeastOnce, now);
    a.write(writes);
    flow_to(&up, &mut down, &mut b, now);
    assert_eq!(b.broker.got(), ["seen and safe", "seen and not safe", "safe and not seen", "the same", "new"]);
    let counters = b.broker.counters();
    assert_eq!((counters.gaps_received.value(), counters.messages_duplicate.value()), (0, 0));
}

#[test]
fn a_restarted_broker_catches_up_and_passes_on_what_it_had_not_passed_on() {
    let now = start();
    let (mut a, mut b) = (Durable::start(1, 1, Disk::default(), now), Durable::start(2, 1, Disk::default(), now));
    let mut c = Durable::start(3, 1, Disk::default(), now);
    a.commit();
    b.commit();
    let (up, mut down) = join(&mut a, &mut b, 1, now);
    let say = |a: &mut Durable, payload, now| {
        let writes = a.publish(payload, QoS::ExactlyOnce, now);
        a.write(writes);
        a.commit();
    };
    say(&mut a, "known and safe", now);
    flow_to(&up, &mut down, &mut b, now);
    b.commit();
    say(&mut a, "known and forgotten", now);
    flow_to(&up, &mut down, &mut b, now);
    drop((up, down));
    say(&mut a, "while it was down", now + Duration::from_secs(1));

    // A third broker that has nothing is behind it, and gets it all.
    let now = now + Duration::from_secs(5);
    let mut b = b.restart(now);
    b.commit();
    let (up, mut down) = join(&mut a, &mut b, 2, now);
    let (down_c, mut up_c) = join(&mut b, &mut c, 3, now);
    flow_to(&down_c, &mut up_c, &mut c, now);
    let late = now + Duration::from_secs(1);
    say(&mut a, "live", late);
    flow_to(&up, &mut down, &mut b, late);
    flow_to(&down_c, &mut up_c, &mut c, late);
    assert_eq!(b.broker.got(), ["late: known and forgotten", "late: while it was down", "live"]);
    assert_eq!(c.broker.got(), ["known and safe", "known and forgotten", "while it was down", "live"]);
    assert_eq!(b.broker.counters().gaps_received.value() + c.broker.counters().gaps_received.value(), 0);
}

/// Neighbours give it all that their rings have, which may be more than its own holds.
#[test]
fn a_restarted_brokers_own_messages_are_not_overrun_by_what_others_have() {
    let (before, now) = (start(), later(start()));
    let (mut a, mut b) = (Durable::start(1, 1, Disk::default(), before), Durable::start(2, 1, Disk::default(), before));
    let mut c = Durable::start(3, 1, Disk::default(), before);
    [&mut a, &mut b, &mut c].into_iter().for_each(Durable::commit);
    let say = |a: &mut Durable, payload: &str, now| {
        let writes = a.publish(payload, QoS::AtLeastOnce, now);
        a.write(writes);
        a.commit();
    };
    say(&mut a, "known", now);
    let (mut at_a, mut at_b) = join(&mut a, &mut b, 1, now);
    flow_to(&at_a, &mut at_b, &mut b, now);
    (0..RING_BLOCKS).for_each(|n| say(&mut b, &n.to_string(), now));
    flow_to(&at_b, &mut at_a, &mut a, now);
    a.commit();
    drop((at_a, at_b));
    ["on its disk", "alone"].into_iter().for_each(|payload| say(&mut a, payload, now));

    let mut now = now;
    for life in 2..=3 {
        now += Duration::from_secs(1);
        a = Durable::with_ring(RING_BLOCKS / 8, 1, life, a.disk, now);
        a.commit();
        let (at_b, mut at_a) = join(&mut b, &mut a, life, now);
        flow_to(&at_b, &mut at_a, &mut a, now);
        let own = a.broker.replication.lane_for("t", QoS::AtLeastOnce);
        let lane = a.broker.replication.lane(own).unwrap();
        assert!(lane.own.floor() >= lane.last_published().unwrap_or(lane.own.floor()), "the ring has lost them");
        // What it writes down of that must not cost the next life the same.
        a.broker.replication.trim(now);
        a.commit();
    }
    let (mut at_a, mut at_b) = join(&mut a, &mut b, 4, now);
    let (from_a, mut at_c) = join(&mut a, &mut c, 5, now);
    (0..2).for_each(|_| {
        flow_to(&at_a, &mut at_b, &mut b, now);
        flow_to(&at_b, &mut at_a, &mut a, now);
        flow_to(&from_a, &mut at_c, &mut c, now);
    });
    say(&mut a, "live", now);
    flow_to(&at_a, &mut at_b, &mut b, now);
    flow_to(&from_a, &mut at_c, &mut c, now);
    let own = |broker: &Durable| {
        let own = ["known", "on its disk", "alone", "live"];
        broker.broker.got().into_iter().filter(|payload| own.contains(payload)).map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(
        (own(&b), own(&c)),
        (vec!["known".to_owned(), "on its disk".to_owned(), "alone".to_owned(), "live".to_owned()], own(&b))
    );
    assert_eq!(b.broker.counters().gaps_received.value(), 0);

    // For as long as the ring would have kept them, and not while much is published.
    let own = a.broker.replication.lane_for("t", QoS::AtLeastOnce);
    let again = Durable::start(1, 4, a.disk.clone(), now);
    assert!(again.broker.replication.lane(own).unwrap().has_former_beyond(0));
    again.broker.replication.trim(now + Duration::from_secs(61));
    assert!(!again.broker.replication.lane(own).unwrap().has_former_beyond(0));
    let has_former = |a: &Durable| a.broker.replication.lane(own).unwrap().has_former_beyond(0);
    for is_kept in [true, false] {
        assert!(has_former(&a));
        (0..=RING_BLOCKS / 8 + 1).for_each(|_| say(&mut a, "much", now));
        a.broker.replication.trim(now);
        assert_eq!(has_former(&a), is_kept);
    }
    a.commit();
    let floor = a.disk.heads.values().find(|head| head.lane == own).unwrap().floor;
    assert_eq!(floor, a.broker.replication.lane(own).unwrap().own.floor(), "the disk lets go of it");
}

/// As from a snapshot of a virtual machine.
#[test]
fn a_disk_that_went_back_is_noticed_and_the_next_life_begins_beyond() {
    let now = start();
    let (mut a, mut b) = (Durable::start(1, 1, Disk::default(), now), Durable::start(2, 1, Disk::default(), now));
    [&mut a, &mut b].into_iter().for_each(Durable::commit);
    let snapshot = a.disk.clone();
    let say = |a: &mut Durable, payload: &str| {
        let writes = a.publish(payload, QoS::AtLeastOnce, now);
        a.write(writes);
        a.commit();
    };
    for life in 2..=3 {
        // It uses up what it had reserved.
        (0..70_000).for_each(|_| drop(a.publish("x", QoS::AtLeastOnce, now)));
        say(&mut a, "before");
        drop(join(&mut a, &mut b, life, now));
        assert_eq!((b.broker.got().pop(), a.broker.counters().own_ids_foreseen.value()), (Some("before"), 0));
        a = Durable::start(1, life, snapshot.clone(), now);
        drop(join(&mut a, &mut b, 10 * life, now));
        assert_eq!(a.broker.counters().own_ids_foreseen.value(), 1, "that of the one lane");
        a.commit();
        a = a.restart(now);
        let (up, mut down) = join(&mut a, &mut b, 10 * life + 1, now);
        say(&mut a, "after");
        flow_to(&up, &mut down, &mut b, now);
        assert_eq!((b.broker.got().pop(), a.broker.counters().own_ids_foreseen.value()), (Some("after"), 0));
    }
}

/// As after a power cut: both start at once, one of them in its old log.
#[test]
fn a_fresh_broker_delivers_nothing_that_a_resumed_one_has_from_before() {
    let before = start();
    let now = before + Duration::from_secs(60);
    for fresh_asks in [true, false] {
        let (resumed, fresh) = if fresh_asks { (2, 1) } else { (1, 2) };
        let mut old = Durable::start(resumed, 1, Disk::default(), before);
        let writes = old.publish("minutes ago", QoS::ExactlyOnce, now - Duration::from_secs(30));
        old.write(writes);
        old.commit();
        let mut old = old.restart(now);
        old.commit();
        let mut new = Durable::start(fresh, 1, Disk::default(), now);
        new.commit();
        let (mut up, mut down) = if fresh_asks { join(&mut new, &mut old, 1, now) } else { join(&mut old, &mut new, 1, now) };
        let later = now + Duration::from_secs(1);
        let writes = old.publish("live", QoS::AtLeastOnce, later);
        old.write(writes);
        let writes = new.publish("of the fresh one", QoS::AtLeastOnce, later);
        new.write(writes);
        let (child, parent) = if fresh_asks { (&mut new, &mut old) } else { (&mut old, &mut new) };
        flow_to(&up, &mut down, parent, later);
        flow_to(&down, &mut up, child, later);
        assert_eq!((old.broker.got(), new.broker.got()), (vec!["of the fresh one"], vec!["live"]), "fresh asks: {fresh_asks}");
    }
}

#[test]
fn what_the_neighbours_no_longer_have_is_a_gap_and_what_was_dealt_with_is_none() {
    let now = start();
    for (is_down_for_long, gaps) in [(false, 0), (true, 1)] {
        let (mut a, mut b) = (Durable::start(1, 1, Disk::default(), now), Durable::start(2, 1, Disk::default(), now));
        a.commit();
        b.commit();
        let (up, mut down) = join(&mut a, &mut b, 1, now);
        let writes = a.publish("known", QoS::AtLeastOnce, now);
        a.write(writes);
        flow_to(&up, &mut down, &mut b, now);
        b.commit();
        drop((up, down));
        if is_down_for_long {
            let writes = a.publish("missed", QoS::AtLeastOnce, now);
            a.write(writes);
        }
        // Longer than a block is kept.
        let now = now + Duration::from_secs(61);
        a.broker.replication.trim(now);
        a.commit();
        let mut b = b.restart(now);
        b.commit();
        drop(join(&mut a, &mut b, 2, now));
        assert_eq!(b.broker.counters().gaps_received.value(), gaps);
        // The same where it is the origin that was restarted.
        let mut a = a.restart(now);
        a.commit();
        drop(join(&mut a, &mut b, 3, now));
        assert_eq!((b.broker.counters().gaps_received.value(), b.broker.got().len()), (gaps, 0));
    }
}

#[test]
fn a_log_with_other_lanes_or_without_a_head_is_begun_anew() {
    let now = start();
    let mut a = Durable::start(1, 1, Disk::default(), now);
    let writes = a.publish("x", QoS::AtLeastOnce, now);
    a.write(writes);
    a.commit();
    let mut disk = a.disk;
    disk.heads.pop_first();
    let journal = Journal::new();
    let config = ReplicationConfig { log: LogId(77), ..a.broker.replication.config };
    let anew = Replication::durable(config, wants_all(1), &journal, disk.read(), now);
    assert_eq!(anew.lane(LaneId(LANES_PER_CLASS)).unwrap().own.id().log, LogId(77));
    let mut changes = Vec::new();
    journal.take(&mut changes, Duration::ZERO);
    let gone = changes.iter().filter(|change| matches!(change, Change::LogGone(_))).count();
    assert_eq!((gone, anew.ring_bytes()), (usize::from(LANES_PER_CLASS) - 1, 0));
}
