//! A mesh under virtual time: brokers that run the real [`Stp`], links that delay, cut and come back, lane writers that take their
//! time. Everything follows from the seed.
//!
//! A link carries a control stream and lanes, each first in, first out, and none in step with another. The two ends of a link notice
//! that it is up or down at different times. Whoever writes to a link that is cut writes into the void.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap};
use std::num::NonZeroU32;
use std::time::{Duration, Instant};

use mqtt_st_quic::ids::{BrokerId, Incarnation, OpenMark, OpenNumber, PortId, RootClaim, TreeId};
use mqtt_st_quic::stp::{Bpdu, Input, Output, Role, Stp, StpConfig};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

pub(super) const LANES: usize = 2;
const CONTROL: usize = LANES;

/// How long things take, all uniform between zero (or the delay's lower end) and these.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    /// One way over a link.
    pub(super) delay_min: Duration,
    pub(super) delay_max: Duration,
    /// One frame in 16 takes up to this much longer.
    pub(super) burst_max: Duration,
    /// Until a lane writer gets to write a marker.
    pub(super) write_max: Duration,
    /// Until an end notices that its link is dead.
    pub(super) detection_max: Duration,
}

impl Pace {
    /// Everything within the same few milliseconds, so that it overtakes.
    pub(super) const HASTY: Self = Self {
        delay_min: Duration::from_micros(100),
        delay_max: Duration::from_millis(3),
        burst_max: Duration::from_millis(30),
        write_max: Duration::from_millis(4),
        detection_max: Duration::from_millis(5),
    };
    /// A quiet network of 1 ms: what convergence costs is counted here.
    pub(super) const CALM: Self = Self {
        delay_min: Duration::from_micros(900),
        delay_max: Duration::from_micros(1_100),
        burst_max: Duration::ZERO,
        write_max: Duration::from_micros(100),
        detection_max: Duration::from_micros(100),
    };
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Fault {
    Up(usize),
    Down(usize),
    /// New costs at both ends of a link.
    Cost(usize, [u32; 2]),
    Crash(usize),
    Start(usize),
}

/// What happened since the world began or [`World::reset_counts`].
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub(super) events: u64,
    pub(super) bpdus: u64,
    pub(super) opens: u64,
    pub(super) epochs: u64,
    /// A broker took another parent, became the root, or ceased to be.
    pub(super) moves: u64,
    /// When a port last changed its role or state, from the world's beginning.
    pub(super) settled_at: Duration,
}

pub(super) struct World {
    pub(super) rng: SmallRng,
    pub(super) brokers: Vec<Broker>,
    pub(super) links: Vec<Link>,
    pub(super) counts: Counts,
    pace: Pace,
    hop_max: u8,
    start: Instant,
    now: Instant,
    queue: BinaryHeap<Reverse<Scheduled>>,
    scheduled: u64,
    generations: u64,
    index_of: HashMap<BrokerId, usize>,
    link_of: HashMap<(usize, usize), usize>,
}

pub(super) struct Broker {
    pub(super) claim: RootClaim,
    /// `None`: down.
    pub(super) stp: Option<Stp>,
    pub(super) ports: BTreeMap<PortId, PortView>,
    /// The port on which this broker's lanes are open as a child, or not yet confirmed closed.
    pub(super) child_port: Option<PortId>,
    tree: Option<TreeId>,
    wake: Option<Instant>,
}

/// A port as the shell and the lanes have it.
pub(super) struct PortView {
    pub(super) state: (Role, bool),
    /// The number our lanes were last opened with and not told to close.
    pub(super) open: Option<OpenNumber>,
    lanes: [LaneView; LANES],
}

#[derive(Clone, Copy)]
struct LaneView {
    /// The writer has written everything before this.
    written_at: Instant,
    /// The last OPEN that came.
    accepts: Option<OpenNumber>,
    /// An answer that waits for the child's OPEN in this lane.
    answer: Option<OpenMark>,
}

pub(super) struct Link {
    pub(super) ends: [usize; 2],
    pub(super) costs: [u32; 2],
    /// `None`: cut.
    pub(super) generation: Option<u64>,
    /// By receiving end and stream: when the last frame arrives.
    arrivals: [[Instant; LANES + 1]; 2],
}

#[derive(Clone, Copy, Debug)]
enum Frame {
    Bpdu(Bpdu),
    Open(OpenMark),
    Close(OpenNumber),
}

#[derive(Clone, Copy, Debug)]
enum Event {
    LinkUp { link: usize, generation: u64, end: usize },
    LinkDown { link: usize, generation: u64, end: usize },
    Arrive { link: usize, generation: u64, end: usize, stream: usize, frame: Frame },
    Written { link: usize, generation: u64, end: usize, number: OpenNumber },
    Timeout { broker: usize },
    Fault(Fault),
}

struct Scheduled {
    at: Instant,
    order: u64,
    event: Event,
}

impl PartialEq for Scheduled {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Scheduled {}

impl PartialOrd for Scheduled {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Scheduled {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.order).cmp(&(other.at, other.order))
    }
}

impl World {
    /// `count` brokers of random identity and rank, up, with no links.
    #[expect(clippy::disallowed_methods, reason = "virtual time has to begin somewhere; no later reading is taken")]
    pub(super) fn new(seed: u64, count: usize, pace: Pace, hop_max: u8) -> Self {
        let mut rng = SmallRng::seed_from_u64(seed);
        let start = Instant::now();
        let mut index_of = HashMap::new();
        let mut brokers = Vec::new();
        while brokers.len() < count {
            let id = BrokerId(rng.random());
            if index_of.insert(id, brokers.len()).is_none() {
                let claim = RootClaim {
                    priority: rng.random_range(0..3),
                    capacity: rng.random_range(0..3),
                    id,
                    incarnation: Incarnation(rng.random_range(1..100)),
                };
                brokers.push(Broker { claim, stp: None, ports: BTreeMap::new(), child_port: None, tree: None, wake: None });
            }
        }
        let mut world = Self {
            rng,
            brokers,
            links: Vec::new(),
            counts: Counts::default(),
            pace,
            hop_max,
            start,
            now: start,
            queue: BinaryHeap::new(),
            scheduled: 0,
            generations: 0,
            index_of,
            link_of: HashMap::new(),
        };
        for broker in 0..count {
            world.start_broker(broker);
        }
        world
    }

    /// Adds a link, cut at first.
    pub(super) fn add_link(&mut self, a: usize, b: usize, costs: [u32; 2]) -> usize {
        let link = self.links.len();
        self.links.push(Link { ends: [a, b], costs, generation: None, arrivals: [[self.now; LANES + 1]; 2] });
        for pair in [(a, b), (b, a)] {
            assert_eq!(self.link_of.insert(pair, link), None, "two links between {a} and {b}");
        }
        link
    }

    pub(super) fn elapsed(&self) -> Duration {
        self.now - self.start
    }

    pub(super) fn reset_counts(&mut self) {
        self.counts = Counts { settled_at: self.elapsed(), ..Counts::default() };
    }

    pub(super) fn fault_after(&mut self, delay: Duration, fault: Fault) {
        self.schedule(self.now + delay, Event::Fault(fault));
    }

    /// Runs until nothing is left to happen, and calls `check` after every event with the brokers that it may have changed.
    pub(super) fn run(&mut self, events_max: u64, mut check: impl FnMut(&World, usize)) {
        let events_max = self.counts.events + events_max;
        while let Some(Reverse(next)) = self.queue.pop() {
            self.counts.events += 1;
            assert!(self.counts.events < events_max, "the mesh does not come to rest: {:?} is still to come", next.event);
            self.now = next.at;
            if let Some(broker) = self.happen(next.event) {
                check(self, broker);
            }
        }
    }

    /// The broker at the other end of a port, if the link still is what the port takes it for.
    pub(super) fn peer(&self, broker: usize, port: PortId) -> Option<usize> {
        let peer = self.index_of[&port.peer];
        let link = &self.links[self.link_of[&(broker, peer)]];
        (link.generation == Some(port.generation)).then_some(peer)
    }

    /// What `peer` calls the port of which `broker` says `port`.
    pub(super) fn other_end(&self, broker: usize, port: PortId) -> PortId {
        PortId { peer: self.brokers[broker].claim.id, generation: port.generation }
    }

    fn schedule(&mut self, at: Instant, event: Event) {
        self.scheduled += 1;
        self.queue.push(Reverse(Scheduled { at, order: self.scheduled, event }));
    }

    fn up_to(&mut self, max: Duration) -> Duration {
        max.mul_f64(self.rng.random())
    }

    fn link_delay(&mut self) -> Duration {
        let delay = self.pace.delay_min + self.up_to(self.pace.delay_max - self.pace.delay_min);
        if self.rng.random_range(0..16) == 0 { delay + self.up_to(self.pace.burst_max) } else { delay }
    }

    fn port_at(&self, link: usize, end: usize, generation: u64) -> (usize, PortId) {
        let ends = self.links[link].ends;
        (ends[end], PortId { peer: self.brokers[ends[1 - end]].claim.id, generation })
    }

    fn end_of(&self, broker: usize, port: PortId) -> (usize, usize) {
        let link = self.link_of[&(broker, self.index_of[&port.peer])];
        (link, usize::from(self.links[link].ends[1] == broker))
    }

    fn happen(&mut self, event: Event) -> Option<usize> {
        match event {
            Event::Fault(fault) => {
                self.fault(fault);
                None
            }
            Event::Timeout { broker } => {
                if self.brokers[broker].wake == Some(self.now) {
                    self.brokers[broker].wake = None;
                    self.feed(broker, Input::Timeout);
                }
                Some(broker)
            }
            Event::LinkUp { link, generation, end } => {
                if self.links[link].generation != Some(generation) {
                    return None;
                }
                let (broker, port) = self.port_at(link, end, generation);
                self.brokers[broker].ports.retain(|former, _| former.peer != port.peer);
                let lane = LaneView { written_at: self.now, accepts: None, answer: None };
                let view = PortView { state: (Role::Disabled, false), open: None, lanes: [lane; LANES] };
                self.brokers[broker].ports.insert(port, view);
                self.release_child_port(broker, |child| child.peer == port.peer);
                let (cost, rtt) = (cost(self.links[link].costs[end]), 2 * self.pace.delay_max);
                self.feed(broker, Input::LinkUp { port, cost, rtt });
                Some(broker)
            }
            Event::LinkDown { link, generation, end } => {
                let (broker, port) = self.port_at(link, end, generation);
                self.brokers[broker].ports.remove(&port);
                self.release_child_port(broker, |child| child == port);
                self.feed(broker, Input::LinkDown { port });
                Some(broker)
            }
            Event::Arrive { link, generation, end, stream, frame } => {
                if self.links[link].generation != Some(generation) {
                    return None;
                }
                let (broker, port) = self.port_at(link, end, generation);
                self.arrive(broker, port, stream, frame);
                Some(broker)
            }
            Event::Written { link, generation, end, number } => {
                if self.links[link].generation != Some(generation) {
                    return None;
                }
                let (broker, port) = self.port_at(link, end, generation);
                if number.child == self.brokers[broker].claim.id {
                    self.release_child_port(broker, |child| child == port);
                }
                self.feed(broker, Input::LanesClosed { port, number });
                Some(broker)
            }
        }
    }

    fn release_child_port(&mut self, broker: usize, matches: impl Fn(PortId) -> bool) {
        let child_port = &mut self.brokers[broker].child_port;
        *child_port = child_port.filter(|&port| !matches(port));
    }

    fn arrive(&mut self, broker: usize, port: PortId, stream: usize, frame: Frame) {
        let input = match frame {
            Frame::Bpdu(bpdu) => Input::Bpdu { port, bpdu },
            Frame::Open(open) => {
                let lane = &mut self.brokers[broker].ports.get_mut(&port).expect("frames come after the link is up").lanes[stream];
                lane.accepts = Some(open.number);
                if let Some(answer) = lane.answer.take_if(|answer| answer.number == open.number) {
                    self.write(broker, port, stream, Frame::Open(answer));
                }
                Input::OpenReceived { port, open }
            }
            Frame::Close(number) => {
                let lane = &mut self.brokers[broker].ports.get_mut(&port).expect("frames come after the link is up").lanes[stream];
                lane.accepts = lane.accepts.filter(|&open| open.child != number.child || open > number);
                Input::CloseReceived { port, number }
            }
        };
        self.feed(broker, input);
    }

    fn feed(&mut self, broker: usize, input: Input) {
        let now = self.now;
        let Some(stp) = &mut self.brokers[broker].stp else { return };
        let parent = stp.root_port();
        let was_root = stp.is_root();
        let mut outputs = Vec::new();
        stp.handle(input, now, &mut outputs);
        self.counts.moves += u64::from((stp.root_port(), stp.is_root()) != (parent, was_root));
        if let Some(at) = stp.poll_timeout() {
            assert!(at > now, "a timeout that is due was not served");
            if self.brokers[broker].wake.is_none_or(|wake| at < wake) {
                self.brokers[broker].wake = Some(at);
                self.schedule(at, Event::Timeout { broker });
            }
        }
        for output in outputs {
            self.perform(broker, output);
        }
    }

    fn perform(&mut self, broker: usize, output: Output) {
        match output {
            Output::SendBpdu { port, bpdu } => {
                self.counts.bpdus += 1;
                self.send(broker, port, CONTROL, self.now, Frame::Bpdu(bpdu));
            }
            Output::OpenLanes { port, open } => {
                self.counts.opens += 1;
                let child_port = self.brokers[broker].child_port.replace(port);
                assert!(child_port.is_none_or(|former| former == port), "OPEN at {port:?} while {child_port:?} is not closed");
                self.view(broker, port).open = Some(open.number);
                for lane in 0..LANES {
                    self.write(broker, port, lane, Frame::Open(open));
                }
            }
            Output::AnswerOpen { port, open } => {
                self.view(broker, port).open = Some(open.number);
                for lane in 0..LANES {
                    let view = &mut self.view(broker, port).lanes[lane];
                    if view.accepts == Some(open.number) {
                        self.write(broker, port, lane, Frame::Open(open));
                    } else {
                        view.answer = Some(open);
                    }
                }
            }
            Output::CloseLanes { port, number } => self.close(broker, port, number),
            Output::TreeChanged { tree, is_root, .. } => {
                let former = self.brokers[broker].tree.replace(tree);
                assert!(former.is_none_or(|former| former < tree), "{former:?} did not grow to {tree:?}");
                self.counts.epochs += u64::from(is_root);
            }
            Output::PortState { port, role, forwarding } => {
                self.counts.settled_at = self.elapsed();
                assert!(!forwarding || matches!(role, Role::Root | Role::Designated), "{role:?} forwards");
                if let Some(view) = self.brokers[broker].ports.get_mut(&port) {
                    view.state = (role, forwarding);
                } else {
                    assert_eq!(role, Role::Disabled);
                }
            }
            Output::Refuse { port, error } => panic!("{port:?} is honest, but {error}"),
        }
    }

    fn view(&mut self, broker: usize, port: PortId) -> &mut PortView {
        self.brokers[broker].ports.get_mut(&port).expect("outputs name ports that are up")
    }

    fn close(&mut self, broker: usize, port: PortId, number: OpenNumber) {
        let view = self.view(broker, port);
        assert_eq!(view.open.take(), Some(number), "CLOSE of what is not open");
        for lane in 0..LANES {
            self.view(broker, port).lanes[lane].answer = None;
            self.write(broker, port, lane, Frame::Close(number));
        }
        let written_at = self.view(broker, port).lanes.iter().map(|lane| lane.written_at).max().expect("there are lanes");
        let (link, end) = self.end_of(broker, port);
        self.schedule(written_at, Event::Written { link, generation: port.generation, end, number });
    }

    /// A lane's writer writes the marker as soon as it gets to it, behind what it has to write before.
    fn write(&mut self, broker: usize, port: PortId, lane: usize, frame: Frame) {
        let ready_at = self.now + self.up_to(self.pace.write_max);
        let written_at = &mut self.view(broker, port).lanes[lane].written_at;
        *written_at = ready_at.max(*written_at);
        let at = *written_at;
        self.send(broker, port, lane, at, frame);
    }

    fn send(&mut self, broker: usize, port: PortId, stream: usize, at: Instant, frame: Frame) {
        let (link, end) = self.end_of(broker, port);
        if self.links[link].generation != Some(port.generation) {
            return;
        }
        let arrives_at = at + self.link_delay();
        let last = &mut self.links[link].arrivals[1 - end][stream];
        *last = arrives_at.max(*last + Duration::from_nanos(1));
        let at = *last;
        self.schedule(at, Event::Arrive { link, generation: port.generation, end: 1 - end, stream, frame });
    }

    fn fault(&mut self, fault: Fault) {
        match fault {
            Fault::Up(link) => self.link_up(link),
            Fault::Down(link) => self.link_down(link),
            Fault::Cost(link, costs) => {
                self.links[link].costs = costs;
                let Some(generation) = self.links[link].generation else { return };
                for (end, new) in costs.into_iter().enumerate() {
                    let (broker, port) = self.port_at(link, end, generation);
                    self.feed(broker, Input::Cost { port, cost: cost(new), rtt: 2 * self.pace.delay_max });
                }
            }
            Fault::Crash(broker) => self.crash(broker),
            Fault::Start(broker) => self.start_broker(broker),
        }
    }

    fn link_up(&mut self, link: usize) {
        let Link { ends, generation, .. } = self.links[link];
        if generation.is_some() || ends.iter().any(|&end| self.brokers[end].stp.is_none()) {
            return;
        }
        self.generations += 1;
        let generation = self.generations;
        self.links[link].generation = Some(generation);
        for end in [0, 1] {
            let at = self.now + self.link_delay();
            self.links[link].arrivals[end] = [at; LANES + 1];
            self.schedule(at, Event::LinkUp { link, generation, end });
        }
    }

    fn link_down(&mut self, link: usize) {
        if let Some(generation) = self.links[link].generation.take() {
            for end in [0, 1] {
                let at = self.now + self.up_to(self.pace.detection_max);
                self.schedule(at, Event::LinkDown { link, generation, end });
            }
        }
    }

    fn crash(&mut self, broker: usize) {
        for link in 0..self.links.len() {
            if self.links[link].ends.contains(&broker) {
                self.link_down(link);
            }
        }
        let down = &mut self.brokers[broker];
        down.stp = None;
        down.ports.clear();
        (down.child_port, down.tree, down.wake) = (None, None, None);
    }

    /// A new life, with nothing of the former.
    fn start_broker(&mut self, broker: usize) {
        let hop_max = self.hop_max;
        let starting = &mut self.brokers[broker];
        if starting.stp.is_some() {
            return;
        }
        starting.claim.incarnation.0 += 1;
        starting.stp = Some(Stp::new(StpConfig {
            claim: starting.claim,
            hop_max,
            hello: Duration::from_millis(10),
            epoch_interval: Duration::from_millis(50),
        }));
    }
}

fn cost(cost: u32) -> NonZeroU32 {
    NonZeroU32::new(cost).expect("costs are drawn from 1 on")
}
