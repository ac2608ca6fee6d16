//! A mesh without time: a few brokers that run the real [`Stp`], and what is on its way between them. Whoever runs it chooses what
//! happens next; what may happen at all is what [`Model::steps`] lists. It is cheap to clone, so that every choice can be tried, and every
//! [`Model::take`] asserts what must hold at every instant.
//!
//! A link carries a control stream and one lane each way, first in, first out and not in step with each other. Each broker has a clock of its
//! own that only its timeouts move, so that timers fire in any order whatever their lengths. A *forger* is a broker that says whatever
//! [`Model::forge`] is told to; what is asserted is asserted of the honest ones.

use std::cell::Cell;
use std::collections::VecDeque;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::num::NonZeroU32;
use std::ops::Deref;
use std::rc::Rc;
use std::time::{Duration, Instant};

use mqtt_st_quic::ids::{BrokerId, Incarnation, OpenMark, OpenNumber, PortId, RootClaim, TreeId};
use mqtt_st_quic::stp::{Bpdu, Input, Output, Stp, StpConfig};

const MS: Duration = Duration::from_millis(1);

/// Something that may happen next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// An end notices that its link is up, is down, or has been replaced.
    Notice { link: usize, end: usize },
    /// The next frame of a stream arrives at an end.
    Deliver { link: usize, end: usize, stream: Stream },
    /// An end's lane writers confirm their CLOSE.
    Confirm { link: usize, end: usize },
    /// A broker's time has come.
    Timeout { broker: usize },
    /// The link is cut, and what is on its way is lost.
    Cut { link: usize },
    /// The link is back, in a new generation.
    Heal { link: usize },
    /// The broker is gone, and so are its links.
    Crash { broker: usize },
    /// It begins a new life.
    Start { broker: usize },
    /// Both ends measure another cost.
    Cost { link: usize, cost: u32 },
}

impl Step {
    /// Whether it is the mesh's own doing, and not the world's.
    pub fn is_own(self) -> bool {
        matches!(self, Self::Notice { .. } | Self::Deliver { .. } | Self::Confirm { .. } | Self::Timeout { .. })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    Control,
    Lane,
}

/// What a forger says.
#[derive(Clone, Copy, Debug)]
pub enum Forgery {
    Bpdu(Bpdu),
    Open(OpenMark),
    Close(OpenNumber),
}

#[derive(Clone)]
pub struct Model {
    brokers: Vec<Rc<Kept<Broker>>>,
    links: Vec<Rc<Kept<Link>>>,
    hop_max: u8,
}

/// A part of the model that is shared by its clones until it changes, and hashed once.
#[derive(Clone)]
struct Kept<T> {
    value: T,
    hash: Cell<Option<u64>>,
}

fn kept<T>(value: T) -> Rc<Kept<T>> {
    Rc::new(Kept { value, hash: Cell::new(None) })
}

fn change<T: Clone>(kept: &mut Rc<Kept<T>>) -> &mut T {
    let kept = Rc::make_mut(kept);
    kept.hash.set(None);
    &mut kept.value
}

impl<T> Deref for Kept<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T: Hash> Hash for Kept<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let hash = self.hash.get().unwrap_or_else(|| {
            let mut hasher = DefaultHasher::new();
            self.value.hash(&mut hasher);
            hasher.finish()
        });
        self.hash.set(Some(hash));
        state.write_u64(hash);
    }
}

#[derive(Clone, Hash)]
struct Broker {
    claim: RootClaim,
    /// `None`: down, or a forger.
    stp: Option<Stp>,
    is_forger: bool,
    clock: Instant,
    tree: Option<TreeId>,
    /// The port on which this broker's lanes are open as a child, or not yet confirmed closed.
    child_port: Option<PortId>,
}

#[derive(Clone, Hash)]
struct Link {
    brokers: [usize; 2],
    cost: u32,
    generation: u64,
    is_up: bool,
    ends: [End; 2],
}

/// One end of a link: what it takes the link for, and what is on its way to it.
#[derive(Clone, Default, Hash)]
struct End {
    /// The generation that the broker believes in.
    believes: Option<u64>,
    control: VecDeque<Bpdu>,
    lane: VecDeque<Marker>,
    /// Our lanes are open with this number.
    open: Option<OpenNumber>,
    /// They were told to close, and have not confirmed it.
    closing: Option<OpenNumber>,
}

#[derive(Clone, Copy, Hash)]
enum Marker {
    Open(OpenMark),
    Close(OpenNumber),
}

/// What makes a broker.
#[derive(Clone, Copy, Debug)]
pub struct Seed {
    /// Lower is better.
    pub priority: u16,
    pub is_forger: bool,
}

impl Model {
    /// Brokers with the ids 1, 2, ...; links (one end, other end, cost) are up, and no end has noticed yet.
    #[expect(clippy::disallowed_methods, reason = "virtual time has to begin somewhere; no later reading is taken")]
    pub fn new(brokers: &[Seed], links: &[(usize, usize, u32)], hop_max: u8) -> Self {
        let clock = Instant::now();
        let broker = |(index, seed): (usize, &Seed)| {
            let id = BrokerId(index as u64 + 1);
            let claim = RootClaim { priority: seed.priority, capacity: 0, id, incarnation: Incarnation(0) };
            let is_forger = seed.is_forger;
            kept(Broker { claim, stp: None, is_forger, clock, tree: None, child_port: None })
        };
        let link = |&(a, b, cost): &(usize, usize, u32)| {
            kept(Link { brokers: [a, b], cost, generation: 1, is_up: true, ends: [End::default(), End::default()] })
        };
        let mut model =
            Self { brokers: brokers.iter().enumerate().map(broker).collect(), links: links.iter().map(link).collect(), hop_max };
        for (broker, seed) in brokers.iter().enumerate() {
            if !seed.is_forger {
                model.start(broker);
            }
        }
        model
    }

    /// All that decides what can still happen, with `more` of whoever runs it, as a number: two models that differ have the same one in 2^64.
    pub fn fingerprint(&self, more: impl Hash) -> u64 {
        let mut hasher = DefaultHasher::new();
        (&self.brokers, &self.links, more).hash(&mut hasher);
        hasher.finish()
    }

    /// What may happen next of the mesh's own doing, timeouts last; and whether anything but a timeout may. While something is on its way any
    /// timeout may come before it. When nothing is, only the earliest: a timer that others outrun for ever would leave the mesh at no rest.
    pub fn own_steps(&self, steps: &mut Vec<Step>) -> bool {
        for (index, link) in self.links.iter().enumerate() {
            for (end, side) in link.ends.iter().enumerate() {
                if self.brokers[link.brokers[end]].stp.is_none() {
                    continue;
                }
                let is_live = link.is_up && side.believes == Some(link.generation);
                if side.believes.is_some() != link.is_up || link.is_up && !is_live {
                    steps.push(Step::Notice { link: index, end });
                }
                for (stream, is_waiting) in [(Stream::Control, !side.control.is_empty()), (Stream::Lane, !side.lane.is_empty())] {
                    if is_live && is_waiting {
                        steps.push(Step::Deliver { link: index, end, stream });
                    }
                }
                if side.believes.is_some() && side.closing.is_some() {
                    steps.push(Step::Confirm { link: index, end });
                }
            }
        }
        let is_busy = !steps.is_empty();
        let due = |node: &Broker| node.stp.as_ref().and_then(Stp::poll_timeout);
        let due = self.brokers.iter().enumerate().filter_map(|(broker, node)| Some((due(node)?, broker)));
        if is_busy {
            steps.extend(due.map(|(_, broker)| Step::Timeout { broker }));
        } else {
            steps.extend(due.min().map(|(_, broker)| Step::Timeout { broker }));
        }
        is_busy
    }

    /// What the world may do next: cuts, heals, crashes, starts.
    pub fn faults(&self, steps: &mut Vec<Step>) {
        let is_alive = |broker: usize| self.brokers[broker].stp.is_some() || self.brokers[broker].is_forger;
        for (index, link) in self.links.iter().enumerate() {
            if link.is_up {
                steps.push(Step::Cut { link: index });
            } else if link.brokers.into_iter().all(is_alive) {
                steps.push(Step::Heal { link: index });
            }
        }
        for (broker, node) in self.brokers.iter().enumerate() {
            match node.stp {
                Some(_) => steps.push(Step::Crash { broker }),
                None if node.is_forger => {}
                None => steps.push(Step::Start { broker }),
            }
        }
    }

    /// Takes a step that was listed.
    pub fn take(&mut self, step: Step) {
        match step {
            Step::Notice { link, end } => self.notice(link, end),
            Step::Deliver { link, end, stream } => self.deliver(link, end, stream),
            Step::Confirm { link, end } => {
                let (broker, port) = self.port(link, end);
                let number = change(&mut self.links[link]).ends[end].closing.take().expect("was listed");
                if number.child == self.brokers[broker].claim.id {
                    self.release_child_port(broker, |child| child == port);
                }
                self.feed(broker, Input::LanesClosed { port, number });
            }
            Step::Timeout { broker } => {
                let node = change(&mut self.brokers[broker]);
                let due = node.stp.as_ref().and_then(Stp::poll_timeout).expect("was listed");
                node.clock = node.clock.max(due);
                self.feed(broker, Input::Timeout);
            }
            Step::Cut { link } => self.cut(link),
            Step::Heal { link } => {
                let link = change(&mut self.links[link]);
                link.generation += 1;
                link.is_up = true;
            }
            Step::Crash { broker } => self.crash(broker),
            Step::Start { broker } => self.start(broker),
            Step::Cost { link, cost } => {
                change(&mut self.links[link]).cost = cost;
                for end in [0, 1] {
                    if self.links[link].ends[end].believes.is_some() {
                        let (broker, port) = self.port(link, end);
                        self.feed(broker, Input::Cost { port, cost: nonzero(cost), rtt: MS });
                    }
                }
            }
        }
    }

    /// A forger at the other side says something to this end of the link; nothing if the end does not take the link for up.
    pub fn forge(&mut self, link: usize, end: usize, forgery: Forgery) {
        let Link { brokers, is_up, generation, ref ends, .. } = **self.links[link];
        if !self.brokers[brokers[1 - end]].is_forger || !is_up || ends[end].believes != Some(generation) {
            return;
        }
        let (broker, port) = self.port(link, end);
        self.feed(
            broker,
            match forgery {
                Forgery::Bpdu(bpdu) => Input::Bpdu { port, bpdu },
                Forgery::Open(open) => Input::OpenReceived { port, open },
                Forgery::Close(number) => Input::CloseReceived { port, number },
            },
        );
    }

    /// Time passes at one broker, and it is woken without need.
    pub fn wake(&mut self, broker: usize, later: Duration) {
        change(&mut self.brokers[broker]).clock += later;
        self.feed(broker, Input::Timeout);
    }

    /// The number with which the lanes of this end are open, to forge with.
    pub fn open_number(&self, link: usize, end: usize) -> Option<OpenNumber> {
        self.links[link].ends[end].open
    }

    /// The tree of a broker that is up.
    pub fn tree(&self, broker: usize) -> Option<TreeId> {
        self.brokers[broker].stp.as_ref().map(Stp::tree)
    }

    pub fn claim(&self, broker: usize) -> RootClaim {
        self.brokers[broker].claim
    }

    /// When nothing is on its way and nothing is due: of every connected part of the mesh, one tree, its best broker the root, everybody at
    /// the least cost, and both ends of each link agreed on what it is. Without forgers.
    pub fn assert_at_rest(&self) {
        let least = self.reference();
        for (broker, node) in self.brokers.iter().enumerate() {
            let (Some(stp), Some((root, distance))) = (&node.stp, least[broker]) else { continue };
            let root_tree = self.tree(root).expect("the root is up");
            assert_eq!((stp.tree(), stp.distance()), (root_tree, Some(distance)), "broker {broker}, reference root {root}");
            assert_eq!((stp.tree().root, stp.is_root()), (self.brokers[root].claim, broker == root), "broker {broker}");
        }
        for (index, link) in self.links.iter().enumerate() {
            let is_parent = [0, 1].map(|end| {
                let (broker, port) = self.port(index, end);
                link.is_up && self.brokers[broker].stp.as_ref().and_then(Stp::root_port) == Some(port)
            });
            assert_ne!(is_parent, [true, true], "link {index}: each hangs below the other");
            let open = [link.ends[0].open, link.ends[1].open];
            assert!(open[0] == open[1] && open[0].is_some() == is_parent.contains(&true), "link {index}: {open:?}");
        }
    }

    /// For each broker that is up: the best broker that it can reach, and the least cost of the way to it.
    fn reference(&self) -> Vec<Option<(usize, u32)>> {
        let claim = |broker: usize| self.brokers[broker].claim;
        let mut least: Vec<Option<(usize, u32)>> =
            self.brokers.iter().enumerate().map(|(broker, node)| node.stp.as_ref().map(|_| (broker, 0))).collect();
        for _ in 0..2 * self.brokers.len() {
            for link in self.links.iter().filter(|link| link.is_up) {
                for [from, to] in [link.brokers, [link.brokers[1], link.brokers[0]]] {
                    let (Some((root, distance)), Some((own_root, own))) = (least[from], least[to]) else { continue };
                    let way = (claim(root), std::cmp::Reverse(distance + link.cost));
                    if way > (claim(own_root), std::cmp::Reverse(own)) {
                        least[to] = Some((root, distance + link.cost));
                    }
                }
            }
        }
        least
    }

    /// The broker at this end, and what it calls the port.
    fn port(&self, link: usize, end: usize) -> (usize, PortId) {
        let Link { brokers, generation, ref ends, .. } = **self.links[link];
        let peer = self.brokers[brokers[1 - end]].claim.id;
        (brokers[end], PortId { peer, generation: port_generation(link, ends[end].believes.unwrap_or(generation)) })
    }

    fn notice(&mut self, link: usize, end: usize) {
        let (broker, former) = self.port(link, end);
        let Link { is_up, generation, cost, .. } = **self.links[link];
        let side = &mut change(&mut self.links[link]).ends[end];
        // What is already on its way belongs to the generation that is noticed now.
        (side.believes, side.open, side.closing) = (is_up.then_some(generation), None, None);
        self.release_child_port(broker, |child| child == former);
        if is_up {
            let (_, port) = self.port(link, end);
            self.feed(broker, Input::LinkUp { port, cost: nonzero(cost), rtt: MS });
        } else {
            self.feed(broker, Input::LinkDown { port: former });
        }
    }

    fn deliver(&mut self, link: usize, end: usize, stream: Stream) {
        let (broker, port) = self.port(link, end);
        let side = &mut change(&mut self.links[link]).ends[end];
        let input = match stream {
            Stream::Control => Input::Bpdu { port, bpdu: side.control.pop_front().expect("was listed") },
            Stream::Lane => match side.lane.pop_front().expect("was listed") {
                Marker::Open(open) => Input::OpenReceived { port, open },
                Marker::Close(number) => Input::CloseReceived { port, number },
            },
        };
        self.feed(broker, input);
    }

    fn cut(&mut self, link: usize) {
        let link = change(&mut self.links[link]);
        link.is_up = false;
        for end in &mut link.ends {
            end.control.clear();
            end.lane.clear();
        }
    }

    fn crash(&mut self, broker: usize) {
        for index in 0..self.links.len() {
            if let Some(end) = self.links[index].brokers.iter().position(|&end| end == broker) {
                self.cut(index);
                change(&mut self.links[index]).ends[end] = End::default();
            }
        }
        let node = change(&mut self.brokers[broker]);
        (node.stp, node.tree, node.child_port) = (None, None, None);
    }

    fn start(&mut self, broker: usize) {
        let hop_max = self.hop_max;
        let node = change(&mut self.brokers[broker]);
        node.claim.incarnation.0 += 1;
        node.stp = Some(Stp::new(StpConfig { claim: node.claim, hop_max, hello: 10 * MS, epoch_interval: 100 * MS }));
    }

    fn release_child_port(&mut self, broker: usize, matches: impl Fn(PortId) -> bool) {
        let node = change(&mut self.brokers[broker]);
        node.child_port = node.child_port.filter(|&port| !matches(port));
    }

    fn feed(&mut self, broker: usize, input: Input) {
        let mut outputs = Vec::new();
        let node = change(&mut self.brokers[broker]);
        let now = node.clock;
        let Some(stp) = &mut node.stp else { return };
        stp.handle(input, now, &mut outputs);
        assert!(stp.poll_timeout().is_none_or(|due| due > now), "broker {broker}: a timeout that is due was not served");
        for output in outputs {
            self.perform(broker, output);
        }
        self.assert_no_cycle(broker);
    }

    fn perform(&mut self, broker: usize, output: Output) {
        match output {
            Output::SendBpdu { port, bpdu } => self.send(broker, port, |far| far.control.push_back(bpdu)),
            Output::OpenLanes { port, open } => {
                let node = change(&mut self.brokers[broker]);
                let former = node.child_port.replace(port);
                assert!(former.is_none_or(|former| former == port), "broker {broker}: OPEN at {port:?}, {former:?} is not closed");
                let side = self.side(broker, port);
                assert!(
                    side.closing.is_none() && side.open.is_none_or(|number| number == open.number),
                    "broker {broker}: {port:?}"
                );
                side.open = Some(open.number);
                self.send(broker, port, |far| far.lane.push_back(Marker::Open(open)));
            }
            Output::AnswerOpen { port, open } => {
                let side = self.side(broker, port);
                assert!(side.closing.is_none() && side.open.is_none(), "broker {broker}: answer at {port:?}");
                side.open = Some(open.number);
                self.send(broker, port, |far| far.lane.push_back(Marker::Open(open)));
            }
            Output::CloseLanes { port, number } => {
                let side = self.side(broker, port);
                assert_eq!(side.open.take(), Some(number), "broker {broker}: CLOSE at {port:?}");
                side.closing = Some(number);
                self.send(broker, port, |far| far.lane.push_back(Marker::Close(number)));
            }
            Output::TreeChanged { tree, .. } => {
                let former = change(&mut self.brokers[broker]).tree.replace(tree);
                assert!(former.is_none_or(|former| former < tree), "broker {broker}: {former:?} did not grow to {tree:?}");
            }
            Output::PortState { .. } => {}
            Output::Refuse { port, error } => {
                let (link, end) = self.end_of(port, broker);
                let peer = self.links[link].brokers[1 - end];
                assert!(self.brokers[peer].is_forger, "broker {broker}: {port:?} is honest, but {error}");
            }
        }
    }

    fn send(&mut self, broker: usize, port: PortId, put: impl FnOnce(&mut End)) {
        let (index, end) = self.end_of(port, broker);
        let to = self.links[index].brokers[1 - end];
        let link = change(&mut self.links[index]);
        if link.is_up && port.generation == port_generation(index, link.generation) && !self.brokers[to].is_forger {
            put(&mut link.ends[1 - end]);
        }
    }

    fn side(&mut self, broker: usize, port: PortId) -> &mut End {
        let (link, end) = self.end_of(port, broker);
        &mut change(&mut self.links[link]).ends[end]
    }

    fn end_of(&self, port: PortId, broker: usize) -> (usize, usize) {
        let link = usize::try_from(port.generation >> 32).expect("few links");
        (link, usize::from(self.links[link].brokers[1] == broker))
    }

    /// The honest broker below which this one hangs, if the link is what the port takes it for.
    fn parent(&self, broker: usize) -> Option<usize> {
        let port = self.brokers[broker].stp.as_ref()?.root_port()?;
        let (index, end) = self.end_of(port, broker);
        let link = &self.links[index];
        (link.is_up && port.generation == port_generation(index, link.generation)).then_some(link.brokers[1 - end])
    }

    /// A cycle can only appear through the broker that changed last. And whoever has an agreement as a child has it with its parent.
    fn assert_no_cycle(&self, changed: usize) {
        let mut at = changed;
        for _ in 0..self.brokers.len() {
            let Some(parent) = self.parent(at) else { break };
            at = parent;
            assert_ne!(at, changed, "broker {changed} hangs below itself");
        }
        let node = &self.brokers[changed];
        let root_port = node.stp.as_ref().and_then(Stp::root_port);
        for link in self.links.iter().filter(|link| link.brokers.contains(&changed)) {
            let end = usize::from(link.brokers[1] == changed);
            let is_child = link.ends[end].open.is_some_and(|number| number.child == node.claim.id);
            let is_parent = root_port.is_some_and(|port| port.peer == self.brokers[link.brokers[1 - end]].claim.id);
            assert!(!is_child || is_parent, "broker {changed} is a child of what is not its parent");
        }
    }
}

/// Generations are counted a link, and no two links share one.
fn port_generation(link: usize, generation: u64) -> u64 {
    (link as u64) << 32 | generation
}

fn nonzero(cost: u32) -> NonZeroU32 {
    NonZeroU32::new(cost).expect("links cost something")
}
