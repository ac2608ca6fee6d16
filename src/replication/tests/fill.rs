//! What a neighbour lacks and our ring no longer has, while others' rings do.

use super::super::fill::{Fills, Place};
use super::super::lane::Arrived;
use super::super::ring::Read;
use super::pull::open;
use super::*;
use crate::limits::{FILL_BYTES, FILL_PATIENCE, FILLS_AT_ONCE, FILLS_MAX, PULL_REPEAT};

const SMALL_RING: usize = 8;

fn small(id: u64, now: Instant) -> Broker {
    Broker::with(id, now, |config| config.ring_blocks = SMALL_RING)
}

fn numbers(range: std::ops::Range<usize>) -> Vec<String> {
    range.map(|number| number.to_string()).collect()
}

fn publish(broker: &mut Broker, range: std::ops::Range<usize>, now: Instant) {
    numbers(range).iter().for_each(|payload| broker.publish(payload, QoS::AtLeastOnce, None, now));
}

/// Brokers in a line, each the parent of the next.
struct Line {
    brokers: Vec<Broker>,
    /// Of each link the child's end and the parent's; none while it is cut.
    links: Vec<Option<(End, End)>>,
    generation: u64,
}

impl Line {
    fn new(brokers: Vec<Broker>, now: Instant) -> Self {
        let mut line = Self { links: brokers.iter().skip(1).map(|_| None).collect(), brokers, generation: 0 };
        (0..line.links.len()).for_each(|link| line.join(link, now));
        line.settle(now);
        line
    }

    fn join(&mut self, link: usize, now: Instant) {
        self.generation += 1;
        let [parent, child] = self.brokers.get_disjoint_mut([link, link + 1]).unwrap();
        let [id, child_id] = [&parent, &child].map(|broker| broker.replication.config.origin.0);
        let (mut up, mut down) = (End::new(child, id, self.generation), End::new(parent, child_id, self.generation));
        open(self.generation, (&mut up, child), (&mut down, parent), now);
        self.links[link] = Some((up, down));
    }

    fn cut(&mut self, link: usize) {
        self.links[link] = None;
    }

    fn flow_down(&mut self, link: usize, now: Instant) {
        let (up, down) = self.links[link].as_mut().unwrap();
        flow(down, up, &mut self.brokers[link + 1], now).unwrap();
    }

    fn flow_up(&mut self, link: usize, now: Instant) {
        let (up, down) = self.links[link].as_mut().unwrap();
        flow(up, down, &mut self.brokers[link], now).unwrap();
    }

    /// Until nobody has anything more to say.
    fn settle(&mut self, now: Instant) {
        for _ in 0..20 {
            for link in (0..self.links.len()).filter(|link| self.links[*link].is_some()).collect::<Vec<_>>() {
                self.flow_down(link, now);
                self.flow_up(link, now);
            }
        }
    }

    fn last(&self) -> &Broker {
        self.brokers.last().unwrap()
    }

    /// Gaps told to the last one, by whom it hears from, and blocks that this one had to fetch for it.
    fn counted(&self) -> [u64; 3] {
        let [before, last] = self.brokers.last_chunk().unwrap();
        [last.counters().gaps_received.value(), before.counters().gaps_sent.value(), before.counters().blocks_filled.value()]
    }
}

/// The last of the line was cut off while much was published.
fn after_a_cut(brokers: Vec<Broker>, count: usize, now: Instant) -> Line {
    let mut line = Line::new(brokers, now);
    publish(&mut line.brokers[0], 0..1, now);
    line.settle(now);
    let last = line.links.len() - 1;
    line.cut(last);
    publish(&mut line.brokers[0], 1..count, now);
    line.settle(now);
    assert_eq!(line.last().got(), ["0"]);
    line.join(last, now);
    line
}

#[test]
fn what_a_small_ring_has_lost_comes_from_a_larger_one_in_its_order() {
    let (start, now) = (start(), later(start()));
    let mut line = after_a_cut(vec![Broker::new(1, start), small(2, start), Broker::new(3, start)], 40, now);
    assert_eq!(line.last().got(), ["0"], "the rest waits for what is lacking");
    // What is published meanwhile waits as well.
    publish(&mut line.brokers[0], 40..42, now);
    line.flow_down(0, now);
    line.flow_down(1, now);
    assert_eq!(line.last().got(), ["0"]);
    line.settle(now);
    assert_eq!(line.last().got(), numbers(0..42));
    assert_eq!(line.counted(), [0, 0, 40 - SMALL_RING as u64 - 1 + 2]);
    publish(&mut line.brokers[0], 42..44, now);
    line.settle(now);
    assert_eq!(line.last().got(), numbers(0..44));
    assert_eq!(line.last().counters().messages_duplicate.value(), 0);
}

#[test]
fn it_is_asked_for_hop_by_hop_and_comes_in_pieces() {
    let (start, now) = (start(), later(start()));
    let origin = Broker::with(1, start, |config| (config.ring_blocks, config.ring_bytes) = (2_000, 8 << 20));
    let mut line = Line::new(vec![origin, small(2, start), small(3, start), Broker::new(4, start)], now);
    publish(&mut line.brokers[0], 0..1, now);
    line.settle(now);
    line.cut(2);
    let payloads: Vec<_> = (1..3 * FILL_BYTES as usize / 800).map(|number| format!("{number:800}")).collect();
    for payload in &payloads {
        line.brokers[0].publish(payload, QoS::ExactlyOnce, None, now);
        line.settle(now);
    }
    line.join(2, now);
    line.settle(now);
    assert_eq!(line.last().got().len(), 1 + payloads.len());
    assert_eq!(line.last().got()[1..], payloads);
    assert_eq!(line.counted()[..2], [0, 0]);
    assert_eq!(line.brokers[0].counters().gaps_sent.value(), 0);
}

#[test]
fn what_the_origin_has_lost_is_a_gap_and_the_rest_comes() {
    let (start, now) = (start(), later(start()));
    let origin = Broker::with(1, start, |config| config.ring_blocks = 20);
    let mut line = after_a_cut(vec![origin, small(2, start), Broker::new(3, start)], 40, now);
    line.settle(now);
    assert_eq!(line.last().got(), [numbers(0..1), numbers(20..40)].concat());
    assert_eq!(line.counted(), [1, 1, 20 - SMALL_RING as u64]);
}

#[test]
fn where_nobody_answers_it_is_a_gap_after_some_time() {
    let (start, now) = (start(), later(start()));
    let mut line = after_a_cut(vec![Broker::new(1, start), small(2, start), Broker::new(3, start)], 40, now);
    line.cut(0);
    line.settle(now);
    assert_eq!(line.last().got(), ["0"]);
    line.settle(now + FILL_PATIENCE);
    assert_eq!(line.last().got(), [numbers(0..1), numbers(40 - SMALL_RING..40)].concat());
    assert_eq!(line.counted(), [1, 1, 0]);
}

#[test]
fn where_subscribers_wait_for_messages_a_neighbour_does_too() {
    let (start, now) = (start(), later(start()));
    let mut line = after_a_cut(vec![Broker::new(1, start), small(2, start), Broker::new(3, start)], 40, now);
    line.cut(0);
    line.settle(now);
    let patience = 10 * FILL_PATIENCE;
    let repeat = |line: &Line, at: Instant| line.brokers[1].replication.repeat_pulls(patience, at, &mut Inbox::default());
    repeat(&line, now);
    for at in [now + FILL_PATIENCE, now + 2 * FILL_PATIENCE] {
        repeat(&line, at);
        line.settle(at);
        assert_eq!(line.last().got(), ["0"]);
    }
    line.join(0, now + 2 * FILL_PATIENCE);
    line.settle(now + 3 * FILL_PATIENCE);
    assert_eq!(line.last().got(), numbers(0..40));
    assert_eq!(line.counted()[..2], [0, 0]);
}

#[test]
fn nobody_is_asked_for_what_would_be_too_old() {
    let (start, now) = (start(), later(start()));
    let mut line = Line::new(vec![Broker::new(1, start), small(2, start), Broker::new(3, start)], now);
    publish(&mut line.brokers[0], 0..1, now);
    line.settle(now);
    line.cut(1);
    publish(&mut line.brokers[0], 1..40 - SMALL_RING, now);
    line.settle(now);
    let late = now + line.brokers[0].replication.config.ring_age + PULL_REPEAT;
    publish(&mut line.brokers[0], 40 - SMALL_RING..40, late);
    line.settle(late);
    line.join(1, late);
    line.flow_down(1, late);
    assert_eq!(line.last().got(), [numbers(0..1), numbers(40 - SMALL_RING..40)].concat());
    assert_eq!(line.counted(), [1, 1, 0]);
}

#[test]
fn who_has_never_heard_of_an_origin_lane_gets_all_of_it() {
    let (start, now) = (start(), later(start()));
    let mut line = Line::new(vec![Broker::new(1, start), small(2, start), Broker::new(3, start)], now);
    line.cut(1);
    publish(&mut line.brokers[0], 0..40, now);
    line.settle(now);
    line.join(1, now);
    line.settle(now);
    assert_eq!(line.last().got(), numbers(0..40));
    assert_eq!(line.counted(), [0, 0, 40 - SMALL_RING as u64]);
}

#[test]
fn what_the_neighbour_gets_elsewhere_meanwhile_it_is_not_told_to_be_lost() {
    let (start, now) = (start(), later(start()));
    let mut line = after_a_cut(vec![Broker::new(1, start), small(2, start), Broker::new(3, start)], 40, now);
    line.cut(0);
    line.settle(now);
    // The origin is its other neighbour now.
    let [origin, _, last] = &mut line.brokers[..] else { panic!("three") };
    let (mut up, mut down) = (End::new(last, 1, 20), End::new(origin, 3, 20));
    open(20, (&mut up, last), (&mut down, origin), now);
    flow(&down, &mut up, last, now).unwrap();
    line.settle(now + FILL_PATIENCE);
    assert_eq!(line.last().got(), numbers(0..40));
    assert_eq!(line.counted()[0], 0);
}

#[test]
fn what_was_lost_on_the_way_is_asked_for_of_the_origin() {
    let (start, now) = (start(), later(start()));
    let brokers = vec![Broker::new(1, start), small(2, start), small(3, start), Broker::new(4, start)];
    let mut line = Line::new(brokers, now);
    publish(&mut line.brokers[0], 0..1, now);
    line.settle(now);
    line.cut(1);
    line.cut(2);
    publish(&mut line.brokers[0], 1..20, now);
    line.settle(now);
    // The third is told that something is lost, and then so much comes that it has to ask for the fourth.
    line.cut(0);
    line.join(1, now);
    line.settle(now);
    let later = now + FILL_PATIENCE;
    line.settle(later);
    assert_eq!(line.brokers[2].counters().gaps_received.value(), 1);
    line.join(0, later);
    publish(&mut line.brokers[0], 20..24, later);
    line.settle(later);
    line.join(2, later);
    line.settle(later);
    assert_eq!(line.last().got(), numbers(0..24));
    assert_eq!(line.counted()[..2], [0, 0]);
}

#[test]
fn whoever_is_silent_is_not_asked_again_before_others() {
    let (start, now) = (start(), later(start()));
    // Nothing of what the origin says comes any more once the third is back.
    let mut line = after_a_cut(vec![Broker::new(1, start), small(2, start), Broker::new(3, start)], 20, now);
    // The other has it, from elsewhere.
    let mut other = Broker::new(4, start);
    let mut direct = (End::new(&other, 1, 9), End::new(&line.brokers[0], 4, 9));
    open(1, (&mut direct.0, &mut other), (&mut direct.1, &mut line.brokers[0]), now);
    let (mut up, mut down) = (End::new(&other, 2, 10), End::new(&line.brokers[1], 4, 10));
    open(2, (&mut up, &mut other), (&mut down, &mut line.brokers[1]), now);
    assert_eq!(other.got(), numbers(0..20));
    let soon = now + PULL_REPEAT;
    for at in [now, soon] {
        line.brokers[1].replication.repeat_pulls(FILL_PATIENCE, at, &mut Inbox::default());
        line.flow_down(1, at);
        flow(&down, &mut up, &mut other, at).unwrap();
        flow(&up, &mut down, &mut line.brokers[1], at).unwrap();
    }
    line.flow_down(1, soon);
    assert_eq!(line.last().got(), numbers(0..20));
}

/// A lane writer may come upon a block as soon as it is in the ring, and what it passes over it has to find again.
#[test]
fn what_a_cursor_passes_over_is_found_again() {
    const BLOCKS: u64 = 30_000;
    let now = start();
    let broker = Broker::with(1, now, |config| config.ring_blocks = 1_024);
    let lane = broker.replication.lanes.last().unwrap();
    let stream = &lane.stream((BrokerId(2), LogId(1)), now, Duration::ZERO).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for id in 1..=BLOCKS {
                let _turn = stream.turn.lock();
                if id % 2 == 0 {
                    lane.append(&Arrived { stream, first: id, last: id, hops: 1, age_ms: 0, body: b"b", from: 1 }, now);
                } else {
                    lane.skip_to(stream, id, now);
                }
            }
        });
        let mut position = 1;
        while position <= BLOCKS {
            match lane.ring.read(position) {
                Read::Block(block) => {
                    let is_found = lane.next_block(stream, block.last - 1).is_some_and(|found| found.position == position);
                    assert!(is_found || stream.floor() >= block.last, "at {position}");
                    position += 1;
                }
                Read::NotYet => std::hint::spin_loop(),
                Read::Lapped => position = lane.ring.tail(),
            }
        }
    });
}

#[test]
fn what_a_neighbour_asks_for_and_says_is_bounded() {
    let now = later(start());
    let mut fills = Fills::default();
    let key = |origin: u64| (BrokerId(origin), LogId(1));
    let lane = Broker::new(1, now).replication;
    let lane = lane.lanes.last().unwrap();
    for origin in 0..2 * FILLS_MAX as u64 {
        lane.stream(key(10 + origin), now, Duration::ZERO).unwrap().raise_floor(100);
        fills.ask(key(10 + origin), (1, 100), u64::MAX);
    }
    let place = Place { port: 7, reached: 0, age_ms_max: u64::MAX };
    assert!(fills.next(lane, place, now).is_none());
    assert_eq!(fills.asks.len(), FILLS_AT_ONCE);
    assert!(fills.asks.iter().all(|ask| ask.bytes_max == FILL_BYTES && (ask.from, ask.to) == (1, 100)));
    // What nobody was asked for, or does not continue what is there, or comes from elsewhere, is not taken.
    let body = vec![0; 200_000];
    let filled = |prev, to| {
        let block = Block { alias: 0, prev, hops: 1, age_ms: 0, first: to, body: &body };
        lane::Filled { to, is_last: false, block }
    };
    let (asked, counters) = (fills.asks[0], Counters::default());
    let mut take = |port, key, part: &lane::Filled<'_>| fills.take(port, key, part, now, &counters);
    assert!(!take(asked.port, key(9), &filled(1, 2)));
    assert!(!take(asked.port, asked.key, &filled(2, 3)));
    assert!(!take(asked.port + 1, asked.key, &filled(1, 2)));
    assert_eq!(counters.fills_refused.value(), 0);
    // Nor what speaks of more than is known to be lacking.
    assert!(!take(asked.port, asked.key, &filled(1, 101)));
    assert_eq!(counters.fills_refused.value(), 1);
    // Nor what begins with messages that the far side has: it would close its link to us.
    let in_front = lane::Filled { block: Block { first: 1, ..filled(1, 3).block }, ..filled(1, 3) };
    assert!(!take(asked.port, asked.key, &in_front));
    assert_eq!(counters.fills_refused.value(), 2);
    let taken = (1..10).take_while(|id| take(asked.port, asked.key, &filled(*id, id + 1))).count();
    assert_eq!(taken, 2, "no more waits than was asked for, and a block");
}
