//! Messages that were left out on the way and are wanted after all.

use super::*;
use crate::limits::{QUESTION_LIFE, QUESTIONS_MAX};
use crate::shared::register::Follow;

/// A member that wants nothing.
const NOBODY: BrokerId = BrokerId(900);

/// A broker that knows of nobody who wants anything.
fn broker(id: u64, ring_blocks: usize, now: Instant) -> Broker {
    let interest = Interest::new(BrokerId(id), Rules::new(Mode::Interest, []));
    interest.joined(NOBODY);
    interest.known(NOBODY);
    let config = ReplicationConfig { ring_blocks, ..config(id) };
    let replication = Replication::with_interest(config, Arc::new(interest), now);
    Broker { replication, batch: LocalBatch::new(), inbox: Inbox::default() }
}

/// Opens the link of a child and its parent.
pub(super) fn open(number: u64, (up, child): (&mut End, &mut Broker), (down, parent): (&mut End, &mut Broker), now: Instant) {
    let mark = mark(number, child.replication.config.origin.0);
    up.port.open(&mark, now);
    flow(up, down, parent, now).unwrap();
    down.port.answer(&mark, now);
    flow(down, up, child, now).unwrap();
}

/// A parent that publishes, and a child that wants it and is told of only what comes after the first message.
fn first_left_out(ring_blocks: usize, now: Instant) -> Pair {
    let mut pair = Pair::new(Broker::new(1, now), broker(2, ring_blocks, now));
    pair.open(now);
    pair.down.port.set_behind(Some(vec![NOBODY]));
    pair.parent.publish_all(&["1"], now);
    pair.flow_down(now).unwrap();
    pair.down.port.set_behind(None);
    for payload in ["2", "3", "4", "5", "6"] {
        pair.parent.publish_all(&[payload], now);
        pair.flow_down(now).unwrap();
    }
    assert!(pair.child.got().is_empty(), "they wait behind the first");
    assert_eq!(pair.parent.counters().stubs_sent.value(), 1);
    pair
}

#[test]
fn who_has_only_the_stub_passes_the_question_on_and_keeps_the_answer() {
    let now = start();
    let (mut a, mut b, mut c, mut d) =
        (broker(1, RING_BLOCKS, now), broker(2, RING_BLOCKS, now), broker(3, RING_BLOCKS, now), broker(4, RING_BLOCKS, now));
    b.inbox.is_unwilling = true;
    let (mut ba, mut ab) = (End::new(&b, 1, 1), End::new(&a, 2, 1));
    let (mut cb, mut bc) = (End::new(&c, 2, 2), End::new(&b, 3, 2));
    open(1, (&mut ba, &mut b), (&mut ab, &mut a), now);
    open(1, (&mut cb, &mut c), (&mut bc, &mut b), now);
    ab.port.set_behind(Some(vec![NOBODY]));
    a.publish_all(&["1", "2"], now);
    flow(&ab, &mut ba, &mut b, now).unwrap();
    ab.port.set_behind(None);
    a.publish_all(&["3"], now);
    flow(&ab, &mut ba, &mut b, now).unwrap();
    flow(&bc, &mut cb, &mut c, now).unwrap();
    assert!(c.got().is_empty());
    flow(&cb, &mut bc, &mut b, now).unwrap();
    flow(&ba, &mut ab, &mut a, now).unwrap();
    flow(&ab, &mut ba, &mut b, now).unwrap();
    flow(&bc, &mut cb, &mut c, now).unwrap();
    assert_eq!(c.got(), ["1", "2", "3"]);
    let counted = |broker: &Broker| {
        let Counters { pulls_sent, payloads_received, payloads_lost, .. } = broker.counters();
        [pulls_sent, payloads_received, payloads_lost].map(|counter| counter.value())
    };
    assert_eq!([counted(&a), counted(&b), counted(&c)], [[0, 0, 0], [2, 2, 0], [2, 2, 0]]);

    let (mut db, mut bd) = (End::new(&d, 2, 3), End::new(&b, 4, 3));
    open(1, (&mut db, &mut d), (&mut bd, &mut b), now);
    flow(&bd, &mut db, &mut d, now).unwrap();
    assert_eq!((d.got(), counted(&d)), (vec!["1", "2", "3"], [0, 0, 0]), "whole, without a question");
}

#[test]
fn what_the_origin_no_longer_has_is_counted_and_waited_for_no_longer() {
    let now = start();
    let mut pair = first_left_out(4, now);
    pair.flow_up(now).unwrap();
    pair.flow_down(now).unwrap();
    assert_eq!(pair.child.got(), ["2", "3", "4", "5", "6"]);
    assert_eq!(pair.child.counters().payloads_lost.value(), 1);
}

#[test]
fn a_question_is_repeated_and_given_up_in_time() {
    let now = start();
    let mut pair = first_left_out(RING_BLOCKS, now);
    let patience = Duration::from_secs(10);
    let repeat = |pair: &mut Pair, seconds: u64| {
        let at = now + Duration::from_secs(seconds);
        pair.child.replication.repeat_pulls(patience, at, &mut pair.child.inbox);
        // What is asked is on its way, and comes to nothing.
        let lane = pair.child.replication.lane_for("t", QoS::AtLeastOnce).index();
        pair.up.take(lane, at);
        (pair.child.got().len(), pair.child.counters().pulls_sent.value(), pair.child.counters().payloads_lost.value())
    };
    assert_eq!(repeat(&mut pair, 1), (0, 1, 0), "asked twice before there was room for it");
    assert_eq!(repeat(&mut pair, 9), (0, 2, 0));
    assert_eq!(repeat(&mut pair, 10), (5, 2, 1));
    assert_eq!(repeat(&mut pair, 11), (5, 2, 1));
}

/// Not the message that was asked for: it is still missing, and counted as lost in the end.
#[test]
fn an_answer_of_another_topic_is_none() {
    let now = start();
    let mut pair = first_left_out(RING_BLOCKS, now);
    let lane = pair.child.replication.lane_for("t", QoS::AtLeastOnce);
    let own = pair.parent.replication.lane(lane).unwrap().own.key();
    let answer = |topic: u8| {
        let (mut bytes, body) = (Vec::new(), [0, 1, 1, topic, 1, b'1']);
        lane::put_origin(&mut bytes, 7, own.0, own.1);
        lane::put_payloads_head(&mut bytes, 7, 0, 1 << 8, &body);
        bytes.extend_from_slice(&body);
        bytes
    };
    for (topic, expected) in [(b'x', &[][..]), (b't', &["1", "2", "3", "4", "5", "6"])] {
        pair.up.receivers[lane.index()].receive(&answer(topic), now, &mut pair.child.inbox, &mut Vec::new()).unwrap();
        assert_eq!(pair.child.got(), expected);
    }
    assert_eq!(pair.child.counters().payloads_lost.value(), 0);
}

/// The origin has begun another log, and nobody else has the message.
#[test]
fn an_origin_that_has_lost_its_log_says_that_its_messages_are_gone() {
    let now = start();
    let mut pair = first_left_out(RING_BLOCKS, now);
    pair.parent = Broker::with(2, now, |config| config.log = LogId(777));
    (pair.up, pair.down) = (End::new(&pair.child, 2, 2), End::new(&pair.parent, 1, 2));
    pair.open(now);
    let second = |pair: &mut Pair, seconds: u64| {
        let at = now + Duration::from_secs(seconds);
        pair.child.replication.repeat_pulls(Duration::from_secs(600), at, &mut pair.child.inbox);
        pair.flow_up(at).unwrap();
        pair.flow_down(at).unwrap();
        pair.child.counters().payloads_lost.value()
    };
    let life = QUESTION_LIFE.as_secs();
    assert_eq!((0..life).map(|seconds| second(&mut pair, seconds)).max(), Some(0), "somebody else may have it");
    assert_eq!((second(&mut pair, life), pair.child.got()), (1, vec!["2", "3", "4", "5", "6"]));
}

#[test]
fn what_nobody_wants_any_more_is_not_waited_for() {
    let now = start();
    let mut pair = first_left_out(RING_BLOCKS, now);
    pair.child.inbox.is_unwilling = true;
    pair.child.replication.repeat_pulls(Duration::from_secs(600), now + Duration::from_secs(1), &mut pair.child.inbox);
    assert_eq!(pair.child.got(), ["2", "3", "4", "5", "6"]);
    assert_eq!(pair.child.counters().payloads_lost.value(), 0);
}

/// A writer without credit still says CLOSE.
#[test]
fn a_close_does_not_wait_behind_questions() {
    let now = start();
    let mut pair = first_left_out(RING_BLOCKS, now);
    let lane = pair.child.replication.lane_for("t", QoS::AtLeastOnce);
    let own = pair.parent.replication.lane(lane).unwrap().own.key();
    let port = Arc::clone(&pair.up.port.lanes()[lane.index()]);
    let many: Vec<u64> = (2..=20_000).map(|n| n << 8).collect();
    assert!(port.ask(own, &many));
    pair.up.port.close(&mark(1, 1).number);
    let mut out = Vec::new();
    let batch = port.take_close(100, &mut out).unwrap();
    assert_eq!((batch.closed, pair.child.counters().pulls_sent.value()), (Some(mark(1, 1).number), 0));
    assert!(!port.ask(own, &many), "nothing can be said to it");
    assert!(pair.up.take(lane.index(), now).0.is_empty());

    pair.flow_up(now).unwrap();
    pair.open(now);
    assert!(port.ask(own, &many));
    pair.up.take(lane.index(), now);
    let (asked, bound) = (pair.child.counters().pulls_sent.value(), QUESTIONS_MAX as u64);
    assert_eq!(asked, bound, "what is more is asked for later");
}
