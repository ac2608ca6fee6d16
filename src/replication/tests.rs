//! Two or three brokers whose lanes are joined by hand.

mod durable;
mod fill;
mod picked;
mod pull;
mod travel;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Wake, Waker};

use bytes::Bytes;

use super::*;
use crate::frame::lane::{self, Block, Cover};
use crate::ids::{Incarnation, OpenMark, OpenNumber, RootClaim, TreeId};
use crate::limits::{LANE_ALIASES_MAX, LOGS_PER_ORIGIN_MAX, NEWCOMER_TIME, STREAMS_PER_LANE_MAX};

const LANES_PER_CLASS: u8 = 2;
const RING_BLOCKS: usize = 64;

#[derive(Default)]
struct Inbox {
    got: Vec<(String, Option<u32>)>,
    covered: Vec<(OriginLane, u64)>,
    flushes: usize,
    /// Nobody here has subscribed to anything.
    is_unwilling: bool,
    /// What was to be picked again.
    again: Vec<String>,
    /// Nobody takes that.
    takes_nothing: bool,
}

impl Deliver for Inbox {
    fn deliver(&mut self, message: &MeshMessage<'_>, _: MessageId) {
        self.got.push((String::from_utf8_lossy(message.payload).into_owned(), message.expiry_seconds));
    }

    fn catch_up(&mut self, message: &MeshMessage<'_>, _: MessageId) {
        self.got.push((format!("late: {}", String::from_utf8_lossy(message.payload)), message.expiry_seconds));
    }

    fn covered(&mut self, stream: OriginLane, cover: u64) {
        self.covered.push((stream, cover));
    }

    fn wants(&mut self, _: &str, _: Picks<'_>) -> bool {
        !self.is_unwilling
    }

    fn pick_again(&mut self, message: &MeshMessage<'_>, broker: BrokerId, may_be_same: bool) -> usize {
        let payload = String::from_utf8_lossy(message.payload);
        self.again.push(format!("{payload} for {}{}", broker.0, if may_be_same { ", or the same" } else { "" }));
        usize::from(!self.takes_nothing)
    }

    fn flush(&mut self) {
        self.flushes += 1;
    }
}

struct CountWakes(AtomicUsize);

impl Wake for CountWakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

fn counting() -> (Waker, impl Fn() -> usize) {
    let count = Arc::new(CountWakes(AtomicUsize::new(0)));
    (Waker::from(Arc::clone(&count)), move || count.0.load(Ordering::Relaxed))
}

fn config(id: u64) -> ReplicationConfig {
    ReplicationConfig {
        origin: BrokerId(id),
        log: LogId(100 + id),
        lanes_per_class: LANES_PER_CLASS,
        ring_blocks: RING_BLOCKS,
        ring_bytes: 1 << 20,
        ring_age: Duration::from_secs(60),
        slows_publishers: true,
        hop_max: 255,
        message_bytes_max: 1_000,
    }
}

struct Broker {
    replication: Arc<Replication>,
    batch: LocalBatch,
    inbox: Inbox,
}

impl Broker {
    fn new(id: u64, now: Instant) -> Self {
        Self::with(id, now, |_| {})
    }

    fn with(id: u64, now: Instant, change: impl FnOnce(&mut ReplicationConfig)) -> Self {
        let mut config = config(id);
        change(&mut config);
        Self { replication: Replication::new(config, now), batch: LocalBatch::new(), inbox: Inbox::default() }
    }

    fn publish(&mut self, payload: &str, qos: QoS, expiry_seconds: Option<u32>, now: Instant) {
        let payload = payload.as_bytes();
        let message = MeshMessage {
            topic: "t",
            payload,
            qos,
            retain: false,
            expiry_seconds,
            properties: &[],
            stamp: None,
            picks: Default::default(),
        };
        self.batch.push(&self.replication, &message);
        self.replication.publish(&mut self.batch, &mut Writes::default(), now);
    }

    fn publish_all(&mut self, payloads: &[&str], now: Instant) {
        payloads.iter().for_each(|payload| self.publish(payload, QoS::AtLeastOnce, None, now));
    }

    fn got(&self) -> Vec<&str> {
        self.inbox.got.iter().map(|(payload, _)| payload.as_str()).collect()
    }

    fn counters(&self) -> &Counters {
        self.replication.counters()
    }
}

/// One end of a link.
struct End {
    port: Arc<Port>,
    receivers: Vec<LaneReceiver>,
}

impl End {
    fn new(broker: &Broker, peer: u64, generation: u64) -> Self {
        let port = broker.replication.add_port(PortId { peer: BrokerId(peer), generation });
        let receivers = port.lanes().iter().map(LaneReceiver::new).collect();
        Self { port, receivers }
    }

    /// Everything that the lane's writer would write now, and the CLOSEs in it.
    fn take(&self, lane: usize, now: Instant) -> (Vec<u8>, Vec<OpenNumber>) {
        let (mut out, mut closed): (Vec<Bytes>, _) = (Vec::new(), Vec::new());
        while let Poll::Ready(batch) = self.port.lanes()[lane].poll(&mut Context::from_waker(Waker::noop()), now, 50, &mut out) {
            assert!(batch.bytes <= 50);
            closed.extend(batch.closed);
        }
        (out.concat(), closed)
    }
}

/// Lets everything flow from one end to the other. Says what the lanes told the tree there.
fn flow(from: &End, to: &mut End, broker: &mut Broker, now: Instant) -> Result<Vec<LaneEvent>, LaneError> {
    let mut events = Vec::new();
    for (lane, receiver) in to.receivers.iter_mut().enumerate() {
        receiver.receive(&from.take(lane, now).0, now, &mut broker.inbox, &mut events)?;
    }
    Ok(events)
}

fn mark(count: u64, child: u64) -> OpenMark {
    let incarnation = Incarnation(1);
    let root = RootClaim { priority: 0, capacity: 0, id: BrokerId(9), incarnation };
    OpenMark { tree: TreeId { epoch: 1, root }, number: OpenNumber { count, child: BrokerId(child), incarnation } }
}

/// A child and its parent.
struct Pair {
    child: Broker,
    parent: Broker,
    up: End,
    down: End,
    count: u64,
}

impl Pair {
    fn new(child: Broker, parent: Broker) -> Self {
        let (up, down) = (End::new(&child, 2, 1), End::new(&parent, 1, 1));
        Self { child, parent, up, down, count: 0 }
    }

    fn open(&mut self, now: Instant) -> OpenMark {
        self.count += 1;
        let mark = mark(self.count, 1);
        let every_lane = usize::from(2 * LANES_PER_CLASS);
        self.up.port.open(&mark, now);
        assert_eq!(self.flow_up(now), Ok(vec![LaneEvent::OpenReceived(mark); every_lane]));
        self.down.port.answer(&mark, now);
        assert_eq!(self.flow_down(now), Ok(vec![LaneEvent::OpenReceived(mark); every_lane]));
        mark
    }

    fn flow_up(&mut self, now: Instant) -> Result<Vec<LaneEvent>, LaneError> {
        flow(&self.up, &mut self.down, &mut self.parent, now)
    }

    fn flow_down(&mut self, now: Instant) -> Result<Vec<LaneEvent>, LaneError> {
        flow(&self.down, &mut self.up, &mut self.child, now)
    }
}

#[expect(clippy::disallowed_methods, reason = "a test's time has to begin somewhere")]
fn start() -> Instant {
    Instant::now()
}

/// Nobody is new any more.
fn later(now: Instant) -> Instant {
    now + NEWCOMER_TIME
}

#[test]
fn lanes_keep_topics_and_classes_apart() {
    let broker = Broker::new(1, start());
    let lane = |topic: &str, qos| broker.replication.lane_for(topic, qos).0;
    let used: std::collections::BTreeSet<_> = (0..50).map(|n| lane(&format!("topic/{n}"), QoS::AtMostOnce)).collect();
    assert_eq!(used.into_iter().collect::<Vec<_>>(), [0, 1]);
    assert_eq!(lane("t", QoS::AtLeastOnce), lane("t", QoS::AtMostOnce) + LANES_PER_CLASS);
    assert_eq!(lane("t", QoS::AtLeastOnce), lane("t", QoS::ExactlyOnce));
}

#[test]
fn what_is_published_arrives_once_and_is_not_echoed() {
    let now = start();
    let mut pair = Pair::new(Broker::new(1, now), Broker::new(2, now));
    pair.open(now);
    pair.child.publish_all(&["a", "b"], now);
    pair.parent.publish("c", QoS::AtMostOnce, None, now);
    assert_eq!((pair.flow_up(now), pair.flow_down(now)), (Ok(vec![]), Ok(vec![])));
    assert_eq!((pair.parent.got(), pair.child.got()), (vec!["a", "b"], vec!["c"]));
    assert_eq!((pair.parent.inbox.flushes, pair.child.inbox.flushes), (1, 1));
    for lane in 0..usize::from(2 * LANES_PER_CLASS) {
        assert!(pair.up.take(lane, now).0.is_empty() && pair.down.take(lane, now).0.is_empty());
    }
    assert_eq!(pair.child.counters().messages_published.value(), 2);
    assert_eq!(pair.parent.counters().messages_received.value(), 2);
    assert_eq!(pair.parent.counters().messages_duplicate.value(), 0);
}

#[test]
fn a_lane_carries_data_only_between_open_and_close() {
    let now = start();
    let mut pair = Pair::new(Broker::new(1, now), Broker::new(2, now));
    pair.child.publish_all(&["a"], now);
    assert!((0..4).all(|lane| pair.up.take(lane, now).0.is_empty()), "nothing is sent before the agreement");
    let mark = pair.open(now);
    assert_eq!((pair.flow_up(now), pair.parent.got()), (Ok(vec![]), vec!["a"]));

    pair.child.publish_all(&["b"], now);
    pair.up.port.close(&mark.number);
    let lane = pair.child.replication.lane_for("t", QoS::AtLeastOnce).index();
    let (bytes, closed) = pair.up.take(lane, now);
    assert_eq!(closed, [mark.number], "confirmed, once, by the lane that has written it");
    let mut close = Vec::new();
    lane::put_close(&mut close, &mark.number);
    assert_eq!(bytes, close, "what was not sent before stays unsent");
    let mut events = Vec::new();
    pair.down.receivers[lane].receive(&bytes, now, &mut pair.parent.inbox, &mut events).unwrap();
    assert_eq!(events, [LaneEvent::CloseReceived(mark.number)]);

    // The parent may go on until it is told.
    let mut data = Vec::new();
    let body = [0, 1, 1, b't', 1, b'x'];
    lane::put_origin(&mut data, 7, BrokerId(5), LogId(5));
    lane::put_messages_head(&mut data, &Block { alias: 7, prev: 0, hops: 1, age_ms: 0, first: 1, body: &body });
    data.extend_from_slice(&body);
    pair.down.receivers[lane].receive(&data, now, &mut pair.parent.inbox, &mut events).unwrap();
    assert_eq!((pair.parent.got(), pair.parent.counters().blocks_closed.value()), (vec!["a"], 1));

    pair.flow_up(now).unwrap();
    pair.open(now);
    assert_eq!((pair.flow_up(now), pair.parent.got()), (Ok(vec![]), vec!["a", "b"]), "it starts where the parent is");
}

#[test]
fn an_open_is_repeated_as_it_was() {
    let now = start();
    let mut pair = Pair::new(Broker::new(1, now), Broker::new(2, now));
    let mark = mark(1, 1);
    pair.up.port.open(&mark, now);
    let (first, _) = pair.up.take(2, now);
    pair.child.publish_all(&["a"], now);
    pair.up.port.open(&mark, later(now));
    let (again, _) = pair.up.take(2, later(now));
    assert_eq!(first, again, "though the child is no longer new, and its covers have grown");
    let mut events = Vec::new();
    for bytes in [&first, &again] {
        pair.down.receivers[2].receive(bytes, now, &mut pair.parent.inbox, &mut events).unwrap();
    }
    assert_eq!(events, [LaneEvent::OpenReceived(mark); 2]);
    pair.down.port.answer(&mark, now);
    assert!(!pair.down.take(2, now).0.is_empty());
    assert!(pair.down.take(3, now).0.is_empty(), "a lane in which the question has not come waits for it");
    pair.down.port.answer(&mark, now);
    assert!(pair.down.take(2, now).0.is_empty(), "answered once");
}

#[test]
fn a_newcomer_takes_over_covers_and_is_owed_nothing_from_before() {
    let now = start();
    let old = later(now);
    for newcomer_asks in [true, false] {
        let (mut child, mut parent) = (Broker::new(1, now), Broker::new(2, old));
        if newcomer_asks {
            (child, parent) = (Broker::new(1, old), Broker::new(2, now));
        }
        parent.publish_all(&["p1"], now);
        child.publish_all(&["c1"], now);
        let mut pair = Pair::new(child, parent);
        pair.open(old);
        pair.parent.publish_all(&["p2"], old);
        pair.child.publish_all(&["c2"], old);
        assert_eq!((pair.flow_up(old), pair.flow_down(old)), (Ok(vec![]), Ok(vec![])));
        let expected = if newcomer_asks { (vec!["c1", "c2"], vec!["p2"]) } else { (vec!["c2"], vec!["p1", "p2"]) };
        assert_eq!((pair.parent.got(), pair.child.got()), expected, "newcomer asks: {newcomer_asks}");
        assert_eq!(pair.child.counters().gaps_received.value() + pair.parent.counters().gaps_received.value(), 0);
    }
}

/// A broker in the middle of a line restarts, and its neighbour on one side is back before the one on the other side.
#[test]
fn a_newcomer_passes_on_what_it_is_not_owed_itself() {
    let before = start();
    let now = later(before);
    for newcomer_asks in [true, false] {
        let (mut origin, newcomer) = (Broker::new(2, before), Broker::new(1, now));
        origin.publish_all(&["a", "b"], before);
        origin.publish_all(&["c"], now);
        let mut pair = if newcomer_asks { Pair::new(newcomer, origin) } else { Pair::new(origin, newcomer) };
        pair.open(now);
        pair.flow_down(now).unwrap();
        pair.flow_up(now).unwrap();
        let Pair { child, parent, .. } = pair;
        let mut newcomer = if newcomer_asks { child } else { parent };
        assert_eq!(newcomer.got(), ["c"], "what was published before it started is owed to none of its subscribers");

        let (mut third, mut port) = (Broker::new(3, before), End::new(&newcomer, 3, 2));
        let mut end = End::new(&third, 1, 1);
        let mark = mark(1, 3);
        end.port.open(&mark, now);
        flow(&end, &mut port, &mut newcomer, now).unwrap();
        port.port.answer(&mark, now);
        flow(&port, &mut end, &mut third, now).unwrap();
        assert_eq!((third.got(), third.counters().gaps_received.value()), (vec!["a", "b", "c"], 0), "{newcomer_asks}");
    }
}

/// A host that was suspended makes its broker seem younger than it is. What was published after something that was delivered is delivered.
#[test]
fn what_was_published_before_the_start_ends_with_the_first_delivery() {
    let now = start();
    let mut pair = Pair::new(Broker::new(1, now), Broker::new(2, now));
    pair.open(later(now));
    let older_than_the_broker = NEWCOMER_TIME.as_millis() as u64 + 1;
    for (age_ms, payload) in [(older_than_the_broker, b'a'), (older_than_the_broker - 1, b'b'), (older_than_the_broker, b'c')] {
        let first = u64::from(payload);
        let (mut bytes, body) = (Vec::new(), [0, 1, 1, b't', 1, payload]);
        lane::put_origin(&mut bytes, 0, BrokerId(5), LogId(1));
        lane::put_messages_head(&mut bytes, &Block { alias: 0, prev: 0, hops: 1, age_ms, first, body: &body });
        bytes.extend_from_slice(&body);
        pair.down.receivers[2].receive(&bytes, later(now), &mut pair.parent.inbox, &mut Vec::new()).unwrap();
    }
    assert_eq!(pair.parent.got(), ["b", "c"]);
}

/// Who bursts and falls silent costs nothing when the ring has gone on.
#[test]
fn where_blocks_are_is_forgotten_with_them() {
    let now = start();
    let mut pair = Pair::new(Broker::new(1, now), Broker::new(2, now));
    pair.open(now);
    (0..RING_BLOCKS).for_each(|_| pair.child.publish_all(&["x"], now));
    pair.flow_up(now).unwrap();
    let lane = pair.child.replication.lane_for("t", QoS::AtLeastOnce);
    let stream = pair.parent.replication.lane(lane).unwrap().known_stream(&(BrokerId(1), LogId(101))).unwrap();
    pair.parent.replication.trim(now);
    assert!(stream.position_of(1 << 8).is_some(), "it is in the ring");
    (0..RING_BLOCKS / 2).for_each(|_| pair.parent.publish_all(&["of another"], now));
    assert_eq!(stream.position_of(1 << 8), Some(1), "not yet");
    pair.parent.replication.trim(now);
    assert_eq!(stream.position_of(1 << 8), Some(1 + RING_BLOCKS as u64 / 2), "the oldest that is there");
    pair.parent.replication.trim(now + Duration::from_secs(61));
    assert_eq!(stream.position_of(1 << 8), None);
}

#[test]
fn two_newcomers_and_two_founders_have_everything_of_each_other() {
    let now = start();
    for opened in [now, later(now)] {
        let mut pair = Pair::new(Broker::new(1, now), Broker::new(2, now));
        pair.parent.publish_all(&["p"], now);
        pair.child.publish_all(&["c"], now);
        pair.open(opened);
        assert_eq!((pair.flow_up(opened), pair.flow_down(opened)), (Ok(vec![]), Ok(vec![])));
        assert_eq!((pair.parent.got(), pair.child.got()), (vec!["c"], vec!["p"]));
    }
}

#[test]
fn what_the_ring_no_longer_reaches_is_a_gap_counted_at_both_ends() {
    let now = start();
    let mut pair = Pair::new(Broker::new(1, now), Broker::new(2, now));
    let payloads: Vec<_> = (0..RING_BLOCKS + 3).map(|n| n.to_string()).collect();
    pair.child.publish_all(&payloads.iter().map(String::as_str).collect::<Vec<_>>(), now);
    pair.open(later(now));
    pair.flow_up(later(now)).unwrap();
    assert_eq!(pair.parent.got(), payloads[3..]);
    assert_eq!((pair.child.counters().gaps_sent.value(), pair.parent.counters().gaps_received.value()), (1, 1));

    // It is passed on as one: whoever hears it from the parent has lost the same.
    let (mut third, mut port) = (Broker::new(3, now), End::new(&pair.parent, 3, 2));
    let mut end = End::new(&third, 2, 1);
    let mark = mark(1, 3);
    end.port.open(&mark, later(now));
    flow(&end, &mut port, &mut pair.parent, later(now)).unwrap();
    port.port.answer(&mark, later(now));
    flow(&port, &mut end, &mut third, later(now)).unwrap();
    // But where it comes from is asked before.
    assert_eq!(third.got(), [""; 0]);
    pair.flow_down(later(now)).unwrap();
    pair.flow_up(later(now)).unwrap();
    flow(&port, &mut end, &mut third, later(now)).unwrap();
    assert_eq!((third.got(), third.counters().gaps_received.value()), (pair.parent.got(), 1));
}

#[test]
fn a_cursor_that_the_ring_overtakes_skips_qos_0_and_tells_a_gap_else() {
    let now = start();
    for (qos, gaps, laps) in [(QoS::AtMostOnce, 0, 1), (QoS::ExactlyOnce, 1, 0)] {
        let mut pair = Pair::new(Broker::new(1, now), Broker::new(2, later(now)));
        pair.open(later(now));
        let payloads: Vec<_> = (0..RING_BLOCKS + 5).map(|n| n.to_string()).collect();
        payloads.iter().for_each(|payload| pair.child.publish(payload, qos, None, later(now)));
        pair.flow_up(later(now)).unwrap();
        assert_eq!(pair.parent.got(), payloads[5..], "{qos:?}");
        let counted = (pair.parent.counters().covers_adopted.value(), pair.child.counters().laps.value());
        assert_eq!((pair.child.counters().gaps_sent.value(), counted.1), (gaps, laps), "{qos:?}");
    }
}

#[test]
fn acknowledgements_wait_while_a_live_cursor_lags_by_half_its_ring() {
    let now = start();
    let mut pair = Pair::new(Broker::new(1, now), Broker::new(2, now));
    let woken = Arc::new(CountWakes(AtomicUsize::new(0)));
    let waker = Waker::from(Arc::clone(&woken));
    let waiter = pair.child.replication.waiter();
    let poll = || waiter.poll(&mut Context::from_waker(&waker));
    let fill = |broker: &mut Broker, qos| (0..RING_BLOCKS / 2 + 1).for_each(|_| broker.publish("x", qos, None, now));
    fill(&mut pair.child, QoS::AtLeastOnce);
    assert_eq!(poll(), Poll::Ready(()), "a dead link slows nobody");
    pair.open(now);
    pair.flow_up(now).unwrap();
    fill(&mut pair.child, QoS::AtMostOnce);
    assert!(!pair.child.replication.lagging(), "QoS 0 waits for nobody");
    fill(&mut pair.child, QoS::AtLeastOnce);
    assert_eq!(poll(), Poll::Pending);
    assert_eq!(woken.0.load(Ordering::Relaxed), 0);
    pair.flow_up(now).unwrap();
    assert_eq!((woken.0.load(Ordering::Relaxed), poll()), (1, Poll::Ready(())));

    fill(&mut pair.child, QoS::AtLeastOnce);
    assert_eq!(poll(), Poll::Pending);
    pair.up = End::new(&pair.child, 2, 2);
    assert_eq!((woken.0.load(Ordering::Relaxed), poll()), (2, Poll::Ready(())), "the link is gone");

    let large = "x".repeat(900);
    pair.down = End::new(&pair.parent, 1, 2);
    pair.open(now);
    pair.flow_up(now).unwrap();
    let mut small = Broker::with(1, now, |config| config.ring_bytes = 20_000);
    std::mem::swap(&mut pair.child, &mut small);
    pair = Pair::new(pair.child, pair.parent);
    pair.open(now);
    (0..4).for_each(|_| pair.child.publish(&large, QoS::AtLeastOnce, None, now));
    assert!(!pair.child.replication.lagging());
    (0..2).for_each(|_| pair.child.publish(&large, QoS::AtLeastOnce, None, now));
    assert!(pair.child.replication.lagging(), "half its bytes");
}

#[test]
fn a_reader_waits_where_the_ring_is_about_to_overtake_another_port() {
    let now = start();
    let mut pair = Pair::new(Broker::new(1, now), Broker::new(2, now));
    pair.open(now);
    let (mut third, mut port) = (Broker::new(3, now), End::new(&pair.parent, 3, 2));
    let mut end = End::new(&third, 2, 1);
    let mark = mark(1, 3);
    end.port.open(&mark, now);
    flow(&end, &mut port, &mut pair.parent, now).unwrap();
    port.port.answer(&mark, now);
    flow(&port, &mut end, &mut third, now).unwrap();

    let lane = pair.child.replication.lane_for("t", QoS::AtLeastOnce).index();
    let woken = Arc::new(CountWakes(AtomicUsize::new(0)));
    let waker = Waker::from(Arc::clone(&woken));
    let poll = |end: &End| end.port.lanes()[lane].poll_others(&mut Context::from_waker(&waker));
    let fill = |pair: &mut Pair, qos, blocks| {
        (0..blocks).for_each(|_| pair.child.publish("x", qos, None, now));
        pair.flow_up(now).unwrap();
    };
    fill(&mut pair, QoS::AtLeastOnce, RING_BLOCKS / 2);
    fill(&mut pair, QoS::AtLeastOnce, RING_BLOCKS / 4);
    assert_eq!((pair.parent.replication.lagging(), poll(&pair.down)), (true, Poll::Ready(())), "publishers here wait first");
    fill(&mut pair, QoS::AtLeastOnce, 1);
    assert_eq!((poll(&pair.down), poll(&port)), (Poll::Pending, Poll::Pending), "both others lag");
    pair.down.take(lane, now);
    assert_eq!((woken.0.load(Ordering::Relaxed), poll(&pair.down), poll(&port)), (2, Poll::Pending, Poll::Ready(())));
    flow(&port, &mut end, &mut third, now).unwrap();
    assert_eq!((woken.0.load(Ordering::Relaxed), poll(&pair.down)), (3, Poll::Ready(())));
    assert_eq!((third.got().len(), third.counters().gaps_received.value()), (RING_BLOCKS / 4 * 3 + 1, 0));

    fill(&mut pair, QoS::AtMostOnce, RING_BLOCKS);
    assert_eq!(
        pair.down.port.lanes()[0].poll_others(&mut Context::from_waker(&waker)),
        Poll::Ready(()),
        "QoS 0 is dropped instead"
    );
    fill(&mut pair, QoS::AtLeastOnce, RING_BLOCKS / 4 * 3 + 1);
    assert_eq!(poll(&pair.down), Poll::Pending);
    drop(port);
    assert_eq!((woken.0.load(Ordering::Relaxed), poll(&pair.down)), (4, Poll::Ready(())), "the link is gone");
}

/// `replay_log_full = "drop"`: in place of publishers and readers it is the slow link that pays.
#[test]
fn where_the_log_drops_nobody_waits_and_who_lags_is_told_what_it_lost() {
    let begin = start();
    let drops = |id| Broker::with(id, begin, |config| config.slows_publishers = false);
    let now = later(begin);
    let mut pair = Pair::new(drops(1), drops(2));
    pair.open(now);
    let (mut third, mut port) = (drops(3), End::new(&pair.parent, 3, 2));
    let mut end = End::new(&third, 2, 1);
    let mark = mark(1, 3);
    end.port.open(&mark, now);
    flow(&end, &mut port, &mut pair.parent, now).unwrap();
    port.port.answer(&mark, now);
    flow(&port, &mut end, &mut third, now).unwrap();

    let lane = pair.child.replication.lane_for("t", QoS::AtLeastOnce).index();
    let waiter = pair.child.replication.waiter();
    let mut context = Context::from_waker(Waker::noop());
    let payloads: Vec<_> = (0..2 * RING_BLOCKS).map(|n| n.to_string()).collect();
    for payload in &payloads[..RING_BLOCKS + 3] {
        pair.child.publish(payload, QoS::AtLeastOnce, None, now);
        assert_eq!((pair.child.replication.lagging(), waiter.poll(&mut context)), (false, Poll::Ready(())), "{payload}");
    }
    pair.flow_up(now).unwrap();
    let gaps = |broker: &Broker| (broker.counters().gaps_sent.value(), broker.counters().gaps_received.value());
    assert_eq!(pair.parent.got(), payloads[3..RING_BLOCKS + 3], "the oldest are gone");
    assert_eq!((gaps(&pair.child), gaps(&pair.parent)), ((1, 0), (0, 1)));

    // One that keeps up reads on, whoever else lags.
    for payload in &payloads[RING_BLOCKS + 3..] {
        pair.child.publish(payload, QoS::AtLeastOnce, None, now);
        pair.flow_up(now).unwrap();
        assert_eq!(pair.down.port.lanes()[lane].poll_others(&mut context), Poll::Ready(()), "{payload}");
    }
    assert_eq!((pair.parent.got().last().copied(), gaps(&pair.parent)), (payloads.last().map(String::as_str), (0, 1)));
    flow(&port, &mut end, &mut third, now).unwrap();
    for _ in 0..3 {
        pair.flow_down(now).unwrap();
        pair.flow_up(now).unwrap();
        flow(&port, &mut end, &mut third, now).unwrap();
        flow(&end, &mut port, &mut pair.parent, now).unwrap();
    }
    assert_eq!(third.got(), payloads[RING_BLOCKS..], "as many as a ring holds");
    assert_eq!((gaps(&pair.parent).0, gaps(&third).1), (1, 1));
}

#[test]
fn a_lane_writer_is_woken_once_for_what_it_has_not_seen() {
    let now = start();
    let mut pair = Pair::new(Broker::new(1, now), Broker::new(2, now));
    pair.open(now);
    let woken = Arc::new(CountWakes(AtomicUsize::new(0)));
    let waker = Waker::from(Arc::clone(&woken));
    let lane = Arc::clone(&pair.up.port.lanes()[pair.child.replication.lane_for("t", QoS::AtMostOnce).index()]);
    let mut out = Vec::new();
    assert_eq!(lane.poll(&mut Context::from_waker(&waker), now, 1_000, &mut out), Poll::Pending);
    pair.child.publish("a", QoS::AtLeastOnce, None, now);
    assert_eq!(woken.0.load(Ordering::Relaxed), 0, "another lane");
    pair.child.publish("b", QoS::AtMostOnce, None, now);
    pair.child.publish("c", QoS::AtMostOnce, None, now);
    assert_eq!(woken.0.load(Ordering::Relaxed), 1);
    assert!(lane.poll(&mut Context::from_waker(&waker), now, 1_000, &mut out).is_ready());
    pair.child.publish("d", QoS::AtMostOnce, None, now);
    assert_eq!(woken.0.load(Ordering::Relaxed), 1, "it is awake");
}

#[test]
fn a_message_gets_older_on_its_way() {
    let now = start();
    let mut pair = Pair::new(Broker::new(1, now), Broker::new(2, now));
    pair.child.publish("short", QoS::AtLeastOnce, Some(3), now);
    pair.child.publish("long", QoS::AtLeastOnce, Some(10), now);
    pair.child.publish("forever", QoS::AtLeastOnce, None, now);
    let then = now + Duration::from_millis(3_500);
    pair.open(then);
    pair.flow_up(then).unwrap();
    assert_eq!(pair.parent.inbox.got, [("long".to_owned(), Some(7)), ("forever".to_owned(), None)]);
    assert_eq!(pair.parent.counters().messages_expired.value(), 1);
}

#[test]
fn what_is_too_old_is_trimmed_or_told_as_lost() {
    let now = start();
    let then = now + Duration::from_secs(61);
    for trimmed in [false, true] {
        let mut pair = Pair::new(Broker::new(1, now), Broker::new(2, now));
        pair.child.publish_all(&["old"], now);
        pair.child.publish_all(&["new"], then);
        if trimmed {
            let before = pair.child.replication.ring_bytes();
            pair.child.replication.trim(then);
            assert_eq!(pair.child.replication.ring_bytes() * 2, before);
        }
        pair.open(then);
        pair.flow_up(then).unwrap();
        assert_eq!((pair.parent.got(), pair.parent.counters().gaps_received.value()), (vec!["new"], 1));
        assert_eq!(pair.child.counters().blocks_aged.value(), u64::from(!trimmed));
    }
}

#[test]
fn a_block_goes_over_so_many_links_and_no_further() {
    let now = later(start());
    let mut pair = Pair::new(Broker::new(1, now), Broker::with(2, now, |config| config.hop_max = 1));
    pair.open(now);
    pair.child.publish_all(&["a"], now);
    pair.flow_up(now).unwrap();
    assert_eq!(pair.parent.got(), ["a"]);
    let (mut third, mut port) = (Broker::new(3, now), End::new(&pair.parent, 3, 2));
    let mut end = End::new(&third, 2, 1);
    let mark = mark(1, 3);
    end.port.open(&mark, now);
    flow(&end, &mut port, &mut pair.parent, now).unwrap();
    port.port.answer(&mark, now);
    flow(&port, &mut end, &mut third, now).unwrap();
    assert!(third.got().is_empty());
    assert_eq!(pair.parent.counters().blocks_hop_limited.value(), 1);
}

#[test]
fn a_large_message_has_a_block_of_its_own_and_travels_in_pieces() {
    let now = start();
    let mut pair = Pair::new(
        Broker::with(1, now, |config| config.message_bytes_max = 100_000),
        Broker::with(2, now, |config| config.message_bytes_max = 100_000),
    );
    pair.open(now);
    let large = "y".repeat(90_000);
    let small = MeshMessage {
        topic: "t",
        payload: b"x",
        qos: QoS::AtLeastOnce,
        retain: true,
        expiry_seconds: None,
        properties: &[],
        stamp: None,
        picks: Default::default(),
    };
    let Broker { batch, replication, .. } = &mut pair.child;
    (0..300).for_each(|_| batch.push(replication, &small));
    batch.push(replication, &MeshMessage { payload: large.as_bytes(), ..small });
    batch.push(replication, &MeshMessage { topic: "u", ..small });
    replication.publish(batch, &mut Writes::default(), now);
    pair.flow_up(now).unwrap();
    let mut expected = vec!["x"; 302];
    let place = pair.parent.got().iter().position(|payload| payload.len() == 90_000).unwrap();
    expected[place] = &large;
    assert_eq!(pair.parent.got(), expected);
    assert!(pair.child.counters().blocks_sent.value() >= 4, "256, 44, the large one, the last");
}

#[test]
fn what_a_peer_may_not_send_closes_the_link() {
    let now = start();
    let block = |prev, first, body: &[u8]| {
        let mut out = Vec::new();
        lane::put_origin(&mut out, 0, BrokerId(5), LogId(5));
        lane::put_messages_head(&mut out, &Block { alias: 0, prev, hops: 1, age_ms: 0, first, body });
        out.extend_from_slice(body);
        out
    };
    let gap = |alias, from| {
        let mut out = Vec::new();
        lane::put_origin(&mut out, 0, BrokerId(5), LogId(5));
        lane::put_gap(&mut out, alias, from, 100);
        out
    };
    let answer = |first, to, body: &[u8]| {
        let mut out = Vec::new();
        lane::put_origin(&mut out, 0, BrokerId(5), LogId(5));
        let block = Block { alias: 0, prev: 4, hops: 1, age_ms: 0, first, body };
        lane::put_filled_head(&mut out, &lane::Filled { to, is_last: true, block });
        out.extend_from_slice(body);
        out
    };
    let outside = |first, to| LaneError::OutsideRange { first, last: first, from: 4, to };
    let hole = |prev| LaneError::Hole { origin: BrokerId(5), prev, cover: 0 };
    let good = [0, 1, 1, b't', 0];
    for (bytes, expected) in [
        (block(0, 1, &good), Ok(())),
        (gap(0, 0), Ok(())),
        (block(5, 6, &good), Err(hole(5))),
        (gap(0, 5), Err(hole(5))),
        (gap(1, 0), Err(LaneError::UnknownAlias(1))),
        (answer(5, 6, &good), Ok(())),
        (answer(5, 6, &[]), Ok(())),
        (answer(4, 6, &good), Err(outside(4, 6))),
        (answer(7, 6, &good), Err(outside(7, 6))),
        (block(0, 1, &[]), Err(LaneError::EmptyBlock)),
        (block(0, 1, &[0, 0, 1, b't', 0]), Err(LaneError::WrongClass(QoS::AtMostOnce))),
        (block(0, 1, &good[..4]), Err(LaneError::Frame(FrameError::Truncated("payload")))),
        (block(0, 1, &[0, 0x11, 1, b't', 2, 1, 1, 0]), Ok(())),
        (block(0, 1, &[0, 0x11, 1, b't', 1, 1, 0]), Err(LaneError::Properties(DecodeError::Truncated { wanted: 1, left: 0 }))),
        (vec![3, 2, 0, 0], Err(LaneError::StrayCovers)),
        (
            vec![5, 0xff, 0xff, 0x04],
            Err(LaneError::Frame(FrameError::TooLong { bytes: 81_919, bytes_max: OPEN_COVERS_FRAME_BYTES_MAX })),
        ),
    ] {
        let mut pair = Pair::new(Broker::new(1, now), Broker::new(2, now));
        let mut events = Vec::new();
        let receiver = &mut pair.down.receivers[2];
        let early = receiver.receive(&block(0, 1, &good), now, &mut pair.parent.inbox, &mut events);
        assert_eq!(early, Err(LaneError::NeverOpened));
        pair.down.receivers[2] = LaneReceiver::new(&pair.down.port.lanes()[2]);
        pair.open(now);
        let receiver = &mut pair.down.receivers[2];
        assert_eq!(receiver.receive(&bytes, now, &mut pair.parent.inbox, &mut events), expected, "{bytes:02x?}");
    }
}

#[test]
fn a_close_needs_no_credit_and_waits_for_one_block_at_most() {
    let now = start();
    let lane = Broker::new(1, now).replication.lane_for("t", QoS::AtLeastOnce).index();
    // However far the block of before has gone; with the largest messages more may be left of it than goes without credit.
    for (cut, size, fits) in [(1, 100, true), (20, 100, true), (90, 100, true), (50, 900, false)] {
        let mut pair = Pair::new(Broker::new(1, now), Broker::new(2, now));
        let mark = pair.open(now);
        let payloads: Vec<String> = (0..20).map(|n| format!("{n:0>size$}")).collect();
        pair.child.publish_all(&payloads.iter().map(String::as_str).collect::<Vec<_>>(), now);
        let mut out = Vec::new();
        let port_lane = Arc::clone(&pair.up.port.lanes()[lane]);
        assert!(port_lane.poll(&mut Context::from_waker(Waker::noop()), now, cut, &mut out).is_ready());
        assert_eq!(port_lane.take_close(500, &mut out), None, "nobody has closed");
        pair.up.port.close(&mark.number);
        let closed = port_lane.take_close(500, &mut out).and_then(|batch| batch.closed);
        assert_eq!(closed, fits.then_some(mark.number));
        assert_eq!(port_lane.take_close(500, &mut out), None, "once");
        let mut events = Vec::new();
        let received = pair.down.receivers[lane].receive(&out.concat(), now, &mut pair.parent.inbox, &mut events);
        assert_eq!(received, Ok(()));
        assert_eq!(events, fits.then_some(LaneEvent::CloseReceived(mark.number)).into_iter().collect::<Vec<_>>());
        assert!(pair.parent.got().len() <= 2);
        // What was left goes with the next agreement.
        pair.flow_up(now).unwrap();
        pair.down.port.close(&mark.number);
        pair.flow_down(now).unwrap();
        pair.open(now);
        pair.flow_up(now).unwrap();
        assert_eq!(pair.parent.got(), payloads);
    }
}

/// A newcomer asks, takes its question back and asks anew. Meanwhile the parent has answered the first question.
#[test]
fn an_answer_to_a_voided_question_does_no_harm() {
    let now = start();
    let mut pair = Pair::new(Broker::new(1, now), Broker::new(2, now));
    pair.parent.publish_all(&["before"], now);
    let (first, second) = (mark(1, 1), mark(2, 1));
    pair.up.port.open(&first, now);
    let asked = pair.flow_up(later(now)).unwrap().len();
    pair.up.port.close(&first.number);
    pair.up.port.open(&second, later(now));
    pair.down.port.answer(&first, later(now));
    pair.parent.publish_all(&["between"], later(now));
    assert_eq!(pair.flow_down(later(now)).unwrap().len(), asked);
    assert_eq!(pair.child.got(), ["before", "between"]);
    pair.flow_up(later(now)).unwrap();
    pair.down.port.close(&first.number);
    pair.down.port.answer(&second, later(now));
    pair.flow_down(later(now)).unwrap();
    assert_eq!(pair.child.got(), ["before", "between"]);
    assert_eq!(pair.child.counters().gaps_received.value(), 0);
}

#[test]
fn holes_of_qos_0_are_natural() {
    let now = start();
    let mut pair = Pair::new(Broker::new(1, now), Broker::new(2, now));
    pair.open(now);
    let body = [0, 0, 1, b't', 1, b'x'];
    let mut bytes = Vec::new();
    lane::put_origin(&mut bytes, 0, BrokerId(5), LogId(5));
    lane::put_messages_head(&mut bytes, &Block { alias: 0, prev: 50, hops: 1, age_ms: 0, first: 60, body: &body });
    bytes.extend_from_slice(&body);
    pair.down.receivers[0].receive(&bytes, now, &mut pair.parent.inbox, &mut Vec::new()).unwrap();
    assert_eq!(pair.parent.got(), ["x"]);
}

/// A broker was restarted behind a cut: what was left over of its earlier life comes behind what it says now.
#[test]
fn what_is_left_of_an_earlier_life_is_dropped_at_qos_0_and_owed_else() {
    let now = start();
    let mut pair = Pair::new(Broker::new(1, now), Broker::new(2, now));
    pair.open(now);
    let mut say = |(origin, log): (u64, u64), first: u64, qos: QoS| {
        let payload = format!("{log}-{first}");
        let (mut body, mut bytes) = (Vec::new(), Vec::new());
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
        lane::put_message(&mut body, 0, &message, false);
        lane::put_origin(&mut bytes, 0, BrokerId(origin), LogId(log));
        lane::put_messages_head(&mut bytes, &Block { alias: 0, prev: first - 1, hops: 1, age_ms: 0, first, body: &body });
        bytes.extend_from_slice(&body);
        let lane = if qos == QoS::AtMostOnce { 0 } else { usize::from(LANES_PER_CLASS) };
        pair.down.receivers[lane].receive(&bytes, now, &mut pair.parent.inbox, &mut Vec::new()).unwrap();
    };
    for qos in [QoS::AtMostOnce, QoS::AtLeastOnce] {
        say((5, 7), 1, qos);
        say((5, 6), 1, qos);
    }
    pair.parent.replication.log_begun(BrokerId(5), LogId(6));
    for qos in [QoS::AtMostOnce, QoS::AtLeastOnce] {
        say((5, 7), 2, qos);
        say((5, 6), 2, qos);
        // Its own.
        say((2, 9), 1, qos);
    }
    assert_eq!(pair.parent.got(), ["7-1", "6-1", "7-1", "6-1", "6-2", "7-2", "6-2", "9-1"]);
    assert_eq!(pair.parent.counters().messages_outlived.value(), 2);
    let ring = &pair.parent.replication.lane(LaneId(0)).unwrap().ring;
    assert_eq!(ring.next() - ring.tail(), 3, "nor is it passed on");
}

/// A block that overlaps what is known: the sender cuts nothing, the receiver takes what is new.
#[test]
fn of_a_block_only_what_is_new_is_taken() {
    let now = start();
    let mut pair = Pair::new(Broker::new(1, now), Broker::new(2, now));
    pair.open(now);
    let block = |first: u64, count: u64| {
        let (mut body, mut bytes) = (Vec::new(), Vec::new());
        for n in first..first + count {
            let payload = n.to_string();
            let payload = payload.as_bytes();
            let qos = QoS::AtLeastOnce;
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
            lane::put_message(&mut body, u64::from(n > first), &message, n > first);
        }
        lane::put_origin(&mut bytes, 0, BrokerId(5), LogId(5));
        lane::put_messages_head(&mut bytes, &Block { alias: 0, prev: first - 1, hops: 1, age_ms: 0, first, body: &body });
        bytes.extend_from_slice(&body);
        bytes
    };
    for (first, count) in [(1, 3), (2, 4), (4, 1), (6, 1)] {
        pair.down.receivers[2].receive(&block(first, count), now, &mut pair.parent.inbox, &mut Vec::new()).unwrap();
    }
    assert_eq!(pair.parent.got(), ["1", "2", "3", "4", "5", "6"]);
    assert_eq!(pair.parent.counters().messages_duplicate.value(), 3);
}

/// More origins than there are aliases: the first ones are given to others.
#[test]
fn aliases_are_given_away_again() {
    let now = start();
    let mut pair = Pair::new(
        Broker::with(1, now, |config| config.ring_blocks = 1 << 13),
        Broker::with(2, now, |config| config.ring_blocks = 1 << 13),
    );
    pair.open(now);
    let origins = u64::from(LANE_ALIASES_MAX) + 200;
    let body = [0, 1, 1, b't', 1, b'x'];
    let mut upstream = End::new(&pair.child, 7, 2);
    let mut events = Vec::new();
    let mut open = Vec::new();
    lane::put_open(&mut open, &mark(1, 7), true, &[] as &[Cover]);
    upstream.receivers[2].receive(&open, now, &mut pair.child.inbox, &mut events).unwrap();
    for round in 1..=2 {
        for origin in 1_000..1_000 + origins {
            let mut bytes = Vec::new();
            lane::put_origin(&mut bytes, 0, BrokerId(origin), LogId(1));
            lane::put_messages_head(
                &mut bytes,
                &Block { alias: 0, prev: round - 1, hops: 1, age_ms: 0, first: round, body: &body },
            );
            bytes.extend_from_slice(&body);
            upstream.receivers[2].receive(&bytes, now, &mut pair.child.inbox, &mut events).unwrap();
        }
    }
    pair.flow_up(now).unwrap();
    assert_eq!(pair.parent.got().len() as u64, 2 * origins);
}

/// A broker that restarts again and again leaves no trail without end, and no log that could still come is forgotten.
#[test]
fn logs_that_have_long_been_silent_are_forgotten() {
    let now = start();
    let broker = Broker::new(1, now);
    let (age, silence) = (broker.replication.config.ring_age, broker.replication.silence());
    let lane = broker.replication.lane(LaneId(2)).unwrap();
    let logs = || lane.covers().iter().filter(|cover| cover.origin == BrokerId(5)).map(|cover| cover.log.0).collect::<Vec<_>>();
    let hear = |log: u64, at: Instant| {
        let stream = lane.stream((BrokerId(5), LogId(log)), at, silence).unwrap();
        *stream.turn.lock() = at;
        lane.skip_to(&stream, 1, at);
    };
    (1..=9).for_each(|log| hear(log, now + Duration::from_secs(log)));
    assert_eq!(logs(), (1..=9).collect::<Vec<_>>(), "none of them is old");
    hear(10, now + 2 * silence);
    assert_eq!(logs(), (1..=10).collect::<Vec<_>>(), "the ring still speaks of them");
    broker.replication.trim(now + 2 * silence + age);
    hear(11, now + 2 * silence + age);
    assert_eq!(logs(), (2..=11).collect::<Vec<_>>(), "the oldest goes");
}

/// A broker that seems to restart without end fills the table. The others keep their places.
#[test]
fn an_origin_with_too_many_logs_makes_room_itself() {
    let now = start();
    let broker = Broker::new(1, now);
    let lane = broker.replication.lane(LaneId(2)).unwrap();
    let hear = |origin: u64, log: u64| {
        let at = now + Duration::from_millis(log);
        let heard = lane.stream((BrokerId(origin), LogId(log)), at, broker.replication.silence());
        heard.map(|stream| stream.set_cover(1))
    };
    let orderly = (STREAMS_PER_LANE_MAX / LOGS_PER_ORIGIN_MAX) as u64 - 2;
    let logs = LOGS_PER_ORIGIN_MAX as u64;
    (0..orderly).for_each(|n| (0..logs).for_each(|log| hear(10 + n, log).unwrap()));
    (0..100).for_each(|log| hear(5, log).unwrap());
    let known = |origin: u64| {
        lane.covers().iter().filter(|cover| cover.origin == BrokerId(origin)).map(|cover| cover.log.0).collect::<Vec<_>>()
    };
    // The last of its share goes where the oldest were.
    let kept = known(5);
    assert!(kept.len() <= 2 * LOGS_PER_ORIGIN_MAX && kept.last() == Some(&99), "{kept:?}");
    let others = |cover: &&Cover| (10..10 + orderly).contains(&cover.origin.0);
    assert_eq!(lane.covers().iter().filter(others).count(), orderly as usize * LOGS_PER_ORIGIN_MAX);

    (0..logs).for_each(|log| hear(6, log).unwrap());
    (0..logs).for_each(|log| assert!(hear(7, log).is_err()));
    assert_eq!(known(6).len(), LOGS_PER_ORIGIN_MAX);
    let full = lane.covers().len() - 1;
    assert_eq!((full, hear(8, 0)), (STREAMS_PER_LANE_MAX, Err(LaneError::TooManyOrigins)), "none has more than its share");
}

/// A broker that remembers as much as it may can still open.
#[test]
fn an_open_may_name_every_origin_lane_and_the_senders_own() {
    let now = start();
    let mut pair = Pair::new(Broker::new(1, now), Broker::new(2, now));
    let lane = pair.child.replication.lane(LaneId(2)).unwrap();
    for n in 0..STREAMS_PER_LANE_MAX {
        let (origin, log) = (n / LOGS_PER_ORIGIN_MAX + 10, n % LOGS_PER_ORIGIN_MAX);
        let key = (BrokerId(origin as u64), LogId(log as u64));
        lane.stream(key, now, pair.child.replication.silence()).unwrap().set_cover(1);
    }
    assert_eq!(lane.covers().len(), STREAMS_PER_LANE_MAX + 1);
    pair.open(later(now));
}

/// The largest body of a frame where messages may have 1,000 bytes: an OPEN's page of covers.
const OPEN_COVERS_FRAME_BYTES_MAX: usize = crate::limits::OPEN_COVERS_BYTES_MAX + crate::frame::lane::FRAME_OVERHEAD_BYTES_MAX;
