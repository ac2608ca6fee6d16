//! What a neighbour lacks and our ring no longer has, while others' rings do.

use std::collections::BTreeSet;

use super::super::fill::{Fills, Next, Place, Step, who_is_asked};
use super::super::lane::Arrived;
use super::super::ring::Read;
use super::pull::open;
use super::*;
use crate::limits::{FILL_BYTES, FILL_PATIENCE, FILLS_AT_ONCE, FILLS_MAX, PULL_REPEAT};
use crate::shared::register::{Follow, Key, Value};

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
    repeat(&line, patience, now);
    for at in [now + FILL_PATIENCE, now + 2 * FILL_PATIENCE] {
        repeat(&line, patience, at);
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
    let mut other = Other::of(&mut line, Broker::new(4, start), now);
    assert_eq!(other.broker.got(), numbers(0..20));
    let soon = now + PULL_REPEAT;
    for at in [now, soon] {
        repeat(&line, FILL_PATIENCE, at);
        line.flow_down(1, at);
        other.flow(&mut line, at);
    }
    line.flow_down(1, soon);
    assert_eq!(line.last().got(), numbers(0..20));
}

/// Another neighbour of the second of the line.
struct Other {
    broker: Broker,
    up: End,
    down: End,
}

impl Other {
    /// It has everything that the origin has.
    fn of(line: &mut Line, mut broker: Broker, now: Instant) -> Self {
        let mut direct = (End::new(&broker, 1, 900), End::new(&line.brokers[0], broker.replication.config.origin.0, 900));
        open(900, (&mut direct.0, &mut broker), (&mut direct.1, &mut line.brokers[0]), now);
        Self::silent(line, broker, now)
    }

    /// It has what the second gives it.
    fn silent(line: &mut Line, mut broker: Broker, now: Instant) -> Self {
        let (mut up, mut down) = (End::new(&broker, 2, 901), End::new(&line.brokers[1], broker.replication.config.origin.0, 901));
        open(901, (&mut up, &mut broker), (&mut down, &mut line.brokers[1]), now);
        Self { broker, up, down }
    }

    fn flow(&mut self, line: &mut Line, now: Instant) {
        flow(&self.down, &mut self.up, &mut self.broker, now).unwrap();
        flow(&self.up, &mut self.down, &mut line.brokers[1], now).unwrap();
    }
}

fn repeat(line: &Line, patience: Duration, at: Instant) {
    line.brokers[1].replication.repeat_pulls(patience, at, &mut Inbox::default());
}

#[test]
fn an_answer_that_is_late_is_as_good() {
    let (start, now) = (start(), later(start()));
    let mut line = after_a_cut(vec![Broker::new(1, start), small(2, start), Broker::new(3, start)], 20, now);
    let _other = Other::silent(&mut line, Broker::new(4, now), now);
    line.flow_down(1, now);
    line.flow_up(0, now);
    let (up, down) = line.links[0].as_mut().unwrap();
    let on_their_way: Vec<_> = (0..up.receivers.len()).map(|lane| down.take(lane, now).0).collect();
    // Another is asked meanwhile, and knows nothing.
    let soon = now + PULL_REPEAT;
    repeat(&line, FILL_PATIENCE, soon);
    line.flow_down(1, soon);
    let (up, _) = line.links[0].as_mut().unwrap();
    for (receiver, bytes) in up.receivers.iter_mut().zip(on_their_way) {
        receiver.receive(&bytes, soon, &mut line.brokers[1].inbox, &mut Vec::new()).unwrap();
    }
    line.flow_down(1, soon);
    assert_eq!(line.last().got(), numbers(0..20));
}

#[test]
fn who_has_answered_is_asked_for_what_follows() {
    let (start, now) = (start(), later(start()));
    let large = |id| Broker::with(id, start, |config| (config.ring_blocks, config.ring_bytes) = (2_000, 8 << 20));
    let mut line = Line::new(vec![large(1), small(2, start), Broker::new(3, start)], now);
    publish(&mut line.brokers[0], 0..1, now);
    line.settle(now);
    line.cut(1);
    let payloads: Vec<_> = (1..3 * FILL_BYTES as usize / 800).map(|number| format!("{number:800}")).collect();
    payloads.iter().for_each(|payload| line.brokers[0].publish(payload, QoS::ExactlyOnce, None, now));
    line.flow_down(0, now);
    let mut other = Other::of(&mut line, large(4), now);
    line.join(1, now);
    // The origin is silent from now on.
    let soon = now + PULL_REPEAT;
    for at in [now, soon, soon, soon, soon, soon] {
        repeat(&line, FILL_PATIENCE, at);
        line.flow_down(1, at);
        other.flow(&mut line, at);
    }
    line.flow_down(1, soon);
    assert_eq!(line.last().got().len(), 1 + payloads.len());
    assert_eq!(line.counted()[..2], [0, 0]);
}

#[test]
fn all_are_asked_soon_and_the_first_always() {
    for count in [1, 2, 5, 16] {
        let asked = |attempts: std::ops::Range<usize>| -> BTreeSet<usize> {
            attempts.flat_map(|attempt| who_is_asked(attempt, count)).collect()
        };
        assert_eq!(asked(0..1), BTreeSet::from([0]));
        assert!((0..100).all(|attempt| who_is_asked(attempt, count).next() == Some(0)));
        let everybody: BTreeSet<usize> = (0..count).collect();
        let seconds = (FILL_PATIENCE.as_secs() / PULL_REPEAT.as_secs()) as usize;
        assert_eq!(asked(0..seconds), everybody, "before it is given up");
        assert_eq!(asked(100..100 + count), everybody);
        assert!((100..200).all(|attempt| who_is_asked(attempt, count).count() <= 2));
    }
    assert_eq!(who_is_asked(3, 0).count(), 0);
}

#[test]
fn who_lacks_it_as_well_does_not_say_that_it_is_lost() {
    let (start, now) = (start(), later(start()));
    let mut line = Line::new(vec![Broker::new(1, start), small(2, start), Broker::new(3, start)], now);
    publish(&mut line.brokers[0], 0..1, now);
    line.settle(now);
    line.cut(1);
    publish(&mut line.brokers[0], 1..40, now);
    line.settle(now);
    // It is new, and told that it does not get what the second has no more.
    let mut newcomer = Other::silent(&mut line, Broker::new(4, now), now);
    newcomer.flow(&mut line, now);
    line.cut(0);
    line.join(1, now);
    let patience = 10 * FILL_PATIENCE;
    for at in [now, now + FILL_PATIENCE, now + FILL_PATIENCE] {
        repeat(&line, patience, at);
        line.flow_down(1, at);
        newcomer.flow(&mut line, at);
    }
    line.flow_down(1, now + FILL_PATIENCE);
    assert_eq!(line.last().got(), ["0"], "the origin may come back");
    line.join(0, now + FILL_PATIENCE);
    line.settle(now + 2 * FILL_PATIENCE);
    assert_eq!(line.last().got(), numbers(0..40));
    assert_eq!(line.counted()[0], 0);
}

#[test]
fn what_is_asked_for_again_while_it_is_answered_does_not_begin_anew() {
    let now = later(start());
    let (pair, keys) = lacking(1, now);
    let (lane, port) = (pair.parent.replication.lanes.last().unwrap(), pair.down.port.lanes().last().unwrap().number());
    let (mut fills, place) = (Fills::default(), place(&pair));
    fills.ask(keys[0], (1, 100), u64::MAX);
    assert!(fills.next(lane, place, now).is_none());
    let part =
        |prev, to| lane::Filled { to, is_last: false, block: Block { alias: 0, prev, hops: 1, age_ms: 0, first: to, body: b"b" } };
    for id in 1..5 {
        assert!(fills.take(port, keys[0], &part(id, id + 1), now, &Counters::default()));
        assert!(matches!(fills.next(lane, place, now), Some(Next { step: Step::Came(came), .. }) if came.to == id + 1));
        fills.ask(keys[0], (1, 100), u64::MAX);
        assert!(fills.next(lane, place, now).is_none());
    }
    assert_eq!(fills.asks.len(), 1);
}

#[test]
fn the_ring_goes_on_while_a_range_is_filled() {
    let (start, now) = (start(), later(start()));
    let mut line = after_a_cut(vec![Broker::new(1, start), small(2, start), Broker::new(3, start)], 40, now);
    line.flow_down(1, now);
    line.flow_up(0, now);
    line.flow_down(0, now);
    // All that is lacking is here.
    line.brokers[1].publish("mine", QoS::AtLeastOnce, None, now);
    line.flow_down(1, now);
    let place = line.last().got().iter().position(|payload| *payload == "mine");
    assert!(place.is_some_and(|place| place < 20), "{place:?} of {}", line.last().got().len());
    line.settle(now);
    let others: Vec<_> = line.last().got().into_iter().filter(|payload| *payload != "mine").collect();
    assert_eq!(others, numbers(0..40));
}

#[test]
fn what_a_cursor_finds_gone_is_asked_for_at_once() {
    let (start, now) = (start(), later(start()));
    let mut line = Line::new(vec![Broker::new(1, start), small(2, start), Broker::new(3, start)], now);
    publish(&mut line.brokers[0], 0..1, now);
    line.settle(now);
    publish(&mut line.brokers[0], 1..40, now);
    line.flow_down(0, now);
    let (waker, wakes) = counting();
    let (_, down) = line.links[1].as_ref().unwrap();
    let mut out = Vec::new();
    for port_lane in down.port.lanes() {
        assert!(port_lane.poll(&mut Context::from_waker(&waker), now, 50, &mut out).is_pending());
    }
    assert_eq!(wakes(), 1, "it has more to do");
    line.settle(now);
    assert_eq!(line.last().got(), numbers(0..40));
}

#[test]
fn those_who_are_new_fetch_what_they_lack_of_each_other() {
    let now = start();
    let mut line = after_a_cut(vec![Broker::new(1, now), small(2, now), Broker::new(3, now)], 40, now);
    line.settle(now);
    assert_eq!(line.last().got(), numbers(0..40));
    let mut line = Line::new(vec![Broker::new(1, now), small(2, now), Broker::new(3, now)], now);
    line.cut(1);
    publish(&mut line.brokers[0], 0..40, now);
    line.settle(now);
    line.join(1, now);
    line.settle(now);
    assert_eq!(line.last().got(), numbers(0..40));
}

#[test]
fn who_is_new_is_owed_what_follows_that_with_which_it_has_begun() {
    let (start, now) = (start(), later(start()));
    let (mut origin, mut last) = (Broker::new(1, now), Broker::new(3, now));
    let (mut up, mut down) = (End::new(&last, 1, 900), End::new(&origin, 3, 900));
    open(900, (&mut up, &mut last), (&mut down, &mut origin), now);
    publish(&mut origin, 0..1, now);
    flow(&down, &mut up, &mut last, now).unwrap();
    drop((up, down));
    let mut line = Line::new(vec![origin, small(2, start)], now);
    publish(&mut line.brokers[0], 1..40, now);
    line.settle(now);
    line.brokers.push(last);
    line.links.push(None);
    line.join(1, now);
    line.settle(now);
    assert_eq!(line.last().got(), numbers(0..40));
    assert_eq!(line.counted()[..2], [0, 0]);
}

#[test]
fn what_nobody_brings_any_more_is_not_waited_for() {
    let (start, now) = (start(), later(start()));
    let origin = BrokerId(1);
    for (is_gone, becomes) in [(false, "away"), (true, "another log"), (true, "no member"), (false, "far from somebody")] {
        let mut between = small(2, start);
        let interest = Arc::new(Interest::new(BrokerId(2), Rules::new(Mode::Full, [])));
        between.replication = Replication::with_interest(between.replication.config, Arc::clone(&interest), start);
        for member in [origin, BrokerId(3)] {
            interest.joined(member);
            interest.known(member);
        }
        let its_log = |log| interest.changed(origin, &[(Key::Log, Some(Value::Log(LogId(log))))]);
        its_log(101);
        interest.set_reachable(Some([origin, BrokerId(3)].into()));
        let mut line = after_a_cut(vec![Broker::new(1, start), between, Broker::new(3, start)], 40, now);
        line.cut(0);
        line.settle(now);
        repeat(&line, 10 * FILL_PATIENCE, now);
        line.settle(now + FILL_PATIENCE);
        assert_eq!(line.last().got(), ["0"]);
        match becomes {
            "another log" => its_log(7),
            "no member" => interest.left(origin),
            "far from somebody" => {
                its_log(7);
                interest.set_reachable(Some([origin].into()));
            }
            _ => {}
        }
        line.settle(now + FILL_PATIENCE);
        let rest = if is_gone { numbers(40 - SMALL_RING..40) } else { vec![] };
        assert_eq!(line.last().got(), [numbers(0..1), rest].concat(), "{becomes}");
        assert_eq!(line.counted()[0], u64::from(is_gone), "{becomes}");
    }
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

/// A broker that is asked for origin-lanes of which it has nothing up to 100, and has a neighbour to ask.
fn lacking(count: usize, now: Instant) -> (Pair, Vec<(BrokerId, LogId)>) {
    let mut pair = Pair::new(Broker::new(1, now), Broker::new(2, now));
    pair.open(now);
    let keys: Vec<_> = (0..count as u64).map(|origin| (BrokerId(10 + origin), LogId(1))).collect();
    let lane = pair.parent.replication.lanes.last().unwrap();
    keys.iter().for_each(|key| lane.stream(*key, now, Duration::ZERO).unwrap().raise_floor(100));
    (pair, keys)
}

fn place(pair: &Pair) -> Place<'_> {
    Place { port: 700, reached: 0, age_ms_max: u64::MAX, interest: &pair.parent.replication.interest }
}

#[test]
fn whoever_waits_in_vain_is_asked_for_in_turn() {
    let now = later(start());
    let (pair, keys) = lacking(40, now);
    let lane = pair.parent.replication.lanes.last().unwrap();
    let (mut fills, place) = (Fills::default(), place(&pair));
    fills.set_patience(Duration::from_secs(3_600));
    keys.iter().for_each(|key| fills.lack(*key, 1));
    for round in 0..5 {
        let mut asked = BTreeSet::new();
        for second in 0..120 {
            assert!(fills.next(lane, place, now + (120 * round + second) * PULL_REPEAT).is_none());
            assert!(fills.asks.len() <= FILLS_AT_ONCE, "{}", fills.asks.len());
            asked.extend(fills.asks.drain(..).map(|ask| ask.key));
        }
        assert_eq!(asked.len(), keys.len(), "round {round}");
    }
}

#[test]
fn what_comes_of_many_ranges_at_once_is_bounded() {
    let now = later(start());
    let (pair, keys) = lacking(40, now);
    let (lane, port) = (pair.parent.replication.lanes.last().unwrap(), pair.down.port.lanes().last().unwrap().number());
    let (mut fills, place) = (Fills::default(), place(&pair));
    fills.set_patience(Duration::from_secs(3_600));
    keys.iter().for_each(|key| fills.lack(*key, 1));
    for second in 0..200 {
        assert!(fills.next(lane, place, now + second * PULL_REPEAT).is_none());
    }
    let late = now + 200 * PULL_REPEAT;
    // All that were asked long ago answer now.
    let body = vec![0; 100_000];
    let part =
        |prev, to| lane::Filled { to, is_last: false, block: Block { alias: 0, prev, hops: 1, age_ms: 0, first: to, body: &body } };
    let mut take = |key: &(BrokerId, LogId)| {
        (1..10).take_while(|id| fills.take(port, *key, &part(*id, id + 1), late, &Counters::default())).count()
    };
    let taken: Vec<usize> = keys.iter().map(&mut take).collect();
    let bytes = (taken.iter().sum::<usize>() * body.len()) as u64;
    let bound = FILLS_AT_ONCE as u64 * FILL_BYTES;
    assert!((bound..bound + body.len() as u64).contains(&bytes), "{taken:?}");
    assert!(fills.next(lane, place, late).is_some());
}

#[test]
fn what_a_neighbour_asks_for_and_says_is_bounded() {
    let now = later(start());
    let (pair, keys) = lacking(2 * FILLS_MAX, now);
    let (mut fills, place) = (Fills::default(), place(&pair));
    let lane = pair.parent.replication.lanes.last().unwrap();
    keys.iter().for_each(|key| fills.ask(*key, (1, 100), u64::MAX));
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
    assert!(!take(asked.port, (BrokerId(9), LogId(1)), &filled(1, 2)));
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
