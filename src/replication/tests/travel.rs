//! Links that take longer than a restart: what waits on its way ages there, too.

use super::durable::{Disk, Durable, join};
use super::*;
use crate::limits::PULL_REPEAT;

const SECOND: Duration = Duration::from_secs(1);

/// What goes from one end to the other, in every lane.
fn written(from: &End, now: Instant) -> Vec<Vec<u8>> {
    (0..usize::from(2 * LANES_PER_CLASS)).map(|lane| from.take(lane, now).0).collect()
}

fn read(to: &mut End, lanes: &[Vec<u8>], broker: &mut Broker, now: Instant) {
    for (receiver, bytes) in to.receivers.iter_mut().zip(lanes) {
        receiver.receive(bytes, now, &mut broker.inbox, &mut Vec::new()).unwrap();
    }
}

/// Opens with the parent; the child's OPEN is read after `late`, the answer at once.
fn open_late(pair: &mut Pair, now: Instant, late: Duration) {
    pair.count += 1;
    let mark = mark(pair.count, 1);
    pair.up.port.open(&mark, now);
    let open = written(&pair.up, now);
    read(&mut pair.down, &open, &mut pair.parent, now + late);
    pair.down.port.answer(&mark, now + late);
    pair.flow_down(now + late).unwrap();
}

/// A child that was started anew `now`, and a parent that has been there for long.
fn after_a_restart(now: Instant) -> Pair {
    Pair::new(Broker::new(1, now), Broker::new(2, now - 2 * NEWCOMER_TIME))
}

#[test]
fn what_was_published_before_a_restart_does_not_come_after_it_however_slow_the_way() {
    let now = start() + 3 * NEWCOMER_TIME;
    let mut pair = after_a_restart(now);
    // The child's former life has had this on another way; the parent gets it late, as the tree is another.
    let mut far = Pair::new(Broker::new(1, now), Broker::new(3, now - 2 * NEWCOMER_TIME));
    std::mem::swap(&mut pair.parent, &mut far.child);
    let (mut up, mut down) = (End::new(&far.child, 3, 2), End::new(&far.parent, 2, 2));
    let before = now - SECOND;
    pull::open(1, (&mut up, &mut far.child), (&mut down, &mut far.parent), before - 9 * SECOND);
    far.parent.publish("quick", QoS::AtMostOnce, None, before - 9 * SECOND);
    flow(&down, &mut up, &mut far.child, before - 9 * SECOND).unwrap();
    far.parent.publish("old", QoS::AtMostOnce, None, before);
    let slow = written(&down, before);
    std::mem::swap(&mut pair.parent, &mut far.child);
    pair.down = End::new(&pair.parent, 1, 3);
    pair.open(now);
    // Three seconds from the origin to the parent, five from there to the child.
    read(&mut up, &slow, &mut pair.parent, now + 2 * SECOND);
    let slow = written(&pair.down, now + 2 * SECOND);
    read(&mut pair.up, &slow, &mut pair.child, now + 7 * SECOND);
    assert!(pair.child.got().is_empty(), "{:?}", pair.child.got());
    // What was published since comes, on the same slow ways.
    far.parent.publish("new", QoS::AtMostOnce, None, now + SECOND);
    let slow = written(&down, now + 2 * SECOND);
    read(&mut up, &slow, &mut pair.parent, now + 5 * SECOND);
    let slow = written(&pair.down, now + 5 * SECOND);
    read(&mut pair.up, &slow, &mut pair.child, now + 9 * SECOND);
    assert_eq!(pair.child.got(), ["new"]);
}

#[test]
fn the_first_block_is_as_old_as_the_open_that_it_answers_lets_it_be() {
    let now = start() + 3 * NEWCOMER_TIME;
    // Of QoS 0 nothing that was there before comes again, whether the OPEN took its time or the block.
    for (late, slow) in [(Duration::ZERO, 3 * SECOND), (3 * SECOND, Duration::ZERO), (SECOND, 2 * SECOND)] {
        let mut pair = after_a_restart(now);
        open_late(&mut pair, now, late);
        // What the parent takes in now was published elsewhere, before the restart.
        let (mut bytes, body) = (Vec::new(), [0, 0, 1, b't', 1, b'x']);
        let mut other = End::new(&pair.parent, 3, 4);
        let mut third = Broker::new(3, now);
        let mut end = End::new(&third, 2, 4);
        pull::open(1, (&mut end, &mut third), (&mut other, &mut pair.parent), now + late);
        let lane = third.replication.lane_for("t", QoS::AtMostOnce).index();
        lane::put_origin(&mut bytes, 0, BrokerId(5), LogId(5));
        let age_ms = u64::try_from((late + SECOND).as_millis()).unwrap();
        lane::put_messages_head(&mut bytes, &Block { alias: 0, prev: 0, hops: 1, age_ms, first: 1, body: &body });
        bytes.extend_from_slice(&body);
        other.receivers[lane].receive(&bytes, now + late, &mut pair.parent.inbox, &mut Vec::new()).unwrap();
        let blocks = written(&pair.down, now + late);
        read(&mut pair.up, &blocks, &mut pair.child, now + late + slow);
        assert_eq!((pair.parent.got(), pair.child.got()), (vec!["x"], vec![]), "{late:?} {slow:?}");
    }
}

/// Whose OPEN took its time has sessions all the same that were there before it was read.
#[test]
fn what_was_published_since_a_start_is_for_everybody_also_if_the_way_there_was_slow() {
    let begin = start();
    let mut child = Durable::start(1, 1, Disk::default(), begin);
    let mut parent = Durable::start(2, 1, Disk::default(), begin);
    drop(join(&mut child, &mut parent, 1, begin));
    child.commit();
    parent.commit();
    let now = later(begin);
    let Durable { broker, .. } = child.restart(now);
    let Durable { broker: other, .. } = parent;
    let mut pair = Pair::new(broker, other);
    pair.count = 1;
    pair.parent.publish("before", QoS::AtLeastOnce, None, now - SECOND);
    pair.parent.publish("since", QoS::AtLeastOnce, None, now + SECOND);
    open_late(&mut pair, now + SECOND, 3 * SECOND);
    assert_eq!(pair.child.got(), ["late: before", "since"]);
    // Both ways: the clock that is known by now says what is late.
    pair.parent.publish("a", QoS::AtLeastOnce, None, now + 5 * SECOND);
    let blocks = written(&pair.down, now + 5 * SECOND);
    read(&mut pair.up, &blocks, &mut pair.child, now + 9 * SECOND);
    assert_eq!(pair.child.got()[2..], ["a"]);
}

#[test]
fn what_waits_on_its_way_expires_there() {
    let now = start();
    let mut pair = Pair::new(Broker::new(1, now), Broker::new(2, now));
    pair.open(now);
    let wait = |pair: &mut Pair, (seconds, qos): (u32, QoS)| {
        pair.parent.publish("x", qos, Some(10), now);
        let blocks = written(&pair.down, now);
        // The first is the measure of the others.
        let late = if seconds == 0 { Duration::ZERO } else { seconds * SECOND + SECOND / 10 };
        read(&mut pair.up, &blocks, &mut pair.child, now + late);
        std::mem::take(&mut pair.child.inbox.got).into_iter().map(|(_, left)| left).collect::<Vec<_>>()
    };
    for qos in [QoS::AtMostOnce, QoS::AtLeastOnce] {
        let left = [0, 1, 8, 9].map(|seconds| wait(&mut pair, (seconds, qos)));
        assert_eq!(left, [vec![Some(10)], vec![Some(9)], vec![Some(2)], vec![Some(1)]], "{qos:?}");
        assert_eq!([10, 11].map(|seconds| wait(&mut pair, (seconds, qos))), [vec![], vec![]], "{qos:?}");
    }
    assert_eq!(pair.child.counters().messages_expired.value(), 4);
}

/// Words come before what has an age, and no more often than they must.
#[test]
fn words_are_few() {
    let now = start();
    let mut pair = Pair::new(Broker::new(1, now), Broker::new(2, now));
    pair.open(now);
    let words = |pair: &mut Pair, ms: u32| {
        let at = now + ms * Duration::from_millis(1);
        pair.parent.publish("x", QoS::AtMostOnce, None, at);
        let lanes = written(&pair.down, at);
        read(&mut pair.up, &lanes, &mut pair.child, at);
        let (mut rest, mut words) = (&lanes[pair.parent.replication.lane_for("t", QoS::AtMostOnce).index()][..], Vec::new());
        while let Some((frame, length)) = lane::decode(rest, 1_000).unwrap() {
            rest = &rest[length..];
            if let lane::LaneFrame::Sent { after_open_ms } = frame {
                words.push(after_open_ms);
            }
        }
        words
    };
    let expected = [vec![7], vec![], vec![27], vec![], vec![5_000]];
    assert_eq!([7, 26, 27, 46, 5_000].map(|ms| words(&mut pair, ms)), expected);
    pair.open(now + 6 * SECOND);
    assert_eq!(words(&mut pair, 6_001), [1], "counted from the newest agreement");
}

/// What is fetched for a neighbour, and what is asked for, goes on as old as it is.
#[test]
fn what_is_passed_on_is_as_old_as_all_of_its_way() {
    let begin = start();
    let now = later(begin);
    let mut origin = Broker::new(1, begin);
    let mut between = Broker::with(2, begin, |config| config.ring_blocks = 8);
    let mut last = Broker::new(3, begin);
    let (mut up, mut down) = (End::new(&between, 1, 1), End::new(&origin, 2, 1));
    pull::open(1, (&mut up, &mut between), (&mut down, &mut origin), now);
    for number in 0..20 {
        origin.publish(&number.to_string(), QoS::AtLeastOnce, Some(10), now);
    }
    flow(&down, &mut up, &mut between, now).unwrap();
    let (mut end, mut port) = (End::new(&last, 2, 2), End::new(&between, 3, 2));
    pull::open(1, (&mut end, &mut last), (&mut port, &mut between), now + SECOND);
    // The question, and four seconds later the answer.
    for _ in 0..3 {
        flow(&port, &mut end, &mut last, now + SECOND).unwrap();
        flow(&up, &mut down, &mut origin, now + SECOND).unwrap();
    }
    let answer = written(&down, now + SECOND);
    let late = now + 5 * SECOND + SECOND / 10;
    read(&mut up, &answer, &mut between, late);
    assert!(PULL_REPEAT < 4 * SECOND);
    flow(&port, &mut end, &mut last, late).unwrap();
    let fetched: Vec<_> = last.inbox.got.iter().take(12).map(|(_, left)| *left).collect();
    assert_eq!(fetched, [Some(5); 12]);
}
